"""How long the corruptions take: milliseconds per image on one core."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import cv2
import numpy as np

from tta_panda.data.corruptions import corrupt_batch
from tta_panda.data.glyphs.render import draw_symbol, to_uint8

_IMAGES = {32: 64, 224: 4}  # side in pixels, and number of images in a batch
_REPEATS = 3


def measure_speed(
    corruptions: Sequence[str],
    severity: int = 5,
    *,
    advance: Callable[[float], None] = lambda _share: None,
) -> list[dict[str, Any]]:
    """A row per corruption, and their sum: processor time per image, the least of three repeats."""
    rows = []
    threads = cv2.getNumThreads()
    cv2.setNumThreads(1)
    try:
        for name in corruptions:
            row: dict[str, Any] = {"corruption": name}
            for side, count in _IMAGES.items():
                row[f"{side} px: ms"] = _milliseconds(name, severity, side, count)
                advance(1 / len(corruptions) / len(_IMAGES))
            rows.append(row)
    finally:
        cv2.setNumThreads(threads)
    sums = {key: sum(row[key] for row in rows) for key in rows[0] if key != "corruption"}
    return [*rows, {"corruption": "all of these", **sums}]


def _milliseconds(name: str, severity: int, side: int, count: int) -> float:
    rng = np.random.default_rng(0)
    images = np.stack([to_uint8(draw_symbol("airplane", rng, side)) for _ in range(count)])
    corrupt_batch(images[:1], name, severity, seed=0)  # generates textures and fills caches
    taken = []
    for repeat in range(_REPEATS):
        start = time.process_time()
        corrupt_batch(images, name, severity, seed=repeat)
        taken.append(time.process_time() - start)
    return 1000 * min(taken) / count
