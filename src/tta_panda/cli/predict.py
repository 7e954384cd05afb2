"""`tta-panda predict`: the classes of your own pictures."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from tta_panda.cli.common import JsonOption, print_json, say, words
from tta_panda.cli.predictions import print_summary, row_printer, write_page
from tta_panda.cli.runs import takes_options
from tta_panda.errors import DataError, InvalidInputError
from tta_panda.evaluation.config import EMBEDDED
from tta_panda.progress import make_progress

if TYPE_CHECKING:
    from tta_panda.models.backends import Backend
    from tta_panda.models.devices import Precision
    from tta_panda.prediction.files import Row
    from tta_panda.prediction.job import PredictionJob
    from tta_panda.prediction.reading import Pause

STDIN = "-"


@dataclass(frozen=True)
class PredictOptions:
    """What to predict, with what, and where to."""

    classes: Annotated[
        str | None, typer.Option("--classes", help="Comma-separated class names.", show_default="the sub-folders")
    ] = None
    classes_file: Annotated[Path | None, typer.Option("--classes-file", help="Text file, one class per line.")] = None
    template: Annotated[
        list[str] | None, typer.Option("--template", help="Prompt with {} for the class name; several are averaged.")
    ] = None
    model: Annotated[str, typer.Option("--model", help="See: tta-panda ls models.")] = EMBEDDED.model
    method: Annotated[str, typer.Option("--method", help="See: tta-panda ls methods.")] = "clip+panda"
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Option of the method or of Panda, as name=value; repeatable.")
    ] = None
    preset: Annotated[str | None, typer.Option("--preset", help="Settings of a benchmark.")] = None
    batch_size: Annotated[int, typer.Option("--batch-size", min=1, help="Pictures per batch.")] = 100
    order: Annotated[
        str, typer.Option("--order", help="given, or shuffled: better for folders that are sorted by class.")
    ] = "given"
    seed: Annotated[int, typer.Option("--seed", min=0, help="Random seed of negatives, views and order.")] = 0
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="CSV, JSONL or Parquet, by suffix.", show_default="stdout")
    ] = None
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an --output that was interrupted.")] = False
    state: Annotated[
        Path | None,
        typer.Option("--state", help="File of the method's state: read first if it exists, written at the end."),
    ] = None
    html: Annotated[Path | None, typer.Option("--html", help="Page of thumbnails and predictions.")] = None
    watch: Annotated[
        Path | None, typer.Option("--watch", help="Predict pictures that appear in this folder, until Ctrl-C.")
    ] = None
    until_idle: Annotated[
        float | None, typer.Option("--until-idle", help="With --watch: end after so many seconds without a picture.")
    ] = None
    skip_broken: Annotated[
        bool, typer.Option("--skip-broken/--no-skip-broken", help="Exit with 0 even if pictures cannot be read.")
    ] = True
    ignore_orientation: Annotated[
        bool, typer.Option("--ignore-orientation", help="Do not turn pictures as their EXIF orientation says.")
    ] = False
    most_pixels: Annotated[
        int, typer.Option("--most-pixels", min=1, help="Skip pictures of more pixels than this.")
    ] = 100_000_000
    device: Annotated[str, typer.Option("--device", help="cpu, cuda or mps; auto: the best one available.")] = "auto"
    precision: Annotated[str, typer.Option("--precision", help="Of the encoders: fp32, bf16 or fp16.")] = "fp32"
    backend: Annotated[str, typer.Option("--backend", help="What computes image embeddings: torch or openvino.")] = (
        "torch"
    )
    as_json: JsonOption = False

    @property
    def kept(self) -> str:
        if self.output is None:
            return "Nothing is kept; with --output FILE, --resume can go on."
        return f"What is predicted is in {self.output}; the same command with --resume goes on from there."


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
    _check(options, places)
    seen: set[str] = set()
    stop = threading.Event()
    pictures, total = _pictures(options, places, seen, stop)
    job = _make_job(options, [Path(place) for place in places if place != STDIN])
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
    page = _page(options, job, pictures)
    if options.as_json:
        files = {"output": options.output and str(options.output), "page": page and str(page)}
        print_json(collected, **job.summary.facts(), **files)
    elif job.is_open:
        print_summary(
            options.method, job.summary, {"Predictions": options.output, "State": options.state, "Page": page}
        )
    raise typer.Exit(int(job.summary.skipped > 0 and not options.skip_broken))


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


def _check(options: PredictOptions, places: Sequence[str]) -> None:
    """Refuse options that contradict each other, before anything is loaded."""
    wrong = {
        "Name pictures, folders or globs, or - for paths on stdin: tta-panda predict photos": not places,
        "Give either - or paths, not both.": STDIN in places and len(places) > 1,
        "--html is made from the file of predictions; give --output, too.": options.html and not options.output,
        "--resume goes on with a file of predictions; give its --output.": options.resume and not options.output,
        f"--order is given or shuffled, got {options.order!r}.": options.order not in ("given", "shuffled"),
        "Only a list of files can be shuffled, not --watch or -.": options.order == "shuffled"
        and (options.watch or STDIN in places),
        "--until-idle belongs to --watch.": options.until_idle is not None and not options.watch,
        "Give either --classes or --classes-file.": options.classes is not None and options.classes_file is not None,
    }
    for message, is_wrong in wrong.items():
        if is_wrong:
            raise InvalidInputError(message)
    if options.output is not None:
        from tta_panda.prediction.files import file_format

        file_format(options.output)  # raises for other suffixes


def _make_job(options: PredictOptions, places: Sequence[Path]) -> PredictionJob:
    from tta_panda.data.read.lists import read_lines
    from tta_panda.methods import create_method
    from tta_panda.methods.options import parse_setting
    from tta_panda.models import load_model, make_classifier, recorded_name, weights_digest
    from tta_panda.models.devices import resolve_device
    from tta_panda.models.images import framing_of
    from tta_panda.pictures import Decoding
    from tta_panda.prediction.classes import find_classes, labels_by_folder
    from tta_panda.prediction.job import PredictionJob
    from tta_panda.prediction.reading import Decoder

    given = None if options.classes is None else words(options.classes)
    given = given if options.classes_file is None else read_lines(options.classes_file)
    model = load_model(
        options.model,
        resolve_device(options.device),
        cast("Precision", options.precision),
        cast("Backend", options.backend),
    )
    names, folders = find_classes(places, given, model)
    classifier = make_classifier(model, names, options.template or "photo")
    decoding = Decoding(upright=not options.ignore_orientation, most_pixels=options.most_pixels)
    settings = dict(parse_setting(text) for text in options.settings or [])
    method = create_method(options.method, classifier, preset=options.preset, seed=options.seed, **settings)
    return PredictionJob(
        method,
        Decoder(framing_of(model), decoding),
        options.batch_size,
        settings={
            "model": recorded_name(options.model),
            "weights": weights_digest(options.model),
            "precision": options.precision,
            "backend": options.backend,
            "classes": list(classifier.class_names),
            "templates": options.template,
            "method": repr(method),
            "batch size": options.batch_size,
            "order": options.order,
            "decoding": str(decoding),
        },
        label_of=labels_by_folder(folders, classifier.class_names),
        output=options.output,
        state=options.state,
    )


def _pictures(
    options: PredictOptions, places: Sequence[str], seen: set[str], stop: threading.Event
) -> tuple[Iterable[str | Pause], int | None]:
    """Paths in the order of the stream, and how many there are, where that is known.

    Of a folder that is watched, those in `seen` are left out, also ones that enter it later.
    """
    import numpy as np

    from tta_panda.data.read.listing import find_images
    from tta_panda.prediction.watch import watch_folder

    if options.watch:
        return watch_folder(options.watch, seen, until_idle=options.until_idle, stop=stop), None
    if STDIN in places:
        lines = (os.fsdecode(line).rstrip("\r\n") for line in sys.stdin.buffer)
        return (line for line in lines if line), None
    found = find_images(places)
    if found.left_out:
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


def _page(options: PredictOptions, job: PredictionJob, pictures: Iterable[str | Pause]) -> Path | None:
    if options.html is None or options.output is None:
        return None
    paths = cast(list[str], pictures) if isinstance(pictures, list) else None
    decoding = job.decoder.decoding
    return write_page(options.html, options.output, options.method, options.model, paths, decoding)
