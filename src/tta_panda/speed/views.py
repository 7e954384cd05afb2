"""How fast views are made: by default, equal to Pillow's, and with Pillow itself, one picture at a time."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from tta_panda.errors import InvalidInputError
from tta_panda.speed.measure import Advance, Report, Row, Settings, take_turns
from tta_panda.views import AUGMENTATIONS, apply_view_plan, sample_view_plan
from tta_panda.views.plan import ViewPlan
from tta_panda.views.reference import apply_view_plan_by_picture

_IMAGES, _ROUNDS = 2, 15  # of 64 views: as many as methods make and encode at a time


def measure_views(settings: Settings, advance: Advance) -> Report:
    """A row for each augmentation and way: milliseconds per view, and how speed and results differ from Pillow's."""
    if settings.views < 2:
        raise InvalidInputError(
            f"Nothing to measure: {settings.views} view(s), the image itself included; use 2 or more."
        )
    batch = _draw_images(settings.image_size)
    pictures = [Image.fromarray(image) for image in batch.permute(0, 2, 3, 1).numpy()]
    rows: list[Row] = []
    for augmentation in AUGMENTATIONS:
        plan = sample_view_plan(augmentation, batch.shape, settings.views - 1, torch.Generator().manual_seed(0))
        ways = {
            "default": partial(apply_view_plan, batch, plan),
            "exact": partial(apply_view_plan, batch, plan, exact=True),
            "Pillow": partial(_by_picture, pictures, plan),
        }
        timings = take_turns(ways, settings.rounds or _ROUNDS, lambda share: advance(share / len(AUGMENTATIONS)))
        for way, make in ways.items():
            apart = (make() - ways["Pillow"]()).abs_().mul_(255)
            times_as_fast = timings.ratio("Pillow", way)
            rows.append(
                {
                    "views": f"{augmentation}, {way}",
                    "ms": 1000 * timings.of(way).median / (_IMAGES * plan.count),
                    "times as fast": times_as_fast.median,
                    "±": times_as_fast.margin,
                    "by processor time": timings.processor_ratio("Pillow", way).median,
                    "most apart (of 255)": float(apart.max()),
                    "mean": float(apart.mean()),
                    "apart (%)": 100 * float((apart > 0.01).float().mean()),  # smaller differences are rounding
                }
            )
    note = (
        f"{settings.views} views of {_IMAGES} images of {settings.image_size} px, {torch.get_num_threads()} thread(s)."
    )
    return Report(rows, [note])


def _by_picture(pictures: list[Image.Image], plan: ViewPlan) -> Tensor:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in a worker of a DataLoader; for single images, more threads do not help
    try:
        return torch.stack([apply_view_plan_by_picture(each, plan, place) for place, each in enumerate(pictures)])
    finally:
        torch.set_num_threads(threads)


def _draw_images(size: int) -> Tensor:
    """Soft shapes with some grain (B, 3, size, size), uint8."""
    generator = torch.Generator().manual_seed(0)
    coarse = torch.rand(_IMAGES, 3, 8, 8, generator=generator)
    shapes = F.interpolate(coarse, (size, size), mode="bicubic", align_corners=False)
    grain = torch.randn(_IMAGES, 3, size, size, generator=generator)
    return (shapes + 0.04 * grain).clamp_(0, 1).mul_(255).round_().byte()
