"""Table of unknown classes: how well their images are told from others, and how many of each are rejected."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

import numpy as np

from tta_panda.data import CLEAN
from tta_panda.evaluation.record import Measurement, RunRecord
from tta_panda.reporting.cells import AUROC, FALSE_POSITIVES, Cell, Metric, Results, S, combined
from tta_panda.reporting.tables import Column, Row, Table

CLEAN_REJECTED = 10
"""Percentage of known clean images that the threshold on energies rejects."""

LARGEST_P = 0.5
"""The threshold on p-values: images with a larger one are rejected."""

_NOTE = (
    "The last columns are percentages of rejected images: known clean ones; known ones on average over corruptions, "
    f"and on the worst; unknown ones on average. Energy: the threshold rejects {CLEAN_REJECTED} % of the known clean "
    f"images. p: images with p > {LARGEST_P:g} are rejected; p-values need negatives, and no window."
)


def rejection_table(results: Results[S], rows: Mapping[str, S], corruptions: Sequence[str]) -> Table:
    """Make a table with a row per series of runs; some columns need runs on clean images."""
    columns = [Column.of(AUROC, "AUROC clean"), Column.of(AUROC, AUROC.short)]
    columns.append(Column.of(FALSE_POSITIVES, FALSE_POSITIVES.short))
    kinds = ("clean", "known", "worst", "unknown")
    columns += [Column(f"{way}: {kind}", 0) for way in ("energy", "p") for kind in kinds]
    filled = []
    for label, series in rows.items():
        cells = [_measured(results, series, CLEAN, AUROC)]
        for metric in (AUROC, FALSE_POSITIVES):
            each = [_measured(results, series, name, metric) for name in corruptions]
            cells.append(combined(each, statistics.fmean))
        for by_energy in (True, False):
            known = [_rejected(results, series, name, "known", by_energy) for name in corruptions]
            unknown = [_rejected(results, series, name, "unknown", by_energy) for name in corruptions]
            cells.append(_rejected(results, series, CLEAN, "known", by_energy))
            cells += [combined(known, statistics.fmean), combined(known, max), combined(unknown, statistics.fmean)]
        filled.append(Row(label, cells))
    return Table("Unknown classes", "method", columns, filled, _NOTE, name="unknown")


def _measured(results: Results[S], series: S, corruption: str, metric: Metric) -> Cell:
    """A cell of a metric that streams without unknown images do not have."""
    measured = [record.by_corruption[corruption] for record in results.records(series, corruption)]
    if any(not each.unknown for each in measured):
        return Cell(why_empty="none unknown")
    return results.cell(series, metric, corruption)


def _rejected(results: Results[S], series: S, corruption: str, kind: str, by_energy: bool) -> Cell:
    """Percentage of the known or unknown images of a stream that is rejected."""
    clean = {record.config.stream.seed: record for record in results.records(series, CLEAN)}
    measured = [record.by_corruption[corruption] for record in results.records(series, corruption)]
    if any(not each.unknown for each in (*clean.values(), *measured)):
        return Cell(why_empty="none unknown")
    if by_energy and not clean:
        return results.empty(series, [CLEAN])
    if not by_energy and not all(each.known_p_values for each in measured):
        return Cell(why_empty="no p-values")

    def share(record: RunRecord, measured: Measurement) -> float:
        if by_energy:
            energies = getattr(measured, f"{kind}_energies")
            rejected = np.less(energies, clean[record.config.stream.seed].known_energies[CLEAN_REJECTED])
        else:
            rejected = np.greater(getattr(measured, f"{kind}_p_values"), LARGEST_P)
        return 100 * float(rejected.mean())  # the values are percentiles, so this is exact to a percent

    return results.measured(series, corruption, share)
