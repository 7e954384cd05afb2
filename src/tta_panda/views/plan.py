"""Plans of random views: the crop and flip of each, and for AugMix its chains of operations and their weights.

As with negatives, randomness and pixels are separated: `sample_view_plan` needs sizes and a generator but no image,
`apply_view_plan` needs no generator. Plans are on the CPU, so a seed gives the same views on any device.

Crops are taken from images of any size and resized to the size of the views, as in the published code.

Shapes: B images, V views, H W image.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from tta_panda.errors import InvalidInputError, UnknownNameError

Augmentation = Literal["augmix", "crops"]
AUGMENTATIONS: tuple[Augmentation, ...] = get_args(Augmentation)
"""augmix: crop, flip, and three mixed chains of operations (TPT, TPS). crops: crop and flip only (Zero)."""

CHAINS = 3
LONGEST_CHAIN = 3
NO_OPERATION = -1

_SCALE = (0.08, 1.0)  # fraction of the image's area that a crop covers
_RATIO = (3 / 4, 4 / 3)  # aspect ratio of a crop, width / height
_TRIES = 10
_LEVEL = (0.1, 1.0)  # on the published scale from 0 to 10

_STRENGTHS: dict[str, Callable[[Tensor, Tensor, int, int], Tensor]] = {
    "autocontrast": lambda level, sign, height, width: 0 * level,  # has no strength
    "equalize": lambda level, sign, height, width: 0 * level,
    "posterize": lambda level, sign, height, width: 4 - (level * 4 / 10).trunc(),  # bits
    "rotate": lambda level, sign, height, width: sign * (level * 30 / 10).trunc(),  # degrees
    "solarize": lambda level, sign, height, width: 256 - (level * 256 / 10).trunc(),  # threshold
    "shear_x": lambda level, sign, height, width: sign * level * 0.3 / 10,
    "shear_y": lambda level, sign, height, width: sign * level * 0.3 / 10,
    "translate_x": lambda level, sign, height, width: sign * (level * (width / 3) / 10).trunc(),  # pixels
    "translate_y": lambda level, sign, height, width: sign * (level * (height / 3) / 10).trunc(),
}

OPERATIONS: tuple[str, ...] = tuple(_STRENGTHS)
"""The operations of AugMix that are not similar to corruptions of ImageNet-C; a plan contains their indices."""


@dataclass(frozen=True)
class ViewPlan:
    """All random parameters of `count` views of each image. `plan[a:b]` is the plan for `images[a:b]`."""

    augmentation: str
    height: int  # of the images
    width: int
    sides: tuple[int, int]  # height and width of the views
    boxes: Tensor  # (B, V, 4) top, left, height and width of the crop, in pixels of the image
    flips: Tensor  # (B, V) bool
    operations: Tensor  # (B, V, chain, step) index into OPERATIONS, or NO_OPERATION; no chains for crops
    strengths: Tensor  # (B, V, chain, step) parameter of the operation: degrees, pixels, bits, ...
    weights: Tensor  # (B, V, 1 + chains) of the crop and of each chain, with sum 1

    @property
    def count(self) -> int:
        """Views per image, not counting the image itself."""
        return self.boxes.shape[1]

    def __len__(self) -> int:
        """Number of images."""
        return self.boxes.shape[0]

    def __getitem__(self, images: slice) -> ViewPlan:
        if not isinstance(images, slice):
            raise InvalidInputError(f"A plan is sliced over its images, as in plan[0:8]; got {images!r}.")
        return self.part(images, slice(None))

    def part(self, images: slice, views: slice) -> ViewPlan:
        """Return the plan for some of the views of some of the images."""
        tensors: dict[str, Any] = {
            name: value[images, views] for name, value in vars(self).items() if isinstance(value, Tensor)
        }
        return replace(self, **tensors)


def sample_view_plan(
    augmentation: str,
    shape: Sequence[int],
    count: int,
    generator: torch.Generator,
    sides: tuple[int, int] | None = None,
) -> ViewPlan:
    """Draw a plan for `count` views of each image of a batch of shape (B, 3, H, W).

    Args:
        augmentation: one of `AUGMENTATIONS`.
        shape: shape of the images.
        count: views per image, not counting the image itself.
        generator: a generator on the CPU, so that a seed gives the same views on any device.
        sides: height and width of the views; by default those of the images.
    """
    batch, _, height, width = shape
    sides = sides or (height, width)
    if augmentation not in AUGMENTATIONS:
        raise UnknownNameError("augmentation", augmentation, AUGMENTATIONS)
    if generator.device.type != "cpu":
        raise InvalidInputError(
            f"Plans are drawn on the CPU, so that a seed gives the same views on any device; got a generator on "
            f"{generator.device}. Make one with torch.Generator().manual_seed(0)."
        )
    boxes = _sample_boxes((batch, count), height, width, generator)
    flips = _uniform((batch, count), generator) < 0.5
    chains = CHAINS if augmentation == "augmix" else 0
    operations, strengths = _sample_chains((batch, count, chains, LONGEST_CHAIN), *sides, generator)
    weights = _sample_weights((batch, count), chains, generator)
    return ViewPlan(augmentation, height, width, sides, boxes, flips, operations, strengths, weights)


def _uniform(shape: tuple[int, ...], generator: torch.Generator, low: float = 0.0, high: float = 1.0) -> Tensor:
    return low + (high - low) * torch.rand(shape, generator=generator, dtype=torch.float64)


def _sample_boxes(shape: tuple[int, int], height: int, width: int, generator: torch.Generator) -> Tensor:
    """Draw crops like torchvision's RandomResizedCrop: the first of ten tries that fits, else a central crop."""
    area = height * width * _uniform((*shape, _TRIES), generator, *_SCALE)
    ratio = _uniform((*shape, _TRIES), generator, math.log(_RATIO[0]), math.log(_RATIO[1])).exp()
    widths, heights = (area * ratio).sqrt().round(), (area / ratio).sqrt().round()
    fits = (widths > 0) & (widths <= width) & (heights > 0) & (heights <= height)
    first = fits.to(torch.uint8).argmax(dim=2, keepdim=True)
    found = fits.any(dim=2)
    # The largest central crop whose ratio is allowed.
    central = torch.tensor([min(height, round(width / _RATIO[0])), min(width, round(height * _RATIO[1]))]).double()
    h = heights.gather(2, first)[..., 0].where(found, central[0])
    w = widths.gather(2, first)[..., 0].where(found, central[1])
    top = (_uniform(shape, generator) * (height - h + 1)).floor().where(found, ((height - h) / 2).floor())
    left = (_uniform(shape, generator) * (width - w + 1)).floor().where(found, ((width - w) / 2).floor())
    return torch.stack([top, left, h, w], dim=2).long()


