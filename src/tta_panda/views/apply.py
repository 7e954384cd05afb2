"""Create views from images and a plan, equal to Pillow's, on any device.

All views are created at once, or on a CPU as many as fit into its cache. Crops are resized in two passes, each rounded
to 8 bits: columns first, as in most versions of Pillow. When a crop is reduced, new versions may choose the cheaper
order, whose result can differ by one grey level.

Shapes: B images, V views, H W image, h w view.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict

import torch
from torch import Tensor

from tta_panda.errors import InvalidInputError
from tta_panda.transfers import to_device
from tta_panda.views.operations import MOVING, POINTWISE, Operation, affine_map, transform
from tta_panda.views.plan import NO_OPERATION, OPERATIONS, ViewPlan

Groups = dict[tuple[int, Operation], list[tuple[int, float | list[list[float]]]]]
"""Chains and strengths, or affine maps, by step and operation."""

_PIXELS_AT_ONCE = 1 << 19  # fits into the cache of a CPU
_PRECISION = 22  # bits of Pillow's fixed-point weights


@torch.no_grad()
def apply_view_plan(images: Tensor, plan: ViewPlan) -> Tensor:
    """Create the planned views (B, V, 3, h, w) of images (B, 3, H, W), floats in [0, 1] or uint8, on their device.

    Views have the dtype of float images, and are float32 for uint8. `apply_view_plan(images[a:b], plan[a:b])` gives the
    same bits as for the whole batch.
    """
    batch, _, height, width = images.shape
    if (len(plan), plan.height, plan.width) != (batch, height, width):
        raise InvalidInputError(
            f"The plan is for {len(plan)} image(s) of {plan.height}x{plan.width} px, got {batch} image(s) of "
            f"{height}x{width} px; draw a plan for these, or slice images and plan equally."
        )
    if images.device.type == "mps":  # without double precision, which tables and moves need
        return apply_view_plan(images.cpu(), plan).to(images.device)
    dtype = images.dtype if images.is_floating_point() else torch.float32
    pixels = images.float().mul(255).round_().clamp_(0, 255).byte() if images.is_floating_point() else images
    if images.device.type != "cpu":
        return _create(pixels, plan).to(dtype)
    views = torch.empty((batch, plan.count, 3, *plan.sides), dtype=dtype)
    size = max(1, _PIXELS_AT_ONCE // math.prod(plan.sides))
    for index in range(batch):
        for start in range(0, plan.count, size):
            part = slice(index, index + 1), slice(start, start + size)
            views[part] = _create(pixels[part[0]], plan.part(*part))
    return views


def _create(images: Tensor, plan: ViewPlan) -> Tensor:
    """Create the planned views (B, V, 3, h, w), in [0, 1], of uint8 images (B, 3, H, W)."""
    crops = crop_views(images, plan.boxes, plan.flips, plan.sides)
    if plan.augmentation == "crops":
        views = crops.float().div_(255)
    else:
        chains = _apply_chains(crops, plan.operations.flatten(0, 1), plan.strengths.flatten(0, 1))
        views = _mix(crops, chains, plan.weights.flatten(0, 1))
    return views.view(*plan.flips.shape, 3, *plan.sides)


def crop_views(images: Tensor, boxes: Tensor, flips: Tensor, sides: tuple[int, int]) -> Tensor:
    """Crop, flip and resize images (B, 3, H, W) to views (B * V, 3, *sides), by boxes (B, V, 4) and flips (B, V).

    Images and views are uint8.
    """
    (batch, channels, height, width), count, device = images.shape, flips.numel(), images.device
    top, left, crop_height, crop_width = boxes.flatten(0, 1).unbind(dim=1)
    columns, column_weights = neighbours(crop_width, sides[1])  # (taps, B * V, w)
    first = torch.arange(batch).repeat_interleave(flips.shape[1]) * width  # among the columns of all images
    columns, flipped = columns + (first + left)[:, None], flips.flatten()[:, None]
    columns = torch.where(flipped, columns.flip(2), columns)
    column_weights = torch.where(flipped, column_weights.flip(2), column_weights)
    rows, row_weights = neighbours(crop_height, sides[0])  # (taps, B * V, h)
    planes = torch.arange(count * channels, device=device).view(count, channels, 1) * height
    rows = to_device(rows + top[:, None], device)[:, :, None] + planes  # (taps, B * V, 3, h)
    row_weights = to_device(row_weights, device)[:, :, None].expand_as(rows)

    table = images.permute(0, 3, 1, 2).contiguous().view(batch * width, -1)  # each row is a column of an image
    wide = _blend_rows(table, to_device(columns, device), to_device(column_weights, device))  # (B * V, w, 3 * H)
    table = wide.transpose(1, 2).contiguous().view(-1, sides[1])
    return _blend_rows(table, rows, row_weights)


def neighbours(lengths: Tensor, new_length: int) -> tuple[Tensor, Tensor]:
    """Return the source pixels and weights for resizing crops of `lengths` (V,) pixels to `new_length` pixels.

    Both are (taps, V, new_length); unused pixels have weight 0. Weights are integers, computed in double precision like
    Pillow's: ties are common, and an error of one grey level can become large if solarisation inverts the pixel.
    """
    sides = lengths.double()[:, None]  # (V, 1)
    scale = sides / new_length
    support = scale.clamp(min=1.0)  # at least one neighbour on each side, even if enlarged
    centre = (torch.arange(new_length, dtype=torch.float64) + 0.5) * scale  # (V, new_length)
    first = (centre - support + 0.5).clamp(min=0).floor()
    last = (centre + support + 0.5).floor().minimum(sides)  # exclusive
    taps = int((last - first).max())
    pixels = first + torch.arange(taps, dtype=torch.float64)[:, None, None]  # (taps, V, new_length)
    weights = (1 - ((pixels - centre + 0.5) / support).abs()).clamp(min=0).masked_fill(pixels >= last, 0.0)
    weights = (weights / weights.sum(dim=0) * (1 << _PRECISION) + 0.5).int()
    return pixels.minimum(sides - 1).long(), weights


def _blend_rows(table: Tensor, rows: Tensor, weights: Tensor) -> Tensor:
    """Return weighted means of rows of a table, rounded to uint8 (..., row length), for row indices (taps, ...).

    A pixel of a view is a weighted mean of pixels of the crop: of two neighbours if the crop is enlarged, or of all
    pixels that it covers if the crop is reduced.
    """
    indices, factors = rows.flatten(1), weights.flatten(1)[..., None]
    sums = table.index_select(0, indices[0]).int().mul_(factors[0])
    for index, factor in zip(indices[1:], factors[1:], strict=True):
        sums.addcmul_(table.index_select(0, index).int(), factor)
    return sums.add_(1 << (_PRECISION - 1)).bitwise_right_shift_(_PRECISION).to(torch.uint8).view(*rows.shape[1:], -1)


def _apply_chains(crops: Tensor, operations: Tensor, strengths: Tensor) -> Tensor:
    """Return the results (V, chains, 3, h, w) of all chains; in each step, an operation runs once for all views."""
    images = torch.stack([crops] * operations.shape[1], dim=1)
    flat = images.flatten(0, 1)  # a view of the same memory
    groups = _groups(operations.flatten(0, 1), strengths.flatten(0, 1), crops)
    members = [[member for member, _ in group] for group in groups.values()]
    indices = to_device(torch.tensor([*itertools.chain(*members)]), crops.device).split(list(map(len, members)))
    for (_, operate), group, places, index in zip(groups, groups.values(), members, indices, strict=True):
        given = torch.tensor([strength for _, strength in group], dtype=torch.float64)
        if flat.device.type != "cpu":
            flat.index_copy_(0, index, operate(flat.index_select(0, index), given))
            continue
        rows = [flat[place] for place in places]  # by an index, copies take ten times as long
        for row, result in zip(rows, operate(torch.stack(rows), given), strict=True):
            row.copy_(result)
    return images


def _groups(operations: Tensor, strengths: Tensor, images: Tensor) -> Groups:
    """Group the operations of chains (N, step), in the order of steps."""
    groups: Groups = defaultdict(list)
    height, width = images.shape[2:]
    for step, (chosen, given) in enumerate(zip(operations.T.tolist(), strengths.T.tolist(), strict=True)):
        for chain, (place, strength) in enumerate(zip(chosen, given, strict=True)):
            if place != NO_OPERATION:
                name = OPERATIONS[place]
                if name in MOVING and images.device.type != "cpu":
                    groups[step, transform].append((chain, affine_map(name, strength, height, width)))
                else:
                    groups[step, (POINTWISE | MOVING)[name]].append((chain, strength))
    return groups


def _mix(crops: Tensor, chains: Tensor, weights: Tensor) -> Tensor:
    """Return weighted means of crops and chains, not rounded.

    The published code mixes after normalisation. As normalisation is affine and the weights sum to one, mixing in
    [0, 1] before normalisation is equivalent.
    """
    weights = to_device((weights / 255).float(), crops.device)[..., None, None, None]  # (V, 1 + chains, 1, 1, 1)
    mixed = crops.float().mul_(weights[:, 0])
    for chain, weight in zip(chains.unbind(dim=1), weights[:, 1:].unbind(dim=1), strict=True):
        mixed.addcmul_(chain.float(), weight)
    return mixed
