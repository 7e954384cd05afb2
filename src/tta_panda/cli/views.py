"""`tta-panda views`: draw a contact sheet of random views of an image."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tta_panda.cli.common import JsonOption
from tta_panda.cli.corrupt import SeedOption, save_sheet
from tta_panda.errors import DataError, InvalidInputError

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor

_GAP = 4  # pixels between the tiles of a contact sheet


def views(
    image: Annotated[Path, typer.Argument(metavar="IMAGE", help="An image file.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Write the contact sheet to this file.")],
    count: Annotated[int, typer.Option("--views", help="Views, the image itself included.")] = 16,
    augmentation: Annotated[str, typer.Option("--augmentation", help="augmix (TPT, TPS) or crops (Zero).")] = "augmix",
    seed: SeedOption = 0,
    size: Annotated[int, typer.Option("--size", help="Side of the views in pixels.")] = 224,
    as_json: JsonOption = False,
) -> None:
    """Draw a contact sheet of the views of an image that TPT, TPS and Zero use."""
    import numpy as np
    import torch
    from PIL import Image

    from tta_panda.images import fit_picture, read_image
    from tta_panda.views import make_views

    if size < 1:
        raise InvalidInputError(f"--size must be a positive number of pixels, got {size}.")
    path = image.expanduser()
    if not path.is_file():
        raise DataError(f"There is no image {path}. Expected: tta-panda views IMAGE --output sheet.png")
    picture = Image.fromarray(read_image(path))
    original, plain = (
        torch.from_numpy(np.array(each)).permute(2, 0, 1)[None] for each in (picture, fit_picture(picture, size))
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
