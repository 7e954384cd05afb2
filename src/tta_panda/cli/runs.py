"""The options that say what to run, shared by `bench` and `reproduce`, and what both do with the runs."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.filesize import decimal

from tta_panda.cli.common import keeping, print_json, print_rows, say, words
from tta_panda.cli.engines import EngineOptions, default_workers
from tta_panda.errors import InvalidInputError
from tta_panda.escapes import printable
from tta_panda.evaluation.config import EMBEDDED, StreamConfig
from tta_panda.progress import make_console, make_progress

if TYPE_CHECKING:
    from tta_panda.evaluation.config import RunConfig
    from tta_panda.evaluation.plan import Sources
    from tta_panda.evaluation.record import FailedRun
    from tta_panda.evaluation.run import Outcome
    from tta_panda.evaluation.store import RunStore
    from tta_panda.methods.presets import Preset

ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model",
        help="mini, lite0, ARCHITECTURE:TAG or ARCHITECTURE:FILE (open_clip), hf-hub:NAME, transformers:NAME, "
        "timm:NAME, a directory, or MODULE:FUNCTION for a model of your own.",
        show_default="the preset's, or mini",
    ),
]
DataOption = Annotated[
    str | None,
    typer.Option("--data", help="Data set; see: tta-panda ls data.", show_default="the preset's, or glyphs-c"),
]
TemplatesOption = Annotated[
    str | None,
    typer.Option(
        "--templates",
        help="Prompts for class names: photo, or the averages of mint (seven) or openai (eighty).",
        show_default="the preset's, or photo",
    ),
]
PrecisionOption = Annotated[
    str, typer.Option("--precision", help="Precision of the encoders: fp32, bf16 or fp16. All else runs in fp32.")
]
BackendOption = Annotated[
    str,
    typer.Option("--backend", help="What computes image embeddings: torch, or openvino (frozen methods on a CPU)."),
]
LimitOption = Annotated[int | None, typer.Option("--limit", min=1, help="At most this many images of each corruption.")]
PreprocessOption = Annotated[
    str,
    typer.Option(
        "--preprocess",
        help="batched: resize a batch as one tensor; exact: image by image with Pillow, as open_clip does.",
    ),
]
IgnoreOrientationOption = Annotated[
    bool, typer.Option("--ignore-orientation", help="Do not turn image files as their EXIF orientation says.")
]
PresetOption = Annotated[
    str | None, typer.Option("--preset", help="Settings of a benchmark; see: tta-panda ls presets.")
]
ProtocolOption = Annotated[
    str, typer.Option("--protocol", help="paper: as the paper says; reference: as its authors' code does.")
]
DataRootOption = Annotated[Path | None, typer.Option("--data-root", help="Folder of data sets that are on disk.")]
ImageListOption = Annotated[
    Path | None, typer.Option("--image-list", help="Text file that names the images to use, one per line.")
]
SkipBrokenOption = Annotated[
    bool, typer.Option("--skip-broken", help="Skip image files that cannot be decoded; they are named.")
]
CacheOption = Annotated[
    Path | None,
    typer.Option("--cache", help="Folder for encoded features: methods that do not train encode nothing twice."),
]
OutputOption = Annotated[Path, typer.Option("--output", "-o", help="Folder for records, tables, figures, report.")]
ShardOption = Annotated[
    str | None,
    typer.Option(
        "--shard",
        metavar="K/N",
        help="Make the K-th of N parts of the runs, and no tables: for job arrays.",
    ),
]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Print the runs and how much they encode, and run nothing.")
]
ThroughputOption = Annotated[
    float | None,
    typer.Option(
        "--throughput", min=1e-9, help="With --dry-run: images that are encoded per second, to estimate hours."
    ),
]


def keeping_records(output: Path) -> AbstractContextManager[None]:
    """Have an interruption of this block say where finished runs are."""
    return keeping(f"Finished runs are in {output}; the same command continues from there.")


def resolve(
    preset: Preset | None,
    *,
    model: str | None = None,
    data: str | None = None,
    templates: str | None = None,
    data_root: Path | None = None,
    image_list: Path | None = None,
    skip_broken: bool = False,
    **stream: Any,
) -> tuple[StreamConfig, Sources, Preset | None]:
    """What all runs have in common, where model and data are found, and the preset that methods take values from."""
    from tta_panda.evaluation.plan import Sources, model_preset

    base = preset or EMBEDDED
    sources = Sources(base.model if model is None else model, data_root, image_list, skip_broken)
    config = StreamConfig(
        model=sources.model,
        data=base.data if data is None else data,
        templates=base.templates if templates is None else templates,
        **stream,
    )
    return config, sources, preset or model_preset(sources.model)


def run_with_progress(
    configs: Sequence[RunConfig],
    store: RunStore,
    sources: Sources,
    engines: EngineOptions,
    cache: Path | None,
    *,
    timed: bool = False,
) -> Outcome:
    """Make these runs, with progress on stderr, and say there what gave no record."""
    from tta_panda.evaluation.evaluator import Evaluator
    from tta_panda.evaluation.run import make_runs

    device = engines.usable_device()
    evaluator = Evaluator(sources, device, timed=timed, cache=cache)
    engines = replace(engines, workers=1) if timed else engines
    executor = engines.make_executor(default_workers(configs, sources, device))
    with make_progress("starting", total=len(configs)) as progress:
        task = progress.task_ids[0]

        def report(running: Sequence[RunConfig], share: float) -> None:
            names = ", ".join(dict.fromkeys(config.method.name for config in running))
            description = f"{running[0].stream.corruption}: {names}"
            progress.update(task, description=printable(description), advance=share * len(running))

        outcome = make_runs(configs, store, evaluator, executor, report)
    _say_failures(outcome, store)
    if evaluator.cache is not None:
        from tta_panda.methods.feature_cache import folder_size

        say(f"note: {cache} holds {decimal(folder_size(evaluator.cache))} of features")
    return outcome


def _say_failures(outcome: Outcome, store: RunStore) -> None:
    """Say what has no record, once for all that share a reason."""
    grouped: dict[tuple[str, str], list[FailedRun]] = {}
    for run in outcome.failures.values():
        grouped.setdefault((run.status, run.message), []).append(run)
    for (status, message), runs in grouped.items():
        subjects = "; ".join(dict.fromkeys(run.subject for run in runs))
        if status == "diverged":
            path = store.divergence_path(runs[0].config) if len(runs) == 1 else store.root / "*.diverged"
            say(f"diverged: {subjects}: {message} To try again, delete {path}")
        elif status == "failed":
            say(f"failed: {subjects}: {message} The same command tries again.\n{runs[0].traceback}".rstrip())
        else:
            say(f"not run: {subjects}: {message}")


def exit_code(outcome: Outcome) -> int:
    """1 where data could not be read or runs failed. That a model cannot serve a method, or diverges, is a finding."""
    return int(any(run.status in ("unreadable", "failed") for run in outcome.failures.values()))


def is_dry_run(dry_run: bool, throughput: float | None) -> bool:
    if throughput is not None and not dry_run:
        raise InvalidInputError("--throughput is for an estimate: add --dry-run, or omit it.")
    return dry_run


def print_dry_run(
    planned: Sequence[tuple[Sequence[RunConfig], RunStore, Sources, bool]], throughput: float | None, as_json: bool
) -> None:
    """Print what would be run, how much it encodes, and how long that takes at a throughput.

    Args:
        planned: runs, where their records are kept, where model and data are found, and whether they are timed.
    """
    from tta_panda.evaluation.run import count_encoded, divide, find_runs

    rows: dict[tuple[str, str], dict[str, Any]] = {}
    existing = 0
    for configs, store, sources, timed in planned:
        known = find_runs(configs, store)
        missing = [config for config in configs if config.key not in known.records | known.failures]
        existing += len(configs) - len(missing)
        for task in [[config] for config in missing] if timed else divide(missing):
            data, methods = task[0].stream.data, ", ".join(config.method.name for config in task)
            images, texts = count_encoded(task, sources)
            row = rows.setdefault((data, methods), {"data": data, "methods": methods, **dict.fromkeys(_COUNTED, 0)})
            for name, number in zip(_COUNTED, (len(task), images, texts), strict=True):
                row[name] += number
    totals = {name: sum(row[name] for row in rows.values()) for name in _COUNTED}
    hours = None if throughput is None else (totals["images"] + totals["texts"]) / throughput / 3600
    if as_json:
        print_json(list(rows.values()), **totals, exist=existing, hours=hours)
        return
    console = make_console()
    print_rows(console, list(rows.values()))
    duration = "" if hours is None else f"; {hours:,.1f} hours at {throughput:,g} per second"
    encoded = f"{totals['images']:,} images and {totals['texts']:,} texts{duration}"
    console.print(f"{totals['runs']:,} runs to make, {existing:,} exist. To encode: {encoded}.", soft_wrap=True)
    console.print("Methods in one row share what they encode. A pass with gradient counts three times.")


_COUNTED = ("runs", "images", "texts")


def plain_and_debiased(names: str) -> list[str]:
    """Comma-separated names, `all` among them, as pairs: methods plain, and debiased as they say, else by Panda."""
    from tta_panda.methods import METHODS, MethodName, parse_method

    every = [name for word in words(names) for name in (METHODS.names() if word == "all" else [word])]
    chosen = [parse_method(name) for name in every]
    pairs = [(name.base, str(MethodName(name.base, name.debias or "panda"))) for name in chosen]
    return list(dict.fromkeys(name for pair in pairs for name in pair))
