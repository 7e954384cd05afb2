"""Compare methods, plain and debiased, on the streams that they have in common, from any folder of records."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import get_args

from tta_panda.data import CLEAN
from tta_panda.data.corruptions import CORRUPTIONS, GROUPS
from tta_panda.data.order import RESET
from tta_panda.errors import StoreError
from tta_panda.evaluation.config import MethodConfig, RunConfig, StreamConfig
from tta_panda.evaluation.record import Encoded, RunRecord
from tta_panda.evaluation.store import RunStore
from tta_panda.methods import DEBIASES, METHODS
from tta_panda.reporting.cells import (
    ACCURACY,
    BIAS,
    CALIBRATION,
    LIKELIHOOD,
    RECALL_SPREAD,
    SECONDS,
    Cell,
    Metric,
    Results,
    S,
    tenth_of,
)
from tta_panda.reporting.figures import DotFigure, Figure, class_histograms
from tta_panda.reporting.page import Section
from tta_panda.reporting.rejection import rejection_table
from tta_panda.reporting.tables import Column, Row, Table, with_changes


class Comparison(Results[MethodConfig]):
    """Methods on one stream, corruption by corruption; only seeds are averaged.

    Args:
        setting: the stream configuration that all runs share, except for corruption and seed.
        cells: runs that were made, by method and corruption.
        records: by key; runs without one diverged.
    """

    def __init__(
        self,
        setting: StreamConfig,
        title: str,
        cells: Mapping[tuple[MethodConfig, str], list[RunConfig]],
        records: Mapping[str, RunRecord],
    ):
        super().__init__(records, {config.key for runs in cells.values() for config in runs} - records.keys())
        self.setting = setting
        self.title = title
        self._cells = cells

    def runs(self, series: MethodConfig, corruption: str) -> list[RunConfig]:
        return self._cells.get((series, corruption), [])

    def all_runs(self) -> list[RunConfig]:
        """All runs without duplicates, in the order of the methods."""
        names = [CLEAN, *self.corruptions]
        found = [config for method in self.methods for name in names for config in self.runs(method, name)]
        return list({config.key: config for config in found}.values())

    @functools.cached_property
    def methods(self) -> list[MethodConfig]:
        """Methods in the order of the registry; those that are not registered here come last."""
        place = {name: index for index, name in enumerate(METHODS)}
        found = {method for method, _ in self._cells}
        ways = ["", *DEBIASES]

        def rank(method: MethodConfig) -> tuple[int, int, str, str]:
            base, debias = method.parsed
            way = ways.index(debias) if debias in ways else len(ways)
            return place.get(base, len(place)), way, method.name, str(method.options)

        return sorted(found, key=rank)

    @functools.cached_property
    def corruptions(self) -> list[str]:
        """Corruptions in the order of the benchmark, without clean images; others come last."""
        found = {corruption for _, corruption in self._cells} - {CLEAN}
        return [*(name for name in CORRUPTIONS if name in found), *sorted(found.difference(CORRUPTIONS))]

    @property
    def has_clean(self) -> bool:
        return any(corruption == CLEAN for _, corruption in self._cells)

    @functools.cached_property
    def pairs(self) -> list[tuple[MethodConfig, MethodConfig]]:
        """Pairs (plain, debiased) for every debiased method whose plain counterpart was also run."""
        return [
            (plain, other)
            for other in self.methods
            for plain in self.methods
            if other.parsed.debias
            and plain.name == other.parsed.base
            and plain.options.items() <= other.options.items()
        ]

    def label(self, method: MethodConfig) -> str:
        return method_label(method, self.methods)

    def tables(self) -> list[Table]:
        tables = [summary_table(self)] if self.pairs and self.corruptions else []
        tables += [corruption_table(self, metric) for metric in (ACCURACY, BIAS)]
        if self.setting.unknown_classes:
            rows = {self.label(method): method for method in self.methods}
            tables.append(rejection_table(self, rows, self.corruptions or [CLEAN]))
        return [*tables, calibration_table(self), passes_table(self)]

    def section(self, name: str) -> Section:
        """Its tables, figures and notes for a page."""
        figures = [figure for pair in self.pairs for figure in _figures(self, *pair)]
        return Section(self.tables(), figures, findings(self), name, self.title, self.all_runs())


def method_label(method: MethodConfig, methods: Iterable[MethodConfig]) -> str:
    """The method's name, with the options that distinguish it from others of the same name."""
    others = [other.options for other in methods if other.name == method.name]
    differing = [key for key in method.options if any(other.get(key) != method.options[key] for other in others)]
    suffix = ", ".join(f"{key}={method.options[key]}" for key in differing)
    return f"{method.name} ({suffix})" if suffix else method.name


