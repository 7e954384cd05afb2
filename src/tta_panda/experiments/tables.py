"""The tables, the paper's and others: what each compares, and how it is laid out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from tta_panda.data.corruptions import CORRUPTIONS
from tta_panda.experiments.base import Experiment, ExperimentResults, Shown
from tta_panda.experiments.paper import BACKBONES, MAIN_ROWS, MEAN, METHODS, PaperVariant, printed_accuracy
from tta_panda.experiments.setup import AUTO, BEST_OF_GRID, SEVERITY, STREAMS, Series, Setup, short_name
from tta_panda.methods import DEBIASES
from tta_panda.methods import METHODS as ALL_METHODS
from tta_panda.reporting.cells import (
    ACCURACY,
    BIAS,
    CALIBRATION,
    LIKELIHOOD,
    RECALL_SPREAD,
    SECONDS,
    Cell,
    Metric,
    over_seeds,
    tenth_of,
)
from tta_panda.reporting.figures import DotFigure, Dots
from tta_panda.reporting.tables import Column, Row, Table

_PAPERS_OWN = "The paper's own numbers, of its own models, data and settings: only the pattern can be compared."
_ZERO_NOTE = (
    "Zero's probabilities are the softmax of its votes, which is flat however sure it is: where they count, as in its "
    "bias, it cannot be compared with the others."
)


def _papers_cell(benchmark: str, method: str, variant: PaperVariant, corruption: str = MEAN) -> Cell:
    """A cell of a table of the paper's own numbers."""
    printed = printed_accuracy(benchmark, method, variant, corruption)
    return Cell() if printed is None else Cell(printed.value, printed.sd)


def _papers_benchmarks(title: str, rows: Mapping[str, tuple[str, PaperVariant]]) -> Table:
    """Mean accuracies as the paper prints them for its three benchmarks."""
    return Table(
        f"{title}: printed in the paper, accuracy (%)",
        "method",
        [Column.of(ACCURACY, backbone) for backbone in BACKBONES.values()],
        [Row(name, [_papers_cell(benchmark, *key) for benchmark in BACKBONES]) for name, key in rows.items()],
        note=_PAPERS_OWN,
        of_paper=True,
        name="in-paper",
    )


def _by_corruption(title: str, metric: Metric, rows: Mapping[str, Callable[[str], Cell]], name: str = "") -> Table:
    """All corruptions and their mean across; a row is a function from a corruption to its cell."""
    columns = [Column.of(metric, short_name(corruption)) for corruption in (*CORRUPTIONS, MEAN)]
    filled = [Row(label, [find(corruption) for corruption in (*CORRUPTIONS, MEAN)]) for label, find in rows.items()]
    return Table(title, "method", columns, filled, name=name)


# Table 1, its appendix, and the same for all methods


def _plain_and_panda(methods: Sequence[str], setup: Setup) -> list[Series]:
    return [series for name in methods for series in (setup.series(name), *setup.with_panda(name))]


def _accuracy_table(results: ExperimentResults, methods: Sequence[str]) -> Table:
    """Methods down; across, plain, with Panda, and what that changes."""
    setup = results.setup
    ways = [f"+panda ({AUTO})", f"+panda ({BEST_OF_GRID})"] if setup.beta == "grid" else ["+panda"]
    columns = [Column.of(ACCURACY, "plain")]
    columns += [column for way in ways for column in (Column.of(ACCURACY, way), Column.delta(ACCURACY))]
    columns += [Column("its beta")] if setup.beta == "grid" else []
    rows = []
    for name in methods:
        cells = [plain := results.accuracy(setup.series(name), name, "plain")]
        for series in setup.with_panda(name):
            panda = results.accuracy(series, name, "panda")
            cells += [panda, panda - plain]
        if setup.beta == "grid":
            cells.append(results.chosen_beta(setup.best_of_grid(name)))
        rows.append(Row(name, cells))
    return Table(f"Accuracy (%), {results.where} at severity {SEVERITY}", "method", columns, rows)


