"""Views made with OpenCV, one after another: on a processor, several times as fast as those that equal Pillow's.

Tables and translations are Pillow's. Where pixels are interpolated, Pillow rounds twice or cuts off; here values are
rounded once, and not at all in plain crops that are enlarged. The rim of a picture that was turned or sheared blends
into the black around it.

Operations that change values are not applied one by one: each changes a table, in which pixels are looked up when they
are moved or mixed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import cv2
import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from tta_panda.views.operations import TABLES, Tables
from tta_panda.views.plan import NO_OPERATION, OPERATIONS, ViewPlan

Planes = NDArray[np.uint8]  # (3, h, w)
Changed = tuple[Planes, Tables]  # planes, and the tables (3, 256) in which they have yet to be looked up
Counts = NDArray[np.int64]  # (3, 256) how often each value occurs

_UNCHANGED = np.arange(256, dtype=np.uint8)[None].repeat(3, axis=0)


def write_views(made: NDArray[np.float32], image: Tensor, plan: ViewPlan, place: int, part: slice) -> None:
    """Write some of the planned views of an image (3, H, W) of uint8 to `made` (V, 3, h, w), in [0, 1].

    `place` is that of the image in the plan.
    """
    picture = image.contiguous().numpy()
    only_crops = plan.augmentation == "crops"  # written to their place at once
    level = np.float32(1 / 255) if only_crops else np.uint8(1)  # what one grey level is in a crop
    scaled = picture * level
    drawn = (plan.boxes, plan.flips, plan.operations, plan.strengths, plan.weights / 255)
    views = zip(made, *(values[place, part].tolist() for values in drawn), strict=True)
    for view, (top, left, height, width), flip, operations, strengths, weights in views:
        crop = view if only_crops else np.empty(view.shape, np.uint8)
        inside = np.s_[:, top : top + height, left : left + width]
        if height > plan.sides[0] or width > plan.sides[1]:
            np.multiply(_reduced(picture[inside], plan.sides), level, out=crop)
        else:
            _enlarge(scaled[inside], crop)
        if flip:
            cv2.flip(_tall(crop), 1, dst=_tall(crop))
        if not only_crops:
            count = cache(partial(_counts, crop))  # once for all chains, if at all
            chains = [_apply_chain(crop, count, *chain) for chain in zip(operations, strengths, strict=True)]
            _mix(crop, chains, weights, view)


def _enlarge(planes: NDArray[Any], enlarged: NDArray[Any]) -> None:
    for plane, target in zip(planes, enlarged, strict=True):
        cv2.resize(plane, target.shape[::-1], dst=target)


def _reduced(planes: Planes, sides: tuple[int, int]) -> Planes:
    """By torch, which computes as Pillow does; OpenCV would skip pixels."""
    pixels = torch.from_numpy(cv2.merge(list(planes))).permute(2, 0, 1)  # faster than planes
    return F.interpolate(pixels[None], sides, mode="bilinear", antialias=True)[0].numpy()


def _tall(planes: NDArray[Any]) -> NDArray[Any]:
    """All planes as one picture, for fewer calls."""
    return planes.reshape(-1, planes.shape[2])


def _apply_chain(
    planes: Planes, count: Callable[[], Counts], operations: Sequence[int], strengths: Sequence[float]
) -> Changed:
    table = _UNCHANGED
    for operation, strength in zip(operations, strengths, strict=True):
        if operation == NO_OPERATION:
            break
        name = OPERATIONS[operation]
        if name in _MOVES:
            planes, table = _MOVES[name](_look_up(planes, table), strength), _UNCHANGED
            count = cache(partial(_counts, planes))
        elif name in TABLES:
            table = np.take_along_axis(TABLES[name](_looked_up(count(), table)), table.astype(np.intp), -1)
        else:
            table = _CHANGES[name](table, int(strength))
    return planes, table


def _look_up(planes: Planes, tables: Tables) -> Planes:
    if tables is _UNCHANGED:
        return planes
    found = np.empty_like(planes)
    for plane, table, target in zip(planes, tables, found, strict=True):
        cv2.LUT(plane, table, dst=target)
    return found


def _counts(planes: Planes) -> Counts:
    counts = [cv2.calcHist([plane], [0], None, [256], [0, 256]).ravel() for plane in planes]
    return np.stack(counts).astype(np.int64)


def _looked_up(counts: Counts, tables: Tables) -> Counts:
    """How often each value occurs once pixels are looked up."""
    if tables is _UNCHANGED:
        return counts
    return np.stack([np.bincount(*pair, 256) for pair in zip(tables, counts, strict=True)]).astype(np.int64)


def _mix(crop: Planes, chains: Sequence[Changed], weights: Sequence[float], mixed: NDArray[np.float32]) -> None:
    """Write the weighted sum to `mixed`, not rounded."""
    tables = _UNCHANGED * weights[0]  # of the crop, and of all chains that move no pixels
    moved: list[tuple[Planes, float]] = []
    for (planes, changed), weight in zip(chains, weights[1:], strict=True):
        if planes is crop:
            tables = tables + changed * weight
        else:
            moved.append((_look_up(planes, changed), weight))
    # The fastest way to add bytes to floats is a running mean: share * planes + (1 - share) * mixed. So the sum so far
    # is divided by what later steps leave of it, which is 1 in the end.
    left = 1 - sum(weight for _, weight in moved)
    for plane, table, target in zip(crop, (tables / left).astype(np.float32), mixed, strict=True):
        cv2.LUT(plane, table, dst=target)
    for planes, weight in moved:
        left += weight
        cv2.accumulateWeighted(_tall(planes), _tall(mixed), weight / left)


def _moved(matrix: Callable[[float, int, int], list[list[float]]], planes: Planes, strength: float) -> Planes:
    """Pixels taken from where a matrix says, by the positions of their centres."""
    if not strength:
        return planes
    _, height, width = planes.shape
    wanted = np.array(matrix(strength, height, width))
    wanted[:, 2] += wanted[:, :2].sum(axis=1) / 2 - 0.5
    flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    four = cv2.merge([*planes, planes[0]])  # takes half the time of three channels
    moved = np.empty((4, height, width), np.uint8)
    cv2.split(cv2.warpAffine(four, wanted, (width, height), flags=flags), list(moved))
    return moved[:3]


def _rotation(degrees: float, height: int, width: int) -> list[list[float]]:
    cosine, sine = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    x, y = width / 2, height / 2
    return [[cosine, -sine, x - cosine * x + sine * y], [sine, cosine, y - sine * x - cosine * y]]


def _translated(axis: int, planes: Planes, shift: float) -> Planes:
    """Each pixel taken from `shift` pixels further along an axis."""
    length = planes.shape[axis]
    shift = max(-length, min(length, int(shift)))
    moved = np.zeros_like(planes)
    source, target = planes.swapaxes(0, axis), moved.swapaxes(0, axis)
    target[max(-shift, 0) : length - max(shift, 0)] = source[max(shift, 0) : length - max(-shift, 0)]
    return moved


_CHANGES: dict[str, Callable[[Tables, int], Tables]] = {
    "posterize": lambda table, bits: table & np.uint8(256 - 2 ** (8 - bits)),
    "solarize": lambda table, threshold: np.where(table < threshold, table, 255 - table),
}
_MOVES: dict[str, Callable[[Planes, float], Planes]] = {
    "rotate": partial(_moved, _rotation),
    "shear_x": partial(_moved, lambda slope, _height, _width: [[1, slope, 0], [0, 1, 0]]),
    "shear_y": partial(_moved, lambda slope, _height, _width: [[1, 0, 0], [slope, 1, 0]]),
    "translate_x": partial(_translated, 2),
    "translate_y": partial(_translated, 1),
}
