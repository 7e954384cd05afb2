"""`tta-panda report`: the tables and the page of a folder of records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tta_panda.cli.common import JsonOption, print_json
from tta_panda.progress import make_console

if TYPE_CHECKING:
    from tta_panda.evaluation.record import RunRecord
    from tta_panda.results.comparison import Comparison

MOST_METHODS_IN_FULL = 3
"""Of more methods a terminal shows the means only; corruption by corruption they are in the report."""


def report(
    runs: Annotated[Path, typer.Argument(help="Folder of records.")] = Path("runs"),
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The page.", show_default="report.html in the folder")
    ] = None,
    csv: Annotated[Path | None, typer.Option("--csv", help="File for one row per record.")] = None,
    parquet: Annotated[Path | None, typer.Option("--parquet", help="The same rows; needs tta-panda[parquet].")] = None,
    as_json: JsonOption = False,
) -> None:
    """Print the tables of a folder of records, and write them and an HTML report."""
    from tta_panda.evaluation.store import RunStore
    from tta_panda.files import flat, write_rows
    from tta_panda.results.folder import read_comparisons

    records, comparisons = read_comparisons(RunStore(runs))
    if not as_json:
        print_comparisons(comparisons)
    page = write_report(records, comparisons, output or runs / "report.html")
    for kind, path in {"csv": csv, "parquet": parquet}.items():
        if path is not None:
            write_rows(path, [flat(row) for record in records for row in record.rows()], kind)
    if as_json:
        print_json([row for record in records for row in record.rows()], report=str(page))
    else:
        typer.echo(f"Report: {page}")


def print_comparisons(comparisons: Sequence[Comparison]) -> None:
    from tta_panda.reporting.terminal import print_result

    for comparison in comparisons:
        result = comparison.result
        many = len({method.parsed.base for method in comparison.methods}) > MOST_METHODS_IN_FULL
        in_short = many and any(table.name == "summary" for table in result.tables)
        shown = ("summary", "passes") if in_short else ("accuracy", "bias")
        tables = [table for table in result.tables if table.name in shown]
        notes = () if in_short else result.notes
        print_result(make_console(), comparison.title, replace(result, tables=tables, notes=notes))


def write_report(records: Sequence[RunRecord], comparisons: Sequence[Comparison], page: Path) -> Path:
    """The page of a folder of records, and its tables as files in `tables` beside it."""
    from tta_panda.reporting.pages import Part, Section, write_page, write_tables

    folder = page.parent / "tables"
    for stale in folder.glob("comparison*"):
        stale.unlink(missing_ok=True)  # another process may be writing the same report
    sections = []
    for index, comparison in enumerate(comparisons, 1):
        name = f"comparison-{index}" if len(comparisons) > 1 else "comparison"
        sections.append(Section(name, comparison.title, comparison.result, comparison.runs()))
        write_tables(sections[-1], folder)
    lead = (
        f"{len(records)} runs. Accuracy is top-1. Prediction bias is the L1 distance between the mean predicted "
        "probabilities and the label frequencies: 0 is none, 2 the most there can be."
    )
    return write_page(page, "Test-time adaptation with and without Panda", lead, [Part("", sections)], records)
