"""Figures of the paper and others: what each compares, and how it is drawn."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from tta_panda.data import CLEAN
from tta_panda.data.corruptions import CORRUPTIONS
from tta_panda.experiments.base import (
    ExperimentResults,
    Sweep,
    SweepLine,
    changes_table,
    experiment,
    line_table,
    sweep_experiment,
)
from tta_panda.experiments.printed import METHODS
from tta_panda.experiments.setup import BETA_GRID, STREAMS, Series, Setup, short_name
from tta_panda.reporting.cells import ACCURACY, BETA, BIAS, Cell, Metric
from tta_panda.reporting.comparison import corruption_rows, table_by_corruption
from tta_panda.reporting.figures import DotFigure, Line, LineFigure, Panel, class_histograms
from tta_panda.reporting.page import Section
from tta_panda.reporting.tables import Column, Row, Table

# Figure 2: bias


def _bias_rows(setup: Setup) -> dict[str, list[Series]]:
    # Only what TPT, TPS and Zero have in common: the mean prediction over the confident views.
    positive = setup.series("zero", "positive augmentation", temperature=1.0)
    return {"clip": [setup.series("clip"), positive, setup.series("clip+panda")]}


@experiment(
    "fig-bias",
    "Prediction bias",
    "L1 distance between the mean prediction and the label frequencies, for each corruption.",
    _bias_rows,
    corruptions=lambda setup: (CLEAN, *CORRUPTIONS),
    in_paper="Figure 2 and its appendix",
)
def _bias(results: ExperimentResults) -> Section:
    clip, positive, panda = results.series
    compared: list[tuple[Column, Series, Series | None]] = [
        *((Column.of(BIAS, series.label), series, None) for series in results.series),
        (Column.delta(BIAS, "Δ positive"), positive, clip),
        (Column.delta(BIAS, "Δ panda"), panda, clip),
    ]
    table = table_by_corruption(results, BIAS, compared, CORRUPTIONS, clean=True)
    notes = []
    for column, series in enumerate((positive, panda), 3):
        changes = [row.cells[column].value for row in table.rows if row.name in CORRUPTIONS]
        known = [change for change in changes if change is not None]
        lower, higher = sum(change < 0 for change in known), sum(change > 0 for change in known)
        notes.append(f"{series.label} against clip: bias lower in {lower}, higher in {higher} of {len(known)}.")
    notes.append(
        "In the paper (ViT-B/32, CIFAR-10-C): positive augmentation lower in 4, higher in 11 of 15; Panda lower in 15."
    )
    clean = results.cell(clip, BIAS, CLEAN).value
    level = None if clean is None else ("clip on clean images", clean)
    corrupted = replace(table, rows=[row for row in table.rows if row.name != CLEAN])
    return Section([table], [DotFigure(f"{results.about} Lower is better.", BIAS.title, corrupted, level)], notes)


# Appendix: histograms


@experiment(
    "fig-histograms",
    "Predicted classes",
    "How often each class is predicted by CLIP without and with Panda, and how often it occurs.",
    lambda setup: {"clip": [setup.series("clip"), setup.series("clip+panda")]},
    in_paper="Appendix, histograms",
)
def _histograms(results: ExperimentResults) -> Section:
    shown = {series.label: series for series in results.series}

    def largest_share(series: Series, corruption: str) -> Cell:
        return results.measured(
            series, corruption, lambda _, measured: 100 * max(measured.predicted_counts) / measured.samples
        )

    columns = [Column(f"{label}: most predicted class (%)", better="lower") for label in shown]
    rows = [
        Row(name, [largest_share(series, name) for series in results.series], group)
        for group, name in corruption_rows(CORRUPTIONS)
    ]
    figure = class_histograms(results, shown, CORRUPTIONS, f"{results.about} Seed {results.setup.seeds[0]}.")
    return Section([Table("Share of the most predicted class", "corruption", columns, rows)], [figure])


# Figure 4: along the stream

_EVOLUTION = "gaussian_noise"
_EVOLUTION_IMAGES = 1000  # in a quick look; fewer would leave chunks too small to tell bias from chance


@experiment(
    "fig-evolution",
    "Along the stream",
    "Prediction bias and accuracy in ten consecutive chunks of the stream, gaussian noise.",
    lambda setup: {"tent": [setup.series(each, quick_images=_EVOLUTION_IMAGES) for each in ("tent", "tent+panda")]},
    corruptions=lambda setup: (_EVOLUTION,),
    in_paper="Figure 4",
)
def _evolution(results: ExperimentResults) -> Section:
    records = [record for series in results.series for record in results.records(series, _EVOLUTION)]
    tenths = max((len(record.tenths) for record in records), default=1)
    columns, panels = [], []
    for metric in (BIAS, ACCURACY):
        lines = []
        for hue, series in enumerate(results.series):
            cells = results.by_tenth(series, _EVOLUTION, metric) or [results.empty(series, [_EVOLUTION])] * tenths
            columns.append(Column.of(metric, f"{series.label}: {metric.title}"))
            lines.append(Line(series.label, dict(enumerate(cells, 1)), hue))
        panels.append(Panel("tenth of the stream", metric.title, lines))
    size = _chunk_size({tenth.samples for record in records for tenth in record.tenths})
    note = (
        f"A chunk has {size}. Small chunks show more bias by chance alone, equally for both methods. A "
        "method predicts each batch before it learns from it, so the first batch shows it unadapted."
    )
    lines = [line for panel in panels for line in panel.lines]
    table = line_table(f"Chunks of {size}, gaussian noise", "chunk", lines, columns)
    return Section([table], [LineFigure(f"{results.about} Bars are one s.d. over seeds.", panels)], [note])


def _chunk_size(sizes: set[int]) -> str:
    """The size of chunks as text; sizes differ by one image if the stream cannot be divided evenly."""
    if len(sizes) > 1:
        return f"{min(sizes)} to {max(sizes)} images"
    return f"{min(sizes)} image{'s' * (min(sizes) != 1)}" if sizes else "no images"


# Figure 5: sensitivity


_SEARCHED = ("clip", "tent")


def _beta_lines(setup: Setup) -> list[SweepLine]:
    """Lines of each method that the user chose: over beta, and with beta auto."""
    return [
        line
        for hue, name in enumerate(setup.methods or _SEARCHED)
        for line in (
            SweepLine(f"{name}+panda", hue),
            SweepLine(f"{name}+panda", hue, True, {"beta": "auto"}, f"{name}+panda, auto"),
        )
    ]


def _choices_table(results: ExperimentResults) -> Table:
    """Table of two ways to choose beta."""
    rows, betas = {}, []
    for name in results.setup.methods or _SEARCHED:
        plain, *grid = (results.cell(series, ACCURACY) for series in results.rows[f"{name}+panda"])
        auto = results.cell(results.rows[f"{name}+panda, auto"][0], ACCURACY)
        best = max(range(len(grid)), key=lambda i: -1.0 if (value := grid[i].value) is None else value)
        rows[name] = [plain, auto, grid[best]]
        betas.append(Cell() if grid[best].value is None else Cell(BETA_GRID[best]))
    title = f"Two ways to choose beta: accuracy (%), {results.where}"
    ways = ["auto (no labels)", "best of grid, chosen on test labels"]
    table = changes_table(title, "method", ways, rows, name="choices")
    note = (
        "As in the paper, the best of the grid was chosen with the labels on which it is then measured: an upper "
        "bound for a fixed beta, which cannot be reached without labels."
    )
    return replace(table.with_column(Column("its beta"), betas), note=note)


def _batch_sizes(setup: Setup, sizes: Sequence[int], quick_sizes: Sequence[int]) -> list[int]:
    """Batch sizes of distinct runs: two sizes that both exceed the stream would give the same run."""
    sizes = quick_sizes if setup.quick else sizes
    limit = dict(setup.series("clip").stream).get("limit", setup.stream.limit)
    return [size for size, smaller in zip(sizes, (0, *sizes), strict=False) if limit is None or smaller < limit]


def _plain_and_panda(setup: Setup, method: str) -> list[SweepLine]:
    return [SweepLine(method, 0), SweepLine(f"{method}+panda", 1)]


def _around_default(setup: Setup, method: str, option: str) -> list[float]:
    """Values over two decades around the one in use."""
    usual = setup.method(setup.series(method)).options[option]
    factors = (0.1, 1.0, 10.0) if setup.quick else (0.1, 0.3, 1.0, 3.0, 10.0)
    return [float(f"{usual * factor:.3g}") for factor in factors]


sweep_experiment(
    "fig-ratio",
    "Negatives per image",
    "Accuracy with M negatives for a batch of B images, from 1:100 to 1:1.",
    [
        Sweep(
            "negatives per image, M:B",
            "ratio",
            lambda setup: (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0),
            lambda setup: [
                SweepLine("clip+panda", 0),
                SweepLine("clip", 0, is_level=True),
                SweepLine("tent+panda", 1),
                SweepLine("tent", 1, is_level=True),
            ],
        )
    ],
    in_paper="Figure 5, left",
)

sweep_experiment(
    "fig-beta",
    "The offset ratio beta",
    "Accuracy over beta, where 0 is the plain method. The dashed line is beta auto, which needs no labels.",
    [
        Sweep(
            "beta",
            "beta",
            lambda setup: (0.0, *BETA_GRID),
            _beta_lines,
        )
    ],
    log_x=False,
    by_method=True,
    in_paper="Figure 5, middle",
    search=_choices_table,
)

sweep_experiment(
    "fig-batch-size",
    "Batch size",
    "Tent without and with Panda on batches of several sizes, with the same learning rate.",
    [
        Sweep(
            "batch size",
            "batch_size",
            partial(_batch_sizes, sizes=(5, 10, 20, 50, 100, 200), quick_sizes=(10, 20, 50, 100)),
            lambda setup: [SweepLine("tent", 0), SweepLine("tent+panda", 1)],
        )
    ],
    in_paper="Figure 5, right",
)


# Figure 6: ablation


def _ablation_rows(setup: Setup) -> dict[str, list[Series]]:
    return {
        name: [
            setup.series(name, "off"),
            setup.series(f"{name}+panda", "within image", sampler="within_image"),
            setup.series(f"{name}+panda", "no average", average=False),
            setup.series(f"{name}+panda", "full"),
        ]
        for name in (("clip", "tent", "eta", "dmn", "zero", "tps") if setup.quick else METHODS)
    }


@experiment(
    "fig-ablation",
    "Ablation",
    "Panda off, with negatives made within each image, without averaging them, and in full.",
    _ablation_rows,
    corruptions=Setup.sensitivity_corruptions,
    in_paper="Figure 6",
    by_method=True,
)
def _ablation(results: ExperimentResults) -> Section:
    columns = [Column.of(ACCURACY, kind) for kind in ("off", "within image", "no average", "full")]
    rows = [Row(*each) for each in results.cells_by_row().items()]
    table = Table(f"Accuracy (%), {results.where}", "method", columns, rows)
    caption = f"{results.about} {results.where.capitalize()}; bars are one s.d. over seeds."
    return Section([table], [DotFigure(caption, ACCURACY.title, table)], results.quick_notes())


# Appendix: learning rates

sweep_experiment(
    "fig-learning-rate",
    "Learning rate",
    "Accuracy over two decades around the value in use: Tent's learning rate, and SAR's rho.",
    [
        Sweep(
            axis,
            option,
            partial(_around_default, method=method, option=option),
            partial(_plain_and_panda, method=method),
            title,
        )
        for title, method, option, axis in (("Tent", "tent", "lr", "learning rate"), ("SAR", "sar", "rho", "rho"))
    ],
    in_paper="Appendix, learning rates",
    note="SAR's own learning rate is not varied: what the paper lists under this name is the radius rho of its steps.",
)


# Theorem: why subtracting something correlated with the corruption helps, and how much of it is best
#
# Along one direction the embedding is v = v_class + v_corruption with variances 1 and s^2, and the label is the sign of
# v_class. A negative n of variance s^2 has correlation r with the corruption and none with the class.

_CORRELATIONS = (0.3, 0.6, 0.9)
_BETAS = tuple(step / 10 for step in range(13))
_NOISES = (0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0)
_SAMPLES = 100_000


def theorem_accuracy(noise: float, correlation: float = 0.0, beta: float = 0.0) -> float:
    """Probability that `sign(v - beta n)` is the label, for `noise` s > 0; largest at `beta == correlation`."""
    spread = noise * math.sqrt(1 - correlation**2 + (beta - correlation) ** 2)
    return 0.5 + math.atan2(1, spread) / math.pi


def simulated_accuracy(noise: float, correlation: float, beta: float, samples: int, rng: np.random.Generator) -> float:
    """Estimate the same probability from `samples` draws of class, corruption and negative."""
    of_class, of_corruption, independent = rng.standard_normal((3, samples))
    negative = correlation * of_corruption + math.sqrt(1 - correlation**2) * independent
    debiased = of_class + noise * of_corruption - beta * noise * negative
    return float(np.mean(np.sign(debiased) == np.sign(of_class)))


@experiment(
    "fig-theorem",
    "The theorem",
    "Accuracy of the paper's one-dimensional example: lines are the closed form, points a simulation.",
    lambda setup: {},
    corruptions=lambda setup: (),
    in_paper="Theorem 4.1",
)
def _theorem(results: ExperimentResults) -> Section:
    rng = np.random.default_rng(0)
    over_beta = _theorem_panel(_BETAS, "beta", "noise s = 1", lambda r, beta: (1.0, r, beta), rng)
    over_noise = _theorem_panel(_NOISES, "noise s", "beta = r, the best", lambda r, noise: (noise, r, r), rng)
    caption = f"{results.about} r is the correlation of negative and corruption; {_SAMPLES:,} draws per point."
    tables = []
    for panel, name in ((over_beta, ""), (over_noise, "noise")):
        columns = [Column(line.label, 2) for line in panel.lines]
        tables.append(line_table(f"Accuracy (%), {panel.title}", panel.x, panel.lines, columns, name))
    return Section(tables, [LineFigure(caption, [over_beta, over_noise])])


def _theorem_panel(
    xs: Sequence[float],
    x_axis: str,
    title: str,
    arguments: Callable[[float, float], tuple[float, float, float]],
    rng: np.random.Generator,
) -> Panel:
    """Panel of closed form and simulation; `arguments` is (r, x) -> (noise, correlation, beta)."""
    lines = []
    for hue, r in enumerate(_CORRELATIONS):
        exact = {x: Cell(100 * theorem_accuracy(*arguments(r, x))) for x in xs}
        drawn = {x: Cell(100 * simulated_accuracy(*arguments(r, x), samples=_SAMPLES, rng=rng)) for x in xs}
        lines.append(Line(f"r = {r:g}", exact, hue, "curve"))
        lines.append(Line(f"r = {r:g}, simulated", drawn, hue, "points"))
    return Panel(x_axis, ACCURACY.title, lines, title)


# Beyond the paper: one corruption after another

_PLACES = {index + 0.5: short_name(corruption) for index, corruption in enumerate(CORRUPTIONS)}
"""Names of corruptions at the middle of their parts of the stream, each of length 1."""


def _continual_rows(setup: Setup) -> dict[str, list[Series]]:
    names = ("clip", "clip+panda+level", "clip+panda", "tent+panda")
    return {"continual": [setup.series(name, order="continual") for name in names]}


@experiment(
    "fig-continual",
    "One corruption after another",
    "Accuracy on each corruption of a stream of 15 that is never reset, and beta along it.",
    _continual_rows,
)
def _continual(results: ExperimentResults) -> Section:
    accuracies, betas = [], []
    for hue, series in enumerate(results.series):
        cells = [results.cell(series, ACCURACY, name) for name in CORRUPTIONS]
        accuracies.append(Line(series.label, dict(zip(_PLACES, cells, strict=True)), hue))
    with_panda = results.series[2:]
    for hue, series in enumerate(with_panda, 2):
        tenths = results.by_tenth(series, CORRUPTIONS[0], BETA)
        width = len(CORRUPTIONS) / max(1, len(tenths))
        betas.append(Line(series.label, {(i + 0.5) * width: cell for i, cell in enumerate(tenths)}, hue, "curve"))
    panels = [Panel("", ACCURACY.title, accuracies, names=_PLACES), Panel("", BETA.title, betas, names=_PLACES)]
    caption = f"{results.about} Bars are one s.d. over seeds; betas are means over seeds, ten for each corruption."
    tables = [_continual_table(results, ACCURACY, results.series), _continual_table(results, BETA, with_panda, "beta")]
    return Section(tables, [LineFigure(caption, panels)])


def _continual_table(results: ExperimentResults, metric: Metric, shown: Sequence[Series], name: str = "") -> Table:
    compared = [(Column.of(metric, series.label), series, None) for series in shown]
    table = table_by_corruption(results, metric, compared, CORRUPTIONS)
    return replace(table, title=f"{metric.heading} on each corruption", name=name)


# Beyond the paper: batch size and patch size

sweep_experiment(
    "fig-batch-one",
    "Down to single images",
    "CLIP debiased in three ways on batches of 1 to 100 images; plain CLIP does not depend on their size.",
    [
        Sweep(
            "batch size",
            "batch_size",
            partial(_batch_sizes, sizes=(1, 2, 5, 10, 20, 50, 100), quick_sizes=(1, 2, 5, 10, 20, 50, 100)),
            lambda setup: [
                SweepLine("clip", 0, is_level=True),
                SweepLine("clip+panda", 1),
                SweepLine("clip+level", 2),
                SweepLine("clip+panda+level", 3),
            ],
        )
    ],
)

_PATCH_IMAGES = 1000  # in a quick look; fewer would leave several classes in each batch of a sorted stream

sweep_experiment(
    "fig-patch-size",
    "Patch size",
    "CLIP with Panda over the patch size, compared with plain CLIP and the mean of the batch (+center).",
    [
        Sweep(
            "side of a patch (px)",
            "patch_size",
            lambda setup: (4, 8, 16, 32),
            lambda setup: [
                SweepLine("clip+panda", 0, changes={"beta": 0.4}, label="clip+panda, beta 0.4"),
                SweepLine("clip+panda", 1, changes={"beta": "auto"}, label="clip+panda, beta auto"),
                SweepLine("clip", 2, is_level=True),
                SweepLine("clip+center", 3, is_level=True),
            ],
            stream,
            {**STREAMS[stream], "quick_images": _PATCH_IMAGES},
        )
        for stream in ("shuffled", "correlated:0.1", "sorted")
    ],
    note="Pixels are those of the model's input. That of the embedded model is 32 px wide: a patch of 32 is all of it.",
)
