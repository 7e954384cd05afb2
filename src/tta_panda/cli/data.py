"""`tta-panda data`: make, download and check data sets on disk."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from tta_panda.cli.common import note_on_interrupt, parse_ints, split_commas
from tta_panda.cli.corrupt import CorruptionOption, FrostOption, SeedOption, WorkersOption, show
from tta_panda.cli.options import JsonOption
from tta_panda.files import expand
from tta_panda.progress import make_progress

app = typer.Typer(no_args_is_help=True, help="Make, download and check data sets on disk.")

OutputOption = Annotated[Path, typer.Option("--output", "-o", help="Folder of the data sets.")]


@app.command()
def make(
    name: Annotated[str, typer.Argument(help="Data set: cifar10-c or cifar100-c.")],
    clean: Annotated[Path, typer.Option("--from", help="Folder of the clean data set, as published.")],
    output: OutputOption,
    corruption: CorruptionOption = "all",
    severity: Annotated[
        str, typer.Option("--severity", help="Severity, 1 to 5; several as 1,3,5 or 1-5.")
    ] = "1,2,3,4,5",
    seed: SeedOption = 0,
    workers: WorkersOption = None,
    frost: FrostOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a corrupted data set in the published layout. Existing files are kept.

    \b
    Examples:
      tta-panda data make cifar10-c --from data/cifar-10-batches-py -o data
      tta-panda data make cifar100-c --from clean -o data --corruption fog
    """
    kept = f"Finished files are in {output}; the same command makes the others."
    with note_on_interrupt(kept), make_progress(f"making {name}", total=1.0) as progress:
        from tta_panda.data.make import make_corrupted

        rows = make_corrupted(
            name,
            expand(clean),
            expand(output),
            split_commas(corruption),
            parse_ints(severity),
            seed=seed,
            workers=workers,
            frost=frost,
            advance=partial(progress.advance, progress.task_ids[0]),
        )
    show(rows, as_json)


@app.command()
def download(
    name: Annotated[str, typer.Argument(help="Data set: cifar10-c, cifar100-c, imagenet-c, cifar10 or cifar100.")],
    output: OutputOption = Path("data"),
    parts: Annotated[
        str | None, typer.Option("--parts", help="Archives of imagenet-c: noise,blur,weather,digital,extra.")
    ] = None,
    mirror: Annotated[str | None, typer.Option("--mirror", help="URL of a folder with the same archives.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Download, verify and unpack a published data set. Repeat to resume.

    \b
    Examples:
      tta-panda data download cifar10-c -o data
      tta-panda data download imagenet-c --parts blur,weather
    """
    kept = f"Downloaded data are in {output}; the same command downloads the rest."
    with note_on_interrupt(kept), make_progress("connecting", total=None, in_bytes=True) as progress:
        from tta_panda.data.download import download as fetch

        rows = fetch(
            name,
            expand(output),
            parts=tuple(split_commas(parts)) if parts else (),
            mirror=mirror,
            announce=progress.console.print,
            progress=lambda what, done, total: progress.update(
                progress.task_ids[0], description=what, completed=done, total=total
            ),
        )
    show(rows, as_json)


@app.command()
def check(
    root: Annotated[Path, typer.Argument(help="Folder of data sets.")] = Path(),
    data: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Data set, as for bench.", show_default="all published ones in the folder"),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Verify the data sets in a folder. Exits with 1 if something is damaged.

    \b
    Examples:
      tta-panda data check data
      tta-panda data check --data 'wds:shards/{000..009}.tar'
    """
    from tta_panda.data import check_data

    findings = check_data(expand(root), data)
    damaged = sum(finding.status == "damaged" for finding in findings)
    show([finding._asdict() for finding in findings], as_json, damaged=damaged)
    if damaged:
        raise typer.Exit(1)
