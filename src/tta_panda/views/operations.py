"""The operations of AugMix on many images at once, equal to Pillow's on the 8-bit grid.

Images are uint8 (N, 3, H, W), on any device, and are not changed. `SHARED` operations take one strength for all images,
`INDIVIDUAL` ones take one for each (N,), on the CPU. Those that change values are here, those that move pixels in
`geometry`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tta_panda.views.geometry import rotate, shear_x, shear_y, translate

Tables = NDArray[np.uint8]  # (..., 256)
_VALUES = np.arange(256)


def stretching(counts: NDArray[np.int64]) -> Tables:
    """Tables that stretch channels to the whole range; a channel of one value stays as it is."""
    present = counts > 0
    low, high = present.argmax(axis=-1)[..., None], 255 - present[..., ::-1].argmax(axis=-1)[..., None]
    scale = 255 / np.maximum(high - low, 1)
    return np.where(high > low, (_VALUES * scale + -low * scale).clip(0, 255), _VALUES).astype(np.uint8)


def flattening(counts: NDArray[np.int64]) -> Tables:
    """Tables that flatten histograms, in Pillow's whole numbers."""
    brightest = np.where(counts > 0, _VALUES, 0).max(axis=-1, keepdims=True)
    step = (counts.sum(axis=-1, keepdims=True) - np.take_along_axis(counts, brightest, -1)) // 255
    before = counts.cumsum(axis=-1) - counts
    table = ((step // 2 + before) // np.maximum(step, 1)).clip(0, 255)
    return np.where(step > 0, table, _VALUES).astype(np.uint8)  # too few pixels: as they are


TABLES: dict[str, Callable[[NDArray[np.int64]], Tables]] = {"autocontrast": stretching, "equalize": flattening}
"""Operations that look up each value in a table, which follows from how often each value occurs (..., 256)."""


def _by_table(name: str, images: Tensor, _: Tensor) -> Tensor:
    table = torch.from_numpy(TABLES[name](_histograms(images.flatten(2)).cpu().numpy()))
    return table.to(images.device).gather(2, images.flatten(2).long()).view_as(images)


def posterize(images: Tensor, bits: Tensor) -> Tensor:
    """Keep the leading bits."""
    return images & _per_image(256 - 2 ** (8 - bits), images).to(torch.uint8)


def solarize(images: Tensor, threshold: Tensor) -> Tensor:
    """Invert values at or above the threshold."""
    below = _per_image(threshold - 1, images).short()
    bright = (below - images.short()) >> 15  # all bits set, or none: ten times as fast as a comparison
    return images ^ bright.to(torch.uint8)  # 255 - x is x with all bits flipped


INDIVIDUAL: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    **{name: partial(_by_table, name) for name in TABLES},
    "posterize": posterize,
    "solarize": solarize,
    "shear_x": shear_x,
    "shear_y": shear_y,
}
SHARED: dict[str, Callable[[Tensor, int], Tensor]] = {
    "rotate": rotate,
    "translate_x": partial(translate, dim=3),
    "translate_y": partial(translate, dim=2),
}


def _per_image(values: Tensor, images: Tensor) -> Tensor:
    return values.view(-1, 1, 1, 1).to(images.device)


def _histograms(pixels: Tensor) -> Tensor:
    """How often each value occurs in (N, 3, pixels): (N, 3, 256)."""
    if pixels.device.type == "cpu":
        counts = [torch.bincount(channel, minlength=256) for channel in pixels.flatten(0, 1)]
        return torch.stack(counts).view(*pixels.shape[:2], 256)
    zeros = torch.zeros((*pixels.shape[:2], 256), dtype=torch.long, device=pixels.device)
    return zeros.scatter_add_(2, pixels.long(), zeros.new_ones(1).expand_as(pixels))
