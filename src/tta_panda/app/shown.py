"""What the explorer says of a batch, a stream or a record."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from tta_panda.app.batch import EncodedBatch, Outcome
from tta_panda.app.drawing import Bars, Curve, Tile, cell, chart, class_table, sheet, table, tiles
from tta_panda.app.stream import Player, Step
from tta_panda.data.dataset import UNLABELLED
from tta_panda.evaluation.metrics import StreamMetrics
from tta_panda.evaluation.record import RunRecord
from tta_panda.reporting.cells import ACCURACY, BIAS
from tta_panda.reporting.figures import COLOURS, PANDA_COLOUR, PLAIN_COLOUR

LABELS = "labels"
MOST_CHANGES = 6
"""Domains that a chart names: the names of more would cover each other."""


def batch_sheets(batch: EncodedBatch) -> str:
    """The pictures of a batch and its negatives, before anything is said of them."""
    negatives = batch.negatives.mul(255).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
    drawn = tiles("negatives", (Tile(f"negative {number}") for number in range(1, len(negatives) + 1)))
    return sheet("pictures", batch.pictures.images) + sheet("negatives", negatives) + drawn


def batch_outcome(batch: EncodedBatch, outcome: Outcome) -> str:
    """Accuracy, bias, classes and pictures at one beta, beside those of the plain method."""
    rows = {
        "plain (β = 0)": batch.plain,
        f"β = {outcome.beta:.2f}": outcome,
        f"auto (β = {batch.auto.beta:.2f})": batch.auto,
    }
    facts = {
        name: [*_metric_cells(each.metrics), cell(str(int((each.predicted != batch.plain.predicted).sum())))]
        for name, each in rows.items()
    }
    columns = {
        "negatives": Bars(batch.resemblance, form=".0%"),
        "plain": Bars(batch.plain.counts, PLAIN_COLOUR),
        f"β = {outcome.beta:.2f}": Bars(outcome.counts, PANDA_COLOUR),
    }
    if batch.label_counts is not None:
        columns[LABELS] = Bars(batch.label_counts)
    pictures = f"{len(batch.pictures.images)} pictures"
    return (
        table(f"Predictions for {pictures}", [ACCURACY.short, BIAS.title, "changed"], facts)
        + class_table("What negatives resemble, and how often each class is predicted", batch.class_names, columns)
        + tiles("pictures", _tiles(batch, outcome))
    )


def _metric_cells(metrics: StreamMetrics | None) -> list[str]:
    if metrics is None:
        return [cell("–"), cell("–")]
    return [cell(f"{metrics.accuracy:.1%}"), cell(f"{metrics.bias:.{BIAS.decimals}f}")]


def _tiles(batch: EncodedBatch, outcome: Outcome) -> Iterator[Tile]:
    """The class of each picture, with that of the plain method where it differs; right or wrong where that is known."""
    predicted = zip(batch.plain.predicted.tolist(), outcome.predicted.tolist(), strict=True)
    for (before, after), label in zip(predicted, batch.pictures.labels.tolist(), strict=True):
        known = label != UNLABELLED
        said = [f"{'✓ ' if k == label else '✗ ' if known else ''}{batch.class_names[k]}" for k in (before, after)]
        yield Tile(" → ".join(dict.fromkeys(said)), before != after)


def stream_charts(player: Player) -> str:
    """Accuracy, bias and beta on the way, and what the methods come to."""
    colours = dict(zip(player.names, COLOURS, strict=False))
    steps, xs = player.steps, [step.pictures for step in player.steps]
    changes = dict(_changes(steps)[-MOST_CHANGES:])

    def curves(of: str) -> dict[str, Curve]:
        found = {name: [getattr(step, of).get(name) for step in steps] for name in player.names}
        return {name: Curve(ys, colours[name]) for name, ys in found.items() if any(y is not None for y in ys)}

    charts = (
        chart("Accuracy, last batches", xs, curves("accuracy"), ".0%", changes),
        chart("Prediction bias (L1), last batches", xs, curves("bias"), ".2f", changes),
        chart("β", xs, curves("beta"), ".2f", changes),
    )
    return f'<div class="charts">{"".join(charts)}</div>'


def _changes(steps: Sequence[Step]) -> list[tuple[float, str]]:
    """Where each domain begins."""
    before: Sequence[Step | None] = [None, *steps[:-1]]
    return [
        (0.0 if last is None else last.pictures, step.domain.replace("_", " "))
        for last, step in zip(before, steps, strict=True)
        if last is None or last.domain != step.domain
    ]


def stream_classes(player: Player) -> str:
    """What methods come to on the whole stream, and the classes of the last batches."""
    rows = {name: _metric_cells(metrics) for name, metrics in player.totals.items()}
    whole = table(f"All {player.steps[-1].pictures:,} pictures", [ACCURACY.short, BIAS.title], rows)
    recent = player.window()
    columns = {
        name: Bars(metrics.predicted.tolist(), colour)
        for (name, metrics), colour in zip(recent.items(), COLOURS, strict=False)
    }
    columns[LABELS] = Bars(next(iter(recent.values())).labels.tolist())
    return whole + class_table("Predicted in the last batches", player.class_names, columns)


def record_classes(record: RunRecord, corruption: str) -> str:
    """How often each class was predicted in a run, and how often it occurred."""
    measured = record.by_corruption[corruption]
    columns = {
        record.config.method.name: Bars(measured.predicted_counts, PANDA_COLOUR),
        LABELS: Bars(measured.label_counts),
    }
    title = f"{record.config.method.name} on {corruption}, seed {record.config.stream.seed}"
    return class_table(title, record.class_names, columns)
