"""Measure what Panda adds to the time of each method, with 95 % margins, in one table per model.

python benchmarks/panda.py --model mini,ViT-B-32:random --method clip,tent
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

from timer import interleave
from torch import Tensor
from workload import measure_methods, timing_options, warm_up

from tta_panda import create_method
from tta_panda.models import Classifier

REFRESH_EVERY = 10
PANDA: dict[str, dict[str, Any]] = {
    "fixed beta": {"beta": 0.5},  # as in the paper; any number costs the same
    "auto": {},
    "between": {"refresh_every": REFRESH_EVERY},  # a batch between two refreshes draws no negatives
}


def main() -> None:
    measure_methods(__doc__, "with Panda: ratio to the plain method", measure)


def measure(name: str, classifier: Classifier, images: Tensor, arguments: argparse.Namespace) -> dict[str, object]:
    """Measure one row: the plain method in milliseconds, and the ratios with Panda."""
    methods = {"plain": create_method(name, classifier)}
    methods |= {kind: create_method(f"{name}+panda", classifier, **options) for kind, options in PANDA.items()}
    restore = {kind: warm_up(method, images) for kind, method in methods.items()}
    adapt = {kind: partial(method.adapt, images) for kind, method in methods.items()}
    timings = interleave(adapt, before=restore, **timing_options(arguments))
    share = 1 / REFRESH_EVERY
    refreshed = zip(timings["auto"], timings["between"], strict=True)
    timings["refreshed"] = [share * drawn + (1 - share) * between for drawn, between in refreshed]
    return {
        "method": name,
        "ms": timings.milliseconds("plain"),
        "rounds": len(timings["plain"]),
        "fixed beta": timings.ratio("fixed beta", "plain"),
        "beta auto": timings.ratio("auto", "plain"),
        f"refresh_every={REFRESH_EVERY}": timings.ratio("refreshed", "plain"),
    }


if __name__ == "__main__":
    main()
