"""Draw the contact sheets of corruptions in the documentation, from generated pictures."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from tta_panda.data.corruptions import CORRUPTIONS, corrupt
from tta_panda.data.glyphs import draw_background, place_symbol, to_uint8

# name, scale and offset of the centre from that of the picture, as fractions of its side
SCENE = (
    ("umbrella", 0.55, (-0.2, -0.12)),
    ("snowman", 0.45, (0.24, 0.22)),
    ("airplane", 0.32, (0.27, -0.3)),
    ("anchor", 0.28, (-0.3, 0.32)),
    ("snowflake", 0.16, (0.02, -0.4)),
)

SEVERITIES = (1, 2, 3, 4, 5)
SMALLEST_TILE = 96  # smaller images are enlarged, without smoothing
GAP, LEFT, TOP = 4, 130, 26
PAPER, INK = (255, 255, 255), (30, 30, 30)


def draw_sheet(image: NDArray[np.uint8]) -> Image.Image:
    """Draw an image next to its corrupted versions."""
    height, width = image.shape[:2]
    zoom = max(1, -(-SMALLEST_TILE // min(height, width)))
    step_x, step_y = zoom * width + GAP, zoom * height + GAP
    size = (LEFT + step_x * (1 + len(SEVERITIES)), TOP + step_y * len(CORRUPTIONS))
    sheet = Image.new("RGB", size, PAPER)
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(14)
    for column, title in enumerate(("clean", *(f"severity {severity}" for severity in SEVERITIES))):
        pen.text((LEFT + column * step_x, 6), title, INK, font)
    for row, name in enumerate(CORRUPTIONS):
        top = TOP + row * step_y
        pen.text((6, top + step_y // 2 - 9), name.replace("_", " "), INK, font)
        for column, tile in enumerate([image, *(corrupt(image, name, severity) for severity in SEVERITIES)]):
            enlarged = Image.fromarray(tile).resize((zoom * width, zoom * height), Image.Resampling.NEAREST)
            sheet.paste(enlarged, (LEFT + column * step_x, top))
    return sheet


def draw_scene(size: int, seed: int) -> NDArray[np.uint8]:
    """Draw a few things in front of a cloudy background with some texture."""
    rng = np.random.default_rng(seed)
    canvas = draw_background(rng, size, kind="cloudy")
    canvas = 0.5 * canvas + 0.2 * draw_background(rng, size, kind="striped")  # dim, so that snow and light are visible
    for name, scale, centre in SCENE:
        place_symbol(canvas, name, rng, scale, np.array(centre))
    return to_uint8(np.clip(canvas, 0, 1).astype(np.float32))


def draw_single(size: int, seed: int) -> NDArray[np.uint8]:
    rng = np.random.default_rng(seed)
    canvas = draw_background(rng, size, kind="cloudy")
    place_symbol(canvas, "airplane", rng, 0.9, np.zeros(2))
    return to_uint8(canvas)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("docs/images"), help="output folder")
    folder: Path = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    draw_sheet(draw_single(32, seed=24)).save(folder / "corruptions-32.png", optimize=True)
    # Noise makes a large PNG, so this one is a JPEG of high quality.
    draw_sheet(draw_scene(224, seed=15)).save(folder / "corruptions-224.jpg", quality=80)


if __name__ == "__main__":
    main()
