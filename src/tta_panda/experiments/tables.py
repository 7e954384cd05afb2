"""Tables of the paper and others: what each compares, and its layout."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType

from tta_panda.data.corruptions import CORRUPTIONS
from tta_panda.experiments.base import ExperimentResults, changes_table, experiment
from tta_panda.experiments.paper import BACKBONES, MAIN_ROWS, MEAN, METHODS, printed_accuracy, printed_seconds
from tta_panda.experiments.published import as_printed, subtta, watt
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
from tta_panda.reporting.figures import DotFigure
from tta_panda.reporting.page import Section
from tta_panda.reporting.tables import Column, Row, Table

_PAPER_NOTE = "The paper's numbers, for its own models, data and settings: only the pattern can be compared."
_ZERO_NOTE = (
    "Zero's probabilities are the softmax of its votes, which is flat however confident it is: metrics that depend on "
    "them, such as bias, cannot be compared with those of other methods."
)


def _paper_cell(method: str, benchmark: str, corruption: str = MEAN) -> Cell:
    return printed_accuracy(benchmark, method, corruption) or Cell()


def _paper_tables(results: ExperimentResults, title: str, rows: Mapping[str, str]) -> list[Table]:
    """Table of the paper's mean accuracies on its three benchmarks; none if they are shown with ours."""
    table = Table(
        f"{title}: printed in the paper, accuracy (%)",
        "method",
        [Column.of(ACCURACY, backbone) for backbone in BACKBONES.values()],
        [Row(label, [_paper_cell(name, benchmark) for benchmark in BACKBONES]) for label, name in rows.items()],
        note=_PAPER_NOTE,
        of_paper=True,
        name="in-paper",
    )
    return [table] if results.setup.benchmark is None else []


def _series_table(
    results: ExperimentResults, note: str = "", more: Mapping[Column, Callable[[Series], Cell]] = MappingProxyType({})
) -> Table:
    """Table with a row per series, and columns for accuracy, bias and more."""
    columns = {
        Column.of(ACCURACY, ACCURACY.title): results.accuracy,
        Column.of(BIAS, BIAS.title): lambda series: results.average(series, BIAS),
        **more,
    }
    rows = [Row(series.label, [find(series) for find in columns.values()]) for series in results.series]
    return Table(f"Mean of 15 corruptions at severity {SEVERITY}", "method", list(columns), rows, note)


def _by_corruption(title: str, metric: Metric, rows: Mapping[str, Callable[[str], Cell]], name: str = "") -> Table:
    """Table with a column per corruption and one for their mean; rows are functions from corruptions to cells."""
    columns = [Column.of(metric, short_name(corruption)) for corruption in (*CORRUPTIONS, MEAN)]
    filled = [Row(label, [find(corruption) for corruption in (*CORRUPTIONS, MEAN)]) for label, find in rows.items()]
    return Table(title, "method", columns, filled, name=name)


# Table 1, its appendix, and the same for all methods


def _accuracy_table(results: ExperimentResults) -> Table:
    """Table with a row per method: its accuracy plain and with Panda, and the change."""
    title = f"Accuracy (%), {results.where} at severity {SEVERITY}"
    rows = results.cells_by_row(results.accuracy)
    if results.setup.beta != "grid":
        return changes_table(title, "method", ["+panda"], rows)
    table = changes_table(title, "method", [f"+panda ({AUTO})", f"+panda ({BEST_OF_GRID})"], rows)
    return table.with_column(Column("its beta"), [results.chosen_beta(row[-1]) for row in results.rows.values()])


def _quality_table(results: ExperimentResults) -> Table:
    """Table of metrics that are not in the paper's table."""
    metrics = (BIAS, CALIBRATION, LIKELIHOOD, RECALL_SPREAD)
    way = f" ({AUTO})" if results.setup.beta == "grid" else ""
    columns = [Column.of(metric, f"{metric.short}{suffix}") for metric in metrics for suffix in ("", f" +panda{way}")]
    rows = [
        Row(name, [results.average(series, metric) for metric in metrics for series in row[:2]])
        for name, row in results.rows.items()
    ]
    names = ", ".join([metrics[0].heading, *(metric.title for metric in metrics[1:])])
    note = f"Lower is better throughout. {_ZERO_NOTE}"
    return Table(f"{names}, {results.where} at severity {SEVERITY}", "method", columns, rows, note, name="more")


