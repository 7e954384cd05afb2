"""Panda: subtract the mean embedding of a batch's negatives from every image embedding of the batch."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple, Self

import pydantic
import torch
from torch import Tensor

from tta_panda.options import Count, NonNegativeInt
from tta_panda.panda.beta import AutoBeta
from tta_panda.panda.debias import Beta, Correction, Debias, Debiaser, Evidence, HalfLife
from tta_panda.panda.negatives import SamplerName, apply_plan, sample_plan
from tta_panda.panda.statistics import centred, decay, largest
from tta_panda.transfers import Index, select


@dataclass(frozen=True, repr=False)
class Panda(Debias):
    """Subtract the offset, the mean embedding of negatives. These settings have no state, so methods can share them.

    Args:
        beta: factor of the offset. With 0, no negatives are drawn, and results are exactly those of the plain method.
            `"auto"` chooses it from the stream without labels; it cannot prevent losses of accuracy on streams of a
            single class, and gains little with two classes.
        patch_size: side of the patches in pixels of the model's input; None for the model's default.
        ratio: negatives per image, M = ceil(ratio * B). The paper uses one for ten images.
        sampler: `"pool"` (the paper), `"same_cell"` (its authors' code) or `"within_image"` (ablation); None for the
            default of the method's protocol.
        average: False assigns one of the negatives to each image instead of using their mean (ablation).
        detach_offset: True prevents gradients from flowing through the negatives.
        pool: batches with fewer images than this also use the patches of the latest images, up to this many in total,
            and the negatives of earlier batches. Larger batches only use their own, as in the paper; so do all batches
            with 0, and with samplers other than `"pool"`.
        negatives_half_life: after this many images, an earlier negative counts half as much in small batches.
        refresh_every: draw negatives only once in this many batches, and use the last ones in between; it has no effect
            if each image has its own negative. None draws for every batch, but in batches of fewer than `1 / ratio`
            images only one for every `1 / ratio` images.
    """

    beta: Beta = "auto"
    patch_size: Count | None = None
    ratio: Annotated[float, pydantic.Field(gt=0, le=1)] = 0.1
    sampler: SamplerName | None = None
    average: bool = True
    detach_offset: bool = False
    pool: NonNegativeInt = 32
    negatives_half_life: HalfLife = 50.0
    refresh_every: Count | None = None

    @property
    def name(self) -> str:
        return "panda"

    def with_default_sampler(self, sampler: SamplerName) -> Self:
        return dataclasses.replace(self, sampler=self.sampler or sampler)

    def start(self, patch_size: int, seed: int) -> PandaDebiaser:
        return PandaDebiaser(self, patch_size, seed)


class Negatives(NamedTuple):
    """The negatives of one batch, and the contribution of earlier ones to their mean."""

    images: Tensor  # (M, C, H, W)
    assignment: Tensor | None = None  # (B,) index of each image's negative; None: their mean is used for all
    earlier: Tensor | None = None  # (D,), weighted sum of the embeddings of earlier negatives
    weight: float = 0.0  # sum of these weights

    def select(self, index: Index) -> Negatives:
        """Select the negatives that some of the images need."""
        if self.assignment is None:
            return self
        used, assignment = select(self.assignment, index).unique(return_inverse=True)
        return self._replace(images=select(self.images, used), assignment=assignment)


class PandaDebiaser(Debiaser):
    """The state of `Panda`: the negatives of one stream, their offset, and how much of it is subtracted.

    A batch of at least `pool` images has its own negatives, as in the paper. For a smaller one, negatives are made of
    patches of the latest images of the stream, one for every `1 / ratio` images, and averaged with earlier negatives.

    If images consist of a single patch, a single image has no negative other than itself, nor has any image with the
    sampler `"within_image"`. Then none are drawn, and without earlier ones the offset is zero.
    """

    def __init__(self, panda: Panda, patch_size: int, seed: int):
        super().__init__()
        self.settings: Panda = panda
        self.sampler = panda.sampler or "pool"
        self.patch_size = panda.patch_size or patch_size
        self.seed = seed
        self.auto = self.add_state("auto", AutoBeta())
        self.generator = self.add_state("generator", torch.Generator().manual_seed(seed))
        # The latest images (N, C, H, W), if batches are small.
        self.recent: Tensor | None = self.add_state("recent", None)
        # Images and batches since negatives were last drawn, and whether these have not been embedded yet.
        self.waiting_images = self.add_state("waiting_images", 0)
        self.waiting_batches = self.add_state("waiting_batches", 0)
        self.is_new = self.add_state("is_new", False)
        # The weighted sum (D,) of the embeddings of all negatives so far, and the sum of these weights.
        self.total: Tensor | None = self.add_state("total", None)
        self.weight = self.add_state("weight", 0.0)

    @property
    def source(self) -> PandaDebiaser:
        return self

    @functools.cached_property
    def key(self) -> tuple[object, ...]:
        """Debiasers with equal keys draw the same negatives, even if their betas differ."""
        return dataclasses.replace(self.settings, beta=0.0, detach_offset=False), self.patch_size, self.seed

    @property
    def fixed(self) -> Correction | None:
        beta = self.settings.beta
        return None if beta == "auto" else Correction(beta or None)

    @property
    def beta(self) -> float | Tensor | None:
        beta = self.settings.beta
        return self.auto.beta if beta == "auto" else beta

    def set_beta(self, beta: Beta) -> None:
        self.settings = dataclasses.replace(self.settings, beta=beta)
        self.reset_state("auto")

    def decide(self, evidence: Evidence) -> Correction:
        return self.fixed or Correction(self.auto.choose(evidence))

    def explain(self, class_names: Sequence[str], class_embeddings: Tensor) -> str:
        strength = self.auto.explain() if self.settings.beta == "auto" else f"β = {self.settings.beta:g}, as set."
        return self.resembled(class_names, class_embeddings) + strength

    def resembled(self, class_names: Sequence[str], class_embeddings: Tensor) -> str:
        """Describe the classes that the negatives look like, in a sentence; empty if they are not known yet."""
        if self.total is not None:
            similarities = class_embeddings @ (self.total / self.weight).to(class_embeddings)
        elif self.auto.beta is not None:  # each image has its own negative, or methods share the encoded negatives
            similarities = self.auto.offset.value
        else:
            return ""
        return f"The negatives look like {largest(centred(similarities), class_names)}. "

    def draw(self, images: Tensor) -> Negatives:
        """Draw negatives for images (B, C, H, W)."""
        self.is_new = True
        is_small = self._averages and self.sampler == "pool" and len(images) < self.settings.pool
        self.waiting_images += len(images)
        self.waiting_batches += 1
        self.recent = self._join_recent(images) if is_small else None
        if self._averages and self.weight and not self._is_due(is_small):
            return Negatives(images[:0], None, self.total, self.weight)
        kept = decay(self.waiting_images, self.settings.negatives_half_life) if is_small else 0.0
        self.waiting_images = self.waiting_batches = 0
        drawn = self._draw_from(images if self.recent is None else self.recent, len(images))
        if not kept or self.total is None:
            return drawn
        return drawn._replace(earlier=kept * self.total, weight=kept * self.weight)

    @property
    def _averages(self) -> bool:
        """Whether all images share one offset, a mean to which earlier batches can contribute."""
        return self.settings.average and self.sampler != "within_image"

    def _is_due(self, is_small: bool) -> bool:
        if self.settings.refresh_every is not None:
            return self.waiting_batches >= self.settings.refresh_every
        return not is_small or self.waiting_images * self.settings.ratio > 1 - 1e-9

    def _join_recent(self, images: Tensor) -> Tensor:
        earlier = images[:0] if self.recent is None else self.recent.to(images.device)
        return torch.cat([earlier, images])[-self.settings.pool :]

    def _draw_from(self, pool: Tensor, batch: int) -> Negatives:
        count = math.ceil(batch * self.settings.ratio - 1e-9)
        plan = sample_plan(self.sampler, pool, self.patch_size, count, self.generator)
        if plan.grid.cells == 1 and (len(pool) == 1 or self.sampler == "within_image"):
            return Negatives(pool[:0])
        negatives = apply_plan(pool, plan)
        if self.sampler == "within_image":
            return Negatives(negatives, torch.arange(batch))
        if self.settings.average:
            return Negatives(negatives)
        return Negatives(negatives, torch.randint(len(negatives), (batch,), generator=self.generator))

    def offset(self, embedded: Tensor, negatives: Negatives) -> Tensor:
        """Return the offset (1, D) or (B, D), from the embeddings (M, D) of the negatives."""
        if self.settings.detach_offset:
            embedded = embedded.detach()
        if negatives.assignment is not None:
            return select(embedded, negatives.assignment)
        total, weight = embedded.sum(dim=0), len(embedded) + negatives.weight
        if negatives.earlier is not None:
            total = total + negatives.earlier.to(embedded.device)
        if self.is_new:  # later passes over the same batch, with other weights, are not added to the mean
            self.total, self.weight, self.is_new = total.detach(), weight, False
        return total[None] / max(weight, 1e-12)
