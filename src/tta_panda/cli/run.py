"""`tta-panda run`: methods on domains, one record each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tta_panda.cli.common import JsonOption, make_console, print_json, print_rows, words
from tta_panda.cli.runs import RunOptions, exit_code, takes_options, with_and_without_panda

if TYPE_CHECKING:
    from tta_panda.evaluation.record import RunRecord


@takes_options
def run(
    options: RunOptions,
    method: Annotated[
        str, typer.Option("--method", help="Comma-separated names, as clip,tent+panda; all: with and without Panda.")
    ] = "all",
    as_json: JsonOption = False,
) -> None:
    """Run methods on corruptions. A run whose record exists is not run again."""
    outcome = options.run(with_and_without_panda("all") if method == "all" else words(method))
    records = outcome.records.values()
    if as_json:
        rows = [record.row() for record in records]
        print_json(rows, skipped=outcome.existed, missing=outcome.missing())
    else:
        console = make_console()
        print_rows(console, [_row(record) for record in records])
        existed = f"; {outcome.existed} of {len(records)} existed already" if outcome.existed else ""
        console.print(f"Records in {options.output}{existed}")
    raise typer.Exit(exit_code(outcome))


def _row(record: RunRecord) -> dict[str, Any]:
    stream = record.config.stream
    return {
        "method": record.config.method.name,
        **{name: getattr(stream, name) for name in ("corruption", "severity", "seed")},
        "samples": record.samples,
        "accuracy": f"{record.accuracy:.1%} ± {record.accuracy_stderr:.1%}",
        "bias (L1)": f"{record.bias:.3f}",
        "beta": "" if record.mean_beta is None else record.mean_beta,
        "seconds": f"{record.seconds:.1f}",
    }
