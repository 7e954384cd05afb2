"""A self-contained page from records: tables, figures, options and environment; nothing is loaded from outside."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2

from tta_panda.errors import StoreError
from tta_panda.evaluation.record import RunRecord
from tta_panda.reporting.grids import result_grids, verdicts
from tta_panda.reporting.plots import bias_bars, class_histograms, to_svg
from tta_panda.reporting.summary import summary_grids
from tta_panda.reporting.tables import ResultTable, result_tables


def write_report(records: Sequence[RunRecord], path: Path) -> Path:
    """Write the report of some records to `path`."""
    page = render_report(records)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise StoreError(f"Cannot write the report to {path} ({error.strerror or error}).") from error
    return path


def render_report(records: Sequence[RunRecord]) -> str:
    if not records:
        raise StoreError("There is no record to report on. Make some with: tta-panda bench")
    templates = jinja2.Environment(
        loader=jinja2.PackageLoader("tta_panda.reporting"), autoescape=True, undefined=jinja2.StrictUndefined
    )
    environments = {json.dumps(record.environment, indent=1, sort_keys=True) for record in records}
    return templates.get_template("report.html.j2").render(
        record_count=len(records),
        sections=[_section(table) for table in result_tables(records)],
        environment="\n".join(sorted(environments)),
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
    figures = []
    for plain, panda in table.pairs():
        names = f"{table.label(plain)} and {table.label(panda)}"
        bars, histograms = bias_bars(table, plain, panda), class_histograms(table, plain, panda)
        figures.append({"svg": to_svg(bars), "caption": f"Prediction bias per corruption, {names}. Lower is better."})
        caption = f"Predicted classes, {names}. The dashed line shows how often each class really occurs."
        figures.append({"svg": to_svg(histograms), "caption": caption})
    return figures
