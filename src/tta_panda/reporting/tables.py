"""Records arranged as tables: corruptions down, methods across, each Panda variant beside its plain method."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from tta_panda.data.corruptions import GROUPS
from tta_panda.data.dataset import CLEAN
from tta_panda.evaluation.record import RunConfig, RunRecord
from tta_panda.methods import METHODS, MethodName


class Setting(NamedTuple):
    """What all runs of one table have in common."""

    model: str
    weights: str | None
    data: str
    severity: int
    batch_size: int
    limit: int | None
    preprocess: str
    image_list: str | None
    fingerprint: str | None = None
    """Given only where data of one name and different content would otherwise be mixed."""

    def __str__(self) -> str:
        parts = [self.model, self.data, f"severity {self.severity}", f"batches of {self.batch_size}"]
        parts += [f"{self.limit} images"] if self.limit else []
        parts += [f"image list {self.image_list}"] if self.image_list else []
        parts += [f"data {self.fingerprint}"] if self.fingerprint else []
        parts += ["exact preprocessing"] if self.preprocess == "exact" else []
        return ", ".join(parts)


class Series(NamedTuple):
    """A column: a method with its options."""

    method: MethodName
    options: tuple[tuple[str, Any], ...]

    @classmethod
    def of(cls, record: RunRecord) -> Series:
        config = record.config
        return cls(config.method_name, tuple(sorted(config.options.items())))


@dataclass(frozen=True)
class ResultTable:
    """All records of a setting; several seeds of a cell are averaged."""

    setting: Setting
    series: tuple[Series, ...]
    corruptions: tuple[str, ...]
    cells: dict[tuple[Series, str], tuple[RunRecord, ...]]

    def value(self, series: Series, corruption: str, metric: str) -> float:
        """Mean over seeds; NaN for a cell that was not run."""
        records = self.cells.get((series, corruption), ())
        return _mean([float(getattr(record, metric)) for record in records])

    def mean(self, series: Series, metric: str) -> float:
        """Over the corruptions, without clean data; NaN unless all of them were run."""
        return _mean([self.value(series, corruption, metric) for corruption in self.corrupted])

    def restricted_to(self, methods: Sequence[str]) -> ResultTable:
        """The same table with only some methods, named without `+panda`."""
        series = tuple(series for series in self.series if series.method.base in methods)
        return replace(self, series=series, cells={key: rs for key, rs in self.cells.items() if key[0] in series})

    @property
    def corrupted(self) -> tuple[str, ...]:
        return tuple(corruption for corruption in self.corruptions if corruption != CLEAN)

    def plain_of(self, series: Series) -> Series | None:
        """The same method and options without Panda."""
        if not series.method.panda:
            return None
        for other in self.series:
            if other.method == MethodName(series.method.base, False) and set(other.options) <= set(series.options):
                return other
        return None

    def pairs(self) -> list[tuple[Series, Series]]:
        """(plain, with Panda) for every Panda series that has its plain counterpart in the table."""
        found = ((self.plain_of(series), series) for series in self.series)
        return [(plain, panda) for plain, panda in found if plain is not None]

    def label(self, series: Series) -> str:
        """The method's name, with the options that tell it from others of the same name in this table."""
        rivals = [dict(other.options) for other in self.series if other.method == series.method]
        own = dict(series.options)
        differing = [key for key in own if any(other.get(key) != own[key] for other in rivals)]
        suffix = ", ".join(f"{key}={own[key]}" for key in differing)
        return f"{series.method} ({suffix})" if suffix else str(series.method)

    def rows(self) -> list[tuple[str, tuple[str, ...]]]:
        """Corruptions under the name of their group, in the order of the benchmark."""
        grouped = [(group, tuple(n for n in names if n in self.corruptions)) for group, names in GROUPS.items()]
        known = {CLEAN, *(name for _, names in grouped for name in names)}
        extra = tuple(name for name in self.corruptions if name not in known)
        clean = (CLEAN,) if CLEAN in self.corruptions else ()
        return [(title, names) for title, names in [("", clean), *grouped, ("extra", extra)] if names]


