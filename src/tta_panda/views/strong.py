"""Strong augmentation of whole images, as RoTTA and ROID use it: colours, an affine map, blur, a flip and noise.

plan = sample_strong_plan(images.shape, torch.Generator().manual_seed(0))
augmented = apply_strong_plan(images, plan)      # (B, 3, H, W) -> (B, 3, H, W)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from tta_panda.transfers import to_device

_FACTORS = {"brightness": 0.4, "contrast": 0.3, "saturation": 0.5, "gamma": 0.3, "hue": 0.06}
"""Largest difference of each colour factor from 1, or from 0 for the hue, whose unit is a full turn."""

_MAX_ANGLE = 15.0  # degrees
_MAX_SHIFT = 1 / 8  # of the side
_MAX_ZOOM = 0.1
_MAX_SIGMA = 0.5  # of the blur, in pixels
_BLUR_RADIUS = 2
_NOISE = 0.005
_GREY = (0.2989, 0.587, 0.114)


@dataclass(frozen=True)
class StrongPlan:
    """All random parameters of the augmentation of N images, or of one for a whole batch."""

    order: tuple[str, ...]  # of the changes of colour
    factors: dict[str, Tensor]  # (N, 1, 1, 1) each
    angles: Tensor  # (N,) radians
    shifts: Tensor  # (N, 2) of x and y, in pixels
    zooms: Tensor  # (N,)
    flips: Tensor  # (N,) bool
    sigmas: Tensor | None  # (N,); neither blur nor noise if None
    noise: Tensor | None  # (B, 3, H, W)


def sample_strong_plan(
    shape: Sequence[int], generator: torch.Generator, *, shared: bool = False, degrade: bool = True
) -> StrongPlan:
    """Draw a plan for images of shape (B, 3, H, W).

    Args:
        shape: shape of the images.
        generator: a generator on the CPU.
        shared: draw the parameters once for the whole batch, except for the noise.
        degrade: also blur and add noise.
    """
    count = 1 if shared else shape[0]

    def uniform(*sizes: int) -> Tensor:
        return 2 * torch.rand(count, *sizes, generator=generator, dtype=torch.float32) - 1

    names = tuple(_FACTORS)
    order = tuple(names[index] for index in torch.randperm(len(names), generator=generator).tolist())
    factors = {name: (name != "hue") + reach * uniform(1, 1, 1) for name, reach in _FACTORS.items()}
    sides = torch.tensor([shape[3], shape[2]])
    return StrongPlan(
        order,
        factors,
        math.radians(_MAX_ANGLE) * uniform(),
        (_MAX_SHIFT * sides * uniform(2)).round(),
        1 + _MAX_ZOOM * uniform(),
        uniform() < 0,
        _MAX_SIGMA * uniform().abs().clamp_min(2e-3) if degrade else None,
        _NOISE * torch.randn(tuple(shape), generator=generator, dtype=torch.float32) if degrade else None,
    )


@torch.no_grad()
def apply_strong_plan(images: Tensor, plan: StrongPlan) -> Tensor:
    """Augment images (B, 3, H, W) in [0, 1]. What enters at the sides repeats the border, or mirrors without a blur."""
    device = images.device
    images = images.clamp(0, 1)
    for name in plan.order:
        images = _COLOURS[name](images, to_device(plan.factors[name], device))
    images = _transform(images, plan)
    if plan.sigmas is not None:
        images = _blur(images, plan.sigmas)
    images = images.flip(3).where(to_device(plan.flips, device).view(-1, 1, 1, 1), images)
    return (images if plan.noise is None else images + to_device(plan.noise, device)).clamp(0, 1)


def _grey(images: Tensor) -> Tensor:
    red, green, blue = (weight * images[:, place, None] for place, weight in enumerate(_GREY))
    return red + green + blue


def _blend(images: Tensor, other: Tensor, factor: Tensor) -> Tensor:
    return torch.lerp(other, images, factor).clamp(0, 1)


def _shift_hue(images: Tensor, turn: Tensor) -> Tensor:
    red, green, blue = images.unbind(dim=1)
    value, low = images.amax(dim=1), images.amin(dim=1)
    chroma = value - low
    scale = 1 / chroma.where(chroma > 0, 1.0)
    by_green = (2 + (blue - red) * scale).where(value == green, 4 + (red - green) * scale)
    hue = ((green - blue) * scale).where(value == red, by_green) + 6 * turn[:, 0]  # in sixths of a turn
    steps = torch.stack([hue + 5, hue + 3, hue + 1], dim=1).remainder(6)
    return value[:, None] - chroma[:, None] * torch.minimum(steps, 4 - steps).clamp(0, 1)


_COLOURS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "brightness": lambda images, factor: (images * factor).clamp(0, 1),
    "contrast": lambda images, factor: _blend(images, _grey(images).mean(dim=(2, 3), keepdim=True), factor),
    "saturation": lambda images, factor: _blend(images, _grey(images), factor),
    "gamma": lambda images, power: images.clamp_min(1e-8) ** power,
    "hue": _shift_hue,
}


def _transform(images: Tensor, plan: StrongPlan) -> Tensor:
    """Rotate, zoom and shift about the centre, with a margin for the blur if there is one."""
    height, width = images.shape[2:]
    margin = 0 if plan.sigmas is None else _BLUR_RADIUS
    rows, columns = height // 2, width // 2
    padded = F.pad(images, (columns, columns, rows, rows), mode="reflect" if plan.sigmas is None else "replicate")
    y, x = (torch.arange(-margin, side + margin, dtype=torch.float32) - (side - 1) / 2 for side in (height, width))
    x = x - plan.shifts[:, 0].view(-1, 1, 1)
    y = y[:, None] - plan.shifts[:, 1].view(-1, 1, 1)
    cosine, sine = ((each / plan.zooms).view(-1, 1, 1) for each in (plan.angles.cos(), plan.angles.sin()))
    sides = torch.tensor([padded.shape[3], padded.shape[2]])
    grid = torch.stack([cosine * x + sine * y, cosine * y - sine * x], dim=3) / ((sides - 1) / 2)
    grid = to_device(grid.to(images.dtype), images.device).expand(len(images), -1, -1, -1)
    return F.grid_sample(padded, grid, mode="bilinear", padding_mode="zeros", align_corners=True)


def _blur(images: Tensor, sigmas: Tensor) -> Tensor:
    """Convolve each image with its own Gaussian; the result is smaller by twice the radius."""
    count, channels, height, width = images.shape
    distances = torch.arange(-_BLUR_RADIUS, _BLUR_RADIUS + 1) / sigmas[:, None]
    kernels = (-0.5 * distances.square()).softmax(dim=1).to(images.dtype)
    kernels = to_device(kernels, images.device).expand(count, -1)  # (B, taps)
    kernels = kernels.repeat_interleave(channels, dim=0)[:, None, None]
    planes = F.conv2d(images.view(1, -1, height, width), kernels, groups=len(kernels))
    planes = F.conv2d(planes, kernels.mT, groups=len(kernels))
    return planes.view(count, channels, *planes.shape[2:])