def _accuracy_dots(table: Table) -> DotFigure:
    return DotFigure(f"{table.title}. Bars are one s.d. over seeds.", ACCURACY.title, table)


@experiment(
    "table-main",
    "Ten methods with and without Panda",
    "Mean accuracy over 15 corruptions (mean ± s.d. over seeds), and its change with Panda.",
    lambda setup: setup.plain_and_panda(METHODS),
    in_paper="Table 1",
    compares_benchmarks=True,
    by_method=True,
)
def _main(results: ExperimentResults) -> Section:
    tables = [_accuracy_table(results), _quality_table(results)]
    papers = _paper_tables(results, "Ten methods", {name: name for name in MAIN_ROWS})
    return Section([*tables, *papers], [_accuracy_dots(tables[0])])


@experiment(
    "table-corruptions",
    "Every corruption",
    "The accuracies of the main table on each of the 15 corruptions.",
    lambda setup: setup.plain_and_panda(METHODS),
    in_paper="Appendix, table of all corruption domains",
    by_method=True,
)
def _corruptions(results: ExperimentResults) -> Section:
    accuracies = {series.label: partial(results.accuracy, series) for series in results.series}
    biases = {series.label: partial(results.cell_or_mean, series, BIAS) for series in results.series}
    bias = _by_corruption(BIAS.heading, BIAS, biases, "bias")
    tables = [_by_corruption(ACCURACY.heading, ACCURACY, accuracies), replace(bias, note=_ZERO_NOTE)]
    if results.setup.benchmark is None:
        rows = {name: partial(_paper_cell, name, "cifar10-c") for name in MAIN_ROWS}
        title = f"{BACKBONES['cifar10-c']}: printed in the paper, accuracy (%)"
        papers = _by_corruption(title, ACCURACY, rows, "in-paper")
        tables.append(replace(papers, note=_PAPER_NOTE, of_paper=True))
    return Section(tables)


def _cost_table(results: ExperimentResults, series_by_row: Mapping[str, Sequence[Series]]) -> Table:
    """Table of the cost of plain methods and with Panda, the first two series of each row."""

    def seconds(series: Series) -> Cell:
        return results.measured(series, results.corruptions[0], lambda record, _: 100 * record.seconds / record.samples)

    rows = []
    for name, (plain, panda, *_) in series_by_row.items():
        images = [results.encoded_per_image(series, "images", "images_with_gradient") for series in (plain, panda)]
        trained = results.encoded_per_image(plain, "images_with_gradient")
        rows.append(Row(name, [*images, trained, seconds(plain), seconds(panda)]))
    columns = [Column(title, 1, "lower") for title in ("images", "images +panda", "images with gradient")]
    columns += [Column(title, 2, "lower") for title in ("seconds", "seconds +panda")]
    title = "Images encoded per image of the stream, and seconds per hundred images"
    note = (
        "Seconds were measured while other runs used the machine, and include shared encoder passes in full: they "
        "only distinguish cheap methods from costly ones. For comparable times: tta-panda reproduce table-time."
    )
    return Table(title, "method", columns, rows, note, name="costs")


# Table 2: positive augmentation

_POSITIVE = ("tpt", "zero", "tps")


@experiment(
    "table-pda",
    "Positive augmentation against Panda",
    "TPT, Zero and TPS, which use many views of each image, compared with Tent with Panda.",
    lambda setup: {**{name: [setup.series(name)] for name in _POSITIVE}, "tent": setup.with_panda("tent")},
    in_paper="Table 2",
    compares_benchmarks=True,
)
def _positive(results: ExperimentResults) -> Section:
    encoded = Column("images encoded per image", 1, "lower")
    more = {encoded: lambda series: results.encoded_per_image(series, "images", "images_with_gradient")}
    table = _series_table(results, _ZERO_NOTE, more)
    names = (*_POSITIVE, "tent+panda")
    return Section([table, *_paper_tables(results, "Positive augmentation", {name: name for name in names})])


