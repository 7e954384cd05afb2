"""The operations of AugMix on many images at once, equal to Pillow's on the 8-bit grid.

Each takes uint8 images (N, 3, H, W) on any device and one strength per image (N,), on the CPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
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
    index = images.flatten(2).long()
    counts = _histograms(index)
    values = torch.arange(256, device=images.device)
    last = torch.where(counts > 0, values, 0).amax(dim=2, keepdim=True)  # the brightest value there is
    step = (counts.sum(dim=2, keepdim=True) - counts.gather(2, last)) // 255
    before = counts.cumsum(dim=2) - counts
    table = ((step // 2 + before) // step.clamp(min=1)).clamp(max=255)
    table = torch.where(step > 0, table, values).to(torch.uint8)  # too few pixels, or one value: as it is
    return table.gather(2, index).view_as(images)


def posterize(images: Tensor, bits: Tensor) -> Tensor:
    """Keep the leading bits."""
    mask = 256 - 2 ** (8 - bits.long())
    return images & _per_image(mask.to(torch.uint8), images)


def solarize(images: Tensor, threshold: Tensor) -> Tensor:
    """Invert what is as bright as the threshold or brighter."""
    bright = images >= _per_image(threshold.short(), images)
    return images ^ bright.view(torch.uint8).neg()  # 255 - x is x with all bits turned


def rotate(images: Tensor, degrees: Tensor) -> Tensor:
    """Rotate counter-clockwise about the centre; what comes from outside is black."""
    rotated = images.clone()
    for angle, rows in _groups(degrees):
        if angle:
            rows = rows.to(images.device)
            rotated.index_copy_(0, rows, _rotate_alike(images.index_select(0, rows), angle))
    return rotated


def translate_x(images: Tensor, pixels: Tensor) -> Tensor:
    """Take each pixel from `pixels` to its right."""
    return _translate(images, pixels, dim=3)


def translate_y(images: Tensor, pixels: Tensor) -> Tensor:
    """Take each pixel from `pixels` below it."""
    return _translate(images, pixels, dim=2)


def shear_x(images: Tensor, slopes: Tensor) -> Tensor:
    """Move each row sideways, by the slope times its height in the image."""
    height, width = images.shape[2:]
    shift = slopes[:, None] * (torch.arange(height, dtype=torch.float64) + 0.5)  # (N, H)
    whole = shift.floor()
    part = (shift - whole).float()[:, None, :, None].to(images.device)
    target = torch.arange(width + 1, device=images.device)
    source = whole.long()[:, None, :, None].to(images.device) + target  # (N, 1, H, W + 1)
    taken = images.gather(3, source.clamp(0, width - 1).expand(-1, images.shape[1], -1, -1)).float()
    left, right = taken[..., :-1], taken[..., 1:]
    between = (right - left).mul_(part).add_(left).to(torch.uint8)
    centre = target[:-1] + 0.5 + shift[:, None, :, None].to(images.device)
    return between.mul_((centre >= 0) & (centre < width))


def shear_y(images: Tensor, slopes: Tensor) -> Tensor:
    """Move each column up or down, by the slope times its place in the row."""
    return shear_x(images.transpose(2, 3).contiguous(), slopes).transpose(2, 3)


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


def _look_up(images: Tensor, table: Tensor) -> Tensor:
    """Replace values by a table (N, 3, 256)."""
    return table.gather(2, images.flatten(2).long()).view_as(images)


def _histograms(index: Tensor) -> Tensor:
    """How often each value occurs in (N, 3, pixels): (N, 3, 256)."""
    counts = torch.zeros((*index.shape[:2], 256), dtype=torch.long, device=index.device)
    return counts.scatter_add_(2, index, counts.new_ones(1).expand_as(index))


def _groups(strengths: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Whole-numbered strengths, and the images that share each: they also share one map of pixels."""
    for strength in strengths.unique().tolist():
        yield int(strength), (strengths == strength).nonzero().flatten()


def _translate(images: Tensor, pixels: Tensor, dim: int) -> Tensor:
    moved = torch.zeros_like(images)
    length = images.shape[dim]
    for shift, rows in _groups(pixels):
        if abs(shift) < length:
            source = images.narrow(dim, max(shift, 0), length - abs(shift))
            target = moved.narrow(dim, max(-shift, 0), length - abs(shift))
            rows = rows.to(images.device)
            target.index_copy_(0, rows, source.index_select(0, rows))
    return moved


def _rotate_alike(images: Tensor, angle: int) -> Tensor:
    """Rotate all images by one angle: four neighbours of each pixel, blended as Pillow does, and cut off, not rounded."""
    height, width = images.shape[2:]
    x = torch.arange(width, dtype=torch.float64) + 0.5 - width / 2
    y = (torch.arange(height, dtype=torch.float64) + 0.5 - height / 2)[:, None]
    cosine, sine = math.cos(math.radians(angle)), math.sin(math.radians(angle))
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
    rotated = blend(upper, lower, part_y).to(torch.uint8).view_as(images)
    return rotated.mul_(inside.to(images.device))
