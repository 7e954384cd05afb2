"""`tta-panda bench`: methods with and without Panda on clean data and all corruptions, to tables and a report."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tta_panda.cli import engines as where
from tta_panda.cli import runs
from tta_panda.cli.common import JsonOption, numbers, print_json, words

if TYPE_CHECKING:
    from tta_panda.evaluation.run import Outcome
    from tta_panda.evaluation.store import RunStore

EMBEDDED_LIMIT = 600
"""Images of embedded data unless --limit says otherwise: all methods on all corruptions then take minutes."""


def bench(
    method: Annotated[
        str,
        typer.Option(
            "--method",
            help="all, or comma-separated names; each runs plain and debiased, by Panda or as it says.",
        ),
    ] = "all",
    model: runs.ModelOption = None,
    data: runs.DataOption = None,
    corruption: Annotated[
        str, typer.Option("--corruption", help="Comma-separated names, clean, or all; available: all the data set has.")
    ] = "available",
    severity: Annotated[str, typer.Option("--severity", help="1 to 5; several as 1,3,5 or 1-5.")] = "5",
    order: Annotated[
        str,
        typer.Option(
            "--order",
            help="How domains follow each other: reset, continual, gradual or mixed; and images: shuffled, sequential, "
            "correlated:0.1, imbalanced:inf or label_shift:0.1; or both, as mixed+correlated:0.1.",
        ),
    ] = "shuffled",
    seed: Annotated[str, typer.Option("--seed", help="Random seed; several as 0,1,2 or 0-4.")] = "0",
    batch_size: Annotated[int, typer.Option("--batch-size", help="Images per batch.")] = 100,
    limit: runs.LimitOption = None,
    preset: runs.PresetOption = None,
    protocol: runs.ProtocolOption = "paper",
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="Option of a method or its debiasing, as name=value; repeatable. With several values, as in "
            "beta=0.1,0.2,0.5, each is run.",
        ),
    ] = None,
    templates: runs.TemplatesOption = None,
    precision: runs.PrecisionOption = "fp32",
    backend: runs.BackendOption = "torch",
    preprocess: runs.PreprocessOption = "batched",
    ignore_orientation: runs.IgnoreOrientationOption = False,
    data_root: runs.DataRootOption = None,
    image_list: runs.ImageListOption = None,
    skip_broken: runs.SkipBrokenOption = False,
    engine: where.EngineOption = where.LOCAL,
    workers: where.WorkersOption = None,
    address: where.AddressOption = None,
    gpus_per_worker: where.GpusOption = None,
    device: where.DeviceOption = "auto",
    cache: runs.CacheOption = None,
    output: runs.OutputOption = Path("runs"),
    shard: runs.ShardOption = None,
    dry_run: runs.DryRunOption = False,
    throughput: runs.ThroughputOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare methods with and without Panda: prints tables, and writes the report of the folder of records.

    A run whose record exists is not run again. Of the embedded data, 600 images per corruption are used unless --limit
    says otherwise.
    """
    from tta_panda.data import DATASETS
    from tta_panda.evaluation.plan import plan_methods, plan_runs, plan_streams, select_shard
    from tta_panda.evaluation.store import RunStore
    from tta_panda.methods.factory import parse_setting
    from tta_panda.methods.presets import get_preset

    with runs.keeping_records(output):
        engines = where.EngineOptions(engine, workers, address, gpus_per_worker, device)
        stream, sources, values = runs.resolve(
            None if preset is None else get_preset(preset),
            model=model,
            data=data,
            templates=templates,
            data_root=data_root,
            image_list=image_list,
            skip_broken=skip_broken,
            order=order,
            batch_size=batch_size,
            limit=limit,
            precision=precision,
            backend=backend,
            preprocess=preprocess,
            ignore_orientation=ignore_orientation,
        )
        if limit is None and DATASETS.get(stream.data).embedded:
            stream = replace(stream, limit=EMBEDDED_LIMIT)
        chosen = dict(parse_setting(text) for text in settings or [])
        methods = plan_methods(runs.plain_and_debiased(method), chosen, values, protocol)
        streams = plan_streams(stream, sources, words(corruption), numbers(severity), numbers(seed))
        configs = select_shard(plan_runs(methods, streams), shard)
        store = RunStore(output)
        if runs.is_dry_run(dry_run, throughput):
            runs.print_dry_run([(configs, store, sources, False)], throughput, as_json)
            return
        outcome = runs.run_with_progress(configs, store, sources, engines, cache)
        page = None if shard else _show(outcome, store, quiet=as_json)
        if as_json:
            rows = [row for record in outcome.records.values() for row in record.rows()]
            print_json(rows, skipped=outcome.existed, missing=outcome.missing(), report=page and str(page))
        else:
            existed = f" ({outcome.existed} of {len(outcome.records)} runs existed already)" if outcome.existed else ""
            typer.echo(f"Report: {page}{existed}" if page else f"{len(outcome.records)} records in {output}{existed}")
        raise typer.Exit(runs.exit_code(outcome))


def _show(outcome: Outcome, store: RunStore, *, quiet: bool) -> Path | None:
    """Print these runs as tables, and write the report of their folder, which may hold others, too."""
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
