"""`tta-panda bench`: methods with and without Panda on clean data and all corruptions, to tables and a report."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from tta_panda.cli.common import JsonOption, make_console, print_json
from tta_panda.cli.runs import RunRequest, takes_request, with_and_without_panda

EMBEDDED_LIMIT = 600
"""Images of the embedded data unless --limit says otherwise: all methods on all corruptions then take minutes."""


@takes_request
def bench(
    request: RunRequest,
    methods: Annotated[
        str, typer.Option("--methods", help="all, or names with commas; each runs with and without Panda.")
    ] = "all",
    as_json: JsonOption = False,
) -> None:
    """Compare methods with and without Panda; prints tables and writes report.html beside the records.

    Of the embedded data, 600 images per corruption are used unless --limit says otherwise.
    """
    from tta_panda.reporting.html import write_report
    from tta_panda.reporting.tables import result_tables
    from tta_panda.reporting.terminal import print_results

    if request.limit is None and request.uses_embedded_data:
        request = replace(request, limit=EMBEDDED_LIMIT)
    outcome = request.run(with_and_without_panda(methods))
    outcome.report_left_out()
    records, finished = outcome.records, outcome.finished
    page = write_report(records, request.output / "report.html")
    if as_json:
        print_json(
            [record.row() for record in records],
            skipped=finished,
            unavailable=outcome.unavailable,
            report=str(page),
        )
        return
    console = make_console()
    for table in result_tables(records):
        print_results(console, table)
    existed = f" ({finished} of {len(records)} runs existed already)" if finished else ""
    console.print(f"Report: {page}{existed}")
