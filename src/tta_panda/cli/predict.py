"""`tta-panda predict`: the classes of your own pictures."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tta_panda.cli.common import JsonOption, keeping, print_json, say, words
from tta_panda.cli.engines import LOCAL, RAY, AddressOption, DeviceOption, EngineOption, EngineOptions, GpusOption
from tta_panda.cli.runs import BackendOption, IgnoreOrientationOption, PrecisionOption, PresetOption
from tta_panda.errors import DataError, InvalidInputError, WorkerError
from tta_panda.escapes import printable
from tta_panda.evaluation.config import EMBEDDED
from tta_panda.progress import make_console, make_progress

if TYPE_CHECKING:
    from tta_panda.prediction.job import PredictionConfig, PredictionJob
    from tta_panda.prediction.predict import Prediction
    from tta_panda.prediction.reading import Pause
    from tta_panda.prediction.summary import Summary

STDIN = "-"
_PATH_LENGTH = 50  # letters


def predict(
    paths: Annotated[
        list[str] | None, typer.Argument(help="Pictures, folders (all below them), globs; - reads paths from stdin.")
    ] = None,
    classes: Annotated[
        str | None, typer.Option("--classes", help="Comma-separated class names.", show_default="the sub-folders")
    ] = None,
    classes_file: Annotated[Path | None, typer.Option("--classes-file", help="Text file, one class per line.")] = None,
    template: Annotated[
        list[str] | None, typer.Option("--template", help="Prompt with {} for the class name; several are averaged.")
    ] = None,
    model: Annotated[str, typer.Option("--model", help="See: tta-panda ls models.")] = EMBEDDED.model,
    method: Annotated[str, typer.Option("--method", help="See: tta-panda ls methods.")] = "clip+panda",
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Option of the method or of Panda, as name=value; repeatable.")
    ] = None,
    preset: PresetOption = None,
    batch_size: Annotated[int, typer.Option("--batch-size", min=1, help="Pictures per batch.")] = 100,
    order: Annotated[
        str, typer.Option("--order", help="sequential, or shuffled: better for folders that are sorted by class.")
    ] = "sequential",
    seed: Annotated[int, typer.Option("--seed", min=0, help="Random seed of negatives, views and order.")] = 0,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="CSV, JSONL or Parquet, by suffix.", show_default="stdout")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue an --output that was interrupted.")] = False,
    state: Annotated[
        Path | None,
        typer.Option("--state", help="File of the method's state: loaded first if it exists, written at the end."),
    ] = None,
    html: Annotated[Path | None, typer.Option("--html", help="Page of thumbnails and predictions.")] = None,
    watch: Annotated[
        Path | None, typer.Option("--watch", help="Predict pictures that appear in this folder, until Ctrl-C.")
    ] = None,
    until_idle: Annotated[
        float | None, typer.Option("--until-idle", help="With --watch: end after this many seconds without a picture.")
    ] = None,
    skip_broken: Annotated[
        bool, typer.Option("--skip-broken/--no-skip-broken", help="Exit with 0 even if pictures cannot be read.")
    ] = True,
    ignore_orientation: IgnoreOrientationOption = False,
    max_pixels: Annotated[
        int, typer.Option("--max-pixels", min=1, help="Skip pictures of more pixels than this.")
    ] = 100_000_000,
    precision: PrecisionOption = "fp32",
    backend: BackendOption = "torch",
    engine: EngineOption = LOCAL,
    workers: Annotated[int | None, typer.Option("--workers", min=1, help="Processes.", show_default="1")] = None,
    shard_size: Annotated[
        int, typer.Option("--shard-size", min=1, help="Pictures of a shard, with several --workers or --engine ray.")
    ] = 1000,
    address: AddressOption = None,
    gpus_per_worker: GpusOption = None,
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Predict the classes of pictures, beside what the plain classifier predicts.

    Rows are written as they come. A run that was killed has all finished batches in its --output, and --resume
    continues it: the file is the same as that of a run without interruption.
    """
    if watch and paths:
        raise InvalidInputError("Give either paths or --watch FOLDER, not both.")
    engines = EngineOptions(engine, workers, address, gpus_per_worker, device)
    is_sharded = engines.checked_engine() == RAY or (workers or 1) > 1
    places = [str(watch)] if watch else list(paths or [])
    refused = {
        "Name pictures, folders or globs, or - for paths on stdin: tta-panda predict photos": not places,
        "Give either - or paths, not both.": STDIN in places and len(places) > 1,
        "--html needs --output, too: the page is made of its rows.": html and not output,
        "--resume continues a file of predictions; give its --output.": resume and not output,
        f"--order is sequential or shuffled, got {order!r}.": order not in ("sequential", "shuffled"),
        "Only a list of files can be shuffled, not --watch or -.": order == "shuffled" and (watch or STDIN in places),
        "--until-idle belongs to --watch.": until_idle is not None and not watch,
        "Several workers write to a file; give --output.": is_sharded and not output,
        "Each shard of several workers is a stream of its own: omit --state.": is_sharded and state,
        "Only a list of files can be divided among workers, not --watch.": is_sharded and watch,
        "Give either --classes or --classes-file.": classes is not None and classes_file is not None,
    }
    for message, is_wrong in refused.items():
        if is_wrong:
            raise InvalidInputError(message)

    from tta_panda.data.listing import read_lines
    from tta_panda.images import Decoding
    from tta_panda.methods.factory import parse_setting
    from tta_panda.prediction.job import PredictionConfig, PredictionJob

    names = words(classes) if classes is not None else read_lines(classes_file) if classes_file else None
    config = PredictionConfig(
        model=model,
        method=method,
        places=tuple(Path(place) for place in places if place != STDIN),
        classes=names,
        templates=template or None,
        preset=preset,
        options=dict(parse_setting(text) for text in settings or []),
        seed=seed,
        device=engines.usable_device(),
        precision=precision,
        backend=backend,
        decoding=Decoding(upright=not ignore_orientation, max_pixels=max_pixels),
        batch_size=batch_size,
    )
    executor = engines.make_executor(1) if is_sharded else None
    job = PredictionJob(config, output, state, executor, shard_size)
    _check_distinct(job, html)
    pictures = [] if watch else _find_pictures(places, seed if order == "shuffled" else None)
    kept = "Nothing is kept; with --output FILE, --resume can continue."
    if output:
        kept = f"What is predicted is kept; the same command with --resume completes {output}."
    rows: list[dict[str, object]] = []
    with keeping(kept), job.open(resume=resume) as is_open:
        if is_open and watch:
            from tta_panda.prediction.reading import watch_folder

            with _ended_by_signals() as stop:
                new = watch_folder(watch, set(job.predicted_paths()), until_idle=until_idle, stop=stop)
                _run(job, new, rows if as_json else None, from_start=False)
        elif is_open:
            _run(job, pictures, rows if as_json else None)
        else:
            say(f"{output} is complete; there is nothing to resume.")
        if output and html:
            _write_page(html, output, config)
    files = {"output": output and str(output), "page": html and str(html)}
    if as_json:
        print_json(rows, **job.summary.facts(), **files)
    elif is_open:
        print_summary(method, job.summary, {"Predictions": output, "State": state, "Page": html})
    raise typer.Exit(int(job.summary.skipped > 0 and not skip_broken))


