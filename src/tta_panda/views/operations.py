"""The operations of AugMix on many images at once, equal to Pillow's on the 8-bit grid.

Images are uint8 (N, 3, H, W), on any device, and are not changed. `SHARED` operations take one strength for all images,
`INDIVIDUAL` ones take one for each (N,), on the CPU. Operations that move pixels interpolate, and are black outside
the image.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

Table = NDArray[np.uint8]  # (N, 3, 256)
_VALUES = np.arange(256)


def autocontrast(images: Tensor, _: Tensor) -> Tensor:
    """Stretch each channel to the full range; a channel with a single value is not changed."""
    present = _histograms(images) > 0
    low, high = present.argmax(axis=-1)[..., None], 255 - present[..., ::-1].argmax(axis=-1)[..., None]
    scale = 255 / np.maximum(high - low, 1)
    stretched = (_VALUES * scale + -low * scale).clip(0, 255)
    return _look_up(images, np.where(high > low, stretched, _VALUES).astype(np.uint8))


def equalize(images: Tensor, _: Tensor) -> Tensor:
    """Equalise the histogram of each channel with Pillow's integer arithmetic; too few pixels are not changed."""
    counts = _histograms(images)
    brightest = np.where(counts > 0, _VALUES, 0).max(axis=-1, keepdims=True)
    step = (counts.sum(axis=-1, keepdims=True) - np.take_along_axis(counts, brightest, -1)) // 255
    before = counts.cumsum(axis=-1) - counts
    flat = ((step // 2 + before) // np.maximum(step, 1)).clip(0, 255)
    return _look_up(images, np.where(step > 0, flat, _VALUES).astype(np.uint8))


def posterize(images: Tensor, bits: Tensor) -> Tensor:
    """Keep the leading bits."""
    return images & _per_image(256 - 2 ** (8 - bits), images).to(torch.uint8)


def solarize(images: Tensor, threshold: Tensor) -> Tensor:
    """Invert values at or above the threshold."""
    below = _per_image(threshold - 1, images).short()
    bright = (below - images.short()) >> 15  # all bits set, or none: ten times as fast as a comparison
    return images ^ bright.to(torch.uint8)  # 255 - x is x with all bits flipped


def shear_x(images: Tensor, slopes: Tensor) -> Tensor:
    """Move each row sideways, by the slope times its distance from the top."""
    height, width = images.shape[2:]
    shift = slopes[:, None] * (torch.arange(height, dtype=torch.float64) + 0.5)  # (N, H)
    whole = shift.floor()
    part = (shift - whole).float()[:, None, :, None].to(images.device)
    whole = whole.long()[:, None, :, None].to(images.device)
    source = whole + torch.arange(width + 1, device=images.device)  # (N, 1, H, W + 1)
    taken = images.gather(3, source.clamp_(0, width - 1).expand(-1, images.shape[1], -1, -1)).float()
    sheared = _truncate(torch.lerp(taken[..., :-1], taken[..., 1:], part))
    # Only columns near the sides can have sources outside the image.
    reach = min(width, math.ceil(float(shift.abs().max())))
    for columns in (slice(0, reach), slice(width - reach, width)):
        nearest = whole + (part >= 0.5) + torch.arange(width, device=images.device)[columns]
        sheared[..., columns] *= ((nearest >= 0) & (nearest < width)).view(torch.uint8)
    return sheared


def shear_y(images: Tensor, slopes: Tensor) -> Tensor:
    """Move each column up or down, by the slope times its distance from the left."""
    return shear_x(images.transpose(2, 3).contiguous(), slopes).transpose(2, 3).contiguous()


def translate(images: Tensor, shift: int, dim: int) -> Tensor:
    """Copy each pixel from `shift` pixels to its right (`dim` 3) or below it (`dim` 2)."""
    length = images.shape[dim]
    if abs(shift) >= length:
        return torch.zeros_like(images)
    kept = images.narrow(dim, max(shift, 0), length - abs(shift))
    border = (max(-shift, 0), max(shift, 0))
    return F.pad(kept, border if dim == 3 else (0, 0, *border))


def rotate(images: Tensor, degrees: int) -> Tensor:
    """Rotate counter-clockwise about the centre."""
    if degrees == 0:
        return images
    corners, part_x, part_y, inside = _rotation(degrees, *images.shape[2:], images.device)
    pixels = images.flatten(2).float()  # (N, 3, H * W)
    upper_left, upper_right, lower_left, lower_right = (
        pixels.gather(2, corner.expand_as(pixels)) for corner in corners
    )
    upper = torch.lerp(upper_left, upper_right, part_x)
    lower = torch.lerp(lower_left, lower_right, part_x)
    return _truncate(torch.lerp(upper, lower, part_y)).mul_(inside).view_as(images)


def _truncate(pixels: Tensor) -> Tensor:
    """Convert floats to uint8, rounding down as Pillow does here; converting via int16 is four times as fast."""
    return pixels.short().to(torch.uint8)


@functools.lru_cache(maxsize=8)  # at the strengths of AugMix there are four angles
def _rotation(
    degrees: int, height: int, width: int, device: torch.device
) -> tuple[list[Tensor], Tensor, Tensor, Tensor]:
    """Return the sources of the pixels of a rotated image, each (H * W).

    These are the indices of the four neighbours, the distances to the left and upper ones, and a mask that is 1 for
    sources inside the image and 0 for others.
    """
    x = torch.arange(width, dtype=torch.float64) + 0.5 - width / 2
    y = (torch.arange(height, dtype=torch.float64) + 0.5 - height / 2)[:, None]
    cosine, sine = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    from_x = (cosine * x - sine * y + width / 2).flatten()
    from_y = (sine * x + cosine * y + height / 2).flatten()
    inside = (from_x >= 0) & (from_x < width) & (from_y >= 0) & (from_y < height)
    left, top = (from_x - 0.5).floor(), (from_y - 0.5).floor()
    columns = [(left + step).clamp(0, width - 1) for step in (0, 1)]
    rows = [(top + step).clamp(0, height - 1) for step in (0, 1)]
    corners = [(row * width + column).long().to(device) for row in rows for column in columns]
    part_x, part_y = (from_x - 0.5 - left).float(), (from_y - 0.5 - top).float()
    return corners, part_x.to(device), part_y.to(device), inside.byte().to(device)


def _per_image(values: Tensor, images: Tensor) -> Tensor:
    return values.view(-1, 1, 1, 1).to(images.device)


def _histograms(images: Tensor) -> NDArray[np.int64]:
    """Return the histogram of each channel (N, 3, 256)."""
    pixels = images.flatten(2)
    if pixels.device.type == "cpu":
        counts = [torch.bincount(channel, minlength=256) for channel in pixels.flatten(0, 1)]
        return torch.stack(counts).view(*pixels.shape[:2], 256).numpy()
    zeros = torch.zeros((*pixels.shape[:2], 256), dtype=torch.long, device=pixels.device)
    return zeros.scatter_add_(2, pixels.long(), zeros.new_ones(1).expand_as(pixels)).cpu().numpy()


def _look_up(images: Tensor, table: Table) -> Tensor:
    """Replace each value by the entry in the table of its channel."""
    return torch.from_numpy(table).to(images.device).gather(2, images.flatten(2).long()).view_as(images)


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
