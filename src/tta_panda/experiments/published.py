"""Numbers printed in other publications, and the experiment that compares ours with them."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tta_panda.data.corruptions import CORRUPTIONS
from tta_panda.experiments.base import ExperimentResults, experiment
from tta_panda.experiments.paper import MEAN, read_csv
from tta_panda.experiments.setup import Series, Setup, short_name
from tta_panda.methods import METHODS
from tta_panda.reporting.cells import ACCURACY, Cell
from tta_panda.reporting.page import Section
from tta_panda.reporting.tables import Column, Row, Table

NOT_PRINTED = "not printed"
DATA = ("imagenet-c", "cifar10-c", "cifar100-c")


@dataclass(frozen=True)
class Publication:
    """A published comparison: its protocol, and its accuracies in percent."""

    name: str
    title: str
    protocol: str
    streams: Mapping[str, Mapping[str, Any]]
    """Batch size and number of images by data set."""
    numbers: Mapping[tuple[str, str, str], Mapping[str, float]]
    """By data set, architecture and method: by corruption, and the mean."""
    options: Mapping[str, Mapping[str, Any]]
    """Options by method that differ from those of the presets."""

    @property
    def methods(self) -> list[str]:
        """Its methods that are registered."""
        return [name for name in dict.fromkeys(method for _, _, method in self.numbers) if name in METHODS]


@functools.cache
def subtta() -> Publication:
    numbers = {
        (data, row["model"], row["method"]): {MEAN: float(row[data])}
        for row in read_csv("published_means.csv")
        for data in DATA
    }
    return Publication(
        "subtta",
        "SubTTA (2026), tables 1 and 4",
        "batches of 200 (CIFAR) or 64, reset before each corruption, “a photo of a {}.”, RobustBench's 5,000 images of "
        "ImageNet-C (ours are random ones)",
        {
            "imagenet-c": {"batch_size": 64, "limit": 5000},
            "cifar10-c": {"batch_size": 200},
            "cifar100-c": {"batch_size": 200},
        },
        numbers,
        {"tent": {"lr": 1e-3}, "tpt": {"lr": 5e-3}, "vte": {"augmentation": "crops"}},
    )


@functools.cache
def watt() -> Publication:
    numbers = {
        ("cifar100-c", "ViT-B-32", row.pop("method")): {name: float(value) for name, value in row.items()}
        for row in read_csv("published_corruptions.csv")
    }
    protocol = "batches of 128, reset before each batch, “a photo of a {}”"
    return Publication(
        "watt", "WATT (2024), CIFAR-100-C with ViT-B/32", protocol, {"cifar100-c": {"batch_size": 128}}, numbers, {}
    )


def publication_for(setup: Setup) -> Publication:
    """The publication whose prompts the setup has."""
    return watt() if setup.stream.templates == "clipartt" else subtta()


def printed_numbers(setup: Setup, method: str) -> Mapping[str, float]:
    """Accuracies that were printed for the data, model and method of a setup; empty if there are none."""
    architecture, _, weights = setup.stream.model.partition(":")
    changed = setup.quick or setup.settings or setup.stream.limit is not None or weights != "openai"
    if changed or setup.uses_made_data:
        return {}
    architecture = architecture.removesuffix("-quickgelu")
    return publication_for(setup).numbers.get((setup.stream.data, architecture, method), {})


def _rows(setup: Setup) -> dict[str, list[Series]]:
    publication = publication_for(setup)
    stream = publication.streams.get(setup.stream.data, {}) if setup.stream.limit is None else {}
    return {
        method: [setup.series(method, **stream, **publication.options.get(method, {}))]
        for method in publication.methods
    }


@experiment(
    "check-published",
    "Published numbers",
    "Accuracies of settings that were published, beside the printed ones; needs OpenAI's weights and the data sets.",
    _rows,
    by_method=True,
    defaults={"preset": "cifar100-c-clipartt,cifar10-c,cifar100-c,imagenet-c", "seeds": (0,)},
)
def _check(results: ExperimentResults) -> Section:
    publication = publication_for(results.setup)
    means, changes = [], []
    for method, [series] in results.rows.items():
        printed = printed_numbers(results.setup, method)
        cells = {name: results.cell_or_mean(series, ACCURACY, name) for name in (*CORRUPTIONS, MEAN)}
        changes.append(Row(method, [_difference(cells[name], printed.get(name)) for name in cells]))
        means.append(Row(method, [cells[MEAN], _printed(printed), changes[-1].cells[-1]]))
    note = f"{publication.title}: {publication.protocol}. Seeds and options that are not printed may differ."
    columns = [Column.of(ACCURACY, "ours"), Column.of(ACCURACY, "printed"), Column.delta(ACCURACY, "difference")]
    table = Table(f"Accuracy (%), {results.where}", "method", columns, means, note)
    if not any(printed_numbers(results.setup, method) for method in results.rows):
        return Section([table.cut(slice(1)), as_printed(publication)])
    titles = [short_name(name) for name in (*CORRUPTIONS, MEAN)]
    differences = Table(
        "Difference from the printed accuracy on every corruption",
        "method",
        [Column.delta(ACCURACY, title) for title in titles],
        changes,
        name="corruptions",
    )
    by_corruption = any(len(printed_numbers(results.setup, method)) > 1 for method in results.rows)
    return Section([table, differences] if by_corruption else [table])


def _printed(numbers: Mapping[str, float]) -> Cell:
    return Cell(numbers.get(MEAN), why_empty=NOT_PRINTED)


def _difference(ours: Cell, printed: float | None) -> Cell:
    if ours.value is None or printed is None:
        return Cell(why_empty=ours.why_empty if ours.value is None else NOT_PRINTED)
    return replace(ours, value=ours.value - printed)


def as_printed(publication: Publication) -> Table:
    """Table of the printed means, for settings other than the ones at hand."""
    settings = list(dict.fromkeys((data, model) for data, model, _ in publication.numbers))
    rows = [
        Row(method, [_printed(publication.numbers.get((*setting, method), {})) for setting in settings])
        for method in dict.fromkeys(method for _, _, method in publication.numbers)
    ]
    columns = [Column.of(ACCURACY, f"{data}, {model}") for data, model in settings]
    note = f"{publication.protocol[0].upper()}{publication.protocol[1:]}: only the pattern can be compared."
    return Table(
        f"{publication.title}: printed accuracy (%)",
        "method",
        columns,
        rows,
        note,
        of_paper=True,
        name=f"in-{publication.name}",
    )