def _check_distinct(job: PredictionJob, html: Path | None) -> None:
    """Refuse names that would have one file overwrite another."""
    own = {job.output.path, job.output.growing, job.checkpoint} if job.output else set()
    written = [path for path in (*own, job.state, html) if path is not None]
    if len({path.resolve() for path in written}) < len(written):
        raise InvalidInputError(
            f"Two outputs would be written to the same file: {', '.join(map(str, written))}. Give --output, --html and "
            "--state names of their own."
        )


def _write_page(page: Path, output: Path, config: PredictionConfig) -> None:
    from tta_panda.prediction.files import read_rows
    from tta_panda.prediction.reading import add_thumbnails
    from tta_panda.reporting.page import write_contact_sheet

    write_contact_sheet(page, add_thumbnails(read_rows(output), config.decoding), config.method, config.model)


def _find_pictures(places: Sequence[str], seed: int | None) -> Iterable[str]:
    """Paths in the order of the stream, shuffled if there is a seed; a list unless they come from stdin."""
    import numpy as np

    from tta_panda.data.listing import find_images

    if STDIN in places:
        lines = (os.fsdecode(line).rstrip("\r\n") for line in sys.stdin.buffer)
        return (line for line in lines if line)
    found = find_images(places)
    if found.skipped:
        say(str(found))
    if not found.paths:
        raise DataError(f"There are no pictures in {', '.join(places)}.")
    paths = [str(path) for path in found.paths]
    return paths if seed is None else [paths[i] for i in np.random.default_rng(seed).permutation(len(paths))]


