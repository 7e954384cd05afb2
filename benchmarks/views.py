"""Compare batched views with Pillow, one image at a time. Both give the same pixels.

python benchmarks/views.py --size 224
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import torch
from PIL import Image
from timer import interleave
from torch import Tensor
from workload import foggy_images, make_parser, print_table, timing_options

from tta_panda.views import AUGMENTATIONS, ViewPlan, apply_view_plan, sample_view_plan

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from reference.pillow_views import apply_view_plan_by_picture


def main() -> None:
    parser = make_parser(__doc__)
    parser.set_defaults(batch_size=2)
    parser.add_argument("--views", type=int, default=64, help="views per image, including the image itself")
    parser.add_argument("--size", type=int, default=224, help="side of the images in pixels")
    arguments = parser.parse_args()
    images = foggy_images(arguments.batch_size, arguments.size)
    rows = []
    for augmentation in AUGMENTATIONS:
        plan = sample_view_plan(augmentation, images.shape, arguments.views - 1, torch.Generator().manual_seed(0))
        batched, by_pillow = (
            partial(apply_view_plan, images.to(arguments.device), plan),
            partial(_by_pillow, images, plan),
        )
        timings = interleave({"batched": batched, "Pillow": by_pillow}, **timing_options(arguments))
        rows.append(
            {
                "views": augmentation,
                "ms per view": timings.milliseconds("batched") / len(images) / plan.count,
                "times as fast as Pillow": timings.ratio("Pillow", "batched"),
                "largest difference (of 255)": 255 * float((batched().cpu() - by_pillow()).abs().max()),
            }
        )
    print_table(rows, f"{arguments.views} views of {len(images)} images of {arguments.size} px.")


def _by_pillow(images: Tensor, plan: ViewPlan) -> Tensor:
    pictures = [Image.fromarray(image) for image in images.permute(0, 2, 3, 1).numpy()]
    return torch.stack([apply_view_plan_by_picture(each, plan, place) for place, each in enumerate(pictures)])


if __name__ == "__main__":
    main()
