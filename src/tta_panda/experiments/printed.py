"""Accuracies and seconds printed in publications, those of the paper among them. This package computed none of them."""

from __future__ import annotations

import csv
import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

from tta_panda.methods import METHODS as REGISTERED
from tta_panda.reporting.cells import ACCURACY, Cell
from tta_panda.reporting.tables import Column, Row, Table

BACKBONES = {"cifar10-c": "ViT-B/32 on CIFAR-10-C", "cifar100-c": "ViT-B/32 on CIFAR-100-C"}
BACKBONES |= {"imagenet-c": "ViT-B/16 on ImageNet-C"}

MEAN = "mean"

METHODS = ("clip", "tent", "eta", "sar", "deyo", "tpt", "dmn", "zero", "tps", "bat")
"""The ten methods of the paper, a part of those that are registered."""

MAIN_ROWS = [f"{name}{suffix}" for name in METHODS for suffix in ("", "+panda")]
"""Names of the rows of the main table."""

NOT_PRINTED = Cell(why_empty="not printed")


@dataclass(frozen=True)
class Publication:
    """A published comparison: its protocol, and its accuracies in percent, which `printed.csv` lists under its name."""

    name: str
    title: str
    protocol: str
    streams: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Batch size and number of images by data set."""
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Options by method that differ from those of the presets."""
    templates: str = "photo"

    @functools.cached_property
    def numbers(self) -> dict[tuple[str, str, str], dict[str, Cell]]:
        """Accuracies by data set, architecture and method: those on each corruption, if printed, and their mean."""
        rows = [row for row in _read_csv("printed.csv") if row.pop("publication") == self.name]
        return {
            (row.pop("data"), row.pop("model"), row.pop("method")): {
                corruption: _parse_cell(text) for corruption, text in row.items() if text
            }
            for row in rows
        }

    @property
    def methods(self) -> list[str]:
        """Its methods that are registered."""
        return [name for name in dict.fromkeys(method for _, _, method in self.numbers) if name in REGISTERED]

    def table(self, rows: Mapping[str, str] | None = None) -> Table:
        """Table of its means; `rows` maps labels to methods, by default all."""
        settings = dict.fromkeys((data, model) for data, model, _ in self.numbers)
        rows = rows or {method: method for _, _, method in self.numbers}
        cells = {
            label: [self.numbers.get((*setting, method), {}).get(MEAN, NOT_PRINTED) for setting in settings]
            for label, method in rows.items()
        }
        columns = [Column.of(ACCURACY, f"{data}, {model}") for data, model in settings]
        title, filled = f"{self.title}: printed accuracy (%)", [Row(*each) for each in cells.items()]
        note = f"{self.protocol}: only the pattern can be compared."
        return Table(title, "method", columns, filled, note, of_paper=True, name=f"in-{self.name}")


PAPER = Publication("paper", "The paper", "Its own models, data and settings")
"""Means over corruptions are those of its appendix; the s.d. of two of them (DMN and Zero on ImageNet-C) differs by 0.1
in the main table. `deyo+offset` is DeYO with its negatives replaced by Panda's."""

SUBTTA = Publication(
    "subtta",
    "SubTTA (2026), tables 1 and 4",
    "Batches of 200 (CIFAR) or 64, reset before each corruption, “a photo of a {}.”, RobustBench's 5,000 images of "
    "ImageNet-C (ours are random ones)",
    {
        "imagenet-c": {"batch_size": 64, "limit": 5000},
        "cifar10-c": {"batch_size": 200},
        "cifar100-c": {"batch_size": 200},
    },
    {"tent": {"lr": 1e-3}, "tpt": {"lr": 5e-3}, "vte": {"augmentation": "crops"}},
)
WATT = Publication(
    "watt",
    "WATT (2024), CIFAR-100-C with ViT-B/32",
    "Batches of 128, reset before each batch, “a photo of a {}”, half precision, the authors' code",
    {"cifar100-c": {"batch_size": 128}},
    {"clipartt": {"protocol": "reference"}, "watt": {"protocol": "reference"}},
    templates="clipartt",
)

PUBLISHED_PRESETS = ("cifar100-c-clipartt", *BACKBONES)
"""Presets with the settings of these publications."""


def printed_accuracy(benchmark: str | None, method: str, corruption: str = MEAN) -> Cell | None:
    """The paper's accuracy in percent with its s.d. over seeds; None if the paper does not have it."""
    model = "ViT-B-16" if benchmark == "imagenet-c" else "ViT-B-32"
    return PAPER.numbers.get((benchmark or "", model, method), {}).get(corruption)


def printed_seconds() -> dict[str, list[float]]:
    """The paper's seconds without and with Panda and the overhead in percent, by method; ViT-B/32, CIFAR-10, V100."""
    return {row.pop("method"): [float(value) for value in row.values()] for row in _read_csv("printed_seconds.csv")}


def _parse_cell(text: str) -> Cell:
    """Parse a mean, with or without its s.d.: `"35.5 (0.1)"`."""
    value, _, sd = text.rstrip(")").partition(" (")
    return Cell(float(value), float(sd) if sd else None)


def _read_csv(name: str) -> list[dict[str, str]]:
    text = resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))
