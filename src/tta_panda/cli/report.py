"""`tta-panda report`: the page of a folder of records."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tta_panda.cli.common import JsonOption, make_console, print_json


def report(
    runs: Annotated[Path, typer.Argument(help="Folder of records.")] = Path("runs"),
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The page; report.html in the folder if not given.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Print the tables of a folder of records and write its HTML report."""
    from tta_panda.evaluation.store import RunStore
    from tta_panda.reporting.html import write_report
    from tta_panda.reporting.tables import result_tables
    from tta_panda.reporting.terminal import print_results

    records = RunStore(runs).records()
    page = write_report(records, output or runs / "report.html")
    if as_json:
        print_json([record.row() for record in records], report=str(page))
        return
    console = make_console()
    for table in result_tables(records):
        print_results(console, table)
    console.print(f"Report: {page}")
