"""What is drawn for a view: its crop, its flip, and for AugMix the chains of operations and how they are mixed.

As with negatives, randomness and pixels are kept apart: `sample_view_plan` needs sizes and a generator but no image,
`apply_view_plan` needs no generator. Plans live on the CPU, so a seed means the same views on any device.

Shapes: B images, V views, H W image.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor

from tta_panda.errors import InvalidInputError, UnknownNameError

ViewKind = Literal["augmix", "crops"]
VIEW_KINDS: tuple[ViewKind, ...] = get_args(ViewKind)
"""augmix: crop, flip, and three mixed chains of operations (TPT, TPS). crops: crop and flip alone (Zero)."""

CHAINS = 3
LONGEST_CHAIN = 3
NO_OPERATION = -1

_SCALE = (0.08, 1.0)  # share of the image's area that a crop covers
_RATIO = (3 / 4, 4 / 3)  # of a crop's width to its height
_TRIES = 10
_LEVEL = (0.1, 1.0)  # of the ten that the published code calls the maximum


def _unused(level: Tensor, sign: Tensor, height: int, width: int) -> Tensor:
    return torch.zeros_like(level)


_Strength = Callable[[Tensor, Tensor, int, int], Tensor]

_STRENGTHS: dict[str, _Strength] = {
    "autocontrast": _unused,
    "equalize": _unused,
    "posterize": lambda level, sign, height, width: 4 - (level * 4 / 10).trunc(),  # bits
    "rotate": lambda level, sign, height, width: sign * (level * 30 / 10).trunc(),  # degrees
    "solarize": lambda level, sign, height, width: 256 - (level * 256 / 10).trunc(),  # threshold
    "shear_x": lambda level, sign, height, width: sign * level * 0.3 / 10,
    "shear_y": lambda level, sign, height, width: sign * level * 0.3 / 10,
    "translate_x": lambda level, sign, height, width: sign * (level * (width / 3) / 10).trunc(),  # pixels
    "translate_y": lambda level, sign, height, width: sign * (level * (height / 3) / 10).trunc(),
}

OPERATIONS: tuple[str, ...] = tuple(_STRENGTHS)
"""The operations of AugMix that no corruption of ImageNet-C resembles; a plan names them by their index."""


@dataclass(frozen=True)
class ViewPlan:
    """Everything random about `count` views of each image. `plan[a:b]` is the plan of the images a to b."""

    kind: str
    height: int
    width: int
    boxes: Tensor  # (B, V, 4) top, left, height and width of the crop, in pixels
    flips: Tensor  # (B, V) bool
    operations: Tensor  # (B, V, chain, step) index into OPERATIONS, or NO_OPERATION; no chains for crops
    strengths: Tensor  # (B, V, chain, step) what the operation is given: degrees, pixels, bits, ...
    weights: Tensor  # (B, V, 1 + chains) of the crop and of each chain; they sum to one

    @property
    def images(self) -> int:
        return self.boxes.shape[0]

    @property
    def count(self) -> int:
        """Views per image, the plain one not among them."""
        return self.boxes.shape[1]

    def __len__(self) -> int:
        return self.images

    def __getitem__(self, images: slice) -> ViewPlan:
        if not isinstance(images, slice):
            raise InvalidInputError(f"A plan is sliced over its images, as in plan[0:8]; got {images!r}.")
        return replace(
            self,
            boxes=self.boxes[images],
            flips=self.flips[images],
            operations=self.operations[images],
            strengths=self.strengths[images],
            weights=self.weights[images],
        )


def sample_view_plan(
    kind: str, batch: int, count: int, height: int, width: int, generator: torch.Generator
) -> ViewPlan:
    """Draw `count` views of each of `batch` images of `height` x `width` pixels."""
    if kind not in VIEW_KINDS:
        raise UnknownNameError("kind of views", kind, VIEW_KINDS)
    if batch < 1 or height < 1 or width < 1:
        raise InvalidInputError(f"Views need images with pixels, got {batch} image(s) of {height}x{width} px.")
    if count < 0:
        raise InvalidInputError(f"The count of views must not be negative, got {count}.")
    if generator.device.type != "cpu":
        raise InvalidInputError(
            f"Plans are drawn on the CPU, so that a seed means the same on any device; got a generator of "
            f"{generator.device}. Make one by torch.Generator().manual_seed(0)."
        )
    boxes = _sample_boxes((batch, count), height, width, generator)
    flips = _uniform((batch, count), generator) < 0.5
    chains = CHAINS if kind == "augmix" else 0
    operations, strengths = _sample_chains((batch, count, chains, LONGEST_CHAIN), height, width, generator)
    weights = _sample_weights((batch, count), chains, generator)
    return ViewPlan(kind, height, width, boxes, flips, operations, strengths, weights)


def _uniform(shape: tuple[int, ...], generator: torch.Generator, low: float = 0.0, high: float = 1.0) -> Tensor:
    return low + (high - low) * torch.rand(shape, generator=generator, dtype=torch.float64)


def _sample_boxes(shape: tuple[int, int], height: int, width: int, generator: torch.Generator) -> Tensor:
    """Crops as torchvision's RandomResizedCrop draws them: the first of ten tries that fits, else a central one."""
    area = height * width * _uniform((*shape, _TRIES), generator, *_SCALE)
    ratio = _uniform((*shape, _TRIES), generator, math.log(_RATIO[0]), math.log(_RATIO[1])).exp()
    widths, heights = (area * ratio).sqrt().round(), (area / ratio).sqrt().round()
    fits = (widths > 0) & (widths <= width) & (heights > 0) & (heights <= height)
    first = fits.to(torch.uint8).argmax(dim=2, keepdim=True)
    found = fits.any(dim=2)
    central_height, central_width = _central_sides(height, width)
    h = heights.gather(2, first)[..., 0].where(found, torch.tensor(float(central_height), dtype=torch.float64))
    w = widths.gather(2, first)[..., 0].where(found, torch.tensor(float(central_width), dtype=torch.float64))
    top = (_uniform(shape, generator) * (height - h + 1)).floor().where(found, ((height - h) / 2).floor())
    left = (_uniform(shape, generator) * (width - w + 1)).floor().where(found, ((width - w) / 2).floor())
    return torch.stack([top, left, h, w], dim=2).long()


def _central_sides(height: int, width: int) -> tuple[int, int]:
    """The largest central crop whose ratio is allowed."""
    if width / height < _RATIO[0]:
        return round(width / _RATIO[0]), width
    if width / height > _RATIO[1]:
        return height, round(height * _RATIO[1])
    return height, width


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
    """`m` for the crop, and `1 - m` shared out among the chains."""
    if not chains:
        return torch.ones((*shape, 1), dtype=torch.float64)
    # torch.distributions takes no generator, but Beta(1, 1) is uniform, and exponentials divided by their sum are
    # Dirichlet(1, 1, 1).
    kept = _uniform((*shape, 1), generator)
    shares = torch.empty((*shape, chains), dtype=torch.float64).exponential_(generator=generator)
    return torch.cat([kept, (1 - kept) * shares / shares.sum(dim=2, keepdim=True)], dim=2)
