"""`tta-panda run`: methods on domains, one record each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tta_panda.cli.common import JsonOption, print_json, print_rows, words
from tta_panda.cli.runs import RunOptions, exit_code, plain_and_debiased, takes_options
from tta_panda.progress import make_console

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
    outcome = options.run(plain_and_debiased("all") if method == "all" else words(method))
    records = outcome.records.values()
    if as_json:
        rows = [row for record in records for row in record.rows()]
        print_json(rows, skipped=outcome.existed, missing=outcome.missing())
    else:
        console = make_console()
        print_rows(console, [row for record in records for row in _rows(record)])
        existed = f"; {outcome.existed} of {len(records)} existed already" if outcome.existed else ""
        console.print(f"Records in {options.output}{existed}")
    raise typer.Exit(exit_code(outcome))


def _rows(record: RunRecord) -> list[dict[str, Any]]:
    stream = record.config.stream
    return [
        {
            "method": record.config.method.name,
            "corruption": corruption,
            "severity": stream.severity,
            "seed": stream.seed,
            "samples": measured.samples,
            "accuracy": f"{measured.accuracy:.1%} ± {measured.accuracy_stderr:.1%}",
            "bias (L1)": f"{measured.bias:.3f}",
            "beta": "" if measured.mean_beta is None else measured.mean_beta,
            "gamma": "" if measured.mean_gamma is None else measured.mean_gamma,
            "seconds": f"{record.seconds:.1f}",
        }
        for corruption, measured in record.by_corruption.items()
    ]
