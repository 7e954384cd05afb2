"""Crop, flip and resize many views of one image at once, as Pillow resizes: two passes, each on the 8-bit grid.

A crop is never larger than the view it becomes, so a pixel of the view lies between two pixels of the crop, and a pass
is a weighted sum of two rows of a table. `embedding_bag` does just that in one go.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

_PRECISION = 1 << 22  # Pillow rounds its weights to this part


def crop_views(image: Tensor, boxes: Tensor, flips: Tensor) -> Tensor:
    """Views (V, 3, H, W) of an image (3, H, W), both uint8, given boxes (V, 4) and flips (V,)."""
    views, (channels, height, width) = boxes.shape[0], image.shape
    top, left, crop_height, crop_width = boxes.unbind(dim=1)
    columns, column_weights = neighbours(crop_width, width)  # (V, W, 2)
    columns = columns + left[:, None, None]
    columns = torch.where(flips[:, None, None], columns.flip(1), columns)
    column_weights = torch.where(flips[:, None, None], column_weights.flip(1), column_weights)
    rows, row_weights = neighbours(crop_height, height)  # (V, H, 2)
    rows = rows + (top + torch.arange(views) * height)[:, None, None]

    table = image.permute(2, 0, 1).reshape(width, -1)  # a row holds a column of the image
    wide = _sum_rows(table, columns, column_weights).view(views, width, channels * height)
    table = wide.transpose(1, 2).reshape(views, channels, height, width).transpose(1, 2).reshape(views * height, -1)
    resized = _sum_rows(table, rows, row_weights).view(views, height, channels, width)
    return resized.transpose(1, 2).contiguous()


def neighbours(sides: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """The two pixels of a crop of each of `sides` (V,) that each of `length` new pixels lies between, and their weights.

    All as Pillow computes it, in double precision, so that not even ties are rounded otherwise.
    """
    centre = (torch.arange(length, dtype=torch.float64) + 0.5) * (sides.double() / length)[:, None]  # (V, length)
    first = (centre - 0.5).clamp(min=0).floor()
    pixels = torch.stack([first, first + 1], dim=2)
    weights = 1 - (pixels - centre[..., None] + 0.5).abs()
    weights = weights.clamp(min=0).masked_fill(pixels >= sides[:, None, None], 0.0)
    weights = weights / weights.sum(dim=2, keepdim=True)
    weights = (weights * _PRECISION + 0.5).floor() / _PRECISION
    return pixels.minimum((sides - 1).double()[:, None, None]).long(), weights.float()


def _sum_rows(table: Tensor, rows: Tensor, weights: Tensor) -> Tensor:
    """Weighted sums of two rows each, rounded: uint8 (V * length, row length)."""
    sums = F.embedding_bag(
        rows.flatten(0, 1).to(table.device),
        table.float(),
        mode="sum",
        per_sample_weights=weights.flatten(0, 1).to(table.device),
    )
    return sums.add_(0.5).to(torch.uint8)
