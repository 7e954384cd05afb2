"""Tables of the paper and others: what each compares, and its layout."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType

from tta_panda.data import CLEAN, load_data
from tta_panda.data.corruptions import CORRUPTIONS
from tta_panda.evaluation.config import StreamConfig
from tta_panda.experiments.base import ExperimentResults, changes_table, experiment
from tta_panda.experiments.printed import (
    BACKBONES,
    MAIN_ROWS,
    MEAN,
    METHODS,
    NOT_PRINTED,
    PAPER,
    PUBLISHED_PRESETS,
    SUBTTA,
    WATT,
    Publication,
    printed_seconds,
)
from tta_panda.experiments.setup import SEVERITY, STREAMS, Series, Setup, short_name
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
from tta_panda.reporting.rejection import rejection_table
from tta_panda.reporting.tables import Column, Row, Table

_ZERO_NOTE = (
    "Zero's probabilities are the softmax of its votes, which is flat however confident it is: metrics that depend on "
    "them, such as bias, cannot be compared with those of other methods."
)


def _paper_table(results: ExperimentResults, rows: Mapping[str, str] | Iterable[str]) -> list[Table]:
    """Table of the paper's mean accuracies on its three benchmarks; none if they are shown with ours."""
    named = rows if isinstance(rows, Mapping) else {name: name for name in rows}
    return [PAPER.table(named)] if results.setup.benchmark is None else []


def _series_table(
    results: ExperimentResults, note: str = "", more: Mapping[Column, Callable[[Series], Cell]] = MappingProxyType({})
) -> Table:
    """Table with a row per series, and columns for accuracy, bias and more."""
    columns = {
        Column.of(ACCURACY, ACCURACY.title): results.accuracy,
        Column.of(BIAS, BIAS.title): lambda series: results.cell(series, BIAS),
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


def _quality_table(results: ExperimentResults) -> Table:
    """Table of metrics that are not in the paper's table."""
    metrics = (BIAS, CALIBRATION, LIKELIHOOD, RECALL_SPREAD)
    columns = [Column.of(metric, f"{metric.short}{suffix}") for metric in metrics for suffix in ("", " +panda")]
    rows = [
        Row(name, [results.cell(series, metric) for metric in metrics for series in row])
        for name, row in results.rows.items()
    ]
    names = ", ".join([metrics[0].heading, *(metric.title for metric in metrics[1:])])
    note = f"Lower is better throughout. {_ZERO_NOTE}"
    return Table(f"{names}, {results.where} at severity {SEVERITY}", "method", columns, rows, note, name="more")


@experiment(
    "table-main",
    "Ten methods with and without Panda",
    "Mean accuracy over 15 corruptions (mean ± s.d. over seeds), and its change with Panda.",
    lambda setup: setup.plain_and_panda(METHODS),
    in_paper="Table 1",
    by_method=True,
)
def _main(results: ExperimentResults) -> Section:
    title = f"Accuracy (%), {results.where} at severity {SEVERITY}"
    tables = [
        changes_table(title, "method", ["+panda"], results.cells_by_row(results.accuracy)),
        _quality_table(results),
    ]
    caption = f"{tables[0].title}. Bars are one s.d. over seeds."
    return Section([*tables, *_paper_table(results, MAIN_ROWS)], [DotFigure(caption, ACCURACY.title, tables[0])])


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
    biases = {series.label: partial(results.cell, series, BIAS) for series in results.series}
    bias = _by_corruption(BIAS.heading, BIAS, biases, "bias")
    tables = [_by_corruption(ACCURACY.heading, ACCURACY, accuracies), replace(bias, note=_ZERO_NOTE)]
    if results.setup.benchmark is None:
        rows = {name: PAPER.numbers["cifar10-c", "ViT-B-32", name].__getitem__ for name in MAIN_ROWS}
        title = f"{BACKBONES['cifar10-c']}: printed in the paper, accuracy (%)"
        tables.append(replace(_by_corruption(title, ACCURACY, rows, "in-paper"), of_paper=True))
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
    lambda setup: {**{name: [setup.series(name)] for name in _POSITIVE}, "tent": [setup.series("tent+panda")]},
    in_paper="Table 2",
)
def _positive(results: ExperimentResults) -> Section:
    encoded = Column("images encoded per image", 1, "lower")
    more = {encoded: lambda series: results.encoded_per_image(series, "images", "images_with_gradient")}
    table = _series_table(results, _ZERO_NOTE, more)
    names = (*_POSITIVE, "tent+panda")
    return Section([table, *_paper_table(results, names)])


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
    weighted, subtracted = setup.series("deyo", deyo), setup.series("deyo+panda", offset, destroy="none")
    return {clip: [setup.series("clip")], deyo: [weighted], offset: [subtracted]}


