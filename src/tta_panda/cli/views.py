"""`tta-panda views`: a contact sheet of random views of a picture, or how fast they are made."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tta_panda.cli.common import JsonOption, make_console, make_progress, print_json, print_rows
from tta_panda.errors import DataError, InvalidInputError


def views(
    image: Annotated[Path | None, typer.Argument(metavar="IMAGE", help="A picture.")] = None,
    to: Annotated[Path | None, typer.Option("--to", help="Draw the contact sheet into this file.")] = None,
    count: Annotated[
        int | None, typer.Option("--views", help="How many, the picture itself among them; 16, to measure 64.")
    ] = None,
    kind: Annotated[str, typer.Option("--kind", help="augmix (TPT, TPS) or crops (Zero).")] = "augmix",
    seed: Annotated[int, typer.Option("--seed", help="Of everything random.")] = 0,
    size: Annotated[int, typer.Option("--size", help="Side in pixels to which the picture is brought.")] = 224,
    benchmark: Annotated[bool, typer.Option("--benchmark", help="Measure the speed instead.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Draw a contact sheet of the views of a picture that TPT, TPS and Zero would see, or measure (--benchmark)."""
    if size < 1:
        raise InvalidInputError(f"--size must be a positive number of pixels, got {size}.")
    if benchmark:
        if image is not None or to is not None:
            raise InvalidInputError("The benchmark draws its own images: tta-panda views --benchmark")
        _measure(64 if count is None else count, kind, seed, size, as_json)
    elif image is None or to is None:
        raise InvalidInputError("A picture and a file for its views are needed: tta-panda views IMAGE --to sheet.png")
    else:
        _draw(image, to, 16 if count is None else count, kind, seed, size, as_json)


def _draw(path: Path, to: Path, count: int, kind: str, seed: int, size: int, as_json: bool) -> None:
    import numpy as np
    import torch
    from PIL import Image

    from tta_panda.data.files import read_image
    from tta_panda.data.fit import fit_picture
    from tta_panda.views import make_views
    from tta_panda.views.sheet import draw_views

    path, to = path.expanduser(), to.expanduser()
    if not path.is_file():
        raise DataError(f"There is no image {path}. Expected: tta-panda views IMAGE --to sheet.png")
    fitted = np.array(fit_picture(Image.fromarray(read_image(path)), size))
    pixels = torch.from_numpy(fitted).permute(2, 0, 1)[None].float() / 255
    made = make_views(pixels, count, torch.Generator().manual_seed(seed), kind)
    try:
        draw_views(made[0]).save(to)
    except (OSError, ValueError) as error:
        raise DataError(f"Cannot write {to} ({error}). Give a file name that ends in .png.") from error
    if as_json:
        print_json([{"sheet": str(to), "views": count, "kind": kind, "seed": seed, "size": size}])
    else:
        typer.echo(f"Contact sheet: {to}")


def _measure(count: int, kind: str, seed: int, size: int, as_json: bool) -> None:
    from tta_panda.views.speed import measure_speed

    with make_progress("measuring", total=1.0) as progress:
        rows, facts = measure_speed(
            views=count,
            size=size,
            kind=kind,
            seed=seed,
            advance=lambda share: progress.advance(progress.task_ids[0], share),
        )
    if as_json:
        print_json(rows, **facts)
        return
    print_rows(make_console(), rows)
    typer.echo(
        f"{facts['ratio']:.1f} times as fast, for {facts['images']} images of {size}x{size} px with {count} views each "
        f"({kind}), on {facts['threads']} thread(s); {facts['ratio of processor time']:.1f} times by processor time. "
        f"Of all values, {facts['share of values that differ']:.4%} differ, "
        f"by up to {facts['largest difference of 255']:.2f} of 255."
    )
