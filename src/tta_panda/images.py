"""Decode one picture, and resize and crop it for a model. `models/prepare.py` converts pictures to tensors.

The format is detected from the content, not from the suffix. Only the first frame of an animation is read, grey values
of more than 8 bits are scaled to 8 bits, transparent pixels are put on white, and pictures are rotated as their EXIF
orientation requires. Any failure raises a `BrokenImageError`.
"""

from __future__ import annotations

import contextlib
import io
import os
from abc import abstractmethod
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

# Pillow reads more formats, but calls other programs for some of them.
_FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
_FILTERS = {"bicubic": Image.Resampling.BICUBIC, "bilinear": Image.Resampling.BILINEAR}
_MIN_OVERSAMPLING = 4  # a JPEG is decoded in reduced size if each side still has this many times the wanted pixels
_MAX_ASPECT = 50  # longer pictures are cropped before resizing, which would take gigabytes; only the centre is used


class Framing(NamedTuple):
    """How images of any size are resized and cropped to the square input of a model.

    CLIP resizes the shorter side to `size` and crops the centre. Other models resize to a slightly larger size before
    the crop (`shorter`), or straight to the square, ignoring the aspect ratio (`squash`).
    """

    size: int
    shorter: int | None = None  # side in pixels before the crop; None: `size`
    squash: bool = False
    interpolation: Interpolation = "bicubic"

    def resized(self, width: int, height: int) -> tuple[int, int]:
        """Return width and height before the crop; images of the model's input size are not resized."""
        if self.squash or (width, height) == (self.size, self.size):
            return self.size, self.size
        # The longer side is rounded down, as torchvision does.
        shorter, short = self.shorter or self.size, min(width, height)
        return shorter * width // short, shorter * height // short


def as_framing(fit: int | Framing) -> Framing:
    """Return the framing itself, or CLIP's framing for a number of pixels."""
    return fit if isinstance(fit, Framing) else Framing(fit)


def centre_offset(side: int, size: int) -> int:
    """Return where a centred crop starts; halves are rounded to even numbers, as in torchvision."""
    return round((side - size) / 2)


@dataclass(frozen=True)
class Decoding:
    """How pictures are decoded.

    Args:
        upright: rotate pictures as their EXIF orientation requires. (Pillow always rotates TIFF files.)
        max_pixels: files that declare more pixels are rejected before memory is allocated. The default is Pillow's own
            limit; a higher value raises Pillow's limit for the whole process.
        reduced: decode JPEG files at a half, a quarter or an eighth of their size if `fit` reduces them much further.
    """

    upright: bool = True
    max_pixels: int = 89_478_485
    reduced: bool = True


AS_SHOWN = Decoding()
"""Pixels as an image viewer shows them."""
AS_PUBLISHED = Decoding(upright=False, reduced=False)
"""Pixels as stored, which published results are based on."""


class StoredImage(os.PathLike[str]):
    """An image inside another file, such as an archive. Its path is that of the file with a name below it."""

    __slots__ = ()

    file: Path
    """The file that contains the image."""

    @abstractmethod
    def read(self) -> bytes:
        """Return the encoded image."""


def read_image(
    source: Path | StoredImage | Image.Image, fit: int | Framing | None = None, decoding: Decoding = AS_SHOWN
) -> NDArray[np.uint8]:
    """Decode a picture as (H, W, 3), resized and cropped if `fit` is given, or raise a `BrokenImageError`."""
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
                with contextlib.suppress(Exception):  # the pixels are usable even if the EXIF data are damaged
                    ImageOps.exif_transpose(picture, in_place=True)
            picture = _in_bytes(picture)
            return np.asarray(_as_rgb(picture) if fit is None else fit_picture(picture, fit))
    except Exception as error:  # Pillow reports broken files by exceptions of every kind
        raise BrokenImageError(_name(source), _reason(error, source, decoding)) from error


def fit_picture(picture: Image.Image, fit: int | Framing) -> Image.Image:
    """Resize and crop with Pillow, as for published results, and convert to RGB; a number means CLIP's framing."""
    framing = as_framing(fit)
    if not framing.squash:
        picture = _centre_crop(picture, *(min(side, _MAX_ASPECT * min(picture.size)) for side in picture.size))
    resized = framing.resized(*picture.size)
    if resized != picture.size:
        picture = picture.resize(resized, _FILTERS[framing.interpolation])
    # open_clip converts to RGB last; for palette and grey images, the order makes a difference.
    return _as_rgb(_centre_crop(picture, framing.size, framing.size))


def _centre_crop(picture: Image.Image, width: int, height: int) -> Image.Image:
    if picture.size == (width, height):
        return picture
    left, top = centre_offset(picture.width, width), centre_offset(picture.height, height)
    return picture.crop((left, top, left + width, top + height))


@contextlib.contextmanager
def _opened(source: Path | StoredImage | Image.Image) -> Iterator[Image.Image]:
    """Open a file, or copy the caller's picture, so that the result may be changed in place."""
    if isinstance(source, Image.Image):
        yield source.copy()
        return
    content = io.BytesIO(source.read()) if isinstance(source, StoredImage) else open_regular(source)
    with content as file, Image.open(file, formats=_FORMATS) as picture:
        yield picture


def _draft_size(picture: Image.Image, fit: int | Framing) -> tuple[int, int]:
    """Return the size to decode at. Only exact fractions of the sides are used; a remainder would shift the picture."""
    wanted = as_framing(fit).resized(*picture.size)
    for scale in (8, 4, 2):  # the scales that JPEG supports
        if all(
            side % scale == 0 and side >= _MIN_OVERSAMPLING * scale * new_side
            for side, new_side in zip(picture.size, wanted, strict=True)
        ):
            return picture.width // scale, picture.height // scale
    return picture.size


def _in_bytes(picture: Image.Image) -> Image.Image:
    """Scale grey values of more than 8 bits to 8 bits: from 0 to 65,535, floats from 0 to 1, else from min to max."""
    if picture.mode != "F" and not picture.mode.startswith("I"):
        return picture
    values = np.nan_to_num(np.asarray(picture).astype(np.float32), posinf=0, neginf=0).clip(-1e30, 1e30)
    black, white = 0.0, 1.0 if picture.mode == "F" else 65535.0
    least, greatest = float(values.min()), float(values.max())
    if least < black or greatest > white:
        black, white = least, max(greatest, least + 1)
    return Image.fromarray(np.rint((values - black) * (255 / (white - black))).astype(np.uint8))


def _as_rgb(picture: Image.Image) -> Image.Image:
    """Convert to RGB, with transparent pixels on white, as browsers show them."""
    if not picture.has_transparency_data:
        return picture.convert("RGB")
    layer, canvas = picture.convert("RGBA"), Image.new("RGB", picture.size, "white")
    canvas.paste(layer, mask=layer)
    return canvas


def _name(source: Path | StoredImage | Image.Image) -> str:
    return repr(source) if isinstance(source, Image.Image) else path_text(source)


def _reason(error: Exception, source: Path | StoredImage | Image.Image, decoding: Decoding) -> str:
    if isinstance(error, Image.DecompressionBombError | Image.DecompressionBombWarning):
        return f"declares more than {decoding.max_pixels:,} pixels"
    if isinstance(error, UnidentifiedImageError):
        empty = isinstance(source, Path) and not source.stat().st_size
        return "empty file" if empty else f"not a picture that can be read: expected {', '.join(_FORMATS)}"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
