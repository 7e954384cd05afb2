"""`tta-panda speed`: measure, side by side, how long things take on this machine."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tta_panda.cli.common import JsonOption, print_json, print_rows, words
from tta_panda.errors import InvalidInputError
from tta_panda.progress import make_console, make_progress

if TYPE_CHECKING:
    from tta_panda.results.figure import LineFigure


def speed(
    topic: Annotated[
        str,
        typer.Argument(
            metavar="TOPIC",
            help="methods, panda, growth, sweep, backends, views, stream, memory, soak or corruptions.",
        ),
    ],
    model: Annotated[str, typer.Option("--model", help="As for bench; ARCHITECTURE:random needs no weights.")] = "mini",
    device: Annotated[str, typer.Option("--device", help="cpu, cuda, cuda:1 or mps.")] = "cpu",
    method: Annotated[str | None, typer.Option("--method", help="Comma-separated names; all by default.")] = None,
    batch_size: Annotated[int, typer.Option("--batch-size", help="Images per batch.")] = 100,
    classes: Annotated[int, typer.Option("--classes", help="Number of classes.")] = 10,
    views: Annotated[int, typer.Option("--views", help="Views per image, the image itself included.")] = 64,
    size: Annotated[int, typer.Option("--size", help="Side of the images in pixels.")] = 224,
    images: Annotated[int, typer.Option("--images", help="Length of each stream of soak.")] = 20_000,
    rounds: Annotated[int | None, typer.Option("--rounds", help="How often each way is timed.")] = None,
    busy: Annotated[bool, typer.Option("--busy", help="Compare processor time: other programs are running.")] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write JSON to this file, and drawings beside it.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Measure how long things take: each way in turn, round after round, medians and margins.

    A machine that does something else at the same time makes margins larger; ratios stay comparable.
    """
    from tta_panda.files import save_file
    from tta_panda.speed import TOPICS, Clock, Settings

    measure = TOPICS.get(topic)
    least_one = {
        "--batch-size": batch_size,
        "--classes": classes,
        "--size": size,
        "--images": images,
        "--rounds": rounds,
    }
    for name, value in least_one.items():
        if value is not None and value < 1:
            raise InvalidInputError(f"{name} must be at least 1, got {value}.")
    methods = tuple(words(method)) if method else ()
    clock: Clock = "processor time" if busy else "time"
    settings = Settings(model, device, methods, batch_size, classes, views, size, images, rounds, clock)
    with make_progress(f"measuring {topic}", total=1.0) as progress:
        report = measure(settings, partial(progress.advance, progress.task_ids[0]))
    if output is not None:
        figures = [dataclasses.asdict(figure) for figure in report.figures]
        document = {"topic": topic, "rows": report.rows, "notes": report.notes, "figures": figures}
        save_file(output.expanduser(), json.dumps(document, indent=1) + "\n")
        _save_drawings(report.figures, output.expanduser())
    if as_json:
        print_json(report.rows, topic=topic, notes=report.notes)
        return
    print_rows(make_console(), report.rows)
    for note in report.notes:
        typer.echo(note)


def _save_drawings(figures: Sequence[LineFigure], output: Path) -> None:
    """Numbered PNG files beside the JSON file."""
    from tta_panda.files import save_file
    from tta_panda.reporting.figures import draw, to_bytes

    for number, drawing in enumerate((each for figure in figures for each in draw(figure)), 1):
        save_file(output.with_name(f"{output.stem}-{number}.png"), to_bytes(drawing, "png"))
