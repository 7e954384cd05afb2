"""Decode one picture, and frame it for a model. `models/prepare.py` makes tensors of pictures.

The content decides what a file is, not its suffix. Animations give their first frame, grey values of more than 8 bits
are scaled to bytes, transparent pixels lie on white, and pictures are turned upright as their EXIF block says. Whatever
is wrong with a file is a `BrokenImageError`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from tta_panda.errors import BrokenImageError
from tta_panda.escapes import path_text
from tta_panda.files import open_regular

Interpolation = Literal["bicubic", "bilinear"]

# Pillow reads more formats, some by calling other programs.
_FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
_FILTERS = {"bicubic": Image.Resampling.BICUBIC, "bilinear": Image.Resampling.BILINEAR}
_SPARE = 4  # a JPEG is decoded in reduced size if it still has this many times the wanted pixels a side
_LONGEST = 50  # times the shorter side: only the centre is used, and resizing all of a longer picture takes gigabytes


class Framing(NamedTuple):
    """How an image of any size becomes the square input of a model.

    CLIP resizes the shorter side to `size` and crops the centre. Other models resize to a little more before they crop
    (`shorter`), or straight to the square, whatever the proportions (`squash`).
    """

    size: int
    shorter: int | None = None  # side in pixels before the crop; None: `size`
    squash: bool = False
    interpolation: Interpolation = "bicubic"

    def resized(self, width: int, height: int) -> tuple[int, int]:
        """Width and height before the crop; images that have the model's size already are not resized."""
        if self.squash or (width, height) == (self.size, self.size):
            return self.size, self.size
        # The longer side is rounded down, as torchvision does.
        shorter, short = self.shorter or self.size, min(width, height)
        return shorter * width // short, shorter * height // short


def as_framing(fit: int | Framing) -> Framing:
    """CLIP's framing for a plain number of pixels."""
    return fit if isinstance(fit, Framing) else Framing(fit)


def centre_offset(side: int, size: int) -> int:
    """Where a centred crop begins; halves are rounded to even numbers, as torchvision does."""
    return round((side - size) / 2)


@dataclass(frozen=True)
class Decoding:
    """How pictures are decoded.

    Args:
        upright: turn pictures as their EXIF orientation says. (Pillow turns TIFF files in any case.)
        max_pixels: files that declare more are broken, and no memory is allocated for them. The default is Pillow's own
            limit; a higher one raises Pillow's, for the whole process.
        reduced: decode JPEG files in a half, a quarter or an eighth of their size where `fit` leaves far less.
    """

    upright: bool = True
    max_pixels: int = 89_478_485
    reduced: bool = True


AS_SHOWN = Decoding()
"""Pixels as people see them."""
AS_PUBLISHED = Decoding(upright=False, reduced=False)
"""Pixels as published results have them: as stored."""


def read_image(
    source: Path | Image.Image, fit: int | Framing | None = None, decoding: Decoding = AS_SHOWN
) -> NDArray[np.uint8]:
    """One picture (H, W, 3); with `fit`, resized and cropped. It is a `BrokenImageError` if it cannot be decoded."""
    try:
        if Image.MAX_IMAGE_PIXELS is not None:
            Image.MAX_IMAGE_PIXELS = max(Image.MAX_IMAGE_PIXELS, decoding.max_pixels)
        with _opened(source) as picture:
            if picture.width * picture.height > decoding.max_pixels:
                raise Image.DecompressionBombError
            if decoding.reduced and fit is not None:
                picture.draft(None, _draft_size(picture, fit))
            picture.load()
            if decoding.upright:
                with contextlib.suppress(Exception):  # the pixels are fine, even if the EXIF block is damaged
                    ImageOps.exif_transpose(picture, in_place=True)
            picture = _in_bytes(picture)
            return np.asarray(_as_rgb(picture) if fit is None else fit_picture(picture, fit))
    except Exception as error:  # Pillow reports broken files by exceptions of every kind
        raise BrokenImageError(_name(source), _reason(error, source, decoding)) from error


def fit_picture(picture: Image.Image, fit: int | Framing) -> Image.Image:
    """RGB, resized and cropped by Pillow, as published results were: with a model's framing, or CLIP's for a number."""
    framing = as_framing(fit)
    if not framing.squash:
        picture = _centre(picture, *(min(side, _LONGEST * min(picture.size)) for side in picture.size))
    resized = framing.resized(*picture.size)
    if resized != picture.size:
        picture = picture.resize(resized, _FILTERS[framing.interpolation])
    # open_clip converts last; for palette and grey images, the order makes a difference.
    return _as_rgb(_centre(picture, framing.size, framing.size))


def _centre(picture: Image.Image, width: int, height: int) -> Image.Image:
    if picture.size == (width, height):
        return picture
    left, top = centre_offset(picture.width, width), centre_offset(picture.height, height)
    return picture.crop((left, top, left + width, top + height))


@contextlib.contextmanager
def _opened(source: Path | Image.Image) -> Iterator[Image.Image]:
    """What may be changed: a file, or a copy of the caller's picture."""
    if isinstance(source, Image.Image):
        yield source.copy()
        return
    with open_regular(source) as file, Image.open(file, formats=_FORMATS) as picture:
        yield picture


def _draft_size(picture: Image.Image, fit: int | Framing) -> tuple[int, int]:
    """The size to decode in: a fraction of the sides without remainder, which would shift the picture."""
    wanted = as_framing(fit).resized(*picture.size)
    for scale in (8, 4, 2):  # what JPEG can
        if all(
            side % scale == 0 and side >= _SPARE * scale * enough
            for side, enough in zip(picture.size, wanted, strict=True)
        ):
            return picture.width // scale, picture.height // scale
    return picture.size


def _in_bytes(picture: Image.Image) -> Image.Image:
    """Grey values of more than 8 bits as bytes: from 0 to 65,535, floats from 0 to 1, others from least to greatest."""
    if picture.mode != "F" and not picture.mode.startswith("I"):
        return picture
    values = np.nan_to_num(np.asarray(picture).astype(np.float32), posinf=0, neginf=0).clip(-1e30, 1e30)
    black, white = 0.0, 1.0 if picture.mode == "F" else 65535.0
    least, greatest = float(values.min()), float(values.max())
    if least < black or greatest > white:
        black, white = least, max(greatest, least + 1)
    return Image.fromarray(np.rint((values - black) * (255 / (white - black))).astype(np.uint8))


def _as_rgb(picture: Image.Image) -> Image.Image:
    """RGB; what is transparent lies on white, as browsers show it."""
    if not picture.has_transparency_data:
        return picture.convert("RGB")
    layer, canvas = picture.convert("RGBA"), Image.new("RGB", picture.size, "white")
    canvas.paste(layer, mask=layer)
    return canvas


def _name(source: Path | Image.Image) -> str:
    return path_text(source) if isinstance(source, Path) else repr(source)


def _reason(error: Exception, source: Path | Image.Image, decoding: Decoding) -> str:
    if isinstance(error, Image.DecompressionBombError | Image.DecompressionBombWarning):
        return f"declares more than {decoding.max_pixels:,} pixels"
    if isinstance(error, UnidentifiedImageError):
        empty = isinstance(source, Path) and not source.stat().st_size
        return "empty file" if empty else f"not a picture that can be read: expected {', '.join(_FORMATS)}"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
