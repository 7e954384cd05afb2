"""`tta-panda report`: tables and an HTML report of a folder of records."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tta_panda.cli.common import check_outputs, print_json, print_stderr
from tta_panda.cli.options import JsonOption
from tta_panda.errors import InvalidInputError
from tta_panda.escapes import printable
from tta_panda.progress import make_console

if TYPE_CHECKING:
    from tta_panda.evaluation.record import RunRecord
    from tta_panda.reporting.comparison import Comparison

MAX_METHODS_IN_FULL = 3
"""With more methods, the terminal shows means only; the report has all corruptions."""

_OWN_TABLE = re.compile(r"comparison(-\d+)?-(summary|accuracy|bias|calibration|passes)\.(csv|md|tex)")
"""Names of the table files that a report writes next to its page."""


def report(
    runs: Annotated[Path, typer.Argument(help="Folder of records.")] = Path("runs"),
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="HTML file to write.", show_default="report.html in the folder"),
    ] = None,
    csv: Annotated[Path | None, typer.Option("--csv", help="Also write a CSV file with one row per record.")] = None,
    parquet: Annotated[
        Path | None, typer.Option("--parquet", help="The same as a Parquet file; needs tta-panda\\[parquet].")
    ] = None,
    export: Annotated[
        Path | None, typer.Option(help="Folder to write CLIP_benchmark's and robustbench's JSON files to.")
    ] = None,
    leaderboard: Annotated[
        bool, typer.Option("--leaderboard", help="Make a page of several people's records, in one folder each.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Print the tables of a folder of records; write them and an HTML report.

    \b
    Examples:
      tta-panda report runs --csv records.csv
      tta-panda report people --leaderboard
    """
    check_outputs([output or runs / "report.html", *filter(None, [csv, parquet])], runs.rglob("*.json"))
    if leaderboard:
        if csv or parquet or export:
            raise InvalidInputError("--leaderboard only writes a page: omit --csv, --parquet and --export.")
        _make_leaderboard(runs, output or runs / "leaderboard.html", as_json)
        return
    from tta_panda.evaluation.store import RunStore
    from tta_panda.files import csv_rows, flat, parquet_rows, save_file
    from tta_panda.reporting.comparison import read_comparisons

    records, comparisons = read_comparisons(RunStore(runs))
    if not as_json:
        print_comparisons(comparisons)
    page = write_report(records, comparisons, output or runs / "report.html")
    rows = [flat(row) for record in records for row in record.rows()]
    if csv is not None:
        save_file(csv, csv_rows(rows))
    if parquet is not None:
        save_file(parquet, parquet_rows(rows))
    if export is not None:
        from tta_panda.reporting.exchange import write_exchange

        print_stderr(f"{len(write_exchange(records, export))} files in {export}")
    if as_json:
        print_json([row for record in records for row in record.rows()], report=str(page))
    else:
        typer.echo(f"Report: {page}")


def _make_leaderboard(root: Path, page: Path, as_json: bool) -> None:
    from tta_panda.reporting.leaderboard import make_entries, read_submissions, write_leaderboard

    submissions, problems = read_submissions(root)
    write_leaderboard(page, make_entries(submissions), problems)
    for text in problems.values():
        print_stderr(f"not shown: {text}")
    if as_json:
        print_json(
            [{"person": person, "path": str(path)} for person, path, _ in submissions],
            problems=[{"path": str(path), "problem": text} for path, text in problems.items()],
            report=str(page),
        )
    else:
        people = ", ".join(dict.fromkeys(each.person for each in submissions))
        typer.echo(f"Leaderboard: {page} ({len(submissions)} files of {printable(people)})")
    raise typer.Exit(int(bool(problems)))


def print_comparisons(comparisons: Sequence[Comparison]) -> None:
    from tta_panda.reporting.comparison import findings
    from tta_panda.reporting.terminal import print_tables

    for comparison in comparisons:
        tables = {table.name: table for table in comparison.tables()}
        many = len({method.parsed.base for method in comparison.methods}) > MAX_METHODS_IN_FULL
        in_short = many and "summary" in tables
        names = (("summary", "passes") if in_short else ("accuracy", "bias")) + ("unknown",) * ("unknown" in tables)
        shown = [tables[name] for name in names]
        print_tables(make_console(), comparison.title, shown, findings(comparison))


def write_report(records: Sequence[RunRecord], comparisons: Sequence[Comparison], page: Path) -> Path:
    """Write the page of a folder of records, and its tables as files in `tables` next to it.

    Tables that are left from an earlier version of the page are removed.
    """
    from tta_panda.reporting.exports import write_tables
    from tta_panda.reporting.page import Part, write_page

    folder = page.parent / "tables"
    names = [f"comparison-{index}" for index in range(1, len(comparisons) + 1)] if comparisons[1:] else ["comparison"]
    sections = [comparison.section(name) for comparison, name in zip(comparisons, names, strict=True)]
    written = {path for section in sections for path in write_tables(section, folder)}
    for path in folder.glob("comparison-*") if page.exists() else ():  # else they are those of another page
        if _OWN_TABLE.fullmatch(path.name) and path not in written:
            path.unlink(missing_ok=True)  # another process may be writing the same report
    lead = (
        f"{len(records)} runs. Accuracy is top-1. Prediction bias is the L1 distance between the mean predicted "
        "probabilities and the label frequencies, from 0 (none) to 2."
    )
    return write_page(page, "Test-time adaptation with and without Panda", lead, [Part("", sections)], records)