def _sample_chains(
    shape: tuple[int, int, int, int], height: int, width: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    chosen = torch.randint(len(OPERATIONS), shape, generator=generator)
    lengths = torch.randint(1, shape[3] + 1, shape[:3], generator=generator)
    level = _uniform(shape, generator, *_LEVEL)
    sign = 1 - 2 * (_uniform(shape, generator) > 0.5).double()
    strengths = torch.zeros(shape, dtype=torch.float64)
    for index, strength in enumerate(_STRENGTHS.values()):
        strengths = torch.where(chosen == index, strength(level, sign, height, width), strengths)
    beyond = torch.arange(shape[3]) >= lengths[..., None]
    return chosen.masked_fill(beyond, NO_OPERATION), strengths.masked_fill(beyond, 0.0)


def _sample_weights(shape: tuple[int, int], chains: int, generator: torch.Generator) -> Tensor:
    """Draw the weight `m` of the crop, and weights of the chains with sum `1 - m`."""
    if not chains:
        return torch.ones((*shape, 1), dtype=torch.float64)
    # torch.distributions supports no generator, but Beta(1, 1) is uniform, and exponentials divided by their sum are
    # Dirichlet(1, 1, 1). They are computed from uniform numbers, because exponential_ depends on the version of torch.
    kept = _uniform((*shape, 1), generator)
    shares = -torch.log1p(-_uniform((*shape, chains), generator))
    return torch.cat([kept, (1 - kept) * shares / shares.sum(dim=2, keepdim=True)], dim=2)
