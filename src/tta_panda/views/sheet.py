"""A contact sheet of views."""

from __future__ import annotations

import math

import torch
from PIL import Image
from torch import Tensor

_GAP = 4
_PAPER = (255, 255, 255)


def draw_views(views: Tensor) -> Image.Image:
    """Views (V, 3, H, W) in [0, 1], in about as many rows as columns; the first stands at the upper left."""
    count, _, height, width = views.shape
    columns = math.ceil(math.sqrt(count))
    rows = math.ceil(count / columns)
    sheet = Image.new("RGB", (columns * (width + _GAP) - _GAP, rows * (height + _GAP) - _GAP), _PAPER)
    pixels = views.mul(255).round_().clamp_(0, 255).to(torch.uint8).permute(0, 2, 3, 1).cpu().numpy()
    for index, tile in enumerate(pixels):
        row, column = divmod(index, columns)
        sheet.paste(Image.fromarray(tile), (column * (width + _GAP), row * (height + _GAP)))
    return sheet