def _accuracy_dots(table: Table) -> DotFigure:
    """The accuracies of a table."""
    shown = [(i, column.title) for i, column in enumerate(table.columns) if column.better and not column.is_delta]
    dots = [Dots(title, [row.cells[index] for row in table.rows]) for index, title in shown]
    caption = f"{table.title}. Bars are one s.d. over seeds."
    return DotFigure(caption, ACCURACY.title, [row.name for row in table.rows], dots)


def _quality_table(results: ExperimentResults, methods: Sequence[str]) -> Table:
    """Metrics that the paper's table does not have."""
    metrics = (BIAS, CALIBRATION, LIKELIHOOD, RECALL_SPREAD)
    way = f" ({AUTO})" if results.setup.beta == "grid" else ""
    columns = [Column.of(metric, f"{metric.short}{suffix}") for metric in metrics for suffix in ("", f" +panda{way}")]
    rows = []
    for name in methods:
        pair = (results.setup.series(name), results.setup.series(f"{name}+panda"))
        rows.append(Row(name, [results.average(series, metric) for metric in metrics for series in pair]))
    names = ", ".join([metrics[0].heading, *(metric.title for metric in metrics[1:])])
    note = f"Lower is better throughout. {_ZERO_NOTE}"
    return Table(f"{names}, {results.where} at severity {SEVERITY}", "method", columns, rows, note, name="more")


def _show_main(results: ExperimentResults) -> Shown:
    tables = [_accuracy_table(results, METHODS), _quality_table(results, METHODS)]
    if results.setup.benchmark is None:
        tables.append(_papers_benchmarks("Ten methods", MAIN_ROWS))
    return Shown(tables, [_accuracy_dots(tables[0])])


def _show_corruptions(results: ExperimentResults) -> Shown:
    setup = results.setup
    accuracies: dict[str, Callable[[str], Cell]] = {}
    biases: dict[str, Callable[[str], Cell]] = {}
    for name in METHODS:
        variants: list[tuple[Series, PaperVariant]] = [(setup.series(name), "plain")]
        variants += [(series, "panda") for series in setup.with_panda(name)]
        for series, variant in variants:
            accuracies[series.label] = partial(results.accuracy, series, name, variant)
            biases[series.label] = partial(results.cell_or_mean, series, BIAS)
    bias = _by_corruption(BIAS.heading, BIAS, biases, "bias")
    tables = [_by_corruption(ACCURACY.heading, ACCURACY, accuracies), replace(bias, note=_ZERO_NOTE)]
    if setup.benchmark is None:
        rows = {label: partial(_papers_cell, "cifar10-c", *key) for label, key in MAIN_ROWS.items()}
        title = f"{BACKBONES['cifar10-c']}: printed in the paper, accuracy (%)"
        papers = _by_corruption(title, ACCURACY, rows, "in-paper")
        tables.append(replace(papers, note=_PAPERS_OWN, of_paper=True))
    return Shown(tables)


def _show_beyond(results: ExperimentResults) -> Shown:
    methods = list(ALL_METHODS)
    accuracies = _accuracy_table(results, methods)
    tables = [accuracies, _quality_table(results, methods), _cost_table(results, methods)]
    return Shown(tables, [_accuracy_dots(accuracies)], results.quick_notes())


def _cost_table(results: ExperimentResults, methods: Sequence[str]) -> Table:
    def seconds(series: Series) -> Cell:
        return results.measured(series, results.corruptions[0], lambda record, _: 100 * record.seconds / record.samples)

    rows = []
    for name in methods:
        pair = (results.setup.series(name), results.setup.series(f"{name}+panda"))
        images = [results.encoded_per_image(series, "images", "images_with_gradient") for series in pair]
        trained = results.encoded_per_image(pair[0], "images_with_gradient")
        rows.append(Row(name, [*images, trained, *map(seconds, pair)]))
    columns = [Column(title, 1, "lower") for title in ("images", "images +panda", "images with gradient")]
    columns += [Column(title, 2, "lower") for title in ("seconds", "seconds +panda")]
    title = "Images encoded for each image of the stream, and seconds for a hundred"
    note = (
        "Seconds are those of runs beside others, encoder passes that methods share counted in full for each: they "
        "tell cheap methods from costly ones. For times to compare: tta-panda reproduce table-time."
    )
    return Table(title, "method", columns, rows, note, name="costs")


