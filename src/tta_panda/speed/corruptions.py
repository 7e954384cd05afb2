"""How long corruptions take: processor time per image, at the sides of CIFAR and of ImageNet."""

from __future__ import annotations

from functools import partial

import cv2
import numpy as np

from tta_panda.data.corruptions import CORRUPTIONS, corrupt_batch
from tta_panda.data.glyphs.render import draw_symbol, to_uint8
from tta_panda.speed.measure import Advance, Report, Row, Settings, Spread, take_turns

_IMAGES = {32: 64, 224: 4}  # side in pixels, and number of images in a batch
_ROUNDS = 3
_SEVERITY = 5


def measure_corruptions(settings: Settings, advance: Advance) -> Report:
    """A row per corruption, and their sum, in milliseconds per image on one core."""
    rng = np.random.default_rng(0)
    batches = {
        side: np.stack([to_uint8(draw_symbol("airplane", rng, side)) for _ in range(count)])
        for side, count in _IMAGES.items()
    }
    ways = {
        f"{name} {side}": partial(corrupt_batch, images, name, _SEVERITY, seed=0)
        for name in CORRUPTIONS
        for side, images in batches.items()
    }
    threads = cv2.getNumThreads()
    cv2.setNumThreads(1)
    try:
        timings = take_turns(ways, settings.rounds or _ROUNDS, advance)
    finally:
        cv2.setNumThreads(threads)
    rows: list[Row] = []
    for name in CORRUPTIONS:
        row: Row = {"corruption": name}
        for side, count in _IMAGES.items():
            taken = Spread.of(timings.processor[f"{name} {side}"])
            row[f"{side} px: ms"], row[f"± {side}"] = (1000 * value / count for value in taken)
        rows.append(row)
    sums = {key: sum(row[key] for row in rows) for key in rows[0] if key != "corruption"}
    return Report([*rows, {"corruption": "all", **sums}], [f"Severity {_SEVERITY}, on one core."])