# Table 3: time

_TIMED_CORRUPTION = "gaussian_noise"
_TIMED_QUICK_IMAGES = 500
_TIME_NOTE = (
    "Runs follow one another, each after a warm-up batch; seconds are those in the method, from a batch of images to "
    "its predictions, without reading data. Times vary between runs by as much as the overhead, so only the pattern "
    "can be seen: `benchmarks/panda.py` alternates between the two, and reports margins."
)


def _timed_rows(setup: Setup) -> dict[str, list[Series]]:
    return {
        name: [setup.series(each, quick_images=_TIMED_QUICK_IMAGES) for each in (name, f"{name}+panda")]
        for name in METHODS
    }


@experiment(
    "table-time",
    "Time with and without Panda",
    "Seconds for one stream on an idle machine, and the overhead of Panda.",
    _timed_rows,
    corruptions=lambda setup: (_TIMED_CORRUPTION,),
    in_paper="Table 3",
    timed=True,
    by_method=True,
)
def _time(results: ExperimentResults) -> Section:
    rows = []
    for name, pair in results.rows.items():
        before, after = (results.cell(series, SECONDS, _TIMED_CORRUPTION) for series in pair)
        overhead = after - before
        if overhead.value is not None:
            # By seed, since the two runs of a seed follow each other: a machine that slows down slows both.
            overhead = over_seeds({s: 100 * (after.by_seed[s] / before.by_seed[s] - 1) for s in overhead.by_seed})
        rows.append(Row(name, [before, after, overhead]))
    columns = [Column("plain (s)", 2, "lower"), Column("+panda (s)", 2, "lower"), Column("overhead (%)", 1)]
    table = Table(f"Seconds for one stream, {_TIMED_CORRUPTION.replace('_', ' ')}", "method", columns, rows)
    papers = Table(
        "Printed in the paper: ViT-B/32, CIFAR-10, 10,000 images, V100",
        "method",
        [Column("plain (s)", 0), Column("+panda (s)", 0), Column("overhead (%)", 1)],
        [Row(name, [Cell(value) for value in values]) for name, values in printed_seconds().items()],
        "The paper's numbers, on its machine: only the pattern can be compared.",
        of_paper=True,
        name="in-paper",
    )
    return Section([table, papers], notes=[_TIME_NOTE])


# Table 4: two uses of negatives

_NEGATIVE_ROWS = {"clip": "clip", "deyo: select & weight": "deyo", "deyo: offset instead": "deyo+offset"}
"""Names of the paper's numbers by label."""


def _negative_rows(setup: Setup) -> dict[str, list[Series]]:
    clip, deyo, offset = _NEGATIVE_ROWS
    weighted, subtracted = setup.series("deyo", deyo), setup.with_panda("deyo", offset, destroy="none")
    return {clip: [setup.series("clip")], deyo: [weighted], offset: subtracted}


@experiment(
    "table-nda",
    "Select and weight, or subtract",
    "DeYO as published, and with Panda's offset instead of its own negatives (second filter and weight).",
    _negative_rows,
    in_paper="Table 4 and its appendix",
    compares_benchmarks=True,
)
def _negative(results: ExperimentResults) -> Section:
    accuracies = {series.label: partial(results.accuracy, series) for series in results.series}
    tables = [
        _series_table(results),
        _by_corruption("Accuracy (%) on every corruption", ACCURACY, accuracies, "corruptions"),
    ]
    return Section([*tables, *_paper_tables(results, "Negative augmentation", _NEGATIVE_ROWS)])


# Beyond the paper: kinds of streams

_STREAMS_NOTE = (
    "Streams are named as in --order; sorted is correlated:0, one class is label_shift:0. Unless domains are joined "
    "(continual, mixed), methods are reset before each corruption."
)