# Table 2: positive augmentation

_POSITIVE = ("tpt", "zero", "tps")


def _show_positive(results: ExperimentResults) -> Shown:
    rows = []
    for series in results.series:
        name = series.candidates[0].method.partition("+")[0]
        variant: PaperVariant = "panda" if name == "tent" else "plain"
        encoded = results.encoded_per_image(series, "images", "images_with_gradient")
        cells = [results.accuracy(series, name, variant), results.average(series, BIAS), encoded]
        rows.append(Row(series.label, cells))
    columns = [Column.of(metric, metric.title) for metric in (ACCURACY, BIAS)]
    columns.append(Column("images encoded per image", 1, "lower"))
    tables = [Table("Mean of 15 corruptions at severity 5", "method", columns, rows, _ZERO_NOTE)]
    if results.setup.benchmark is None:
        paper: dict[str, tuple[str, PaperVariant]] = {name: (name, "plain") for name in _POSITIVE}
        tables.append(_papers_benchmarks("Positive augmentation", {**paper, "tent+panda": ("tent", "panda")}))
    return Shown(tables)


# Table 3: time

_TIMED_CORRUPTION = "gaussian_noise"
_TIMED_QUICK_IMAGES = 500
_PAPERS_SECONDS = {
    "clip": (17, 18, 5.9),
    "tent": (25, 27, 8.0),
    "eta": (21, 23, 9.5),
    "sar": (31, 34, 9.7),
    "deyo": (27, 28, 3.7),
    "tpt": (1341, 1359, 1.3),
    "dmn": (22, 23, 4.5),
    "zero": (531, 535, 0.8),
    "tps": (572, 577, 0.9),
    "bat": (28, 30, 7.2),
}
"""Seconds without and with Panda and the overhead in percent, as printed: ViT-B/32, CIFAR-10, a V100."""
_TIME_NOTE = (
    "One run after the other, each after a batch to warm up; seconds are those in the method, from a batch of "
    "images to its predictions, without reading data. A machine's fluctuations from run to run are as large as the "
    "overhead, so this shows the pattern only: `benchmarks/panda.py` times both in turns, with margins."
)


def _timed_pair(setup: Setup, name: str) -> list[Series]:
    return [setup.series(each, quick_images=_TIMED_QUICK_IMAGES) for each in (name, f"{name}+panda")]


def _show_time(results: ExperimentResults) -> Shown:
    rows = []
    for name in METHODS:
        before, after = (results.cell(s, SECONDS, _TIMED_CORRUPTION) for s in _timed_pair(results.setup, name))
        overhead = after - before
        if overhead.value is not None:
            # Seed by seed, since the two runs of a seed follow each other: a machine that slows down slows both.
            overhead = over_seeds({s: 100 * (after.by_seed[s] / before.by_seed[s] - 1) for s in overhead.by_seed})
        rows.append(Row(name, [before, after, overhead]))
    columns = [Column("plain (s)", 2, "lower"), Column("+panda (s)", 2, "lower"), Column("overhead (%)", 1)]
    table = Table(f"Seconds over one stream, {_TIMED_CORRUPTION.replace('_', ' ')}", "method", columns, rows)
    papers = Table(
        "Printed in the paper: ViT-B/32, CIFAR-10, 10,000 images, V100",
        "method",
        [Column("plain (s)", 0), Column("+panda (s)", 0), Column("overhead (%)", 1)],
        [Row(name, [Cell(value) for value in values]) for name, values in _PAPERS_SECONDS.items()],
        "The paper's own numbers, on its machine: only the pattern can be compared.",
        of_paper=True,
        name="in-paper",
    )
    return Shown([table, papers], notes=[_TIME_NOTE])


