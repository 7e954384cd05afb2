"""A self-contained page from records: tables, figures, options and environment; nothing is loaded from outside."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tta_panda.errors import StoreError
from tta_panda.evaluation.record import RunRecord
from tta_panda.reporting.figures import draw, to_svg
from tta_panda.reporting.grids import result_grids, verdicts
from tta_panda.reporting.pages import environments, render, write_page
from tta_panda.reporting.plots import bias_bars, class_histograms
from tta_panda.reporting.summary import summary_grids
from tta_panda.reporting.tables import ResultTable, result_tables


def write_report(records: Sequence[RunRecord], path: Path) -> Path:
    """Write the report of some records to `path`."""
    return write_page(path, render_report(records))


def render_report(records: Sequence[RunRecord]) -> str:
    if not records:
        raise StoreError("There is no record to report on. Make some with: tta-panda bench")
    return render(
        "report.html.j2",
        record_count=len(records),
        sections=[_section(table) for table in result_tables(records)],
        environment=environments(records),
    )


def _section(table: ResultTable) -> dict[str, Any]:
    options = {table.label(series): dict(series.options) for series in table.series}
    return {
        "setting": str(table.setting),
        "verdicts": verdicts(table),
        "grids": [*summary_grids(table), *result_grids(table)],
        "figures": _figures(table),
        "options": json.dumps(options, indent=1),
    }


def _figures(table: ResultTable) -> list[dict[str, str]]:
    figures = [make(table, *pair) for pair in table.pairs() for make in (bias_bars, class_histograms)]
    return [{"svg": to_svg(draw(figure)), "caption": figure.caption} for figure in figures]