def _ways_rows(
    setup: Setup, methods: Iterable[str], streams: Iterable[str], ways: Sequence[str] = DEBIASES
) -> dict[str, list[Series]]:
    """Series for each method and stream: the plain method, then each way to debias it."""
    return {
        f"{method}, {stream}": [
            setup.series(name, **STREAMS[stream]) for name in (method, *(f"{method}+{way}" for way in ways))
        ]
        for method in methods
        for stream in streams
    }


_WAYS = [f"+{way}" for way in DEBIASES]
_STREAM_ROWS = "method and stream"


def _worst_table(results: ExperimentResults, means: Table) -> Table:
    """Table of the change with each way to debias, on the corruption where accuracy falls most or rises least."""

    def worst(plain: Series, other: Series) -> Cell:
        cells = [
            results.cell(other, ACCURACY, corruption) - results.cell(plain, ACCURACY, corruption)
            for corruption in results.corruptions
        ]
        return min(
            cells, key=lambda cell: -100.0 if cell.value is None else cell.value
        )  # prefer an empty one, which has a reason

    title = f"Change in accuracy on the worst of {len(results.corruptions)} corruptions"
    rows = [Row(name, [worst(plain, each) for each in others]) for name, (plain, *others) in results.rows.items()]
    return Table(title, means.rows_are, means.columns[1:], rows, name="worst")


def _stream_rows(setup: Setup) -> dict[str, list[Series]]:
    if setup.quick:
        return _ways_rows(setup, ("clip", "tent"), ("shuffled", "correlated:0.1", "sorted", "label_shift:0.1"))
    return _ways_rows(setup, ("clip", "tent", "dmn"), STREAMS)


@experiment(
    "table-streams",
    "Ways to debias, by kind of stream",
    "Accuracy of plain methods, and its change with each way to debias, on several kinds of streams.",
    _stream_rows,
    corruptions=Setup.sensitivity_corruptions,
    by_method=True,
)
def _streams(results: ExperimentResults) -> Section:
    corruptions = results.corruptions
    worst = f"mean of the worst tenth, {tenth_of(corruptions)} of {len(corruptions)} corruptions"
    tails = results.cells_by_row(lambda series: results.tail(series, ACCURACY, corruptions))
    tables = [
        changes_table(f"Accuracy (%), {where}", _STREAM_ROWS, _WAYS, rows, values=False, name=name)
        for where, rows, name in ((results.where, results.mean_accuracies(), ""), (worst, tails, "tail"))
    ]
    return Section(tables, notes=[_STREAMS_NOTE, *results.sweep_notes()])


# Beyond the paper: all methods

_ALL_WAYS = ("panda", "panda+level")
_ALL_STREAMS = ("shuffled", "correlated:0.1", "continual", "mixed")


def _all_rows(setup: Setup) -> dict[str, list[Series]]:
    return _ways_rows(setup, ALL_METHODS, _ALL_STREAMS[:2] if setup.quick else _ALL_STREAMS, _ALL_WAYS)


@experiment(
    "table-all",
    "All methods",
    "Accuracy, bias, calibration and cost of all methods on four kinds of streams, and their change with Panda.",
    _all_rows,
    corruptions=Setup.sensitivity_corruptions,
    by_method=True,
    defaults={"limit": 500, "seeds": (0, 1, 2)},
)
def _all(results: ExperimentResults) -> Section:
    by_stream: dict[str, dict[str, Sequence[Series]]] = {}
    for label, row in results.rows.items():
        method, _, stream = label.partition(", ")
        by_stream.setdefault(stream, {})[method] = row
    tables = [_stream_table(results, stream, rows) for stream, rows in by_stream.items()]
    costs = _cost_table(results, by_stream["shuffled"])
    papers = [as_printed(publication) for publication in (subtta(), watt())]
    return Section([*tables, costs, *papers], notes=[_STREAMS_NOTE, _ZERO_NOTE, *results.sweep_notes()])