# Table 4: two uses of negatives

_NEGATIVE_ROWS: dict[str, tuple[str, PaperVariant]] = {
    "clip": ("clip", "plain"),
    "deyo: select & weight": ("deyo", "plain"),
    "deyo: offset instead": ("deyo", "offset"),
}


def _negative_series(setup: Setup) -> list[Series]:
    clip, deyo, offset = _NEGATIVE_ROWS
    rows = [setup.series("clip", clip), setup.series("deyo", deyo), setup.series("deyo+panda", offset, destroy="none")]
    return [*rows, setup.best_of_grid("deyo", offset, destroy="none")] if setup.beta == "grid" else rows


def _show_negative(results: ExperimentResults) -> Shown:
    finders: dict[str, Callable[[str], Cell]] = {}
    rows = []
    for series in results.series:
        find = partial(results.accuracy, series, *_NEGATIVE_ROWS.get(series.label, ("deyo", "offset")))
        finders[series.label] = find
        rows.append(Row(series.label, [find(MEAN), results.average(series, BIAS)]))
    columns = [Column.of(metric, metric.title) for metric in (ACCURACY, BIAS)]
    tables = [
        Table("Mean of 15 corruptions at severity 5", "method", columns, rows),
        _by_corruption("Accuracy (%) on every corruption", ACCURACY, finders, "corruptions"),
    ]
    if results.setup.benchmark is None:
        tables.append(_papers_benchmarks("Negative augmentation", _NEGATIVE_ROWS))
    return Shown(tables)


# Beyond the paper: kinds of streams

_STREAMS_NOTE = (
    "Streams are named as --order takes them; sorted is correlated:0, one class is label_shift:0. Unless domains are "
    "joined (continual, mixed), methods are reset at each corruption."
)


def _stream_rows(setup: Setup) -> dict[str, list[Series]]:
    """For each method and stream, the plain method, then debiased in every way."""
    methods = ("clip", "tent") if setup.quick else ("clip", "tent", "dmn")
    streams = ("shuffled", "correlated:0.1", "sorted", "label_shift:0.1") if setup.quick else STREAMS
    rows = {}
    for method in methods:
        for stream in streams:
            changes = STREAMS[stream]
            names = [method, *(f"{method}+{way}" for way in DEBIASES)]
            rows[f"{method}, {stream}"] = [setup.series(name, **changes) for name in names]
    return rows


def _show_streams(results: ExperimentResults) -> Shown:
    corruptions = results.corruptions
    columns = [Column.of(ACCURACY, "plain"), *(Column.delta(ACCURACY, f"Δ +{way}") for way in DEBIASES)]

    def table(look_up: Callable[[Series, Metric, Sequence[str]], Cell], where: str, name: str = "") -> Table:
        rows = []
        for label, shown in _stream_rows(results.setup).items():
            plain, *debiased = (look_up(series, ACCURACY, corruptions) for series in shown)
            rows.append(Row(label, [plain, *(cell - plain for cell in debiased)]))
        return Table(f"Accuracy (%), {where}", "method and stream", columns, rows, name=name)

    worst = f"mean of the worst tenth, {tenth_of(corruptions)} of {len(corruptions)} corruptions"
    tables = [table(results.mean, results.where), table(results.tail, worst, "tail")]
    return Shown(tables, notes=[_STREAMS_NOTE, *results.sweep_notes()])


_BETAS = ("auto", 0.4)
_BETA_QUICK_IMAGES = 500  # fewer would leave many classes in each batch of a sorted stream


def _beta_rows(setup: Setup) -> dict[str, list[Series]]:
    """For each stream, plain, then with each beta."""
    rows = {}
    for name, stream in STREAMS.items():
        changes = {**stream, "quick_images": _BETA_QUICK_IMAGES}
        panda = [setup.series("clip+panda", beta=beta, **changes) for beta in _BETAS]
        rows[name] = [setup.series("clip", **changes), *panda]
    return rows