@contextmanager
def _ended_by_signals() -> Iterator[threading.Event]:
    """An event that Ctrl-C and SIGTERM set, so that watching a folder ends after the batch that is under way."""
    stop = threading.Event()
    before = {each: signal.signal(each, lambda *_: stop.set()) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _run(
    job: PredictionJob,
    pictures: Iterable[str | Pause],
    rows: list[dict[str, object]] | None,
    *,
    from_start: bool = True,
) -> None:
    """Predict. Without a file, predictions go to `rows`, or to stdout: a table for people, CSV for programs."""
    from tta_panda.files import csv_line
    from tta_panda.prediction.files import COLUMNS, as_row, csv_row

    to_stdout = rows is None and not job.output
    on_terminal = to_stdout and sys.stdout.isatty()
    if to_stdout and not on_terminal:
        typer.echo(csv_line(COLUMNS), nl=False)
    total = len(pictures) if isinstance(pictures, list) else None
    with nullcontext() if on_terminal else make_progress("predicting", total) as progress:
        if progress:
            progress.advance(progress.task_ids[0], job.summary.pictures)
        try:
            for predictions in job.run(pictures, from_start=from_start):
                if progress:
                    progress.advance(progress.task_ids[0], len(predictions))
                if rows is not None:
                    rows += map(as_row, predictions)
                elif to_stdout:
                    typer.echo("".join(map(_line if on_terminal else csv_row, predictions)), nl=False)
        except WorkerError as error:
            raise WorkerError(
                f"Only the first {job.summary.pictures:,} pictures are predicted: {error} The same command with "
                "--resume tries again."
            ) from error


def _line(prediction: Prediction) -> str:
    """A prediction for people, with the end of the line."""
    path = prediction.path or ""
    path = path if len(path) <= _PATH_LENGTH else f"…{path[1 - _PATH_LENGTH :]}"
    text = f"skipped: {prediction.error}"
    if prediction.error is None:
        plain = f"  (plain: {prediction.plain_predicted})" if prediction.changed else ""
        text = f"{prediction.probability:4.0%}  {prediction.predicted}{plain}"
    return printable(f"{path:{_PATH_LENGTH}}  {text}") + "\n"


def print_summary(method: str, summary: Summary, files: dict[str, Path | None]) -> None:
    """Print counts, accuracy and bias: on stdout if the predictions have a file of their own."""
    console = make_console(stderr=files["Predictions"] is None)
    facts, read = summary.facts(), summary.pictures - summary.skipped
    speed = f"{facts['pictures_per_second']:.1f} per second, the encoder busy {facts['busy']:.0%} of the time"
    console.print(f"{read:,} pictures in {facts['seconds']:.1f} s: {speed}")
    if summary.skipped:
        console.print(f"{summary.skipped:,} skipped:")
        for path, reason in summary.reasons.items():
            console.print(printable(f"  {path}: {reason}"), soft_wrap=True)
        if summary.skipped > len(summary.reasons):
            console.print(f"  and {summary.skipped - len(summary.reasons):,} more; their rows have the reasons")
    if read:
        share = summary.changed / read
        console.print(f"{method} changed {summary.changed:,} of {read:,} predictions ({share:.1%})")
    if summary.labelled:
        low, high = facts["gain_interval"]
        gain = f"{100 * facts['gain']:+.1f} points, paired 95 % interval {100 * low:+.1f} to {100 * high:+.1f}"
        accuracy = f"accuracy {facts['plain_accuracy']:.1%} -> {facts['accuracy']:.1%} ({gain})"
        bias = f"prediction bias {facts['plain_bias']:.3f} -> {facts['bias']:.3f}"
        console.print(f"{summary.labelled:,} labelled pictures: {accuracy}, {bias}", soft_wrap=True)
    for name, file in files.items():
        if file is not None:
            console.print(f"{name}: {file}", soft_wrap=True)
