"""A model's resizing and cropping of one picture, by Pillow: the pipeline that published numbers were made with."""

from __future__ import annotations

from PIL import Image

from tta_panda.framing import Framing, as_framing, centre_offset

_FILTERS = {"bicubic": Image.Resampling.BICUBIC, "bilinear": Image.Resampling.BILINEAR}


def fit_picture(picture: Image.Image, fit: int | Framing) -> Image.Image:
    """RGB, resized and cropped as the model's framing says; a number means CLIP's framing of that many pixels."""
    framing = as_framing(fit)
    size, resized = framing.size, framing.resized(*picture.size)
    if resized != picture.size:
        picture = picture.resize(resized, _FILTERS[framing.interpolation])
    if resized != (size, size):
        left, top = (centre_offset(side, size) for side in resized)
        picture = picture.crop((left, top, left + size, top + size))
    # open_clip converts last; for what is not RGB yet (palettes, grey) the order makes a difference.
    return picture.convert("RGB")