def read_comparisons(store: RunStore) -> tuple[list[RunRecord], list[Comparison]]:
    """Read the records of a folder, and compare them and the runs that diverged."""
    records = store.records()
    if not records:
        raise StoreError(f"There are no records in {store.root}. Make some with: tta-panda bench -o {store.root}")
    return records, compare(records, (each.config for each in store.divergences().values()))


def compare(records: Iterable[RunRecord], diverged: Iterable[RunConfig] = ()) -> list[Comparison]:
    """Group records into one comparison per setting; runs on clean images belong to the settings of every severity."""
    by_key = {record.config.key: record for record in records}
    settings: dict[StreamConfig, list[RunConfig]] = {}
    for setting, config in _with_settings([*(record.config for record in by_key.values()), *diverged]):
        settings.setdefault(setting, []).append(config)
    comparable: dict[StreamConfig, list[RunConfig]] = {}
    for setting, members in settings.items():
        corrupted = [s for s in settings if s.severity and not setting.severity and _clean_setting(s) == setting]
        for target in corrupted or [setting]:
            comparable.setdefault(target, []).extend(members)
    ordered = sorted(comparable, key=lambda setting: setting.severity)
    names = [each.name for each in fields(StreamConfig) if each.name != "corruption"]  # corruptions are rows
    differing = [name for name in names if len({getattr(s, name) for s in ordered}) > 1]
    return [Comparison(s, s.title(differing), _cells(comparable[s]), by_key) for s in ordered]


def _with_settings(configs: Sequence[RunConfig]) -> Iterator[tuple[StreamConfig, RunConfig]]:
    """Yield each run with its setting, which has the fingerprint of the data only if a domain has several."""
    fingerprints: dict[StreamConfig, set[str | None]] = {}
    for config in configs:
        domain = replace(config.stream, seed=0, fingerprint=None)
        fingerprints.setdefault(domain, set()).add(config.stream.fingerprint)
    for config in configs:
        domain = replace(config.stream, seed=0, fingerprint=None)
        own = config.stream.fingerprint if len(fingerprints[domain]) > 1 else None
        joined = domain.corruption if domain.parsed_order.joins_domains else CLEAN
        yield replace(domain, corruption=joined, fingerprint=own), config


def _clean_setting(setting: StreamConfig) -> StreamConfig:
    """The setting of runs on clean images: no corruption, no severity, no other domains."""
    alone = replace(setting.parsed_order, domains=RESET, rounds=1)
    return replace(setting, corruption=CLEAN, severity=0, order=str(alone))


def _cells(configs: Sequence[RunConfig]) -> dict[tuple[MethodConfig, str], list[RunConfig]]:
    cells: dict[tuple[MethodConfig, str], list[RunConfig]] = {}
    for config in sorted(configs, key=lambda config: config.stream.seed):
        for corruption in config.stream.corruptions:
            cells.setdefault((config.method, corruption), []).append(config)
    return cells


def corruption_table(comparison: Comparison, metric: Metric) -> Table:
    """Table with a row per corruption, and columns for each method, its debiased variants and their differences."""
    debiased = {plain: [other for first, other in comparison.pairs if first == plain] for plain, _ in comparison.pairs}
    compared: list[tuple[Column, MethodConfig, MethodConfig | None]] = []
    for method in comparison.methods:
        if any(method in others for others in debiased.values()):
            continue
        compared.append((Column.of(metric, comparison.label(method)), method, None))
        for other in debiased.get(method, []):
            compared.append((Column.of(metric, comparison.label(other)), other, None))
            compared.append((Column.delta(metric), other, method))
    corruptions = comparison.corruptions
    table = table_by_corruption(comparison, metric, compared, corruptions, comparison.has_clean, tail=True)
    return replace(table, name=metric.field)