class Column(NamedTuple):
    """A column of numbers: a title, how to get the number of a corruption, and whether it is a difference."""

    title: str
    value: Callable[[str], float]
    mean: Callable[[], float]
    is_delta: bool = False


def columns(table: ResultTable, metric: str, factor: float = 1.0) -> list[Column]:
    """For each plain method: itself, its Panda variants and their differences; then whatever has no plain method."""
    by_plain: dict[Series, list[Series]] = {}
    for plain, panda in table.pairs():
        by_plain.setdefault(plain, []).append(panda)
    shown: list[Column] = []
    for series in table.series:
        if table.plain_of(series) is not None:
            continue
        shown.append(_column(table, series, metric, factor))
        for panda in by_plain.get(series, []):
            shown.append(_column(table, panda, metric, factor))
            shown.append(_delta(table, series, panda, metric, factor))
    return shown


def _column(table: ResultTable, series: Series, metric: str, factor: float) -> Column:
    return Column(
        table.label(series),
        lambda corruption: factor * table.value(series, corruption, metric),
        lambda: factor * table.mean(series, metric),
    )


def _delta(table: ResultTable, plain: Series, panda: Series, metric: str, factor: float) -> Column:
    return Column(
        "Δ",
        lambda corruption: factor * (table.value(panda, corruption, metric) - table.value(plain, corruption, metric)),
        lambda: factor * (table.mean(panda, metric) - table.mean(plain, metric)),
        is_delta=True,
    )


def result_tables(records: Iterable[RunRecord]) -> list[ResultTable]:
    """One table per setting. Clean runs have no severity, so they stand in the table of every severity."""
    settings = _by_setting(records)
    clean = {setting: members for setting, members in settings.items() if setting.severity == 0}
    tables, placed = [], set()
    for setting, members in sorted(settings.items(), key=lambda item: item[0].severity):
        if setting.severity == 0:
            continue
        fitting = [c for c in clean if c._replace(severity=setting.severity) == setting]
        placed.update(fitting)
        tables.append(_table(setting, [record for c in fitting for record in clean[c]] + members))
    return tables + [_table(setting, members) for setting, members in clean.items() if setting not in placed]


def _by_setting(records: Iterable[RunRecord]) -> dict[Setting, list[RunRecord]]:
    settings: dict[Setting, list[RunRecord]] = {}
    for record in records:
        settings.setdefault(_setting(record.config), []).append(record)
    separate: dict[Setting, list[RunRecord]] = {}
    for setting, members in settings.items():
        runs = {(Series.of(record), record.config.corruption, record.config.seed) for record in members}
        mixed = len(runs) < len(members)  # the same run twice: on different data
        for record in members:
            fingerprint = record.config.data_fingerprint if mixed else None
            separate.setdefault(setting._replace(fingerprint=fingerprint), []).append(record)
    return separate


def _setting(config: RunConfig) -> Setting:
    return Setting(
        model=config.model,
        weights=config.weights,
        data=config.data,
        severity=config.severity,
        batch_size=config.batch_size,
        limit=config.limit,
        preprocess=config.preprocess,
        image_list=config.image_list,
    )


def _table(setting: Setting, records: Sequence[RunRecord]) -> ResultTable:
    cells: dict[tuple[Series, str], list[RunRecord]] = {}
    for record in records:
        cells.setdefault((Series.of(record), record.config.corruption), []).append(record)
    order = [CLEAN, *(name for names in GROUPS.values() for name in names)]
    present = {corruption for _, corruption in cells}
    corruptions = [name for name in order if name in present] + sorted(present.difference(order))
    place = {name: index for index, name in enumerate(METHODS)}
    series = sorted(
        {series for series, _ in cells},
        key=lambda s: (place.get(s.method.base, len(place)), s.method, str(s.options)),
    )
    return ResultTable(setting, tuple(series), tuple(corruptions), {key: tuple(rs) for key, rs in cells.items()})


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan


def lower_bias_count(table: ResultTable, series: Series, other: Series) -> int:
    """In how many corruptions the predictions of `other` are less biased than those of `series`."""
    return sum(table.value(other, name, "l1") < table.value(series, name, "l1") for name in table.corrupted)
