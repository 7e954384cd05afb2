"""The operations of AugMix on many images at once, equal to Pillow's on the 8-bit grid.

Images are uint8 (N, 3, H, W) and are not changed. Operations take a strength for each (N,), on the CPU. Those that move
pixels interpolate, and are black outside the image: on a CPU, each has a function of its own, which is fast, and on
other devices all of them are one, which saves launches.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from tta_panda.transfers import to_device

Operation = Callable[[Tensor, Tensor], Tensor]
"""(images, strengths) -> images."""

_ROUNDING = 1e-6  # what sums of weighted pixels may lack, of integers that rounding down would then miss


def autocontrast(images: Tensor, _: Tensor) -> Tensor:
    """Stretch each channel to the full range; a channel with a single value is not changed."""
    pixels = images.flatten(2)
    low, high = pixels.amin(dim=2, keepdim=True).double(), pixels.amax(dim=2, keepdim=True).double()  # (N, 3, 1)
    values = torch.arange(256, dtype=torch.float64, device=images.device)
    scale = values[255] / (high - low).clamp_min(1)  # 255 / ... would multiply by the rounded reciprocal
    stretched = (values * scale + -low * scale).clamp(0, 255)
    return _look_up(images, torch.where(high > low, stretched, values))


def equalize(images: Tensor, _: Tensor) -> Tensor:
    """Equalise the histogram of each channel with Pillow's integer arithmetic; too few pixels are not changed."""
    counts, values = _histograms(images), torch.arange(256, device=images.device)
    brightest = torch.where(counts > 0, values, 0).amax(dim=2, keepdim=True)
    step = (counts.sum(dim=2, keepdim=True) - counts.gather(2, brightest)) // 255
    before = counts.cumsum(dim=2) - counts
    flat = ((step // 2 + before) // step.clamp_min(1)).clamp(0, 255)
    return _look_up(images, torch.where(step > 0, flat, values))


def posterize(images: Tensor, bits: Tensor) -> Tensor:
    """Keep the leading bits."""
    return images & _per_image((256 - 2 ** (8 - bits)).to(torch.uint8), images)


def solarize(images: Tensor, threshold: Tensor) -> Tensor:
    """Invert values at or above the threshold."""
    below = _per_image((threshold - 1).short(), images)
    bright = (below - images.short()) >> 15  # all bits set, or none: ten times as fast as a comparison
    return images ^ bright.to(torch.uint8)  # 255 - x is x with all bits flipped


def transform(images: Tensor, matrices: Tensor) -> Tensor:
    """Copy each pixel from where an affine map (N, 2, 3) takes it, in coordinates from -1 to 1."""
    grid = F.affine_grid(to_device(matrices, images.device), list(images.shape), align_corners=False)  # (N, H, W, 2)
    sampled = F.grid_sample(images.double(), grid, padding_mode="border", align_corners=False)
    inside = (grid.abs() < 1).all(dim=3)[:, None]
    return sampled.add_(_ROUNDING).mul_(inside).to(torch.uint8)


def affine_map(name: str, strength: float, height: int, width: int) -> list[list[float]]:
    """Return the affine map (2, 3) of an operation that moves pixels, for `transform`."""
    cosine, sine = math.cos(math.radians(strength)), math.sin(math.radians(strength))
    across, down = strength * height / width, strength * width / height
    maps: dict[str, list[list[float]]] = {
        "rotate": [[cosine, -sine * height / width, 0], [sine * width / height, cosine, 0]],
        "shear_x": [[1, across, across], [0, 1, 0]],
        "shear_y": [[1, 0, 0], [down, 1, down]],
        "translate_x": [[1, 0, 2 * strength / width], [0, 1, 0]],
        "translate_y": [[1, 0, 0], [0, 1, 2 * strength / height]],
    }
    return maps[name]


def shear_x(images: Tensor, slopes: Tensor) -> Tensor:
    """Move each row sideways, by the slope times its distance from the top."""
    height, width = images.shape[2:]
    shift = slopes[:, None] * (torch.arange(height, dtype=torch.float64) + 0.5)  # (N, H)
    whole = shift.floor()
    part = (shift - whole).float()[:, None, :, None]
    whole = whole.long()[:, None, :, None]
    source = whole + torch.arange(width + 1)  # (N, 1, H, W + 1)
    taken = images.gather(3, source.clamp_(0, width - 1).expand(-1, images.shape[1], -1, -1)).float()
    sheared = _truncate(torch.lerp(taken[..., :-1], taken[..., 1:], part))
    # Only columns near the sides can have sources outside the image.
    reach = min(width, math.ceil(float(shift.abs().max())))
    for columns in (slice(0, reach), slice(width - reach, width)):
        nearest = whole + (part >= 0.5) + torch.arange(width)[columns]
        sheared[..., columns] *= ((nearest >= 0) & (nearest < width)).view(torch.uint8)
    return sheared


def shear_y(images: Tensor, slopes: Tensor) -> Tensor:
    """Move each column up or down, by the slope times its distance from the left."""
    return shear_x(images.transpose(2, 3).contiguous(), slopes).transpose(2, 3).contiguous()


def translate(images: Tensor, shifts: Tensor, dim: int) -> Tensor:
    """Copy each pixel from `shift` pixels to its right (`dim` 2) or below it (`dim` 1)."""
    moved = torch.zeros_like(images)
    for result, image, shift in zip(moved, images, shifts.int().tolist(), strict=True):
        kept = image.shape[dim] - abs(shift)
        if kept > 0:
            result.narrow(dim, max(-shift, 0), kept).copy_(image.narrow(dim, max(shift, 0), kept))
    return moved


def rotate(images: Tensor, degrees: Tensor) -> Tensor:
    """Rotate counter-clockwise about the centre."""
    return torch.stack([_rotated(*each) for each in zip(images, degrees.int().tolist(), strict=True)])


def _rotated(image: Tensor, degrees: int) -> Tensor:
    if degrees == 0:
        return image
    corners, part_x, part_y, inside = _rotation(degrees, *image.shape[1:])
    pixels = image.flatten(1).float()  # (3, H * W)
    upper_left, upper_right, lower_left, lower_right = (pixels.gather(1, each.expand_as(pixels)) for each in corners)
    upper = torch.lerp(upper_left, upper_right, part_x)
    lower = torch.lerp(lower_left, lower_right, part_x)
    return _truncate(torch.lerp(upper, lower, part_y)).mul_(inside).view_as(image)


def _truncate(pixels: Tensor) -> Tensor:
    """Convert floats to uint8, rounding down as Pillow does here; converting via int16 is four times as fast."""
    return pixels.short().to(torch.uint8)


@functools.lru_cache(maxsize=8)  # at the strengths of AugMix there are four angles
def _rotation(degrees: int, height: int, width: int) -> tuple[list[Tensor], Tensor, Tensor, Tensor]:
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
    corners = [(row * width + column).long() for row in rows for column in columns]
    part_x, part_y = (from_x - 0.5 - left).float(), (from_y - 0.5 - top).float()
    return corners, part_x, part_y, inside.byte()


def _per_image(values: Tensor, images: Tensor) -> Tensor:
    return to_device(values, images.device).view(-1, 1, 1, 1)


def _histograms(images: Tensor) -> Tensor:
    """Return the histogram of each channel (N, 3, 256)."""
    pixels = images.flatten(2)
    if pixels.device.type == "cpu":
        counts = [torch.bincount(channel, minlength=256) for channel in pixels.flatten(0, 1)]
        return torch.stack(counts).view(*pixels.shape[:2], 256)
    zeros = torch.zeros((*pixels.shape[:2], 256), dtype=torch.long, device=pixels.device)
    return zeros.scatter_add_(2, pixels.long(), zeros.new_ones(1, 1, 1).expand_as(pixels))


def _look_up(images: Tensor, table: Tensor) -> Tensor:
    """Replace each value by the entry in the table (N, 3, 256) of its channel."""
    return table.to(torch.uint8).gather(2, images.flatten(2).long()).view_as(images)


POINTWISE: dict[str, Operation] = {
    "autocontrast": autocontrast,
    "equalize": equalize,
    "posterize": posterize,
    "solarize": solarize,
}
MOVING: dict[str, Operation] = {
    "rotate": rotate,
    "shear_x": shear_x,
    "shear_y": shear_y,
    "translate_x": partial(translate, dim=2),
    "translate_y": partial(translate, dim=1),
}
