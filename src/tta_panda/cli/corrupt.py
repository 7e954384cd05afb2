"""`tta-panda corrupt`: corrupt folders of images, draw a contact sheet, or measure the speed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tta_panda.cli.common import JsonOption, make_console, make_progress, numbers, print_json, print_rows, words
from tta_panda.errors import DataError, InvalidInputError


def corrupt(
    source: Annotated[
        Path | None, typer.Argument(metavar="IN", help="Folder of images; with --sheet, an image.")
    ] = None,
    target: Annotated[Path | None, typer.Argument(metavar="OUT", help="Gets <corruption>/<severity>/...")] = None,
    corruption: Annotated[str, typer.Option("--corruption", help="Names with commas; all are the fifteen.")] = "all",
    severity: Annotated[
        str | None, typer.Option("--severity", help="1 to 5, several with commas; 5, on a sheet all.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Of everything random.")] = 0,
    workers: Annotated[int | None, typer.Option("--workers", help="Processes; one per core by default.")] = None,
    frost: Annotated[Path | None, typer.Option("--frost", help="Folder of photographs of frost.")] = None,
    parameters: Annotated[
        str | None, typer.Option("--parameters", help="cifar or imagenet; by the size of the image by default.")
    ] = None,
    sheet: Annotated[Path | None, typer.Option("--sheet", help="Draw a contact sheet of IN into this file.")] = None,
    benchmark: Annotated[bool, typer.Option("--benchmark", help="Measure the time per image instead.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Corrupt a folder of images, draw a contact sheet of an image (--sheet), or measure the speed (--benchmark)."""
    names = words(corruption)
    severities = list(dict.fromkeys(numbers(severity))) if severity else None
    if benchmark:
        _measure(names, severities or [5], as_json)
    elif sheet is not None:
        if source is None or target is not None:
            raise InvalidInputError("A contact sheet is drawn of one image: tta-panda corrupt --sheet sheet.png IMAGE")
        _draw(source, sheet, names, severities or [1, 2, 3, 4, 5], seed, parameters, frost, as_json)
    elif source is None or target is None:
        raise InvalidInputError("Two folders are needed: tta-panda corrupt IN OUT --corruption fog,snow --severity 3,5")
    else:
        _corrupt(source, target, names, severities or [5], seed, parameters, frost, workers, as_json)


def _corrupt(
    source: Path,
    target: Path,
    names: list[str],
    severities: list[int],
    seed: int,
    parameters: str | None,
    frost: Path | None,
    workers: int | None,
    as_json: bool,
) -> None:
    from tta_panda.data.corrupt_folder import corrupt_folder
    from tta_panda.data.corruptions import expand_corruptions
    from tta_panda.data.workers import default_workers

    with make_progress(f"corrupting {source.name}", total=1.0) as progress:
        done, broken = corrupt_folder(
            source.expanduser(),
            target.expanduser(),
            names,
            severities,
            seed=seed,
            parameters=parameters,
            frost=frost,
            workers=default_workers() if workers is None else workers,
            advance=lambda share: progress.advance(progress.task_ids[0], share),
        )
    rows = [
        {"corruption": name, "severity": severity, "images": done, "folder": str(target / name / str(severity))}
        for name in expand_corruptions(names)
        for severity in severities
    ]
    if as_json:
        print_json(rows, broken=[one._asdict() for one in broken])
    else:
        print_rows(make_console(), rows)
    for one in broken:
        typer.echo(f"skipped {one.image}: {one.error}", err=True)
    if broken:
        raise typer.Exit(1)


def _draw(
    source: Path,
    sheet: Path,
    names: list[str],
    severities: list[int],
    seed: int,
    parameters: str | None,
    frost: Path | None,
    as_json: bool,
) -> None:
    from tta_panda.data.corruptions import expand_corruptions
    from tta_panda.data.sheet import draw_sheet, read_for_sheet

    corruptions = expand_corruptions(names, severities)
    image = read_for_sheet(source.expanduser())
    drawn = draw_sheet(image, corruptions, severities, seed=seed, parameters=parameters, frost=frost)
    try:
        drawn.save(sheet)
    except (OSError, ValueError) as error:
        raise DataError(f"Cannot write {sheet} ({error}). Give a file name that ends in .png.") from error
    if as_json:
        print_json([{"sheet": str(sheet), "corruptions": list(corruptions), "severities": severities}])
    else:
        typer.echo(f"Contact sheet: {sheet}")


def _measure(names: list[str], severities: list[int], as_json: bool) -> None:
    from tta_panda.data.corruptions import expand_corruptions
    from tta_panda.data.speed import measure_speed

    if len(severities) > 1:
        raise InvalidInputError(f"The benchmark measures one severity at a time, got {severities}.")
    corruptions = expand_corruptions(names, severities)
    with make_progress("measuring", total=1.0) as progress:
        rows = measure_speed(
            corruptions, severities[0], advance=lambda share: progress.advance(progress.task_ids[0], share)
        )
    if as_json:
        print_json(rows, severity=severities[0])
    else:
        print_rows(make_console(), rows)