def _stream_table(results: ExperimentResults, stream: str, rows: Mapping[str, Sequence[Series]]) -> Table:
    """Table of one kind of stream: accuracy and its changes, then bias and calibration error."""
    ways = [f"+{way}" for way in _ALL_WAYS]
    cells = {
        metric: {name: [results.average(series, metric) for series in row] for name, row in rows.items()}
        for metric in (ACCURACY, BIAS, CALIBRATION)
    }
    title = f"{stream}: accuracy (%), {BIAS.short} and {CALIBRATION.short}, {results.where}"
    table = changes_table(title, "method", ways, cells[ACCURACY], name=re.sub(r"\W", "-", stream))
    for metric in (BIAS, CALIBRATION):
        for index, way in enumerate(["", *ways]):
            column = Column.of(metric, f"{metric.short} {way}".rstrip())
            table = table.with_column(column, [row[index] for row in cells[metric].values()])
    return table


# Beyond the paper: photographs

_NEED_TEXT = ("tpt", "bat")
_PHOTO_STREAMS = ("shuffled", "correlated:0.1", "sorted", "label_shift:0.1", "continual", "mixed")
_PHOTOS_NOTE = (
    "The weights for a class of CIFAR-10 are the mean of those of the ImageNet classes that belong to it; ImageNet "
    "has no deer, so antelopes are used instead."
)


def _photo_rows(setup: Setup) -> dict[str, list[Series]]:
    usable = [name for name in ALL_METHODS if name not in _NEED_TEXT]
    if setup.quick and not setup.methods:
        usable = ["clip", "tda", "tent"]
    return _ways_rows(
        setup, usable, ("shuffled", "correlated:0.1", "label_shift:0.1") if setup.quick else _PHOTO_STREAMS
    )


@experiment(
    "table-photos",
    "Photographs",
    "Accuracy of an ImageNet classifier on corrupted photographs, and its change with each way to debias.",
    _photo_rows,
    corruptions=Setup.sensitivity_corruptions,
    by_method=True,
    defaults={"data": "cifar10-c", "model": "lite0", "limit": 1000, "seeds": (0, 1, 2)},
)
def _photos(results: ExperimentResults) -> Section:
    title = f"Accuracy (%), {results.where}"
    means = changes_table(title, _STREAM_ROWS, _WAYS, results.mean_accuracies(), values=False)
    figures = []
    for stream in dict.fromkeys(name.partition(", ")[2] for name in results.rows):
        own = [row for row in means.rows if row.name.endswith(f", {stream}")]
        shown = [Row(row.name.partition(",")[0], row.cells[1:]) for row in own]
        caption = f"Change in accuracy with each way to debias, stream {stream}, {results.where}."
        table = replace(means, columns=means.columns[1:], rows=shown)
        figures.append(DotFigure(caption, "change in accuracy (percentage points)", table, ("plain", 0.0)))
    notes = [_PHOTOS_NOTE, _STREAMS_NOTE, *results.sweep_notes()]
    return Section([means, _worst_table(results, means)], figures, notes)


# Beyond the paper: beta by kind of stream

_BETAS = ("auto", 0.4)
_BETA_QUICK_IMAGES = 500  # fewer would leave many classes in each batch of a sorted stream


def _beta_rows(setup: Setup) -> dict[str, list[Series]]:
    """Series for each kind of stream: plain CLIP, then with Panda and each beta."""
    rows = {}
    for name, stream in STREAMS.items():
        changes = {**stream, "quick_images": _BETA_QUICK_IMAGES}
        panda = [setup.series("clip+panda", beta=beta, **changes) for beta in _BETAS]
        rows[name] = [setup.series("clip", **changes), *panda]
    return rows


@experiment(
    "table-beta",
    "Beta by kind of stream",
    "Change in CLIP's accuracy with Panda, with beta auto, which needs no labels, and with a fixed beta.",
    _beta_rows,
    corruptions=Setup.sensitivity_corruptions,
)
def _betas(results: ExperimentResults) -> Section:
    ways, rows = list(map(str, _BETAS)), results.mean_accuracies()
    means = changes_table(f"Accuracy (%), {results.where}", "stream", ways, rows, values=False)
    return Section([means, _worst_table(results, means)], notes=[_STREAMS_NOTE, *results.quick_notes()])
