"""Panda: subtract what a batch's negatives look like to the encoder from every image embedding of the batch."""

from __future__ import annotations

import dataclasses
import math
import typing
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tta_panda.checks import check_range, check_type
from tta_panda.errors import InvalidInputError
from tta_panda.panda.beta import Beta, beta_rule
from tta_panda.panda.negatives import SamplerName, apply_plan, sample_plan


@dataclass(frozen=True, repr=False)
class Panda:
    """What to subtract and how much. Stateless: any number of methods can be given the same one.

    Args:
        beta: strength of the offset; `"auto"` chooses it from the stream without labels. With 0 nothing is subtracted:
            no negative is drawn, and results are the plain method's exactly.
        patch_size: side of the patches in pixels of the model's input; None takes the model's own default.
        ratio: negatives per image, M = ceil(ratio * B). The paper uses one for ten.
        sampler: `"pool"` (the paper), `"same_cell"` (its authors' code) or `"within_image"` (ablation); None takes the
            one of the method's protocol.
        average: False gives every image one of the negatives instead of their mean (ablation).
        detach_offset: True keeps the gradient of methods that train the encoder out of the negatives.
    """

    beta: Beta = "auto"
    patch_size: int | None = None
    ratio: float = 0.1
    sampler: SamplerName | None = None
    average: bool = True
    detach_offset: bool = False

    def __post_init__(self) -> None:
        for name, annotation in typing.get_type_hints(Panda).items():
            check_type(name, getattr(self, name), annotation)
        if self.beta != "auto" and not 0 <= self.beta < math.inf:
            raise InvalidInputError(f'beta must be "auto" or a number >= 0, got {self.beta!r}.')
        if not 0 < self.ratio <= 1:
            raise InvalidInputError(f"ratio must be above 0 and at most 1 (negatives per image), got {self.ratio}.")
        if self.patch_size is not None:
            check_range("patch_size", self.patch_size, 1)

    def __repr__(self) -> str:
        """The beta, and whatever else is not a default."""
        fields = {field.name: field.default for field in dataclasses.fields(self)}
        shown = [name for name, default in fields.items() if name == "beta" or getattr(self, name) != default]
        return f"Panda({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"


class Negatives(NamedTuple):
    """The negatives of one batch."""

    images: Tensor  # (M, C, H, W)
    assignment: Tensor | None = None  # (B,) which negative belongs to which image; None: their mean to all

    def select(self, index: Tensor) -> Negatives:
        """What some of the images of the batch need."""
        if self.assignment is None:
            return self
        used, assignment = self.assignment[index.cpu()].unique(return_inverse=True)
        return Negatives(self.images[used.to(self.images.device)], assignment)


class Debiaser:
    """The state of one stream under Panda: the generator of its negatives and what its beta rule has seen.

    A single image of a single patch has no negative but itself, and neither has any such image under `"within_image"`.
    None is drawn then, and the offset is zero.
    """

    def __init__(self, panda: Panda, patch_size: int, seed: int):
        self.panda = panda
        self.sampler = panda.sampler or "pool"
        self.patch_size = panda.patch_size or patch_size
        self.seed = seed
        self.generator = torch.Generator()
        self.rule = beta_rule(panda.beta)
        self.reset()

    @property
    def beta(self) -> float | None:
        """The fixed one, or the one that was chosen last; None before the first choice."""
        return self.rule.beta

    @beta.setter
    def beta(self, beta: Beta) -> None:
        self.panda = dataclasses.replace(self.panda, beta=beta)
        self.rule = beta_rule(beta)

    @property
    def key(self) -> tuple[object, ...]:
        """Debiasers with equal keys draw the same negatives, whatever their betas."""
        return self.sampler, self.panda.ratio, self.panda.average, self.patch_size, self.seed

    def draw(self, images: Tensor) -> Negatives:
        """Negatives of images (B, C, H, W)."""
        batch = images.shape[0]
        count = math.ceil(batch * self.panda.ratio - 1e-9)
        plan = sample_plan(self.sampler, images, self.patch_size, count, self.generator)
        if plan.grid.cells == 1 and (batch == 1 or self.sampler == "within_image"):
            return Negatives(images[:0])
        negatives = apply_plan(images, plan)
        if self.sampler == "within_image":
            return Negatives(negatives, torch.arange(batch))
        if self.panda.average:
            return Negatives(negatives)
        return Negatives(negatives, torch.randint(len(negatives), (batch,), generator=self.generator))

    def offset(self, embedded: Tensor, negatives: Negatives) -> Tensor:
        """What beta scales, (1, D) or (B, D), from the embeddings (M, D) of the negatives."""
        if self.panda.detach_offset:
            embedded = embedded.detach()
        if not len(embedded):
            return embedded.new_zeros(1, embedded.shape[1])
        if negatives.assignment is None:
            return embedded.mean(dim=0, keepdim=True)
        return embedded[negatives.assignment.to(embedded.device)]

    def reset(self) -> None:
        self.generator.manual_seed(self.seed)
        self.rule.reset()

    def state_dict(self) -> dict[str, Any]:
        return {"generator": self.generator.get_state(), "rule": self.rule.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.generator.set_state(state["generator"].cpu())
        self.rule.load_state_dict(state["rule"])
