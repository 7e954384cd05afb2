"""`tta-panda predict`: the classes of your own pictures."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn, cast

import typer

from tta_panda.cli.common import print_json, say
from tta_panda.cli.predict_options import STDIN, PredictOptions
from tta_panda.cli.predictions import print_summary, row_printer, write_page
from tta_panda.cli.runs import takes_options
from tta_panda.errors import DataError, InvalidInputError
from tta_panda.progress import make_progress

if TYPE_CHECKING:
    from tta_panda.images import Decoding
    from tta_panda.prediction.files import Row
    from tta_panda.prediction.job import PredictionJob
    from tta_panda.prediction.reading import Pause
    from tta_panda.prediction.shards import ShardedJob
    from tta_panda.prediction.summary import Summary


@takes_options
def predict(
    options: PredictOptions,
    paths: Annotated[
        list[str] | None, typer.Argument(help="Pictures, folders (all below them), globs; - reads paths from stdin.")
    ] = None,
) -> None:
    """Predict the classes of pictures, beside what the plain classifier says of them.

    Rows are written as they come. A run that was killed has all finished batches in its --output, and --resume goes
    on: the file is the one of an undisturbed run.
    """
    if options.watch and paths:
        raise InvalidInputError("Give either paths or --watch FOLDER, not both.")
    places = [str(options.watch)] if options.watch else list(paths or [])
    options.check(places)
    seen: set[str] = set()
    stop = threading.Event()
    pictures, total = _pictures(options, places, seen, stop)
    folders = [Path(place) for place in places if place != STDIN]
    if options.is_sharded:
        _predict_shards(options, folders, [str(path) for path in pictures])
    job = _make_job(options, folders)
    job.start(resume=options.resume)
    if not job.is_open:
        say(f"{options.output} is complete; there is nothing to resume.")
        pictures = ()
    if options.watch:
        seen |= job.predicted()
    collected: list[Row] = []
    show = collected.extend if options.as_json else row_printer(options.output)
    with _ended_by_signals(stop) if options.watch else nullcontext():
        _run(options, job, pictures, total, show)
    page = _page(options, job.decoder.decoding, pictures)
    if options.as_json or job.is_open:
        _show_end(options, job.summary, collected, page)
    raise typer.Exit(int(job.summary.skipped > 0 and not options.skip_broken))


def _show_end(options: PredictOptions, summary: Summary, rows: list[Row], page: Path | None) -> None:
    if options.as_json:
        files = {"output": options.output and str(options.output), "page": page and str(page)}
        print_json(rows, **summary.facts(), **files)
    else:
        print_summary(options.method, summary, {"Predictions": options.output, "State": options.state, "Page": page})


def _run(
    options: PredictOptions,
    job: PredictionJob,
    pictures: Iterable[str | Pause],
    total: int | None,
    show: Callable[[list[Row]], None],
) -> None:
    """Predict, with progress on stderr unless rows go to the same terminal."""
    if not job.is_open:
        return
    rows_on_terminal = options.output is None and not options.as_json and sys.stdout.isatty()
    with nullcontext() if rows_on_terminal else make_progress("predicting", total) as progress:
        if progress:
            progress.advance(progress.task_ids[0], job.summary.pictures)
        for rows in job.run(pictures, from_start=options.watch is None):
            if progress:
                progress.advance(progress.task_ids[0], len(rows))
            show(rows)


def _predict_shards(options: PredictOptions, places: Sequence[Path], paths: list[str]) -> NoReturn:
    """Predict pictures on several workers."""
    from tta_panda.prediction.files import read_rows
    from tta_panda.prediction.shards import ShardedJob, ShardPrediction

    output = cast(Path, options.output)
    work = ShardPrediction(options.recipe(places), options.batch_size)
    job = ShardedJob(work, options.make_executor(1), output, options.shard_size)
    if job.start(paths, resume=options.resume):
        _run_shards(job, len(paths))
    else:
        say(f"{output} is complete; there is nothing to resume.")
    page = _page(options, work.recipe.decoding, paths)
    if job.summary is None:
        raise typer.Exit
    _show_end(options, job.summary, list(read_rows(output)) if options.as_json else [], page)
    raise typer.Exit(int(job.summary.skipped > 0 and not options.skip_broken))


def _run_shards(job: ShardedJob, pictures: int) -> None:
    """Predict, with progress on stderr."""
    with make_progress("predicting", pictures) as progress:
        failed = job.run(partial(progress.advance, progress.task_ids[0]))
    for shard, reason in failed.items():
        say(f"failed: {shard}: {reason}")
    if failed:
        say(f"{job.output} is not complete. The same command with --resume tries again.")
        raise typer.Exit(1)


def _make_job(options: PredictOptions, places: Sequence[Path]) -> PredictionJob:
    from tta_panda.prediction.job import PredictionJob

    recipe = options.recipe(places)
    method, decoder, label_of = recipe.make()
    settings = {
        **recipe.settings(),
        "classes": list(method.classifier.class_names),
        "method": repr(method),
        "batch size": options.batch_size,
        "order": options.order,
    }
    return PredictionJob(method, decoder, options.batch_size, settings, label_of, options.output, options.state)


def _pictures(
    options: PredictOptions, places: Sequence[str], seen: set[str], stop: threading.Event
) -> tuple[Iterable[str | Pause], int | None]:
    """Paths in the order of the stream, and how many there are, where that is known.

    Of a folder that is watched, those in `seen` are left out, also ones that enter it later.
    """
    import numpy as np

    from tta_panda.data.listing import find_images
    from tta_panda.prediction.watch import watch_folder

    if options.watch:
        return watch_folder(options.watch, seen, until_idle=options.until_idle, stop=stop), None
    if STDIN in places:
        lines = (os.fsdecode(line).rstrip("\r\n") for line in sys.stdin.buffer)
        return (line for line in lines if line), None
    found = find_images(places)
    if found.skipped:
        say(str(found))
    if not found.paths:
        raise DataError(f"There are no pictures in {', '.join(places)}.")
    paths = [str(path) for path in found.paths]
    if options.order == "shuffled":
        paths = [paths[i] for i in np.random.default_rng(options.seed).permutation(len(paths))]
    return paths, len(paths)


@contextmanager
def _ended_by_signals(stop: threading.Event) -> Iterator[None]:
    """Set `stop` on Ctrl-C and SIGTERM, so that watching a folder ends after the batch that is under way."""
    before = {each: signal.signal(each, lambda *_: stop.set()) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _page(options: PredictOptions, decoding: Decoding, pictures: Iterable[str | Pause]) -> Path | None:
    if options.html is None or options.output is None:
        return None
    paths = cast(list[str], pictures) if isinstance(pictures, list) else None
    return write_page(options.html, options.output, options.method, options.model, paths, decoding)
