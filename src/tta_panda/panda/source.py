"""Where Panda's offset comes from: negatives drawn batch by batch, and their mean embedding."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from tta_panda.panda.negatives import apply_plan, sample_plan
from tta_panda.panda.running import Running, decay

if TYPE_CHECKING:
    from tta_panda.panda.offset import Panda


class Negatives(NamedTuple):
    """The negatives of one batch, and what earlier ones add to their mean."""

    images: Tensor  # (M, C, H, W)
    assignment: Tensor | None = None  # (B,) which negative belongs to which image; None: their mean to all
    earlier: Tensor | float = 0.0  # (D,), weighted sum of the embeddings of earlier negatives
    weight: float = 0.0  # sum of these weights

    def select(self, index: Tensor) -> Negatives:
        """What some of the images of the batch need."""
        if self.assignment is None:
            return self
        used, assignment = self.assignment[index.cpu()].unique(return_inverse=True)
        return self._replace(images=self.images[used.to(self.images.device)], assignment=assignment)


class OffsetSource(Running):
    """The negatives of one stream, and the offset that they give.

    A batch of at least `panda.pool` images has its own negatives, as in the paper. A smaller one is joined by the
    latest images of the stream: negatives are cut from all of them, one for every `1 / ratio` images, and averaged
    with the earlier ones.

    A single image of a single patch has no negative but itself, and neither has any such image under `"within_image"`.
    None is drawn then, and without earlier ones the offset is zero.
    """

    def __init__(self, panda: Panda, patch_size: int, seed: int):
        self.panda = panda
        self.sampler = panda.sampler or "pool"
        self.patch_size = panda.patch_size or patch_size
        self.seed = seed
        super().__init__()

    def reset(self) -> None:
        self.generator = torch.Generator().manual_seed(self.seed)
        self.recent: Tensor | None = None  # (N, C, H, W), the latest images, while batches are small
        self.waiting_images = self.waiting_batches = 0  # since negatives were last drawn
        self.is_new = False  # whether the latest negatives have not been embedded yet
        self.total: Tensor | float = 0.0  # (D,), weighted sum of the embeddings of all negatives so far
        self.weight = 0.0

    @functools.cached_property
    def key(self) -> tuple[object, ...]:
        """Sources with equal keys draw the same negatives, whatever their betas."""
        return dataclasses.replace(self.panda, beta=0.0, detach_offset=False), self.patch_size, self.seed

    @property
    def averages(self) -> bool:
        """Whether all images have the same offset: a mean, to which other batches can contribute."""
        return self.panda.average and self.sampler != "within_image"

    def draw(self, images: Tensor) -> Negatives:
        """Negatives of images (B, C, H, W)."""
        self.is_new = True
        is_small = self.averages and self.sampler == "pool" and len(images) < self.panda.pool
        self.waiting_images += len(images)
        self.waiting_batches += 1
        self.recent = self._join_recent(images) if is_small else None
        if self.averages and self.weight and not self._is_due(is_small):
            return Negatives(images[:0], None, self.total, self.weight)
        kept = decay(self.waiting_images, self.panda.negatives_half_life) if is_small else 0.0
        self.waiting_images = self.waiting_batches = 0
        drawn = self._draw_from(images if self.recent is None else self.recent, len(images))
        return drawn._replace(earlier=kept * self.total, weight=kept * self.weight)

    def _is_due(self, is_small: bool) -> bool:
        if self.panda.refresh_every is not None:
            return self.waiting_batches >= self.panda.refresh_every
        return not is_small or self.waiting_images * self.panda.ratio > 1 - 1e-9

    def _join_recent(self, images: Tensor) -> Tensor:
        earlier = images[:0] if self.recent is None else self.recent.to(images.device)
        return torch.cat([earlier, images])[-self.panda.pool :]

    def _draw_from(self, pool: Tensor, batch: int) -> Negatives:
        count = math.ceil(batch * self.panda.ratio - 1e-9)
        plan = sample_plan(self.sampler, pool, self.patch_size, count, self.generator)
        if plan.grid.cells == 1 and (len(pool) == 1 or self.sampler == "within_image"):
            return Negatives(pool[:0])
        negatives = apply_plan(pool, plan)
        if self.sampler == "within_image":
            return Negatives(negatives, torch.arange(batch))
        if self.panda.average:
            return Negatives(negatives)
        return Negatives(negatives, torch.randint(len(negatives), (batch,), generator=self.generator))

    def offset(self, embedded: Tensor, negatives: Negatives) -> Tensor:
        """What beta scales, (1, D) or (B, D), from the embeddings (M, D) of the negatives."""
        if self.panda.detach_offset:
            embedded = embedded.detach()
        if negatives.assignment is not None:
            return embedded[negatives.assignment.to(embedded.device)]
        earlier = negatives.earlier.to(embedded.device) if isinstance(negatives.earlier, Tensor) else 0.0
        total, weight = embedded.sum(dim=0) + earlier, len(embedded) + negatives.weight
        if self.is_new:  # further passes over a batch, by other weights, are not remembered
            self.total, self.weight, self.is_new = total.detach(), weight, False
        return total[None] / max(weight, 1e-12)
