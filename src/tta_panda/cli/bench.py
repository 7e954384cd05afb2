"""`tta-panda bench`: methods with and without Panda on clean data and all corruptions, to tables and a report."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from tta_panda.cli.common import JsonOption, print_json
from tta_panda.cli.runs import RunOptions, exit_code, plain_and_debiased, takes_options

EMBEDDED_LIMIT = 600
"""Images of embedded data unless --limit says otherwise: all methods on all corruptions then take minutes."""


@takes_options
def bench(
    options: RunOptions,
    method: Annotated[
        str,
        typer.Option(
            "--method",
            help="all, or comma-separated names; each runs plain and debiased, by Panda or as it says.",
        ),
    ] = "all",
    as_json: JsonOption = False,
) -> None:
    """Compare methods with and without Panda: prints tables, and writes the report of the folder of records.

    Of the embedded data, 600 images per corruption are used unless --limit says otherwise.
    """
    from tta_panda.cli.report import print_comparisons, write_report
    from tta_panda.evaluation.store import RunStore
    from tta_panda.reporting.comparison import compare, read_comparisons

    options = with_limit(options)
    outcome = options.run(plain_and_debiased(method))
    records, page = list(outcome.records.values()), None
    if not as_json:
        print_comparisons(compare(records, (each.config for each in outcome.diverged.values())))
    if records:
        page = write_report(*read_comparisons(RunStore(options.output)), options.output / "report.html")
    if as_json:
        rows = [row for record in records for row in record.rows()]
        print_json(rows, skipped=outcome.existed, missing=outcome.missing(), report=str(page))
    elif page:
        existed = f" ({outcome.existed} of {len(records)} runs existed already)" if outcome.existed else ""
        typer.echo(f"Report: {page}{existed}")
    raise typer.Exit(exit_code(outcome))


def with_limit(options: RunOptions) -> RunOptions:
    """The same with a limit for embedded data, unless there is one."""
    from tta_panda.data import DATASETS

    data = options.stream(options.named_preset()).data
    if options.limit is not None or not DATASETS.get(data).embedded:
        return options
    return replace(options, limit=EMBEDDED_LIMIT)  # type: ignore[call-arg]
