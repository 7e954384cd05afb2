"""`tta-panda views`: draw a contact sheet of random views of an image, or measure the speed."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tta_panda.cli.common import JsonOption, print_json, print_rows
from tta_panda.cli.corrupt import SeedOption, save_sheet
from tta_panda.errors import DataError, InvalidInputError
from tta_panda.progress import make_console, make_progress

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor

_GAP = 4  # pixels between the tiles of a contact sheet


def views(
    image: Annotated[Path | None, typer.Argument(metavar="IMAGE", help="An image file.")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the contact sheet to this file.")] = None,
    count: Annotated[
        int | None, typer.Option("--views", help="Views, the image itself included; by default 16, or 64 to measure.")
    ] = None,
    augmentation: Annotated[str, typer.Option("--augmentation", help="augmix (TPT, TPS) or crops (Zero).")] = "augmix",
    seed: SeedOption = 0,
    size: Annotated[int, typer.Option("--size", help="Side of the views in pixels.")] = 224,
    benchmark: Annotated[bool, typer.Option("--benchmark", help="Measure the speed instead.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Draw a contact sheet of the views of an image that TPT, TPS and Zero use, or measure the speed (--benchmark)."""
    if size < 1:
        raise InvalidInputError(f"--size must be a positive number of pixels, got {size}.")
    if benchmark:
        if image is not None or output is not None:
            raise InvalidInputError("The benchmark draws its own images: tta-panda views --benchmark")
        _measure(64 if count is None else count, augmentation, seed, size, as_json)
    elif image is None or output is None:
        raise InvalidInputError(
            "An image and a file for its views are needed: tta-panda views IMAGE --output sheet.png"
        )
    else:
        _draw(image, output, 16 if count is None else count, augmentation, seed, size, as_json)


def _draw(path: Path, output: Path, count: int, augmentation: str, seed: int, size: int, as_json: bool) -> None:
    import numpy as np
    import torch
    from PIL import Image

    from tta_panda.pictures import fit_picture, read_image
    from tta_panda.views import make_views

    path = path.expanduser()
    if not path.is_file():
        raise DataError(f"There is no image {path}. Expected: tta-panda views IMAGE --output sheet.png")
    picture = Image.fromarray(read_image(path))
    original, plain = (
        torch.from_numpy(np.array(image)).permute(2, 0, 1)[None] for image in (picture, fit_picture(picture, size))
    )
    made = make_views(original, count, torch.Generator().manual_seed(seed), augmentation, plain)
    save_sheet(_tiled(made[0]), output, as_json, views=count, augmentation=augmentation, seed=seed, size=size)


def _tiled(views: Tensor) -> Image.Image:
    """Views (V, 3, H, W) in [0, 1], row by row, in about as many rows as columns."""
    from PIL import Image

    count, _, height, width = views.shape
    columns = math.ceil(math.sqrt(count))
    rows = math.ceil(count / columns)
    sheet = Image.new("RGB", (columns * (width + _GAP) - _GAP, rows * (height + _GAP) - _GAP), "white")
    for index, tile in enumerate(views.mul(255).round().byte().permute(0, 2, 3, 1).numpy()):
        row, column = divmod(index, columns)
        sheet.paste(Image.fromarray(tile), (column * (width + _GAP), row * (height + _GAP)))
    return sheet


def _measure(count: int, augmentation: str, seed: int, size: int, as_json: bool) -> None:
    from tta_panda.views.speed import measure_speed

    with make_progress("measuring", total=1.0) as progress:
        rows, facts = measure_speed(
            views=count,
            size=size,
            augmentation=augmentation,
            seed=seed,
            advance=partial(progress.advance, progress.task_ids[0]),
        )
    if as_json:
        print_json(rows, **facts)
        return
    print_rows(make_console(), rows)
    typer.echo(
        f"{facts['ratio']:.1f} times as fast, for {facts['images']} images of {size}x{size} px with {count} views each "
        f"({augmentation}), on {facts['threads']} thread(s); "
        f"{facts['ratio of processor time']:.1f} times by processor time. "
        f"Of all values, {facts['share of values that differ']:.4%} differ, "
        f"by up to {facts['largest difference of 255']:.2f} of 255."
    )
