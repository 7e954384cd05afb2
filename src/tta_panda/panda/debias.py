"""Panda: subtract what a batch's negatives look like to the encoder from every image embedding of the batch."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from tta_panda.errors import InvalidInputError, UnknownNameError
from tta_panda.panda.beta import beta_rule
from tta_panda.panda.negatives import SAMPLERS, SamplerName, apply_plan, sample_plan

Embed = Callable[[Tensor], Tensor]
"""From what an encoder gives to where embeddings are compared."""


def unit(raw: Tensor) -> Tensor:
    """Where vision-language models compare: on the unit sphere."""
    return F.normalize(raw, dim=-1)


@dataclass(frozen=True)
class Panda:
    """What to subtract and how much. Stateless: any number of methods can be given the same one.

    Args:
        beta: strength of the offset; `"auto"` chooses it from the stream without labels.
        patch_size: side of the patches in pixels of the model's input; None takes the model's own default.
        ratio: negatives per image, M = ceil(ratio * B). The paper uses one for ten.
        sampler: `"pool"` (the paper), `"same_cell"` (its authors' code) or `"within_image"` (ablation).
        average: False gives every image one of the negatives instead of their mean (ablation).
        detach_offset: True keeps the gradient of methods that train the encoder out of the negatives.
    """

    beta: float | Literal["auto"] = "auto"
    patch_size: int | None = None
    ratio: float = 0.1
    sampler: SamplerName = "pool"
    average: bool = True
    detach_offset: bool = False

    def __post_init__(self) -> None:
        beta_rule(self.beta)
        if self.sampler not in SAMPLERS:
            raise UnknownNameError("sampler of negatives", self.sampler, SAMPLERS)
        if not 0 < self.ratio <= 1:
            raise InvalidInputError(f"ratio must be above 0 and at most 1 (negatives per image), got {self.ratio}.")
        if self.patch_size is not None and self.patch_size < 1:
            raise InvalidInputError(f"patch_size must be a positive number of pixels, got {self.patch_size}.")

    @property
    def is_off(self) -> bool:
        """With beta 0 nothing is subtracted: no negative is drawn, and results are the plain method's exactly."""
        return self.beta == 0


class Batch(NamedTuple):
    """The images of one batch and the negatives drawn for it, once, for every pass on that batch."""

    images: Tensor  # (B, C, H, W)
    negatives: Tensor | None = None  # (M, C, H, W)
    assignment: Tensor | None = None  # (B,) which negative belongs to which image; None: their mean to all
    number: int = 0  # place in the stream

    @property
    def everything(self) -> Tensor:
        """Images and negatives (B+M, C, H, W), for one pass."""
        return self.images if self.negatives is None else torch.cat([self.images, self.negatives])

    def select(self, index: Tensor) -> Batch:
        """Some of the images, with the negatives that they need."""
        images = self.images[index.to(self.images.device)]
        if self.negatives is None or self.assignment is None:
            return self._replace(images=images)
        used, assignment = self.assignment[index.cpu()].unique(return_inverse=True)
        return self._replace(
            images=images, negatives=self.negatives[used.to(self.negatives.device)], assignment=assignment
        )


class Encoded(NamedTuple):
    """Embeddings of a batch, unit where the classifier compares directions.

    What is subtracted is kept beside them, so that many betas can share one pass.
    """

    features: Tensor  # v (B, D)
    offset: Tensor | None = None  # (1, D) or (B, D)
    number: int | None = None  # of the batch: a further pass on a batch uses the beta that the first one chose
    raw: Tensor | None = None  # f (B, D), features before they were normalised
    views: Tensor | None = None  # (B, V, D), unit; the first view is the plain image
    negatives: int = 0  # M, how many the offset was made of

    def select(self, index: Tensor) -> Encoded:
        """The part of some of the images."""
        index = index.to(self.features.device)
        shared = self.offset is None or self.offset.shape[0] == 1
        return self._replace(
            features=self.features[index],
            offset=self.offset if shared or self.offset is None else self.offset[index],
            raw=None if self.raw is None else self.raw[index],
            views=None if self.views is None else self.views[index],
        )


class Debiaser:
    """The state of one stream under Panda: the generator of its negatives and what its beta rule has seen."""

    def __init__(self, panda: Panda, patch_size: int, seed: int):
        self.panda = panda
        self.patch_size = panda.patch_size if panda.patch_size is not None else patch_size
        self.seed = seed
        self.generator = torch.Generator()
        self.rule = beta_rule(panda.beta)
        self.drawn = 0  # batches that negatives were drawn for
        self.debiased: int | None = None  # number of the batch that `beta` was chosen for
        self.beta = 0.0
        self.reset()

    @property
    def negatives_key(self) -> tuple[object, ...]:
        """Debiasers with equal keys draw the same negatives, whatever their betas."""
        return self.panda.sampler, self.panda.ratio, self.panda.average, self.patch_size, self.seed

    def draw(self, images: Tensor) -> Batch:
        """Images with their negatives."""
        count = math.ceil(images.shape[0] * self.panda.ratio - 1e-9)
        plan = sample_plan(self.panda.sampler, images, self.patch_size, count, self.generator)
        self.drawn += 1
        return Batch(images, apply_plan(images, plan), self._assign(images.shape[0], plan.count), self.drawn)

    def _assign(self, batch: int, count: int) -> Tensor | None:
        if self.panda.sampler == "within_image":
            return torch.arange(batch)
        if self.panda.average:
            return None
        return torch.randint(count, (batch,), generator=self.generator)

    def debias(self, encoded: Encoded, text: Tensor, scale: float, bias: Tensor | float = 0.0) -> Tensor:
        """d = v - beta * offset (B, D), not normalised again; beta is chosen by logits `scale * v @ text' + bias`."""
        return encoded.features - self.shift(encoded, text, scale, bias)

    def shift(self, encoded: Encoded, text: Tensor, scale: float, bias: Tensor | float = 0.0) -> Tensor:
        """beta * offset, (1, D) or (B, D); beta is chosen once per batch."""
        offset = encoded.offset
        if offset is None:
            raise InvalidInputError("This batch was encoded without negatives; encode it with the Panda that uses it.")
        if encoded.number is None or encoded.number != self.debiased:
            with torch.no_grad():
                plain = encoded.features.detach() @ text.T + bias / scale
                self.beta = self.rule.choose(plain, offset.detach() @ text.T, scale)
            self.debiased = encoded.number
        return self.beta * (offset.detach() if self.panda.detach_offset else offset)

    def reset(self) -> None:
        self.generator.manual_seed(self.seed)
        self.rule.reset()
        self.drawn, self.debiased, self.beta = 0, None, 0.0

    def state_dict(self) -> dict[str, Any]:
        return {
            "generator": self.generator.get_state(),
            "rule": self.rule.state_dict(),
            "drawn": self.drawn,
            "debiased": self.debiased,
            "beta": self.beta,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.generator.set_state(state["generator"].cpu())
        self.rule.load_state_dict(state["rule"])
        self.drawn, self.debiased, self.beta = state["drawn"], state["debiased"], state["beta"]


def split_encoded(raw: Tensor, batch: Batch, embed: Embed = unit) -> Encoded:
    """Features of one encoder pass over images and negatives (B+M, D) as embeddings and offset."""
    raw = raw.float()
    embedded = embed(raw)
    size = batch.images.shape[0]
    if batch.negatives is None:
        return Encoded(embedded, raw=raw)
    negatives = embedded[size:]
    if batch.assignment is None:
        offset = negatives.mean(dim=0, keepdim=True)
    else:
        offset = negatives[batch.assignment.to(raw.device)]
    return Encoded(embedded[:size], offset, batch.number, raw=raw[:size], negatives=negatives.shape[0])
