"""Crop, flip and resize many views of one image at once, as Pillow does: in two passes, each rounded to 8 bits.

Columns come first, as in most versions of Pillow. When a crop is reduced, new versions may choose the cheaper order,
which can differ by one grey level.

A pixel of a view is a weighted mean of pixels of the crop: of two neighbours where the crop is enlarged, of all that it
covers where the crop is reduced. A pass adds up weighted rows of a table.
"""

from __future__ import annotations

import torch
from torch import Tensor

_PRECISION = 22  # bits of Pillow's weights


def crop_views(image: Tensor, boxes: Tensor, flips: Tensor, sides: tuple[int, int]) -> Tensor:
    """Views (V, 3, *sides) of an image (3, H, W), both uint8, given boxes (V, 4) and flips (V,)."""
    views, (channels, height, width) = boxes.shape[0], image.shape
    top, left, crop_height, crop_width = boxes.unbind(dim=1)
    columns, column_weights = neighbours(crop_width, sides[1])  # (taps, V, w)
    columns = columns + left[:, None]
    columns = torch.where(flips[:, None], columns.flip(2), columns)
    column_weights = torch.where(flips[:, None], column_weights.flip(2), column_weights)
    rows, row_weights = neighbours(crop_height, sides[0])  # (taps, V, h)
    planes = torch.arange(views * channels).view(views, channels, 1) * height
    rows = (rows + top[:, None])[:, :, None] + planes  # (taps, V, 3, h)
    row_weights = row_weights[:, :, None].expand_as(rows)

    table = image.permute(2, 0, 1).contiguous().view(width, -1)  # a row holds a column of the image
    wide = _blend_rows(table, columns, column_weights)  # (V, w, 3 * H)
    table = wide.transpose(1, 2).contiguous().view(-1, sides[1])
    return _blend_rows(table, rows, row_weights)


def neighbours(lengths: Tensor, new_length: int) -> tuple[Tensor, Tensor]:
    """For crops of `lengths` (V,) pixels: the pixels averaged for each of `new_length` pixels, and their weights.

    Both are (taps, V, new_length); pixels that are not needed have weight 0. Weights are whole numbers, computed as in
    Pillow in double precision: ties are common, and a later solarisation may invert a pixel that is off by one.
    """
    sides = lengths.double()[:, None]  # (V, 1)
    scale = sides / new_length
    support = scale.clamp(min=1.0)  # enlarged or not, a pixel has a neighbour on each side
    centre = (torch.arange(new_length, dtype=torch.float64) + 0.5) * scale  # (V, new_length)
    first = (centre - support + 0.5).clamp(min=0).floor()
    last = (centre + support + 0.5).floor().minimum(sides)  # the first that is not needed
    taps = int((last - first).max())
    pixels = first + torch.arange(taps, dtype=torch.float64)[:, None, None]  # (taps, V, new_length)
    weights = (1 - ((pixels - centre + 0.5) / support).abs()).clamp(min=0).masked_fill(pixels >= last, 0.0)
    weights = (weights / weights.sum(dim=0) * (1 << _PRECISION) + 0.5).int()
    return pixels.minimum(sides - 1).long(), weights


def _blend_rows(table: Tensor, rows: Tensor, weights: Tensor) -> Tensor:
    """Weighted sums of rows of a table, rounded: rows (taps, ...) become uint8 (..., row length)."""
    indices, factors = rows.flatten(1).to(table.device), weights.flatten(1)[..., None].to(table.device)
    sums = table.index_select(0, indices[0]).int().mul_(factors[0])
    for index, factor in zip(indices[1:], factors[1:], strict=True):
        sums.addcmul_(table.index_select(0, index).int(), factor)
    return sums.add_(1 << (_PRECISION - 1)).bitwise_right_shift_(_PRECISION).to(torch.uint8).view(*rows.shape[1:], -1)
