"""A contact sheet of views."""

from __future__ import annotations

import math

from PIL import Image
from torch import Tensor
from torchvision.transforms.functional import to_pil_image

_GAP = 4
_PAPER = (255, 255, 255)


def draw_views(views: Tensor) -> Image.Image:
    """Views (V, 3, H, W) in [0, 1], in about as many rows as columns; the first stands at the upper left."""
    count, _, height, width = views.shape
    columns = math.ceil(math.sqrt(count))
    rows = math.ceil(count / columns)
    sheet = Image.new("RGB", (columns * (width + _GAP) - _GAP, rows * (height + _GAP) - _GAP), _PAPER)
    for index, view in enumerate(views):
        row, column = divmod(index, columns)
        # Mixtures lie between the 8-bit values; to_pil_image would cut them off.
        sheet.paste(to_pil_image(view.mul(255).round().div(255)), (column * (width + _GAP), row * (height + _GAP)))
    return sheet