@experiment(
    "table-nda",
    "Select and weight, or subtract",
    "DeYO as published, and with Panda's offset instead of its own negatives (second filter and weight).",
    _negative_rows,
    in_paper="Table 4 and its appendix",
)
def _negative(results: ExperimentResults) -> Section:
    accuracies = {series.label: partial(results.accuracy, series) for series in results.series}
    tables = [
        _series_table(results),
        _by_corruption("Accuracy (%) on every corruption", ACCURACY, accuracies, "corruptions"),
    ]
    return Section([*tables, *_paper_table(results, _NEGATIVE_ROWS)])


# Beyond the paper: ways to debias, by kind of stream

_STREAMS_NOTE = (
    "Streams are named as in --order; sorted is correlated:0, one class is label_shift:0. Unless domains are joined "
    "(continual, mixed), methods are reset before each corruption."
)
_PHOTO_STREAMS = ("shuffled", "correlated:0.1", "sorted", "label_shift:0.1", "continual", "mixed")
_BETAS = ("auto", 0.4)
_BETA_QUICK_IMAGES = 500  # fewer would leave many classes in each batch of a sorted stream


def _ways_rows(
    setup: Setup, methods: Iterable[str], streams: Iterable[str], ways: Sequence[str] = DEBIASES
) -> dict[str, list[Series]]:
    """Series for each method and stream: the plain method, then each way to debias it."""
    return {
        f"{method}, {stream}": [
            setup.series(method, **STREAMS[stream]),
            *(setup.series(f"{method}+{way}", f"+{way}", **STREAMS[stream]) for way in ways),
        ]
        for method in methods
        for stream in streams
    }


def _stream_rows(setup: Setup) -> dict[str, list[Series]]:
    if setup.quick:
        return _ways_rows(setup, ("clip", "tent"), ("shuffled", "correlated:0.1", "sorted", "label_shift:0.1"))
    return _ways_rows(setup, ("clip", "tent", "dmn"), STREAMS)


def _photo_rows(setup: Setup) -> dict[str, list[Series]]:
    usable = [name for name in ALL_METHODS if not ALL_METHODS.get(name).use_of_text]
    if setup.quick and not setup.methods:
        usable = ["clip", "tda", "tent"]
    return _ways_rows(
        setup, usable, ("shuffled", "correlated:0.1", "label_shift:0.1") if setup.quick else _PHOTO_STREAMS
    )


def _beta_rows(setup: Setup) -> dict[str, list[Series]]:
    """Series for each kind of stream: plain CLIP, then with Panda and each beta."""
    rows = {}
    for name, stream in STREAMS.items():
        changes = {**stream, "quick_images": _BETA_QUICK_IMAGES}
        panda = [setup.series("clip+panda", str(beta), beta=beta, **changes) for beta in _BETAS]
        rows[f"clip, {name}"] = [setup.series("clip", **changes), *panda]
    return rows