def _show_betas(results: ExperimentResults) -> Shown:
    def worst_change(plain: Series, debiased: Series) -> Cell:
        """On the corruption where accuracy falls most, or gains least."""
        cells = [
            results.cell(debiased, ACCURACY, corruption) - results.cell(plain, ACCURACY, corruption)
            for corruption in results.corruptions
        ]
        return min(cells, key=lambda cell: -100.0 if cell.value is None else cell.value)  # an empty one says why

    means, worst = [], []
    for stream, (plain, *debiased) in _beta_rows(results.setup).items():
        before = results.average(plain, ACCURACY)
        means.append(Row(stream, [before, *(results.average(each, ACCURACY) - before for each in debiased)]))
        worst.append(Row(stream, [worst_change(plain, each) for each in debiased]))
    changes = [Column.delta(ACCURACY, f"Δ {beta}") for beta in _BETAS]
    title = f"Change in accuracy on the worst of {len(results.corruptions)} corruptions"
    tables = [
        Table(f"Accuracy (%), {results.where}", "stream", [Column.of(ACCURACY, "plain"), *changes], means),
        Table(title, "stream", changes, worst, name="worst"),
    ]
    return Shown(tables, notes=[_STREAMS_NOTE, *results.quick_notes()])


TABLES = (
    Experiment(
        "table-main",
        "Ten methods with and without Panda",
        "Mean accuracy over 15 corruptions, mean ± s.d. over seeds, and what Panda changes.",
        partial(_plain_and_panda, METHODS),
        _show_main,
        in_paper="Table 1",
        compares_benchmarks=True,
    ),
    Experiment(
        "table-corruptions",
        "Every corruption",
        "The accuracies of the main table on each of the 15 corruptions.",
        partial(_plain_and_panda, METHODS),
        _show_corruptions,
        in_paper="Appendix, table of all corruption domains",
    ),
    Experiment(
        "table-pda",
        "Positive augmentation against Panda",
        "TPT, Zero and TPS, which look at many views of each image, against Tent with Panda.",
        lambda setup: [*(setup.series(name) for name in _POSITIVE), *setup.with_panda("tent")],
        _show_positive,
        in_paper="Table 2",
        compares_benchmarks=True,
    ),
    Experiment(
        "table-time",
        "Time with and without Panda",
        "Seconds over one stream, alone on the machine, and what Panda adds.",
        lambda setup: [series for name in METHODS for series in _timed_pair(setup, name)],
        _show_time,
        lambda setup: (_TIMED_CORRUPTION,),
        in_paper="Table 3",
        timed=True,
    ),
    Experiment(
        "table-nda",
        "Select and weight, or subtract",
        "DeYO as it is, and with Panda's offset in the place of its own negatives (second filter and weight).",
        _negative_series,
        _show_negative,
        in_paper="Table 4 and its appendix",
        compares_benchmarks=True,
    ),
    Experiment(
        "table-beyond",
        "All methods with and without Panda",
        "Accuracy, bias, calibration and cost of the paper's methods and of newer ones, and what Panda changes.",
        lambda setup: _plain_and_panda(list(ALL_METHODS), setup),
        _show_beyond,
        Setup.sensitivity_corruptions,
    ),
    Experiment(
        "table-streams",
        "Ways to debias, by kind of stream",
        "Accuracy of plain methods, and what each way to debias changes, on streams of several kinds.",
        lambda setup: [series for row in _stream_rows(setup).values() for series in row],
        _show_streams,
        Setup.sensitivity_corruptions,
    ),
    Experiment(
        "table-beta",
        "Beta by kind of stream",
        "What Panda changes in CLIP's accuracy with beta auto, which needs no labels, and with a fixed beta.",
        lambda setup: [series for row in _beta_rows(setup).values() for series in row],
        _show_betas,
        Setup.sensitivity_corruptions,
    ),
)
