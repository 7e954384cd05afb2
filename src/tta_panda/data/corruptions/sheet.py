"""A contact sheet: one image under every corruption (rows) at every severity (columns)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from tta_panda.data.corruptions import corrupt, image_rng
from tta_panda.data.corruptions.frost import load_frost_textures
from tta_panda.errors import DataError
from tta_panda.images import fit_picture, read_image

_LARGEST = 224  # side of the images that ImageNet-C corrupts
_SMALLEST_TILE = 96
_GAP, _LEFT, _TOP = 4, 130, 26
_PAPER, _INK = (255, 255, 255), (30, 30, 30)


def draw_sheet(
    image: NDArray[np.uint8],
    corruptions: Sequence[str],
    severities: Sequence[int] = (1, 2, 3, 4, 5),
    *,
    seed: int = 0,
    parameters: str | None = None,
    frost: Path | None = None,
) -> Image.Image:
    """The image (H, W, 3) beside its corrupted versions; small images are enlarged without smoothing."""
    how: dict[str, Any] = {"parameters": parameters, "frost_textures": load_frost_textures(frost) if frost else None}
    height, width = image.shape[:2]
    zoom = max(1, -(-_SMALLEST_TILE // min(height, width)))
    step_x, step_y = zoom * width + _GAP, zoom * height + _GAP
    size = (_LEFT + step_x * (1 + len(severities)), _TOP + step_y * len(corruptions))
    sheet = Image.new("RGB", size, _PAPER)
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(14)
    for column, title in enumerate(("clean", *(f"severity {severity}" for severity in severities))):
        pen.text((_LEFT + column * step_x, 6), title, _INK, font)
    for row, name in enumerate(corruptions):
        top = _TOP + row * step_y
        pen.text((6, top + step_y // 2 - 9), name.replace("_", " "), _INK, font)
        made = [corrupt(image, name, level, rng=image_rng(seed, name, level, 0), **how) for level in severities]
        for column, tile in enumerate([image, *made]):
            enlarged = Image.fromarray(tile).resize((zoom * width, zoom * height), Image.Resampling.NEAREST)
            sheet.paste(enlarged, (_LEFT + column * step_x, top))
    return sheet


def read_for_sheet(path: Path) -> NDArray[np.uint8]:
    """Read an image; a large one is resized and cropped to 224 px, for which the strengths of ImageNet-C are meant."""
    if not path.is_file():
        raise DataError(f"There is no image {path}. Expected: tta-panda corrupt --sheet sheet.png IMAGE")
    image = read_image(path)
    return image if min(image.shape[:2]) <= _LARGEST else np.asarray(fit_picture(Image.fromarray(image), _LARGEST))