@experiment(
    "table-streams",
    "Ways to debias, by kind of stream",
    "Accuracy of plain methods, and its change with each way to debias, on several kinds of streams.",
    _stream_rows,
    corruptions=Setup.sensitivity_corruptions,
    by_method=True,
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
@experiment(
    "table-beta",
    "Beta by kind of stream",
    "Change in CLIP's accuracy with Panda, with beta auto, which needs no labels, and with a fixed beta.",
    _beta_rows,
    corruptions=Setup.sensitivity_corruptions,
)
def _ways(results: ExperimentResults) -> Section:
    """Plain accuracies and their changes: the means, those of the worst corruptions, and the worst changes."""
    corruptions, rows_are = results.corruptions, "method and stream"
    ways = [series.label for series in next(iter(results.rows.values()))[1:]]
    tails = results.cells_by_row(lambda series: results.tail(series, ACCURACY, corruptions))
    worst_tenth = f"mean of the worst tenth, {tenth_of(corruptions)} of {len(corruptions)} corruptions"
    means, tail = (
        changes_table(f"Accuracy (%), {where}", rows_are, ways, rows, values=False, name=name)
        for where, rows, name in ((results.where, results.cells_by_row(), ""), (worst_tenth, tails, "tail"))
    )

    def worst_change(plain: Series, other: Series) -> Cell:
        """The change on the corruption where accuracy falls most or rises least; an empty cell has a reason."""
        cells = [results.cell(other, ACCURACY, name) - results.cell(plain, ACCURACY, name) for name in corruptions]
        return min(cells, key=lambda cell: -100.0 if cell.value is None else cell.value)

    title = f"Change in accuracy on the worst of {len(corruptions)} corruptions"
    changes = {name: [worst_change(plain, each) for each in others] for name, (plain, *others) in results.rows.items()}
    worst = Table(title, rows_are, means.columns[1:], [Row(*each) for each in changes.items()], name="worst")
    return Section([means, tail, worst], _change_figures(means), [_STREAMS_NOTE, *results.quick_notes()])


def _change_figures(means: Table) -> list[DotFigure]:
    """Figures of the changes, one for each method or, if there are more methods than streams, for each stream."""
    pairs = [row.name.split(", ") for row in means.rows]
    methods, streams = (dict.fromkeys(each) for each in zip(*pairs, strict=True))
    figures = []
    for group in methods if len(methods) <= len(streams) else streams:
        own = [
            Row(", ".join(name for name in pair if name != group), row.cells[1:])
            for pair, row in zip(pairs, means.rows, strict=True)
            if group in pair
        ]
        caption = f"Change in accuracy with each way to debias, {group}. {means.title}."
        table = replace(means, columns=means.columns[1:], rows=own)
        figures.append(DotFigure(caption, "change in accuracy (percentage points)", table, ("plain", 0.0)))
    return figures


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
    tables += [_cost_table(results, by_stream["shuffled"]), SUBTTA.table(), WATT.table()]
    return Section(tables, notes=[_STREAMS_NOTE, _ZERO_NOTE, *results.quick_notes()])


def _stream_table(results: ExperimentResults, stream: str, rows: Mapping[str, Sequence[Series]]) -> Table:
    """Table of one kind of stream: accuracy and its changes, then bias and calibration error."""
    ways = [f"+{way}" for way in _ALL_WAYS]
    cells = {
        metric: {name: [results.cell(series, metric) for series in row] for name, row in rows.items()}
        for metric in (ACCURACY, BIAS, CALIBRATION)
    }
    title = f"{stream}: accuracy (%), {BIAS.short} and {CALIBRATION.short}, {results.where}"
    table = changes_table(title, "method", ways, cells[ACCURACY], name=re.sub(r"\W", "-", stream))
    for metric in (BIAS, CALIBRATION):
        for index, way in enumerate(["", *ways]):
            column = Column.of(metric, f"{metric.short} {way}".rstrip())
            table = table.with_column(column, [row[index] for row in cells[metric].values()])
    return table


# Beyond the paper: unknown classes


def _unknown_rows(setup: Setup) -> dict[str, list[Series]]:
    """Series for plain CLIP and two corrections; the second half of the classes is unknown to them."""
    names = load_data(setup.stream.data, "fog", root=setup.sources.data_root, limit=1).class_names
    unknown = ",".join(names[len(names) // 2 :])
    return {name: [setup.series(name, unknown_classes=unknown)] for name in ("clip", "clip+panda", "clip+panda+level")}


@experiment(
    "table-unknown",
    "Unknown classes",
    "How well images of unknown classes are told from known ones, where half of the classes are unknown.",
    _unknown_rows,
    corruptions=lambda setup: (CLEAN, *setup.sensitivity_corruptions()),
    defaults={"limit": 300, "seeds": (0, 1, 2)},
)
def _unknown(results: ExperimentResults) -> Section:
    rows = {series.label: series for series in results.series}
    table = replace(rejection_table(results, rows, results.corruptions), name="")
    return Section([table], notes=results.quick_notes())


# Beyond the paper: published numbers


def _publication_for(setup: Setup) -> Publication:
    """The publication whose prompts the setup has."""
    return WATT if setup.stream.templates == WATT.templates else SUBTTA


def _printed_numbers(setup: Setup, method: str) -> Mapping[str, Cell]:
    """Accuracies that were printed for the data, model and method of a setup; empty if there are none."""
    publication, model = _publication_for(setup), setup.stream.model
    architecture, _, weights = model.partition(":")
    has_preset = setup.preset is not None and setup.preset.name in PUBLISHED_PRESETS
    stream = StreamConfig(model=model, data=setup.stream.data, templates=publication.templates)
    changed = setup.quick or setup.settings or setup.stream != stream or weights != "openai"
    if changed or not has_preset or setup.uses_made_data:
        return {}
    return publication.numbers.get((setup.stream.data, architecture.removesuffix("-quickgelu"), method), {})


def _published_rows(setup: Setup) -> dict[str, list[Series]]:
    publication = _publication_for(setup)
    stream = publication.streams.get(setup.stream.data, {}) if setup.stream.limit is None else {}
    return {
        method: [setup.series(method, **stream, **publication.options.get(method, {}))]
        for method in publication.methods
    }


@experiment(
    "check-published",
    "Published numbers",
    "Accuracies of settings that were published, beside the printed ones; needs OpenAI's weights and the data sets.",
    _published_rows,
    by_method=True,
    defaults={"preset": ",".join(PUBLISHED_PRESETS), "seeds": (0,)},
)
def _published(results: ExperimentResults) -> Section:
    publication = _publication_for(results.setup)
    printed = {method: _printed_numbers(results.setup, method) for method in results.rows}
    names = (*CORRUPTIONS, MEAN)

    def difference(ours: Cell, theirs: Cell) -> Cell:
        """Our number with its s.d. as a difference from theirs, which has no seeds to pair with ours."""
        if ours.value is None or theirs.value is None:
            return ours if ours.value is None else theirs
        return replace(ours, value=ours.value - theirs.value)

    means, changes = [], []
    for method, [series] in results.rows.items():
        ours = [results.cell(series, ACCURACY, name) for name in names]
        theirs = [printed[method].get(name, NOT_PRINTED) for name in names]
        changes.append(Row(method, list(map(difference, ours, theirs))))
        means.append(Row(method, [ours[-1], theirs[-1], changes[-1].cells[-1]]))
    note = f"{publication.title}. {publication.protocol}. Seeds and options that are not printed may differ."
    columns = [Column.of(ACCURACY, "ours"), Column.of(ACCURACY, "printed"), Column.delta(ACCURACY, "difference")]
    table = Table(f"Accuracy (%), {results.where}", "method", columns, means, note)
    if not any(printed.values()):
        return Section([table.cut(slice(1)), publication.table()])
    title = "Difference from the printed accuracy on every corruption"
    columns = [Column.delta(ACCURACY, short_name(name)) for name in names]
    by_corruption = Table(title, "method", columns, changes, name="corruptions")
    return Section([table, by_corruption] if any(len(numbers) > 1 for numbers in printed.values()) else [table])
