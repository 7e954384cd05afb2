"""`tta-panda data`: make, fetch and check data sets on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tta_panda.cli.common import JsonOption, make_console, make_progress, numbers, print_json, print_rows, words
from tta_panda.errors import UnknownNameError

app = typer.Typer(no_args_is_help=True, help="Make, fetch and check data sets on disk.")

ToOption = Annotated[Path, typer.Option("--to", help="Folder of the data sets.")]
_MADE = {"cifar10-c": 10, "cifar100-c": 100}


@app.command()
def make(
    name: Annotated[str, typer.Argument(help="cifar10-c or cifar100-c.")],
    clean: Annotated[Path, typer.Option("--from", help="Folder of the clean data set, as published.")],
    to: ToOption,
    corruption: Annotated[str, typer.Option("--corruption", help="Names with commas; all are the fifteen.")] = "all",
    severity: Annotated[str, typer.Option("--severity", help="1 to 5; several with commas.")] = "1,2,3,4,5",
    seed: Annotated[int, typer.Option("--seed", help="Of everything random.")] = 0,
    workers: Annotated[int | None, typer.Option("--workers", help="Processes; one per core by default.")] = None,
    frost: Annotated[Path | None, typer.Option("--frost", help="Folder of photographs of frost.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Make a corrupted data set in the published layout. What is there already is not made again."""
    if name not in _MADE:
        raise UnknownNameError("data set to make", name, _MADE)

    from tta_panda.data.make import make_cifar_c
    from tta_panda.data.workers import default_workers

    with make_progress("starting", total=1.0) as progress:
        made = make_cifar_c(
            _MADE[name],
            clean.expanduser(),
            to.expanduser(),
            words(corruption),
            numbers(severity),
            seed=seed,
            workers=default_workers() if workers is None else workers,
            frost=frost,
            advance=lambda corruption, share: progress.update(
                progress.task_ids[0], description=corruption, advance=share
            ),
        )
    rows = [one.row() for one in made]
    if as_json:
        print_json(rows)
    else:
        print_rows(make_console(), rows)


@app.command()
def download(
    name: Annotated[str, typer.Argument(help="cifar10-c, cifar100-c, imagenet-c, cifar10 or cifar100.")],
    to: ToOption = Path("data"),
    parts: Annotated[
        str | None, typer.Option("--parts", help="Of imagenet-c: noise,blur,weather,digital,extra.")
    ] = None,
    mirror: Annotated[str | None, typer.Option("--mirror", help="Address of a folder with the same archives.")] = None,
    keep: Annotated[bool, typer.Option("--keep-archives", help="Do not delete unpacked archives.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Fetch a published data set, verify and unpack it. Run again, it goes on where it was broken off."""
    from tta_panda.data.download import download as fetch

    with make_progress("connecting", total=None, in_bytes=True) as progress:
        rows = fetch(
            name,
            to.expanduser(),
            parts=tuple(words(parts)) if parts else (),
            mirror=mirror,
            keep_archives=keep,
            announce=progress.console.print,
            progress=lambda what, done, total: progress.update(
                progress.task_ids[0], description=what, completed=done, total=total
            ),
        )
    if as_json:
        print_json(rows)
    else:
        print_rows(make_console(), rows)


@app.command()
def check(
    root: Annotated[Path, typer.Argument(help="Folder of the data sets.")],
    as_json: JsonOption = False,
) -> None:
    """Verify the data sets in a folder and say what is missing. Fails if something is damaged."""
    from tta_panda.data.check import check_root

    findings = check_root(root.expanduser())
    rows = [finding.row() for finding in findings]
    damaged = sum(finding.status == "damaged" for finding in findings)
    if as_json:
        print_json(rows, damaged=damaged)
    else:
        print_rows(make_console(), rows)
    if damaged:
        raise typer.Exit(1)
