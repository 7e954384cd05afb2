"""`tta-panda bench`: compare methods with and without Panda on clean and corrupted data."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tta_panda.cli import runs
from tta_panda.cli.common import parse_ints, parse_shard, print_json, split_commas
from tta_panda.cli.options import INPUT, METHOD, OUTPUT, ExecutionOptions, JsonOption, PresetOption, RunOptions

if TYPE_CHECKING:
    from tta_panda.evaluation.run import Outcome
    from tta_panda.evaluation.store import RunStore

EMBEDDED_LIMIT = 400
"""Default of --limit for embedded data, with which all methods on all corruptions take minutes."""


def bench(
    *,
    corruption: Annotated[
        str, INPUT(metavar="NAMES", help="Corruptions or domains; clean, all, or what is available.")
    ] = "available",
    severity: Annotated[str, INPUT(metavar="N", help="Severity, 1 to 5; several as 1,3,5 or 1-5.")] = "5",
    seed: Annotated[str, INPUT(metavar="N", help="Random seed; several as 0,1,2 or 0-4.")] = "0",
    batch_size: Annotated[int, INPUT(metavar="N", help="Images per batch.")] = 100,
    window: Annotated[
        int | None, INPUT(metavar="N", help="With --batch-size 1: adapt to the last N images at a time.")
    ] = None,
    order: Annotated[str, INPUT(metavar="ORDER", help="Order of domains and images; see above.")] = "shuffled",
    unknown_classes: Annotated[
        str | None, INPUT(metavar="NAMES", help="Classes whose images are in the stream, unknown to the methods.")
    ] = None,
    method: Annotated[str, METHOD(metavar="NAMES", help="Methods: all, or see tta-panda ls methods.")] = "all",
    preset: PresetOption = None,
    output: Annotated[
        Path, OUTPUT("--output", "-o", metavar="DIR", help="Folder of records, tables and report.")
    ] = Path("runs"),
    log: Annotated[
        str | None,
        OUTPUT(metavar="NAME", help="Log new records with wandb or trackio, if it is installed."),
    ] = None,
    as_json: JsonOption = False,
    run: RunOptions,
    execution: ExecutionOptions,
) -> None:
    """Compare methods with and without Panda, in tables and an HTML report.

    Each method runs plain and debiased: with Panda, unless its name specifies
    another correction, as tent+level does. Runs that have a record are not
    repeated. Embedded data are limited to 400 images per corruption.

    --set accepts several values: beta=0.1,0.2 runs both.

    --order sets how domains follow each other (reset, continual, recurring:20,
    gradual or mixed), how the images of a domain are arranged (shuffled,
    sequential, correlated:0.1, imbalanced:inf, label_shift:0.1 or
    few_classes:5), or both, as in mixed+correlated:0.1.

    \b
    Examples:
      tta-panda bench --method clip,tent --corruption fog,snow --limit 200
      tta-panda bench --preset cifar10-c --data-root data --seed 0-4
    """
    from tta_panda.data import find_source
    from tta_panda.evaluation.plan import plan_methods, plan_runs, plan_streams, select_shard
    from tta_panda.evaluation.store import RunStore
    from tta_panda.methods.presets import get_preset

    with runs.note_records_on_interrupt(output):
        chosen = None if preset is None else get_preset(preset)
        unknown = ",".join(split_commas(unknown_classes)) if unknown_classes is not None else None
        own = {"order": order, "batch_size": batch_size, "window": window, "unknown_classes": unknown}
        stream, sources, values = run.resolve(chosen, **own)
        if run.limit is None and find_source(stream.data).embedded:
            stream = replace(stream, limit=EMBEDDED_LIMIT)
        methods = plan_methods(runs.plain_and_debiased(method), run.parsed_settings(), values, run.protocol)
        streams = plan_streams(stream, sources, split_commas(corruption), parse_ints(severity), parse_ints(seed))
        store = RunStore(output)
        planned = runs.PlannedRuns(select_shard(plan_runs(methods, streams), *parse_shard(run.shard)), store, sources)
        if run.dry_run:
            runs.print_dry_run([planned], run, as_json)
            return
        outcome = runs.run_with_progress(planned, execution, run.cache, log)
        page = None if run.shard else _show(outcome, store, quiet=as_json)
        if as_json:
            rows = [row for record in outcome.records.values() for row in record.rows()]
            print_json(rows, skipped=outcome.existed, missing=outcome.missing(), report=page and str(page))
        else:
            existed = f" ({outcome.existed} of {len(outcome.records)} runs existed already)" if outcome.existed else ""
            typer.echo(f"Report: {page}{existed}" if page else f"{len(outcome.records)} records in {output}{existed}")
        raise typer.Exit(runs.exit_code([outcome]))


def _show(outcome: Outcome, store: RunStore, *, quiet: bool) -> Path | None:
    """Print tables of these runs, and write the report of all runs in their folder."""
    from tta_panda.cli.report import print_comparisons, write_report
    from tta_panda.reporting.comparison import compare

    records = sorted(outcome.records.values(), key=lambda record: record.config.key)
    diverged = store.divergences()
    comparisons = compare(records, (run.config for run in outcome.diverged.values()))
    if not quiet:
        print_comparisons(comparisons)
    if not records:
        return None
    others = store.records(except_for=outcome.records)
    if others or diverged.keys() != outcome.diverged.keys():
        records = sorted([*records, *others], key=lambda record: record.config.key)
        comparisons = compare(records, (run.config for run in diverged.values()))
    return write_report(records, comparisons, store.root / "report.html")
