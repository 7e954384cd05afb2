"""How fast views are made: all at once, and one picture at a time with Pillow."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from tta_panda.errors import InvalidInputError
from tta_panda.views.apply import make_views
from tta_panda.views.plan import sample_view_plan
from tta_panda.views.reference import apply_view_plan_by_picture

_IMAGES, _ROUNDS = 8, 3


def measure_speed(
    views: int = 64,
    size: int = 224,
    augmentation: str = "augmix",
    *,
    seed: int = 0,
    advance: Callable[[float], None] = lambda _share: None,
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """A row for each way, and a summary of how much faster batches are, and by how much the results differ.

    Both ways make the same views of the same images, in turns; the best of three rounds counts. The time to draw random
    numbers is included for batches only.
    """
    if views < 2:
        raise InvalidInputError(f"Nothing to measure: {views} view(s), the image itself included; use 2 or more.")
    batch = _draw_images(size)
    plan = sample_view_plan(augmentation, batch.shape, views - 1, torch.Generator().manual_seed(seed))
    pictures = [Image.fromarray(image) for image in batch.mul(255).round_().byte().permute(0, 2, 3, 1).numpy()]

    def batched() -> Tensor:
        return make_views(batch, views, torch.Generator().manual_seed(seed), augmentation)

    def by_picture() -> Tensor:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # as in a worker of a DataLoader; for single images, more threads do not help
        try:
            made = [apply_view_plan_by_picture(picture, plan, index) for index, picture in enumerate(pictures)]
            return torch.cat([batch[:, None], torch.stack(made)], dim=1)
        finally:
            torch.set_num_threads(threads)

    ways: dict[str, Callable[[], Tensor]] = {"batched": batched, "Pillow": by_picture}
    make_views(batch[:1], views, torch.Generator().manual_seed(seed), augmentation)  # fills caches
    seconds, processor = dict.fromkeys(ways, math.inf), dict.fromkeys(ways, math.inf)
    results: dict[str, Tensor] = {}
    for _ in range(_ROUNDS):
        for name, way in ways.items():
            results.pop(name, None)  # frees memory
            start, processor_start = time.perf_counter(), time.process_time()
            results[name] = way()
            seconds[name] = min(seconds[name], time.perf_counter() - start)
            processor[name] = min(processor[name], time.process_time() - processor_start)
            advance(1 / _ROUNDS / len(ways))
    rows = [
        {
            "way": name,
            "images per second": _IMAGES / seconds[name],
            "views per second": _IMAGES * views / seconds[name],
            "ms per view": 1000 * seconds[name] / (_IMAGES * views),
            "processor ms": 1000 * processor[name] / (_IMAGES * views),  # of all threads, whatever else is running
        }
        for name in ways
    ]
    apart = (results["batched"] - results["Pillow"]).abs_().mul_(255)
    return rows, {
        "ratio": seconds["Pillow"] / seconds["batched"],
        "ratio of processor time": processor["Pillow"] / processor["batched"],
        "images": _IMAGES,
        "views": views,
        "size": size,
        "augmentation": augmentation,
        "threads": torch.get_num_threads(),
        "largest difference of 255": float(apart.max()),
        "share of values that differ": float((apart > 0.01).float().mean()),  # smaller differences are rounding
    }


def _draw_images(size: int) -> Tensor:
    """Soft shapes with some grain (B, 3, size, size), on the 8-bit grid."""
    generator = torch.Generator().manual_seed(0)
    coarse = torch.rand(_IMAGES, 3, 8, 8, generator=generator)
    shapes = F.interpolate(coarse, (size, size), mode="bicubic", align_corners=False)
    grain = torch.randn(_IMAGES, 3, size, size, generator=generator)
    return (shapes + 0.04 * grain).clamp_(0, 1).mul_(255).round_().div_(255)
