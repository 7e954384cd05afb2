"""How fast views are made: all at once, and picture by picture with Pillow."""

from __future__ import annotations

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


def measure_speed(
    images: int = 8,
    views: int = 64,
    size: int = 224,
    kind: str = "augmix",
    *,
    seed: int = 0,
    repeats: int = 3,
    advance: Callable[[float], None] = lambda _share: None,
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """A row per way, the best of some repeats taken in turns; and how much faster, and how far apart, the ways are.

    Both make the same views of the same images. Pillow's way gets its random numbers for free.
    """
    if images < 1 or views < 2 or repeats < 1:
        raise InvalidInputError(f"Nothing to measure: {images} image(s), {views} views, {repeats} repeats.")
    batch = _draw_images(images, size)
    plan = sample_view_plan(kind, images, views - 1, size, size, torch.Generator().manual_seed(seed))
    pixels = batch.mul(255).round_().to(torch.uint8).permute(0, 2, 3, 1).numpy()
    pictures = [Image.fromarray(image) for image in pixels]

    def batched() -> Tensor:
        return make_views(batch, views, torch.Generator().manual_seed(seed), kind)

    def by_picture() -> Tensor:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # as a worker of a DataLoader; for single images more of them only wait for each other
        try:
            made = [apply_view_plan_by_picture(picture, plan, index) for index, picture in enumerate(pictures)]
            return torch.cat([batch[:, None], torch.stack(made)], dim=1)
        finally:
            torch.set_num_threads(threads)

    ways: dict[str, Callable[[], Tensor]] = {"batched": batched, "Pillow": by_picture}
    make_views(batch[:1], views, torch.Generator().manual_seed(seed), kind)  # fills caches
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    processor: dict[str, list[float]] = {name: [] for name in ways}
    results: dict[str, Tensor] = {}
    for _ in range(repeats):
        for name, way in ways.items():
            results.pop(name, None)  # not two results of one way at a time
            start, processor_start = time.perf_counter(), time.process_time()
            results[name] = way()
            seconds[name].append(time.perf_counter() - start)
            processor[name].append(time.process_time() - processor_start)
            advance(1 / repeats / len(ways))
    best = {name: min(taken) for name, taken in seconds.items()}
    rows = [
        {
            "way": name,
            "images per second": images / best[name],
            "views per second": images * views / best[name],
            "ms per view": 1000 * best[name] / (images * views),
            "processor ms": 1000 * min(processor[name]) / (images * views),  # of all threads, whatever else is running
        }
        for name in ways
    ]
    apart = (results["batched"] - results["Pillow"]).abs_().mul_(255)
    return rows, {
        "ratio": best["Pillow"] / best["batched"],
        "ratio of processor time": min(processor["Pillow"]) / min(processor["batched"]),
        "images": images,
        "views": views,
        "size": size,
        "kind": kind,
        "threads": torch.get_num_threads(),
        "largest difference of 255": float(apart.max()),
        "share of values that differ": float((apart > 0.01).float().mean()),  # less is the rounding of floats
    }


def _draw_images(count: int, size: int) -> Tensor:
    """Soft shapes with some grain (B, 3, size, size), on the 8-bit grid."""
    generator = torch.Generator().manual_seed(0)
    coarse = torch.rand(count, 3, 8, 8, generator=generator)
    shapes = F.interpolate(coarse, (size, size), mode="bicubic", align_corners=False)
    grain = torch.randn(count, 3, size, size, generator=generator)
    return (shapes + 0.04 * grain).clamp_(0, 1).mul_(255).round_().div_(255)