def table_by_corruption(
    results: Results[S],
    metric: Metric,
    compared: Sequence[tuple[Column, S, S | None]],
    corruptions: Sequence[str],
    clean: bool = False,
    tail: bool = False,
) -> Table:
    """Table with a row per corruption and one for their mean, and columns for series or their differences.

    Args:
        compared: columns, each with its series and, for a difference, the series to subtract.
        clean: whether to add a row of clean images.
        tail: whether to add a row of the worst tenth of the corruptions, if that is more than one.
    """

    def cells(look_up: Callable[[S], Cell]) -> list[Cell]:
        return [look_up(series) if minus is None else look_up(series) - look_up(minus) for _, series, minus in compared]

    names = ([("", CLEAN)] if clean else []) + corruption_rows(corruptions)
    rows = [Row(name, cells(partial(results.cell, metric=metric, corruption=name)), group) for group, name in names]
    if len(corruptions) > 1:
        means = cells(partial(results.mean, metric=metric, corruptions=corruptions))
        rows.append(Row(f"mean of {len(corruptions)}", means, is_mean=True))
    if tail and tenth_of(corruptions) > 1:
        worst = cells(partial(results.tail, metric=metric, corruptions=corruptions))
        rows.append(Row(f"worst {tenth_of(corruptions)}", worst, is_mean=True))
    return Table(metric.heading, "corruption", [column for column, _, _ in compared], rows)


def corruption_rows(corruptions: Sequence[str]) -> list[tuple[str, str]]:
    """Pairs (group, corruption) in the order of the benchmark; the group is empty except where it begins."""
    groups = {**GROUPS, "extra": tuple(name for name in corruptions if name not in CORRUPTIONS)}
    return [
        ("" if index else group, name)
        for group, names in groups.items()
        for index, name in enumerate(name for name in names if name in corruptions)
    ]


def summary_table(comparison: Comparison) -> Table:
    """Table with a row per method: accuracy and bias, plain and debiased, over all corruptions and on clean images."""
    corruptions = comparison.corruptions
    ways = {debiased.parsed.debias for _, debiased in comparison.pairs}
    one_each = len({plain.name for plain, _ in comparison.pairs}) == len(comparison.pairs)
    suffix = f"+{min(ways)}" if len(ways) == 1 else "debiased"
    columns: list[Column] = []
    for metric in (ACCURACY, BIAS):
        columns += [Column.of(metric, metric.short), Column.of(metric, f"{metric.short} {suffix}")]
        columns.append(Column.delta(metric, f"Δ {metric.short}"))
    columns.append(Column(f"L1 lower in (of {len(corruptions)})", 0))
    if comparison.has_clean:
        columns += [Column.of(ACCURACY, "clean"), Column.of(ACCURACY, f"clean {suffix}")]
        columns.append(Column.delta(ACCURACY, "Δ clean"))
    rows = []
    for pair in comparison.pairs:
        cells = []
        for metric in (ACCURACY, BIAS):
            cells += with_changes(*(comparison.mean(method, metric, corruptions) for method in pair))
        cells.append(Cell(float(_lower_bias(comparison, *pair))))
        if comparison.has_clean:
            cells += with_changes(*(comparison.cell(method, ACCURACY, CLEAN) for method in pair))
        rows.append(Row(comparison.label(pair[0] if one_each else pair[1]), cells))
    title = f"Accuracy (%) and prediction bias (L1), {_where(corruptions)}"
    return Table(title, "method", columns, rows, name="summary")


def _where(corruptions: Sequence[str]) -> str:
    return f"mean of {len(corruptions)} corruptions" if len(corruptions) > 1 else corruptions[0].replace("_", " ")


def calibration_table(comparison: Comparison) -> Table:
    """Table with a row per method: calibration, likelihood, class recalls and seconds."""
    metrics = (CALIBRATION, LIKELIHOOD, RECALL_SPREAD, SECONDS)
    names = comparison.corruptions or [CLEAN]
    rows = [Row(comparison.label(m), [comparison.mean(m, each, names) for each in metrics]) for m in comparison.methods]
    columns = [Column.of(metric, metric.title) for metric in metrics]
    note = "Lower is better. Seconds are for one stream; encoder passes that methods share count in full for each."
    return Table(f"Calibration and time, {_where(names)}", "method", columns, rows, note, name="calibration")


