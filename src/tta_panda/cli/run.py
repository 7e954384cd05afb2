"""`tta-panda run`: methods on domains, one record each."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tta_panda.cli.common import JsonOption, print_json, print_rows, words
from tta_panda.cli.engines import EngineOptions
from tta_panda.cli.runs import RunOptions, exit_code, plain_and_debiased, run_with_progress, takes_options
from tta_panda.errors import InvalidInputError
from tta_panda.progress import make_console

if TYPE_CHECKING:
    from tta_panda.evaluation.outcome import Outcome
    from tta_panda.evaluation.record import RunRecord


@takes_options
def run(
    options: RunOptions,
    method: Annotated[
        str, typer.Option("--method", help="Comma-separated names, as clip,tent+panda; all: with and without Panda.")
    ] = "all",
    shard: Annotated[
        str | None,
        typer.Option("--shard", help="K/N: the K-th of N parts that tta-panda plan wrote to --output."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Run methods on corruptions. A run whose record exists is not run again."""
    if shard is not None:
        outcome = _run_shard(options, method, shard)
    else:
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


_NOT_PLANNED = {"output", "cache", "data_root", *(each.name for each in fields(EngineOptions))}
"""Options that a shard leaves open."""


def _run_shard(options: RunOptions, method: str, shard: str) -> Outcome:
    from tta_panda.evaluation.outcome import Outcome
    from tta_panda.evaluation.shards import ShardName, read_shard
    from tta_panda.evaluation.store import RunStore

    planned = [each for each in fields(options) if each.name not in _NOT_PLANNED]
    given = [each.name for each in planned if getattr(options, each.name) != each.default]
    if given or method != "all":
        name = "method" if method != "all" else {"settings": "set"}.get(given[0], given[0].replace("_", "-"))
        raise InvalidInputError(f"--shard takes its runs from the plan: omit --{name}.")
    outcome = Outcome()
    for part in read_shard(ShardName.parse(shard), options.output).parts:
        sources = replace(part.sources, data_root=options.data_root or part.sources.data_root)
        runner = options.runner(RunStore(options.output / part.folder), sources, part.runs, part.timed)
        outcome.merge(run_with_progress(runner, part.runs))
    return outcome


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
