"""`tta-panda predict`: classify your own images."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tta_panda.cli.common import (
    check_outputs,
    note_on_interrupt,
    parse_shard,
    print_json,
    print_stderr,
    split_commas,
)
from tta_panda.cli.options import (
    DISTRIBUTION,
    INPUT,
    METHOD,
    MODEL,
    OUTPUT,
    BackendOption,
    DeviceOption,
    IgnoreOrientationOption,
    JsonOption,
    PrecisionOption,
    PresetOption,
    SettingsOption,
)
from tta_panda.errors import InvalidInputError
from tta_panda.escapes import printable
from tta_panda.files import make_writable, remove_parts
from tta_panda.models import DEFAULT_FOR_PICTURES
from tta_panda.prediction import DEFAULT_METHOD
from tta_panda.progress import make_console, make_progress

if TYPE_CHECKING:
    from tta_panda.prediction.job import PredictionFile
    from tta_panda.prediction.predict import Prediction
    from tta_panda.prediction.reading import Pause, Picture
    from tta_panda.prediction.summary import Summary

STDIN = "-"
_PATH_LENGTH = 50  # characters


def predict(
    *,
    paths: Annotated[
        list[str] | None,
        typer.Argument(help="Images, folders, globs, wds:SHARDS or hf:NAME; - reads paths from stdin."),
    ] = None,
    classes: Annotated[
        str | None, INPUT(metavar="NAMES", help="Class names, comma-separated.", show_default="the sub-folders")
    ] = None,
    classes_file: Annotated[Path | None, INPUT(metavar="FILE", help="Class names, one per line.")] = None,
    batch_size: Annotated[int, INPUT(metavar="N", min=1, help="Images per batch.")] = 100,
    order: Annotated[
        str, INPUT(metavar="NAME", help="Order of images: sequential, or shuffled (for sorted folders).")
    ] = "sequential",
    seed: Annotated[int, INPUT(metavar="N", min=0, help="Random seed.")] = 0,
    watch: Annotated[
        Path | None, INPUT(metavar="DIR", help="Watch a folder, and predict images as they appear.")
    ] = None,
    until_idle: Annotated[
        float | None, INPUT(metavar="SECONDS", help="With --watch: stop when no image has appeared for this long.")
    ] = None,
    no_skip_broken: Annotated[bool, INPUT("--no-skip-broken", help="Exit with 1 if an image cannot be read.")] = False,
    max_pixels: Annotated[int, INPUT(metavar="N", min=1, help="Skip images with more pixels.")] = 100_000_000,
    ignore_orientation: IgnoreOrientationOption = False,
    model: Annotated[str, MODEL(metavar="NAME", help="Model; see tta-panda ls models.")] = DEFAULT_FOR_PICTURES,
    template: Annotated[
        list[str] | None, MODEL(metavar="TEXT", help="Prompt with {} for the class, repeatable, or a file of prompts.")
    ] = None,
    precision: PrecisionOption = "fp32",
    backend: BackendOption = "torch",
    method: Annotated[str, METHOD(metavar="NAME", help="Method; see tta-panda ls methods.")] = DEFAULT_METHOD,
    settings: SettingsOption = None,
    preset: PresetOption = None,
    reject: Annotated[
        float | None,
        METHOD(metavar="P", min=0, max=1, help="Mark images with a larger p-value as rejected: none of the classes."),
    ] = None,
    output: Annotated[
        Path | None,
        OUTPUT(
            "--output",
            "-o",
            metavar="FILE",
            help="File of predictions: .csv, .jsonl or .parquet.",
            show_default="stdout",
        ),
    ] = None,
    resume: Annotated[bool, OUTPUT("--resume", help="Continue an interrupted --output file.")] = False,
    html: Annotated[Path | None, OUTPUT(metavar="FILE", help="Write an HTML page of thumbnails.")] = None,
    state: Annotated[
        Path | None,
        OUTPUT(metavar="FILE", help="File to load the method's state from, if it exists, and to save it to."),
    ] = None,
    as_json: JsonOption = False,
    device: DeviceOption = "auto",
    shard: Annotated[
        str | None, DISTRIBUTION(metavar="K/N", help="Predict only the K-th of N parts of the images.")
    ] = None,
) -> None:
    """Classify images, and compare with the unadapted model.

    Predictions are written batch by batch. After an interruption, the same
    command with --resume completes the --output file, which is then the same
    as without the interruption.

    \b
    Examples:
      tta-panda predict photos --classes cat,dog,bird -o predictions.csv
      tta-panda predict --watch inbox --classes-file classes.txt -o rows.jsonl
    """
    places = [str(watch)] if watch else list(paths or [])
    refused = {
        "Give either paths or --watch FOLDER, not both.": watch and paths,
        "Name images, folders or globs, or - for paths on stdin: tta-panda predict photos": not places,
        "Give either - or paths, not both.": STDIN in places and len(places) > 1,
        "--html needs --output, whose rows it shows.": html and not output,
        "--resume needs the --output file to continue.": resume and not output,
        f"--order must be sequential or shuffled, got {order!r}.": order not in ("sequential", "shuffled"),
        "--watch and - cannot be shuffled: omit --order.": order == "shuffled" and (watch or STDIN in places),
        "--until-idle needs --watch.": until_idle is not None and not watch,
        "--shard divides a list of images: omit --watch and -.": shard and (watch or STDIN in places),
        "Give either --classes or --classes-file.": classes is not None and classes_file is not None,
    }
    for message, is_wrong in refused.items():
        if is_wrong:
            raise InvalidInputError(message)

    from tta_panda.data.listing import read_lines
    from tta_panda.images import Decoding, StoredImage
    from tta_panda.methods.factory import parse_setting
    from tta_panda.methods.state import read_state, write_state
    from tta_panda.prediction.files import read_rows
    from tta_panda.prediction.job import PredictionFile
    from tta_panda.prediction.predict import check_reject, make_method, predict_batches
    from tta_panda.prediction.reading import add_thumbnails, watch_folder
    from tta_panda.prediction.summary import Summary
    from tta_panda.reporting.page import write_contact_sheet

    file = PredictionFile(output) if output else None
    outputs = [path for path in (html, state) if path]
    outputs += [*{file.path, file.work_path, file.checkpoint}] if file else []
    images = [] if watch else _find_images(places, seed if order == "shuffled" else None, shard)
    inputs: list[Any] = [*filter(None, [classes_file]), *(template or [])]
    if isinstance(images, list):
        inputs += [image.file if isinstance(image, StoredImage) else image for image in images]
    check_outputs(outputs, inputs)
    if file:
        file.is_complete(resume=resume)  # raises, before a model is loaded, if the file exists and is not to be resumed
    if state:
        make_writable(state.parent, "write the state to", "Choose another --state.")
    loaded, label_of = make_method(
        [Path(place) for place in places if place != STDIN],
        split_commas(classes) if classes is not None else read_lines(classes_file) if classes_file else None,
        model,
        method,
        device=device,
        precision=precision,
        backend=backend,
        templates=template,
        preset=preset,
        seed=seed,
        options=dict(parse_setting(text) for text in settings or []),
    )
    check_reject(loaded, reject)
    if state and state.exists():
        loaded.load_state_dict(read_state(state)[0])
    decoding = Decoding(upright=not ignore_orientation, max_pixels=max_pixels)
    same = {
        "batch size": batch_size, "decoding": decoding, "seed": seed, "precision": precision, "backend": backend,
        "reject": reject,
    }  # fmt: skip
    summary = Summary(loaded.classifier.class_names)
    kept = "Nothing is kept; with --output FILE, --resume could continue."
    if output:
        kept = f"Finished predictions are kept; the same command with --resume completes {output}."
    rows: list[dict[str, object]] | None = [] if as_json else None
    with note_on_interrupt(kept):
        opened = file.open(loaded, summary, same, resume=resume) if file else nullcontext(True)
        with opened as is_open, _stopped_by_signals() if watch else nullcontext() as stop:
            if not is_open:
                print_stderr(f"{output} is complete; there is nothing to resume.")
            else:
                remaining: Iterable[Picture | Pause] = file.skip_predicted(images) if file and not watch else images
                total = len(images) if isinstance(images, list) else None
                if watch:
                    seen = set(file.predicted_paths() if file else ())
                    remaining, total = watch_folder(watch, seen, until_idle=until_idle, stop=stop), None
                before = summary.pictures
                batches = predict_batches(loaded, remaining, batch_size, summary, decoding, label_of, reject)
                _write(batches, file, rows, total, before)
                if state:
                    remove_parts(state.parent, state)
                    write_state(state, loaded)
        if output and html:
            rows_of_page = add_thumbnails(read_rows(output), decoding)
            write_contact_sheet(html, rows_of_page, method, model, summary.explain(method) if is_open else ())
    if as_json:
        print_json(rows or [], **summary.facts(), output=output and str(output), page=html and str(html))
    elif is_open:
        print_summary(method, summary, {"Predictions": output, "State": state, "Page": html})
    raise typer.Exit(int(summary.skipped > 0 and no_skip_broken))


def _find_images(places: Sequence[str], seed: int | None, shard: str | None) -> Iterable[Picture]:
    """Find the paths to predict, in order, shuffled if there is a seed; a list unless they come from stdin."""
    import numpy as np

    from tta_panda.prediction.reading import find_pictures

    part, parts = parse_shard(shard)
    if STDIN in places:
        lines = (os.fsdecode(line).rstrip("\r\n") for line in sys.stdin.buffer)
        return (line for line in lines if line)
    paths, skipped = find_pictures(places)
    if skipped:
        print_stderr(skipped)
    if seed is not None:
        paths = [paths[i] for i in np.random.default_rng(seed).permutation(len(paths))]
    return paths[(part - 1) * len(paths) // parts : part * len(paths) // parts]


@contextmanager
def _stopped_by_signals() -> Iterator[threading.Event]:
    """Yield an event that Ctrl-C and SIGTERM set, so that watching a folder ends after the current batch."""
    stop = threading.Event()
    before = {each: signal.signal(each, lambda *_: stop.set()) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _write(
    batches: Iterable[list[Prediction]],
    file: PredictionFile | None,
    rows: list[dict[str, object]] | None,
    total: int | None,
    before: int,
) -> None:
    """Write predictions to the file and to `rows`; without either, to stdout, as text on a terminal and else as CSV.

    Args:
        total: number of images, if it is known.
        before: number of images predicted before the file was continued.
    """
    from tta_panda.files import csv_line
    from tta_panda.prediction.files import COLUMNS, as_row, csv_row

    to_stdout = rows is None and not file
    on_terminal = to_stdout and sys.stdout.isatty()
    if to_stdout and not on_terminal:
        typer.echo(csv_line(COLUMNS), nl=False)
    with nullcontext() if on_terminal else make_progress("predicting", total) as progress:
        if progress:
            progress.advance(progress.task_ids[0], before)
        for predictions in batches:
            if file:
                file.write(predictions)
            if progress:
                progress.advance(progress.task_ids[0], len(predictions))
            if rows is not None:
                rows += map(as_row, predictions)
            elif to_stdout:
                typer.echo("".join(map(_terminal_line if on_terminal else csv_row, predictions)), nl=False)


def _terminal_line(prediction: Prediction) -> str:
    """Format a prediction as a line on a terminal."""
    path = prediction.path or ""
    path = path if len(path) <= _PATH_LENGTH else f"…{path[1 - _PATH_LENGTH :]}"
    text = f"skipped: {prediction.error}"
    if prediction.error is None:
        plain = f"  (unadapted: {prediction.plain_predicted})" if prediction.changed else ""
        rejected = "  (rejected)" if prediction.rejected else ""
        text = f"{prediction.probability:4.0%}  {prediction.predicted}{plain}{rejected}"
    return printable(f"{path:{_PATH_LENGTH}}  {text}") + "\n"


def print_summary(method: str, summary: Summary, files: dict[str, Path | None]) -> None:
    """Print counts, accuracy and bias: on stderr if the predictions are on stdout."""
    console = make_console(stderr=files["Predictions"] is None)
    facts, read = summary.facts(), summary.pictures - summary.skipped
    speed = f"{facts['pictures_per_second']:.1f} per second, the encoder busy {facts['busy']:.0%} of the time"
    console.print(f"{read:,} images in {facts['seconds']:.1f} s: {speed}")
    if summary.skipped:
        console.print(f"{summary.skipped:,} skipped:")
        for path, reason in summary.reasons.items():
            console.print(printable(f"  {path}: {reason}"), soft_wrap=True)
        if summary.skipped > len(summary.reasons):
            console.print(f"  and {summary.skipped - len(summary.reasons):,} more; see their rows for the reasons")
    for line in summary.explain(method):
        console.print(line, soft_wrap=True)
    for name, file in files.items():
        if file is not None:
            console.print(f"{name}: {file}", soft_wrap=True)
