"""Crop, flip and resize many views of one image at once, as Pillow resizes: two passes, each on the 8-bit grid.

A crop is never larger than the view it becomes, so a pixel of the view lies between two pixels of the crop, and a pass
blends pairs of rows of a table.
"""

from __future__ import annotations

import torch
from torch import Tensor

_PRECISION = 22  # bits of Pillow's weights


def crop_views(image: Tensor, boxes: Tensor, flips: Tensor) -> Tensor:
    """Views (V, 3, H, W) of an image (3, H, W), both uint8, given boxes (V, 4) and flips (V,)."""
    views, (channels, height, width) = boxes.shape[0], image.shape
    top, left, crop_height, crop_width = boxes.unbind(dim=1)
    columns, column_weights = neighbours(crop_width, width)  # (2, V, W)
    columns = columns + left[:, None]
    columns = torch.where(flips[:, None], columns.flip(2), columns)
    column_weights = torch.where(flips[:, None], column_weights.flip(2), column_weights)
    rows, row_weights = neighbours(crop_height, height)  # (2, V, H)
    planes = torch.arange(views * channels).view(views, channels, 1) * height
    rows = (rows + top[:, None])[:, :, None] + planes  # (2, V, 3, H)
    row_weights = row_weights[:, :, None].expand_as(rows)

    table = image.permute(2, 0, 1).contiguous().view(width, -1)  # a row holds a column of the image
    wide = _blend_rows(table, columns, column_weights)  # (V, W, 3 * H)
    table = wide.transpose(1, 2).contiguous().view(-1, width)
    return _blend_rows(table, rows, row_weights)


def neighbours(sides: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """For crops of `sides` (V,) pixels: the two that each of `length` new pixels lies between, and their weights.

    Both are (2, V, length). Weights are whole numbers, computed as Pillow does in double precision: ties are common,
    and a pixel that is one off may be inverted by a solarisation later.
    """
    centre = (torch.arange(length, dtype=torch.float64) + 0.5) * (sides.double() / length)[:, None]  # (V, length)
    first = (centre - 0.5).clamp(min=0).floor()
    pixels = torch.stack([first, first + 1])  # (2, V, length)
    weights = (1 - (pixels - centre + 0.5).abs()).clamp(min=0).masked_fill(pixels >= sides[:, None], 0.0)
    weights = (weights / weights.sum(dim=0) * (1 << _PRECISION) + 0.5).int()
    return pixels.minimum((sides - 1).double()[:, None]).long(), weights


def _blend_rows(table: Tensor, rows: Tensor, weights: Tensor) -> Tensor:
    """Weighted sums of two rows of a table, rounded: rows (2, ...) become uint8 (..., row length)."""
    first, second = (table.index_select(0, index).int() for index in rows.flatten(1).to(table.device))
    first_weight, second_weight = weights.flatten(1)[..., None].to(table.device)
    sums = first.mul_(first_weight).addcmul_(second, second_weight).add_(1 << (_PRECISION - 1))
    return sums.bitwise_right_shift_(_PRECISION).to(torch.uint8).view(*rows.shape[1:], -1)
