"""`tta-panda corrupt`: corrupt folders of images."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from tta_panda.cli.common import note_on_interrupt, parse_ints, print_json, print_rows, print_stderr, split_commas
from tta_panda.cli.options import JsonOption
from tta_panda.files import expand
from tta_panda.progress import make_console, make_progress

CorruptionOption = Annotated[
    str, typer.Option("--corruption", metavar="NAMES", help="Corruptions, comma-separated, or all (fifteen).")
]
SeedOption = Annotated[int, typer.Option("--seed", metavar="N", help="Random seed.")]
WorkersOption = Annotated[
    int | None, typer.Option("--workers", metavar="N", help="Number of worker processes.", show_default="one per core")
]
FrostOption = Annotated[
    Path | None, typer.Option("--frost", metavar="DIR", help="Folder of frost photographs.", show_default="generated")
]


def corrupt(
    source: Annotated[Path, typer.Argument(metavar="IN", help="Folder of images.")],
    target: Annotated[
        Path, typer.Argument(metavar="OUT", help="Output folder; images go to <corruption>/<severity>/...")
    ],
    corruption: CorruptionOption = "all",
    severity: Annotated[
        str, typer.Option("--severity", metavar="N", help="Severity, 1 to 5; several as 1,3,5 or 1-5.")
    ] = "5",
    clean: Annotated[bool, typer.Option("--clean", help="Also copy the clean images to OUT.")] = False,
    seed: SeedOption = 0,
    workers: WorkersOption = None,
    frost: FrostOption = None,
    parameters: Annotated[
        str | None,
        typer.Option(
            "--parameters",
            metavar="NAME",
            help="Strengths as for cifar or imagenet.",
            show_default="by image size",
        ),
    ] = None,
    skip_broken: Annotated[
        bool, typer.Option("--skip-broken", help="Exit with 0 even if images were skipped.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Corrupt a folder of images.

    \b
    Examples:
      tta-panda corrupt photos corrupted --corruption fog,snow --severity 3,5
      tta-panda corrupt photos corrupted --clean
    """
    from tta_panda.data.corruptions import expand_corruptions

    severities = list(dict.fromkeys(parse_ints(severity)))
    names = expand_corruptions(split_commas(corruption), severities)
    with note_on_interrupt(f"Finished images are in {target}; the same command continues from there."):
        rows, skipped = _corrupt(
            expand(source),
            expand(target),
            names,
            severities,
            clean=clean,
            workers=workers,
            seed=seed,
            parameters=parameters,
            frost=frost,
        )
    show(rows, as_json, skipped=[{"image": image, "reason": reason} for image, reason in skipped.items()])
    for image, reason in skipped.items():
        print_stderr(f"skipped {image}: {reason}")
    raise typer.Exit(int(bool(skipped) and not skip_broken))


def _corrupt(
    source: Path, target: Path, names: Sequence[str], severities: list[int], *, clean: bool, **how: Any
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Corrupt a folder; return a row per output folder, and the reasons why images were skipped."""
    from tta_panda.data import CLEAN
    from tta_panda.data.make import corrupt_folder
    from tta_panda.escapes import path_text

    with make_progress(f"corrupting {path_text(source.name)}", total=1.0) as progress:
        advance = partial(progress.advance, progress.task_ids[0])
        done, skipped = corrupt_folder(source, target, names, severities, clean=clean, advance=advance, **how)
    made = [(name, severity, target / name / str(severity)) for name in names for severity in severities]
    made += [(CLEAN, 0, target)] if clean else []
    rows = [
        {"corruption": name, "severity": severity, "images": done, "folder": path_text(folder)}
        for name, severity, folder in made
    ]
    return rows, skipped


def show(rows: list[dict[str, Any]], as_json: bool, **more: Any) -> None:
    """Print rows as a table, or, with --json, rows and further values as one document."""
    if as_json:
        print_json(rows, **more)
    else:
        print_rows(make_console(), rows)
