"""Create views from images and a plan, equal to Pillow's, on any device.

All views of an image are created at once. Crops are resized in two passes, each rounded to 8 bits: columns first, as in
most versions of Pillow. When a crop is reduced, new versions may choose the cheaper order, whose result can differ by
one grey level.

Shapes: B images, V views, H W image, h w view.
"""

from __future__ import annotations

import math
from collections import defaultdict

import torch
from torch import Tensor

from tta_panda.errors import InvalidInputError
from tta_panda.views.operations import INDIVIDUAL, SHARED
from tta_panda.views.plan import NO_OPERATION, OPERATIONS, ViewPlan

_PIXELS_AT_ONCE = 1 << 19  # views are created in groups that fit into the cache of a CPU
_PRECISION = 22  # bits of Pillow's fixed-point weights


@torch.no_grad()
def apply_view_plan(images: Tensor, plan: ViewPlan) -> Tensor:
    """Create the planned views (B, V, 3, h, w) of images (B, 3, H, W), floats in [0, 1] or uint8, on their device.

    Views have the dtype of float images, and are float32 for uint8. Each image is processed separately, so
    `apply_view_plan(images[a:b], plan[a:b])` gives the same bits as for the whole batch.
    """
    batch, _, height, width = images.shape
    if (len(plan), plan.height, plan.width) != (batch, height, width):
        raise InvalidInputError(
            f"The plan is for {len(plan)} image(s) of {plan.height}x{plan.width} px, got {batch} image(s) of "
            f"{height}x{width} px; draw a plan for these, or slice images and plan equally."
        )
    dtype = images.dtype if images.is_floating_point() else torch.float32
    pixels = images.float().mul(255).round_().clamp_(0, 255).byte() if images.is_floating_point() else images
    views = torch.empty((batch, plan.count, 3, *plan.sides), dtype=dtype, device=images.device)
    size = max(1, _PIXELS_AT_ONCE // math.prod(plan.sides))
    for index, image in enumerate(pixels):
        for start in range(0, plan.count, size):
            group = slice(start, start + size)
            views[index, group] = _views_of_one(image, plan, index, group)
    return views


def _views_of_one(image: Tensor, plan: ViewPlan, index: int, group: slice) -> Tensor:
    """Create a group of the planned views (V, 3, h, w), in [0, 1], of one uint8 image (3, H, W) of a batch."""
    crops = crop_views(image, plan.boxes[index, group], plan.flips[index, group], plan.sides)
    if plan.augmentation == "crops":
        return crops.float().div_(255)
    chains = _apply_chains(crops, plan.operations[index, group], plan.strengths[index, group])
    return _mix(crops, chains, plan.weights[index, group])


def crop_views(image: Tensor, boxes: Tensor, flips: Tensor, sides: tuple[int, int]) -> Tensor:
    """Crop, flip and resize an image (3, H, W) to views (V, 3, *sides), both uint8, by boxes (V, 4) and flips (V,)."""
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

    table = image.permute(2, 0, 1).contiguous().view(width, -1)  # each row is a column of the image
    wide = _blend_rows(table, columns, column_weights)  # (V, w, 3 * H)
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
    indices, factors = rows.flatten(1).to(table.device), weights.flatten(1)[..., None].to(table.device)
    sums = table.index_select(0, indices[0]).int().mul_(factors[0])
    for index, factor in zip(indices[1:], factors[1:], strict=True):
        sums.addcmul_(table.index_select(0, index).int(), factor)
    return sums.add_(1 << (_PRECISION - 1)).bitwise_right_shift_(_PRECISION).to(torch.uint8).view(*rows.shape[1:], -1)


def _apply_chains(crops: Tensor, operations: Tensor, strengths: Tensor) -> list[list[Tensor]]:
    """Return the results (3, H, W) of all views for each chain; in each step, an operation runs once for all views."""
    images = [list(crops) for _ in range(operations.shape[1])]
    for step in range(operations.shape[2]):
        for (name, shared), members in _groups(operations[..., step], strengths[..., step]).items():
            found = [images[chain][view] for view, chain, _ in members]
            together = torch.stack(found) if len(found) > 1 else found[0][None]
            if shared is None:
                each = torch.tensor([strength for _, _, strength in members], dtype=torch.float64)
                results = INDIVIDUAL[name](together, each)
            else:
                results = SHARED[name](together, shared)
            for (view, chain, _), result in zip(members, results, strict=True):
                images[chain][view] = result
    return images


def _groups(operations: Tensor, strengths: Tensor) -> dict[tuple[str, int | None], list[tuple[int, int, float]]]:
    """Group (view, chain, strength) by operation, and by strength for operations that share it."""
    groups = defaultdict(list)
    chosen, given = operations.tolist(), strengths.tolist()
    for view, chain in (operations != NO_OPERATION).nonzero().tolist():
        name, strength = OPERATIONS[chosen[view][chain]], given[view][chain]
        groups[name, int(strength) if name in SHARED else None].append((view, chain, strength))
    return groups


def _mix(crops: Tensor, chains: list[list[Tensor]], weights: Tensor) -> Tensor:
    """Return weighted means of crops and chains, not rounded.

    The published code mixes after normalisation. As normalisation is affine and the weights sum to one, mixing in
    [0, 1] before normalisation is equivalent.
    """
    weights = (weights / 255).float().to(crops.device)[..., None, None, None]  # (V, 1 + chains, 1, 1, 1)
    mixed = crops.float().mul_(weights[:, 0])
    for chain, weight in zip(chains, weights[:, 1:].unbind(dim=1), strict=True):
        mixed.addcmul_(torch.stack(chain).float(), weight)
    return mixed
