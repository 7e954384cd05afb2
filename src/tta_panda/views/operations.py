"""The operations of AugMix on many images at once, equal to Pillow's on the 8-bit grid.

Images are uint8 (N, 3, H, W), on any device, and are not changed. `SHARED` operations take one strength for all images,
`INDIVIDUAL` ones take one for each (N,), on the CPU. Those that change values are here, those that move pixels in
`geometry`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from tta_panda.views.geometry import rotate, shear_x, shear_y, translate


def autocontrast(images: Tensor, _: Tensor) -> Tensor:
    """Stretch each channel to the whole range; a channel of one value stays as it is."""
    flat = images.flatten(2)
    # The tables are computed on the CPU: they are small, and not every device has double precision.
    low, high = flat.amin(dim=2).cpu().double()[..., None], flat.amax(dim=2).cpu().double()[..., None]  # (N, 3, 1)
    values = torch.arange(256, dtype=torch.float64)
    scale = torch.full_like(low, 255) / (high - low)  # a number divided by a tensor is rounded twice
    table = (values * scale + -low * scale).clamp(0, 255)
    return _look_up(images, torch.where(high > low, table, values).to(torch.uint8).to(images.device))


def equalize(images: Tensor, _: Tensor) -> Tensor:
    """Flatten the histogram of each channel, in Pillow's whole numbers."""
    counts = _histograms(images.flatten(2))
    values = torch.arange(256, device=images.device)
    last = torch.where(counts > 0, values, 0).amax(dim=2, keepdim=True)  # the brightest value there is
    step = (counts.sum(dim=2, keepdim=True) - counts.gather(2, last)) // 255
    before = counts.cumsum(dim=2) - counts
    table = ((step // 2 + before) // step.clamp(min=1)).clamp(max=255)
    return _look_up(images, torch.where(step > 0, table, values).to(torch.uint8))  # too few pixels: as they are


def posterize(images: Tensor, bits: Tensor) -> Tensor:
    """Keep the leading bits."""
    return images & _per_image(256 - 2 ** (8 - bits), images).to(torch.uint8)


def solarize(images: Tensor, threshold: Tensor) -> Tensor:
    """Invert values at or above the threshold."""
    below = _per_image(threshold - 1, images).short()
    bright = (below - images.short()) >> 15  # all bits set, or none: ten times as fast as a comparison
    return images ^ bright.to(torch.uint8)  # 255 - x is x with all bits flipped


INDIVIDUAL: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "autocontrast": autocontrast,
    "equalize": equalize,
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


def _look_up(images: Tensor, table: Tensor) -> Tensor:
    """Replace values by a table (N, 3, 256)."""
    return table.gather(2, images.flatten(2).long()).view_as(images)


def _histograms(pixels: Tensor) -> Tensor:
    """How often each value occurs in (N, 3, pixels): (N, 3, 256)."""
    if pixels.device.type == "cpu":
        counts = [torch.bincount(channel, minlength=256) for channel in pixels.flatten(0, 1)]
        return torch.stack(counts).view(*pixels.shape[:2], 256)
    zeros = torch.zeros((*pixels.shape[:2], 256), dtype=torch.long, device=pixels.device)
    return zeros.scatter_add_(2, pixels.long(), zeros.new_ones(1).expand_as(pixels))
