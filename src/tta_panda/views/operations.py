"""The operations of AugMix on many images at once, equal to Pillow's on the 8-bit grid.

Each takes uint8 images (N, 3, H, W) on any device and one strength per image (N,), on the CPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

Operation = Callable[[Tensor, Tensor], Tensor]


def autocontrast(images: Tensor, _: Tensor) -> Tensor:
    """Stretch each channel to the whole range; one of a single value stays as it is."""
    flat = images.flatten(2)
    low, high = flat.amin(dim=2).double()[..., None], flat.amax(dim=2).double()[..., None]  # (N, 3, 1)
    values = torch.arange(256, dtype=torch.float64, device=images.device)
    scale = torch.full_like(low, 255) / (high - low)  # a number divided by a tensor is rounded twice
    table = (values * scale + -low * scale).clamp(0, 255)
    return _look_up(images, torch.where(high > low, table, values).to(torch.uint8))


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
    """Invert what is as bright as the threshold or brighter."""
    below = _per_image(threshold - 1, images).short()
    bright = (below - images.short()) >> 15  # all bits set, or none: ten times as fast as a comparison
    return images ^ bright.to(torch.uint8)  # 255 - x is x with all its bits turned


def rotate(images: Tensor, degrees: Tensor) -> Tensor:
    """Rotate counter-clockwise about the centre; what comes from outside is black."""
    return _by_strength(images, degrees, _rotate)


def translate_x(images: Tensor, pixels: Tensor) -> Tensor:
    """Take each pixel from `pixels` to its right."""
    return _by_strength(images, pixels, lambda alike, shift: _translate(alike, shift, dim=3))


def translate_y(images: Tensor, pixels: Tensor) -> Tensor:
    """Take each pixel from `pixels` below it."""
    return _by_strength(images, pixels, lambda alike, shift: _translate(alike, shift, dim=2))


def shear_x(images: Tensor, slopes: Tensor) -> Tensor:
    """Move each row sideways, by the slope times its place in the image."""
    height, width = images.shape[2:]
    shift = slopes[:, None] * (torch.arange(height, dtype=torch.float64) + 0.5)  # (N, H)
    part = (shift - shift.floor()).float()[:, None, :, None].to(images.device)
    whole = shift.floor().long()[:, None, :, None].to(images.device)
    source = whole + torch.arange(width + 1, device=images.device)  # (N, 1, H, W + 1)
    taken = images.gather(3, source.clamp(0, width - 1).expand(-1, images.shape[1], -1, -1)).float()
    left, right = taken[..., :-1], taken[..., 1:]
    blended = _cut_off((right - left).mul_(part).add_(left))
    nearest = source[..., :-1] + (part >= 0.5)
    inside = (nearest >= 0) & (nearest < width)
    return blended.mul_(inside.view(torch.uint8))


def shear_y(images: Tensor, slopes: Tensor) -> Tensor:
    """Move each column up or down, by the slope times its place in the image."""
    return shear_x(images.transpose(2, 3).contiguous(), slopes).transpose(2, 3).contiguous()


FUNCTIONS: dict[str, Operation] = {
    "autocontrast": autocontrast,
    "equalize": equalize,
    "posterize": posterize,
    "rotate": rotate,
    "solarize": solarize,
    "shear_x": shear_x,
    "shear_y": shear_y,
    "translate_x": translate_x,
    "translate_y": translate_y,
}


def _per_image(values: Tensor, images: Tensor) -> Tensor:
    return values.view(-1, 1, 1, 1).to(images.device)


def _cut_off(pixels: Tensor) -> Tensor:
    """Floats to uint8, rounded down as Pillow does here; by way of 16 bits it is four times as fast."""
    return pixels.short().to(torch.uint8)


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


def _by_strength(images: Tensor, strengths: Tensor, function: Callable[[Tensor, int], Tensor]) -> Tensor:
    """Strengths are whole numbers and few: images that share one also share a map of pixels."""
    values, group = strengths.unique(return_inverse=True)
    order = group.argsort(stable=True)
    parts = images.index_select(0, order.to(images.device)).split(group.bincount().tolist())
    done = torch.cat([function(part, int(value)) for part, value in zip(parts, values.tolist(), strict=True)])
    return done.index_select(0, order.argsort().to(images.device))


def _translate(images: Tensor, shift: int, dim: int) -> Tensor:
    length = images.shape[dim]
    if abs(shift) >= length:
        return torch.zeros_like(images)
    kept = images.narrow(dim, max(shift, 0), length - abs(shift))
    border = (max(-shift, 0), max(shift, 0))
    return F.pad(kept, border if dim == 3 else (0, 0, *border))


def _rotate(images: Tensor, degrees: int) -> Tensor:
    """Four neighbours of each pixel, blended as Pillow does."""
    if degrees == 0:
        return images
    height, width = images.shape[2:]
    x = torch.arange(width, dtype=torch.float64) + 0.5 - width / 2
    y = (torch.arange(height, dtype=torch.float64) + 0.5 - height / 2)[:, None]
    cosine, sine = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    from_x, from_y = cosine * x - sine * y + width / 2, sine * x + cosine * y + height / 2
    inside = (from_x >= 0) & (from_x < width) & (from_y >= 0) & (from_y < height)
    first_x, first_y = (from_x - 0.5).floor(), (from_y - 0.5).floor()
    part_x, part_y = (
        part.float().flatten().to(images.device) for part in (from_x - 0.5 - first_x, from_y - 0.5 - first_y)
    )
    pixels = images.flatten(2).float()  # (N, 3, H * W)

    def take(right: int, down: int) -> Tensor:
        column, row = (first_x + right).clamp(0, width - 1), (first_y + down).clamp(0, height - 1)
        index = (row * width + column).long().flatten().to(images.device)
        return pixels.gather(2, index.expand_as(pixels))

    def blend(first: Tensor, second: Tensor, part: Tensor) -> Tensor:
        return second.sub_(first).mul_(part).add_(first)

    upper, lower = (blend(take(0, down), take(1, down), part_x) for down in (0, 1))
    rotated = _cut_off(blend(upper, lower, part_y)).view_as(images)
    return rotated.mul_(inside.to(images.device).view(torch.uint8))
