"""Planned runs of `bench` and `reproduce`: make them with progress, or count them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.filesize import decimal

from tta_panda.cli.common import note_on_interrupt, print_json, print_rows, print_stderr, split_commas
from tta_panda.cli.options import RAY, ExecutionOptions, RunOptions
from tta_panda.escapes import printable
from tta_panda.progress import make_console, make_progress

if TYPE_CHECKING:
    from tta_panda.evaluation.config import RunConfig
    from tta_panda.evaluation.plan import Sources
    from tta_panda.evaluation.record import FailedRun
    from tta_panda.evaluation.run import Outcome
    from tta_panda.evaluation.store import RunStore

IMAGES_PER_PROCESS = 10_000
"""Number of images that justifies another worker process, with a small model."""


class PlannedRuns(NamedTuple):
    """Runs, the store of their records, and the sources of model and data."""

    configs: Sequence[RunConfig]
    store: RunStore
    sources: Sources
    timed: bool = False
    """Whether runs are timed: then they neither share passes nor run in parallel."""


def note_records_on_interrupt(output: Path) -> AbstractContextManager[None]:
    """Add to the message where finished runs are, if this block is interrupted."""
    return note_on_interrupt(f"Finished runs are in {output}; the same command continues from there.")


def run_with_progress(
    planned: PlannedRuns, execution: ExecutionOptions, cache: Path | None, tracker: str | None = None
) -> Outcome:
    """Make these runs, with progress and failures on stderr; `tracker` is what logs new records, if any."""
    from tta_panda.evaluation.run import Evaluator, make_runs
    from tta_panda.models.devices import device_of_worker
    from tta_panda.reporting.tracking import Tracker

    log = Tracker(tracker) if tracker else lambda _record: None  # before the first run: its package may be missing
    configs, store, sources, timed = planned
    device = execution.usable_device()
    evaluator = Evaluator(sources, device, timed=timed, cache=cache)
    execution = replace(execution, workers=1) if timed else execution
    local = execution.engine != RAY  # whose workers choose their own devices
    workers = execution.workers or (default_workers(configs, sources, device) if local else 1)
    executor = execution.make_executor(workers)
    places = {device_of_worker(device, number) if local else RAY for number in range(workers)}
    progress = make_progress("starting", total=len(configs))

    def report(running: Sequence[RunConfig], share: float) -> None:
        progress.start()  # only now that model and data are loaded: a command that cannot start shows no bar
        names = ", ".join(dict.fromkeys(config.method.name for config in running))
        description = f"{running[0].stream.corruption}: {names} on {', '.join(sorted(places))}"
        progress.update(progress.task_ids[0], description=printable(description), advance=share * len(running))

    if not executor.in_this_process:  # workers only report finished tasks
        progress.start()
    try:
        outcome = make_runs(configs, store, evaluator, executor, report, log)
    finally:
        progress.stop()
    _print_failures(outcome, store)
    if evaluator.cache is not None:
        from tta_panda.models.feature_cache import folder_size

        print_stderr(f"note: {cache} holds {decimal(folder_size(evaluator.cache))} of features")
    return outcome


def default_workers(configs: Sequence[RunConfig], sources: Sources, device: str) -> int:
    """Number of processes: one per GPU; on a CPU one, or one per core for long work with a small model."""
    from tta_panda.executors import available_cores
    from tta_panda.models import model_source
    from tta_panda.models.devices import count_devices

    if device != "cpu" or not model_source(sources.model).small:
        return count_devices(device)
    images = sum((config.stream.limit or 1000) * len(config.stream.visits) for config in configs)
    return max(1, min(available_cores(), images // IMAGES_PER_PROCESS))


def _print_failures(outcome: Outcome, store: RunStore) -> None:
    """Print runs without a record, grouped by reason."""
    grouped: dict[tuple[str, str], list[FailedRun]] = {}
    for run in outcome.failures.values():
        grouped.setdefault((run.status, run.message), []).append(run)
    for (status, message), runs in grouped.items():
        subjects = "; ".join(dict.fromkeys(run.subject for run in runs))
        if status == "diverged":
            path = store.divergence_path(runs[0].config) if len(runs) == 1 else store.root / "*.diverged"
            print_stderr(f"diverged: {subjects}: {message} To try again, delete {path}")
        elif status == "failed":
            print_stderr(f"failed: {subjects}: {message} The same command tries again.\n{runs[0].traceback}".rstrip())
        else:
            print_stderr(f"not run: {subjects}: {message}")


def exit_code(outcomes: Iterable[Outcome]) -> int:
    """1 if data could not be read or runs failed; 0 even if runs diverged or a model does not support a method."""
    failures = [run for outcome in outcomes for run in outcome.failures.values()]
    return int(any(run.status in ("unreadable", "failed") for run in failures))


def print_dry_run(planned: Sequence[PlannedRuns], options: RunOptions, as_json: bool) -> None:
    """Print the number of runs, the images and texts to encode, and the hours at --throughput."""
    from tta_panda.evaluation.run import count_encoded, divide_into_tasks

    rows: dict[tuple[str, str], dict[str, Any]] = {}
    existing = 0
    for configs, store, sources, timed in planned:
        missing = [each for each in configs if not (store.path(each).exists() or store.divergence_path(each).exists())]
        existing += len(configs) - len(missing)
        for task in [[config] for config in missing] if timed else divide_into_tasks(missing):
            data, methods = task[0].stream.data, ", ".join(config.method.name for config in task)
            images, texts = count_encoded(task, sources)
            row = rows.setdefault((data, methods), {"data": data, "methods": methods, **dict.fromkeys(_COUNTED, 0)})
            for name, number in zip(_COUNTED, (len(task), images, texts), strict=True):
                row[name] += number
    totals = {name: sum(row[name] for row in rows.values()) for name in _COUNTED}
    speed = options.throughput
    hours = None if speed is None else (totals["images"] + totals["texts"]) / speed / 3600
    if as_json:
        print_json(list(rows.values()), **totals, exist=existing, hours=hours)
        return
    console = make_console()
    if options.verbose:
        print_rows(console, list(rows.values()))
        console.print("Methods in one row share encoder passes.")
    duration = "" if hours is None else f"; {hours:,.1f} hours at {speed:,g} per second"
    encoded = f"{totals['images']:,} images and {totals['texts']:,} texts{duration}"
    console.print(f"{totals['runs']:,} runs to make, {existing:,} exist. To encode: {encoded}.", soft_wrap=True)
    console.print(
        "A pass with gradient counts three times." + ("" if options.verbose else " --verbose lists the runs.")
    )


_COUNTED = ("runs", "images", "texts")


def plain_and_debiased(names: str) -> list[str]:
    """Expand comma-separated names or `all` into pairs: plain, and debiased, with Panda unless the name says how."""
    from tta_panda.methods import METHODS, MethodName, parse_method

    every = [name for word in split_commas(names) for name in (METHODS.names() if word == "all" else [word])]
    chosen = [parse_method(name) for name in every]
    pairs = [(name.base, str(MethodName(name.base, name.debias or "panda"))) for name in chosen]
    return list(dict.fromkeys(name for pair in pairs for name in pair))
