"""Numbers printed in the paper: accuracies and seconds. None of them was computed by this package."""

from __future__ import annotations

import csv
import functools
import re
from importlib import resources

from tta_panda.reporting.cells import Cell

BACKBONES = {"cifar10-c": "ViT-B/32 on CIFAR-10-C", "cifar100-c": "ViT-B/32 on CIFAR-100-C"}
BACKBONES |= {"imagenet-c": "ViT-B/16 on ImageNet-C"}

MEAN = "mean"

METHODS = ("clip", "tent", "eta", "sar", "deyo", "tpt", "dmn", "zero", "tps", "bat")
"""The ten methods of the paper, a part of those that are registered."""

MAIN_ROWS = [f"{name}{suffix}" for name in METHODS for suffix in ("", "+panda")]
"""Names of the rows of the main table."""


def printed_accuracy(benchmark: str | None, method: str, corruption: str = MEAN) -> Cell | None:
    """Accuracy in percent with its s.d. over seeds; None if the paper does not have it.

    `deyo+offset` is DeYO with its negatives replaced by Panda's.

    Means over corruptions are those of the appendix; the s.d. of two of them (DMN and Zero on ImageNet-C) differs by
    0.1 in the main table.
    """
    return _accuracies().get((benchmark or "", method, corruption))


@functools.cache
def printed_seconds() -> dict[str, list[float]]:
    """Seconds without and with Panda and the overhead in percent, by method; ViT-B/32, CIFAR-10, V100."""
    return {row.pop("method"): [float(value) for value in row.values()] for row in read_csv("paper_seconds.csv")}


@functools.cache
def _accuracies() -> dict[tuple[str, str, str], Cell]:
    numbers = {}
    for row in read_csv("paper_numbers.csv"):
        key = row.pop("benchmark"), row.pop("method")
        for corruption, cell in row.items():
            found = re.fullmatch(r"([\d.]+) \(([\d.]+)\)", cell)
            assert found, cell
            numbers[*key, corruption] = Cell(float(found[1]), float(found[2]))
    return numbers


def read_csv(name: str) -> list[dict[str, str]]:
    """Read a table that is next to this module."""
    text = resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))
