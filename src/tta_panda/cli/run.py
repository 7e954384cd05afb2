"""`tta-panda run`: methods on domains, one record each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tta_panda.cli.common import JsonOption, make_console, print_json, words
from tta_panda.cli.runs import RunRequest, takes_request, with_and_without_panda

if TYPE_CHECKING:
    from rich.table import Table

    from tta_panda.evaluation.record import RunRecord


@takes_request
def run(
    request: RunRequest,
    method: Annotated[
        str, typer.Option("--method", help="clip, tent+panda, ...; several with commas; all, with and without Panda.")
    ] = "all",
    as_json: JsonOption = False,
) -> None:
    """Run methods on corruptions. A run whose record exists is not run again."""
    outcome = request.run(with_and_without_panda("all") if method == "all" else words(method))
    outcome.report_left_out()
    records, finished = outcome.records, outcome.finished
    if as_json:
        print_json([record.row() for record in records], skipped=finished, unavailable=outcome.unavailable)
        return
    console = make_console()
    console.print(_table(records))
    existed = f"; {finished} of {len(records)} existed already" if finished else ""
    console.print(f"Records in {request.output}{existed}")


def _table(records: list[RunRecord]) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for header in ("method", "corruption", "severity", "seed", "samples", "accuracy", "L1", "beta", "seconds"):
        table.add_column(header, justify="left" if header in ("method", "corruption") else "right")
    for record in records:
        config = record.config
        table.add_row(
            str(config.method_name),
            config.corruption,
            str(config.severity),
            str(config.seed),
            str(record.samples),
            f"{record.accuracy:.1%} ± {record.accuracy_stderr:.1%}",
            f"{record.l1:.3f}",
            "" if record.mean_beta is None else f"{record.mean_beta:.2f}",
            f"{record.seconds:.1f}",
        )
    return table
