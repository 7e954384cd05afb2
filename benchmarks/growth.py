"""Measure how time and memory per batch grow with the number of images, classes, negatives or views.

python benchmarks/growth.py --axis classes --method clip,dmn
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from timer import interleave
from workload import add_method, classifier_of, foggy_images, make_parser, print_table, timing_options, warm_up

from tta_panda import create_method, load_model
from tta_panda.evaluation.memory import peak_memory, reset_peak_memory

FROZEN = ("clip", "dmn", "tda", "tent")
VALUES = {
    "images": (1, 10, 50, 100, 200, 400),
    "classes": (10, 100, 1000, 3000, 10_000),
    "negatives": (5, 10, 20, 50, 100),
    "views": (2, 4, 8, 16, 32, 64),
}


def main() -> None:
    parser = make_parser(__doc__)
    add_method(parser, FROZEN)
    parser.add_argument("--axis", choices=VALUES, default="images", help="number to vary")
    parser.add_argument("--values", type=int, nargs="+", help="numbers to measure at")
    arguments = parser.parse_args()
    axis, values = arguments.axis, arguments.values or VALUES[arguments.axis]
    model = load_model(arguments.model, arguments.device)
    rows: list[dict[str, object]] = []
    for name in arguments.method.split(","):
        adapt, restore, memory = {}, {}, []
        for value in values:
            images = value if axis == "images" else arguments.batch_size
            classifier = classifier_of(model, value if axis == "classes" else arguments.classes)
            options: dict[str, Any] = {"ratio": value / images} if axis == "negatives" else {}
            options |= {"views": value} if axis == "views" else {}
            method = create_method(f"{name}+panda", classifier, **options)
            batch = foggy_images(images, model.image_size)
            restore[str(value)] = warm_up(method, batch)
            adapt[str(value)] = partial(method.adapt, batch)
            reset_peak_memory(model.device)
            earlier = peak_memory(model.device) or 0
            method.adapt(batch)
            memory.append(((peak_memory(model.device) or 0) - earlier) / 2**20)
        timings = interleave(adapt, before=restore, **timing_options(arguments) | {"rounds": arguments.rounds or 5})
        times = [timings.milliseconds(way) for way in adapt]
        rows += [
            {"method": f"{name}+panda", axis: value, "ms": taken, "added MiB": added}
            for value, taken, added in zip(values, times, memory, strict=True)
        ]
        rows.append({"method": f"{name}+panda", axis: "exponent", "ms": _exponent(values, times), "added MiB": ""})
    note = "The exponent is fitted to the upper half; 1 means that twice as many take twice as long."
    print_table(rows, f"{arguments.model}, {arguments.batch_size} images, {arguments.classes} classes. {note}")


def _exponent(values: Sequence[int], heights: list[float]) -> float:
    """Fit the slope on logarithmic axes over the upper half of the values."""
    upper = slice(len(values) // 2, None)
    return float(np.polyfit(np.log(values[upper]), np.log(heights[upper]), 1)[0]) if len(values) > 2 else float("nan")


if __name__ == "__main__":
    main()
