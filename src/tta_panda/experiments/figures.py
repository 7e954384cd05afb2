"""The figures, the paper's and others: what each compares, and how it is drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tta_panda.data import CLEAN
from tta_panda.data.corruptions import CORRUPTIONS
from tta_panda.experiments.base import Experiment, ExperimentResults, Shown, Sweep, show_sweeps, sweep_series
from tta_panda.experiments.paper import METHODS
from tta_panda.experiments.setup import BEST_OF_GRID, BETA_GRID, STREAMS, Series, Setup, short_name
from tta_panda.panda.theorem import accuracy, simulate_accuracy
from tta_panda.reporting.cells import ACCURACY, BETA, BIAS, Cell, Metric
from tta_panda.reporting.comparison import corruption_rows
from tta_panda.reporting.figures import DotFigure, Dots, Line, LineFigure, Panel, class_histograms, corruption_dots
from tta_panda.reporting.tables import Column, Row, Table


def _sweep_experiment(
    name: str,
    title: str,
    about: str,
    sweeps: Callable[[Setup], list[Sweep]],
    panels: Mapping[str, str] | str,
    *,
    log_x: bool = True,
    in_paper: str = "",
    note: str = "",
    show: Callable[[ExperimentResults, Shown], Shown] = lambda results, shown: shown,
) -> Experiment:
    """An experiment that shows the mean accuracy over a range of values.

    Args:
        panels: the x axis of a single panel, or titles of several panels with their x axes.
        note: added to the notes.
        show: changes what is shown.
    """
    by_title = {title: panels} if isinstance(panels, str) else panels

    def show_all(results: ExperimentResults) -> Shown:
        shown = show_sweeps(results, sweeps(results.setup), by_title, log_x)
        return show(results, shown._replace(notes=[*shown.notes, note] if note else shown.notes))

    return Experiment(
        name,
        title,
        about,
        lambda setup: sweep_series(sweeps(setup)),
        show_all,
        lambda setup: setup.sensitivity_corruptions,
        in_paper,
    )


# Figure 2: bias


def _bias_series(setup: Setup) -> list[Series]:
    # What TPT, TPS and Zero have in common and no more: the mean prediction over the confident views.
    positive = setup.plain("zero", "positive augmentation", temperature=1.0)
    return [setup.plain("clip"), positive, setup.panda("clip")]


def _show_bias(results: ExperimentResults) -> Shown:
    clip, positive, panda = results.series
    columns = [Column.of(BIAS, series.label) for series in results.series]
    columns += [Column.delta(BIAS, "Δ positive"), Column.delta(BIAS, "Δ panda")]

    def cells(look_up: Callable[[Series], Cell]) -> list[Cell]:
        before, *others = map(look_up, (clip, positive, panda))
        return [before, *others, *(other - before for other in others)]

    rows = {name: cells(lambda series, name=name: results.cell(series, BIAS, name)) for name in (CLEAN, *CORRUPTIONS)}
    ordered = [Row(name, rows[name], group) for group, name in [("", CLEAN), *corruption_rows(CORRUPTIONS)]]
    ordered.append(Row("mean of 15", cells(lambda series: results.average(series, BIAS)), is_mean=True))
    notes = []
    for column, series in ((3, positive), (4, panda)):
        changes = [rows[name][column].value for name in CORRUPTIONS]
        known = [change for change in changes if change is not None]
        lower, higher = sum(change < 0 for change in known), sum(change > 0 for change in known)
        notes.append(f"{series.label} against clip: bias lower in {lower}, higher in {higher} of {len(known)}.")
    notes.append(
        "In the paper (ViT-B/32, CIFAR-10-C): positive augmentation lower in 4, higher in 11 of 15; Panda lower in 15."
    )
    clean = rows[CLEAN][0].value
    level = None if clean is None else ("clip on clean images", clean)
    labelled = {series.label: series for series in results.series}
    figure = corruption_dots(results, labelled, BIAS, CORRUPTIONS, results.about, level)
    return Shown([Table("Prediction bias (L1)", "corruption", columns, ordered)], [figure], notes)


# Appendix: histograms


def _show_histograms(results: ExperimentResults) -> Shown:
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
    return Shown([Table("Share of the most predicted class", "corruption", columns, rows)], [figure])


# Figure 4: along the stream

_EVOLUTION = "gaussian_noise"
_EVOLUTION_IMAGES = 1000  # in a quick look; fewer would leave chunks too small to tell bias from chance


def _show_evolution(results: ExperimentResults) -> Shown:
    records = [record for series in results.series for record in results.records(series, _EVOLUTION)]
    tenths = max((len(record.tenths) for record in records), default=1)
    columns, by_column, panels = [], [], []
    for metric in (BIAS, ACCURACY):
        lines = []
        for hue, series in enumerate(results.series):
            cells = results.by_tenth(series, _EVOLUTION, metric) or [results.empty(series, [_EVOLUTION])] * tenths
            columns.append(Column.of(metric, f"{series.label}: {metric.title}"))
            by_column.append(cells)
            lines.append(Line.of(series.label, dict(enumerate(cells, 1)), hue))
        panels.append(Panel("tenth of the stream", metric.title, lines))
    rows = [Row(str(index + 1), cells) for index, cells in enumerate(zip(*by_column, strict=True))]
    size = _chunk_size({tenth.samples for record in records for tenth in record.tenths})
    note = (
        f"A chunk has {size}. Small chunks show more bias by chance alone, equally for both methods. A "
        "method predicts each batch before it learns from it, so the first batch shows it unadapted."
    )
    table = Table(f"Chunks of {size}, gaussian noise", "chunk", columns, rows)
    return Shown([table], [LineFigure(f"{results.about} Bars are one s.d. over seeds.", panels)], [note])


def _chunk_size(sizes: set[int]) -> str:
    """As text; chunks differ by an image where their number does not divide the stream."""
    if len(sizes) > 1:
        return f"{min(sizes)} to {max(sizes)} images"
    return f"{min(sizes)} image{'s' * (min(sizes) != 1)}" if sizes else "no images"


# Figure 5: negatives per image, beta, batch size

_RATIOS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


def _ratios(setup: Setup) -> list[Sweep]:
    sweeps = []
    for hue, name in enumerate(("clip", "tent")):
        points = {ratio: setup.panda(name, ratio=ratio) for ratio in _RATIOS}
        sweeps.append(Sweep(f"{name}+panda", points, hue))
        sweeps.append(Sweep(name, dict.fromkeys(_RATIOS, setup.plain(name)), hue, "level"))
    return sweeps


_BETA_METHODS = ("clip", "tent")


def _betas(setup: Setup) -> list[Sweep]:
    sweeps = []
    for hue, name in enumerate(_BETA_METHODS):
        points = {0.0: setup.plain(name)} | {beta: setup.panda(name, beta=beta) for beta in BETA_GRID}
        auto = dict.fromkeys(points, setup.panda(name, beta="auto"))
        sweeps += [Sweep(f"{name}+panda", points, hue), Sweep(f"{name}+panda, auto", auto, hue, "level")]
    return sweeps


def _with_choices(results: ExperimentResults, shown: Shown) -> Shown:
    """The sweep of beta, and a table of the two ways to choose it."""
    setup, rows = results.setup, []
    for name in _BETA_METHODS:
        grid, auto = setup.best_of_grid(name), setup.panda(name, beta="auto")
        plain, *both = (results.average(series, ACCURACY) for series in (setup.plain(name), auto, grid))
        cells = [plain, *(cell for each in both for cell in (each, each - plain))]
        rows.append(Row(name, [*cells, results.chosen_beta(grid)]))
    columns = [Column.of(ACCURACY, "plain")]
    for title in ("auto (no labels)", BEST_OF_GRID):
        columns += [Column.of(ACCURACY, title), Column.delta(ACCURACY)]
    columns.append(Column("its beta"))
    note = (
        "The best of the grid was chosen with the labels that it is then measured on, as in the paper: an upper "
        "bound for a fixed beta, not what one could have had in use."
    )
    title = f"Two ways to choose beta: accuracy (%), {results.where}"
    choices = Table(title, "method", columns, rows, note, name="choices")
    return Shown([*shown.tables, choices], shown.figures, results.quick_notes())  # the search for beta is here


def _batch_sizes(setup: Setup, sizes: Sequence[int]) -> list[int]:
    """Those that differ: two sizes that each hold the whole stream would be the same run."""
    limit = dict(setup.variant("clip").stream).get("limit", setup.stream.limit)
    return [size for size, smaller in zip(sizes, (0, *sizes), strict=False) if limit is None or smaller < limit]


def _tent_by_batch_size(setup: Setup) -> list[Sweep]:
    sizes = _batch_sizes(setup, (10, 20, 50, 100) if setup.quick else (5, 10, 20, 50, 100, 200))
    return [
        Sweep("tent", {size: setup.plain("tent", batch_size=size) for size in sizes}, 0),
        Sweep("tent+panda", {size: setup.panda("tent", batch_size=size) for size in sizes}, 1),
    ]


def _clip_by_batch_size(setup: Setup) -> list[Sweep]:
    sizes = _batch_sizes(setup, (1, 2, 5, 10, 20, 50, 100))
    sweeps = [Sweep("clip", dict.fromkeys(sizes, setup.plain("clip")), 0, "level")]
    for hue, way in enumerate(("panda", "level", "panda+level"), 1):
        points = {size: setup.debiased("clip", way, batch_size=size) for size in sizes}
        sweeps.append(Sweep(f"clip+{way}", points, hue))
    return sweeps


# Figure 6: ablation


def _ablation_methods(setup: Setup) -> Sequence[str]:
    return ("clip", "tent", "eta", "dmn", "zero", "tps") if setup.quick else METHODS


def _ablated(setup: Setup, name: str) -> dict[str, Series]:
    return {
        "off": setup.plain(name),
        "within image": setup.panda(name, sampler="within_image"),
        "no average": setup.panda(name, average=False),
        "full": setup.panda(name),
    }


def _show_ablation(results: ExperimentResults) -> Shown:
    names = _ablation_methods(results.setup)
    rows = []
    for name in names:
        kinds = _ablated(results.setup, name)
        rows.append(Row(name, [results.average(series, ACCURACY) for series in kinds.values()]))
    dots = [Dots.of(kind, (row.cells[index] for row in rows)) for index, kind in enumerate(kinds)]
    columns = [Column.of(ACCURACY, kind) for kind in kinds]
    caption = f"{results.about} {results.where.capitalize()}; bars are one s.d. over seeds."
    table = Table(f"Accuracy (%), {results.where}", "method", columns, rows)
    return Shown([table], [DotFigure(caption, ACCURACY.title, list(names), dots)], results.sweep_notes())


# Appendix: learning rates

_LEARNING_RATES = {"tent": "lr", "sar": "rho"}
"""What the paper lists as SAR's learning rate is the radius rho in its authors' code, and here."""


def _learning_rates(setup: Setup) -> list[Sweep]:
    sweeps = []
    for panel, (name, option) in enumerate(_LEARNING_RATES.items()):
        usual = setup.method(setup.variant(name)).options[option]
        factors = (0.1, 1.0, 10.0) if setup.quick else (0.1, 0.3, 1.0, 3.0, 10.0)
        values = [float(f"{usual * factor:.3g}") for factor in factors]
        plain = {value: setup.plain(name, **_option(option, value)) for value in values}
        panda = {value: setup.panda(name, **_option(option, value)) for value in values}
        sweeps += [Sweep(name, plain, 0, panel=panel), Sweep(f"{name}+panda", panda, 1, panel=panel)]
    return sweeps


def _option(name: str, value: float) -> dict[str, Any]:
    return {name: value}


# Theorem

_CORRELATIONS = (0.3, 0.6, 0.9)
_BETAS = tuple(step / 10 for step in range(13))
_NOISES = (0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0)
_SAMPLES = 100_000


def _show_theorem(results: ExperimentResults) -> Shown:
    rng = np.random.default_rng(0)
    over_beta = _theorem_panel(_BETAS, "beta", "noise s = 1", lambda r, beta: (1.0, r, beta), rng)
    over_noise = _theorem_panel(_NOISES, "noise s", "beta = r, the best", lambda r, noise: (noise, r, r), rng)
    caption = f"{results.about} r is the correlation of negative and corruption; {_SAMPLES:,} draws a point."
    tables = [_theorem_table(panel, name) for panel, name in ((over_beta, ""), (over_noise, "noise"))]
    return Shown(tables, [LineFigure(caption, [over_beta, over_noise])])


def _theorem_panel(
    xs: Sequence[float],
    x: str,
    title: str,
    arguments: Callable[[float, float], tuple[float, float, float]],
    rng: np.random.Generator,
) -> Panel:
    """Closed form and simulation; `arguments` is (r, x) -> (noise, correlation, beta)."""
    lines = []
    for hue, r in enumerate(_CORRELATIONS):
        exact = [100 * accuracy(*arguments(r, value)) for value in xs]
        drawn = [100 * simulate_accuracy(*arguments(r, value), samples=_SAMPLES, rng=rng) for value in xs]
        lines.append(Line(f"r = {r:g}", xs, exact, hue=hue))
        lines.append(Line(f"r = {r:g}, simulated", xs, drawn, hue=hue, kind="points"))
    return Panel(x, ACCURACY.title, lines, title)


def _theorem_table(panel: Panel, name: str) -> Table:
    columns = [Column(line.label, 2) for line in panel.lines]
    rows = [Row(f"{x:g}", [Cell(line.ys[index]) for line in panel.lines]) for index, x in enumerate(panel.lines[0].xs)]
    return Table(f"Accuracy (%), {panel.title}", panel.x, columns, rows, name=name)


# Beyond the paper: one corruption after another, and patch sizes

_PLACES = {index + 0.5: short_name(corruption) for index, corruption in enumerate(CORRUPTIONS)}
"""Corruptions at the middles of their parts of the stream, each a unit long."""


def _continual_series(setup: Setup) -> list[Series]:
    plain, level = setup.plain("clip", order="continual"), setup.debiased("clip", "panda+level", order="continual")
    return [plain, level, *(setup.panda(name, order="continual") for name in ("clip", "tent"))]


def _show_continual(results: ExperimentResults) -> Shown:
    accuracies, betas = [], []
    for hue, series in enumerate(results.series):
        cells = [results.cell(series, ACCURACY, name) for name in CORRUPTIONS]
        accuracies.append(Line.of(series.label, dict(zip(_PLACES, cells, strict=True)), hue))
    with_panda = results.series[2:]
    for hue, series in enumerate(with_panda, 2):
        cells = results.by_tenth(series, CORRUPTIONS[0], BETA)
        places = [(index + 0.5) * len(CORRUPTIONS) / len(cells) for index in range(len(cells))]
        betas.append(Line(series.label, places, [cell.value for cell in cells], hue=hue))
    panels = [Panel("", ACCURACY.title, accuracies, names=_PLACES), Panel("", BETA.title, betas, names=_PLACES)]
    caption = f"{results.about} Bars are one s.d. over seeds; betas are means over seeds, ten for each corruption."
    tables = [_continual_table(results, ACCURACY, results.series), _continual_table(results, BETA, with_panda, "beta")]
    return Shown(tables, [LineFigure(caption, panels)])


def _continual_table(results: ExperimentResults, metric: Metric, shown: Sequence[Series], name: str = "") -> Table:
    rows = [
        Row(corruption, [results.cell(series, metric, corruption) for series in shown], group)
        for group, corruption in corruption_rows(CORRUPTIONS)
    ]
    rows.append(Row("mean of 15", [results.average(series, metric) for series in shown], is_mean=True))
    columns = [Column.of(metric, series.label) for series in shown]
    return Table(f"{metric.heading} on each corruption", "corruption", columns, rows, name=name)


_PATCH_STREAMS = ("shuffled", "correlated:0.1", "sorted")
_PATCH_SIZES = (4, 8, 16, 32)
_PATCH_IMAGES = 1000  # in a quick look; fewer would leave several classes in each batch of a sorted stream


def _patch_sizes(setup: Setup) -> list[Sweep]:
    sweeps = []
    for panel, name in enumerate(_PATCH_STREAMS):
        stream = {**STREAMS[name], "quick_images": _PATCH_IMAGES}
        for hue, beta in enumerate((0.4, "auto")):
            points = {size: setup.panda("clip", patch_size=size, beta=beta, **stream) for size in _PATCH_SIZES}
            sweeps.append(Sweep(f"clip+panda, beta {beta}", points, hue, panel=panel))
        for hue, level in enumerate((setup.plain("clip", **stream), setup.debiased("clip", "center", **stream)), 2):
            sweeps.append(Sweep(level.label, dict.fromkeys(_PATCH_SIZES, level), hue, "level", panel))
    return sweeps


FIGURES = (
    Experiment(
        "fig-bias",
        "Prediction bias",
        "L1 distance between the mean prediction and the label frequencies, corruption by corruption.",
        _bias_series,
        _show_bias,
        lambda setup: (CLEAN, *CORRUPTIONS),
        in_paper="Figure 2 and its appendix",
    ),
    Experiment(
        "fig-histograms",
        "Predicted classes",
        "How often each class is predicted by CLIP without and with Panda, and how often it occurs.",
        lambda setup: [setup.plain("clip"), setup.panda("clip")],
        _show_histograms,
        in_paper="Appendix, histograms",
    ),
    Experiment(
        "fig-evolution",
        "Along the stream",
        "Prediction bias and accuracy in ten consecutive chunks of the stream, gaussian noise.",
        lambda setup: [make("tent", quick_images=_EVOLUTION_IMAGES) for make in (setup.plain, setup.panda)],
        _show_evolution,
        lambda setup: (_EVOLUTION,),
        in_paper="Figure 4",
    ),
    _sweep_experiment(
        "fig-ratio",
        "Negatives per image",
        "Accuracy with M negatives for a batch of B images, from 1:100 to 1:1.",
        _ratios,
        "negatives per image, M:B",
        in_paper="Figure 5, left",
    ),
    _sweep_experiment(
        "fig-beta",
        "The offset ratio beta",
        "Accuracy over beta; at 0 the plain method. The dashed line is beta auto, which needs no labels.",
        _betas,
        "beta",
        log_x=False,
        in_paper="Figure 5, middle",
        show=_with_choices,
    ),
    _sweep_experiment(
        "fig-batch-size",
        "Batch size",
        "Tent without and with Panda on batches of several sizes, the learning rate unchanged.",
        _tent_by_batch_size,
        "batch size",
        in_paper="Figure 5, right",
    ),
    Experiment(
        "fig-ablation",
        "Ablation",
        "Panda off, with negatives made within each image, without averaging them, and in full.",
        lambda setup: [series for name in _ablation_methods(setup) for series in _ablated(setup, name).values()],
        _show_ablation,
        lambda setup: setup.sensitivity_corruptions,
        in_paper="Figure 6",
    ),
    _sweep_experiment(
        "fig-learning-rate",
        "Learning rate",
        "Accuracy over two decades around the value in use: Tent's learning rate, and SAR's rho.",
        _learning_rates,
        {"Tent": "learning rate", "SAR": "rho"},
        in_paper="Appendix, learning rates",
        note="SAR's own learning rate is left alone: what the paper lists as such is the radius rho of its steps.",
    ),
    Experiment(
        "fig-theorem",
        "The theorem",
        "Accuracy of the paper's one-dimensional example: lines are the closed form, points a simulation.",
        lambda setup: [],
        _show_theorem,
        lambda setup: (),
        in_paper="Theorem 4.1",
    ),
    Experiment(
        "fig-continual",
        "One corruption after another",
        "Accuracy on each corruption of a stream of 15 that is never reset, and beta along it.",
        _continual_series,
        _show_continual,
    ),
    _sweep_experiment(
        "fig-batch-one",
        "Down to single images",
        "CLIP debiased in three ways on batches of 1 to 100 images; plain CLIP does not depend on their size.",
        _clip_by_batch_size,
        "batch size",
    ),
    _sweep_experiment(
        "fig-patch-size",
        "Patch size",
        "CLIP with Panda over the size of patches, against plain CLIP and the mean of the batch (+center).",
        _patch_sizes,
        dict.fromkeys(_PATCH_STREAMS, "side of a patch (px)"),
        note="Pixels are those of the model's input, 32 a side in the embedded model: there, 32 is the whole image.",
    ),
)
