"""CLIP's resizing and cropping of one picture, by Pillow: the pipeline that published numbers were made with."""

from __future__ import annotations

from PIL import Image

from tta_panda.framing import centre_offset, fitted_sides


def fit_picture(picture: Image.Image, size: int) -> Image.Image:
    """RGB, the shorter side resized bicubically to `size`, then the centre cropped to a square."""
    width, height = picture.size
    if min(width, height) != size:
        width, height = fitted_sides(width, height, size)
        picture = picture.resize((width, height), Image.Resampling.BICUBIC)
    left, top = centre_offset(width, size), centre_offset(height, size)
    if (width, height) != (size, size):
        picture = picture.crop((left, top, left + size, top + size))
    # open_clip converts last; for what is not RGB yet (palettes, grey) the order makes a difference.
    return picture.convert("RGB")