def passes_table(comparison: Comparison) -> Table:
    """Table with a row per method: images and texts encoded per batch."""
    kinds: tuple[Encoded, ...] = get_args(Encoded)
    rows = []
    for method in comparison.methods:
        runs = [config for name in [CLEAN, *comparison.corruptions] for config in comparison.runs(method, name)]
        passes = [comparison.by_key[config.key].passes for config in runs if config.key in comparison.by_key]
        if passes:
            means = [sum(each[kind] for each in passes) / len(passes) for kind in kinds]
            rows.append(Row(comparison.label(method), [Cell(mean) for mean in means]))
    title = f"Encoded per batch of {comparison.setting.batch_size} images, mean"
    return Table(title, "method", [Column(kind.replace("_", " ")) for kind in kinds], rows, name="passes")


MAX_EXPLAINED = 3
"""If there are more corruptions, only those on which nothing was subtracted are explained."""


def findings(comparison: Comparison) -> list[str]:
    """Explanations by each debiased method: the bias, and what was subtracted or why nothing was."""
    names = [CLEAN] * comparison.has_clean + comparison.corruptions
    sentences = []
    for method in (each for each in comparison.methods if each.parsed.debias):
        label = comparison.label(method)
        records = {name: found[0] for name in names if (found := comparison.records(method, name))}  # of the first seed
        if len(records) > MAX_EXPLAINED:
            betas = {name: record.mean_beta for name, record in records.items()}
            gammas = {name: record.mean_gamma for name, record in records.items()}
            sentences += [f"{label}: {text}" for text in (_range("β", betas), _range("γ", gammas)) if text]
            records = {name: record for name, record in records.items() if _subtracts_nothing(record)}
        texts: dict[str, list[str]] = {}
        for name, record in records.items():
            texts.setdefault(record.explanation, []).append(name)
        sentences += [f"{label} on {', '.join(where)}: {text}" for text, where in texts.items() if text]
    return sentences


def _range(symbol: str, by_corruption: Mapping[str, float | None]) -> str:
    """Mean, minimum and maximum strength, the last two with their corruptions."""
    ordered = sorted((strength, name) for name, strength in by_corruption.items() if strength is not None)
    if not ordered:
        return ""
    (low, first), (high, last) = ordered[0], ordered[-1]
    mean = statistics.fmean(strength for strength, _ in ordered)
    return f"mean {symbol} {mean:.2f}, from {low:.2f} ({first}) to {high:.2f} ({last})"


def _subtracts_nothing(record: RunRecord) -> bool:
    strength = record.mean_beta if record.mean_gamma is None else record.mean_gamma
    return strength is not None and round(strength, 2) == 0


def _lower_bias(comparison: Comparison, method: MethodConfig, other: MethodConfig) -> int:
    """The number of corruptions on which `other` has a lower bias than `method`, rounded as in tables."""

    def change(corruption: str) -> float | None:
        return (comparison.cell(other, BIAS, corruption) - comparison.cell(method, BIAS, corruption)).value

    changes = map(change, comparison.corruptions)
    return sum(each is not None and round(each, BIAS.decimals) < 0 for each in changes)


def _figures(comparison: Comparison, plain: MethodConfig, debiased: MethodConfig) -> list[Figure]:
    """Figures of accuracy, prediction bias and predicted classes, plain and debiased."""
    names = ([CLEAN] if comparison.has_clean else []) + comparison.corruptions
    series = {comparison.label(method): method for method in (plain, debiased)}
    both = " and ".join(series)
    dots = []
    for metric in (ACCURACY, BIAS):
        compared = [(Column.of(metric, label), method, None) for label, method in series.items()]
        table = table_by_corruption(comparison, metric, compared, comparison.corruptions, comparison.has_clean)
        caption = f"{metric.heading}, {both}. {metric.better.capitalize()} is better."
        dots.append(DotFigure(caption, metric.title, table))
    caption = f"Predicted classes, {both}. The dashed line shows how often each class really occurs."
    return [*dots, class_histograms(comparison, series, names, caption)]
