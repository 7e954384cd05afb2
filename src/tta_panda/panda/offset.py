"""Panda: subtract what a batch's negatives look like to the encoder from every image embedding of the batch."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Self

from tta_panda.checks import check_range
from tta_panda.errors import InvalidInputError
from tta_panda.panda.beta import Beta, beta_rule
from tta_panda.panda.debias import Correction, Debias, Debiaser, Evidence
from tta_panda.panda.negatives import SamplerName
from tta_panda.panda.source import OffsetSource


@dataclass(frozen=True, repr=False)
class Panda(Debias):
    """What to subtract and how much. Stateless: any number of methods can be given the same one.

    Args:
        beta: strength of the offset. With 0 nothing is subtracted: no negative is drawn, and results are the plain
            method's exactly. `"auto"` chooses it from the stream without labels; it cannot prevent that images are lost
            where a stream has a single class, and gains little with two. `"slope"`, `"shrinkage"` and `"information"`
            are other rules, to compare with.
        patch_size: side of the patches in pixels of the model's input; None takes the model's own default.
        ratio: negatives per image, M = ceil(ratio * B). The paper uses one for ten.
        sampler: `"pool"` (the paper), `"same_cell"` (its authors' code) or `"within_image"` (ablation); None takes the
            one of the method's protocol.
        average: False gives every image one of the negatives instead of their mean (ablation).
        detach_offset: True keeps the gradient of methods that train the encoder out of the negatives.
        pool: batches of fewer images than this are joined by the latest images, up to this many, to cut negatives
            from, and share the negatives of earlier batches. Larger batches have their own, as in the paper; with 0,
            and with other samplers than `"pool"`, all batches do.
        negatives_half_life: after this many images, an earlier negative counts half as much in small batches.
        refresh_every: draw negatives with every this many batches only, and use the last ones in between; where every
            image has a negative of its own, it has no effect. None draws
            with every batch, and in batches of fewer than `1 / ratio` images one for every `1 / ratio` images.
    """

    beta: Beta = "auto"
    patch_size: int | None = None
    ratio: float = 0.1
    sampler: SamplerName | None = None
    average: bool = True
    detach_offset: bool = False
    pool: int = 32
    negatives_half_life: float = 50.0
    refresh_every: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.beta, float | int) and not 0 <= self.beta < math.inf:
            raise InvalidInputError(f'beta must be "auto" or a number >= 0, got {self.beta!r}.')
        if not 0 < self.ratio <= 1:
            raise InvalidInputError(f"ratio must be above 0 and at most 1 (negatives per image), got {self.ratio}.")
        if self.patch_size is not None:
            check_range("patch_size", self.patch_size, 1)
        check_range("pool", self.pool, 0)
        check_range("negatives_half_life", self.negatives_half_life, 1)
        if self.refresh_every is not None:
            check_range("refresh_every", self.refresh_every, 1)

    def drawn_by(self, sampler: SamplerName) -> Self:
        return dataclasses.replace(self, sampler=self.sampler or sampler)

    def start(self, patch_size: int, seed: int) -> PandaDebiaser:
        return PandaDebiaser(self, patch_size, seed)


class PandaDebiaser(Debiaser):
    """The negatives of one stream, and what its beta rule has seen."""

    settings: Panda
    source: OffsetSource

    def __init__(self, panda: Panda, patch_size: int, seed: int):
        self.settings = panda
        self.patch_size = patch_size
        self.seed = seed
        super().__init__()

    def reset(self) -> None:
        self.source = OffsetSource(self.settings, self.patch_size, self.seed)
        self.rule = beta_rule(self.settings.beta)

    @property
    def is_active(self) -> bool:
        return self.settings.beta != 0

    @property
    def fixed(self) -> Correction | None:
        return None if isinstance(self.settings.beta, str) else Correction(float(self.settings.beta))

    @property
    def beta(self) -> float | None:
        return self.rule.beta

    def set_beta(self, beta: Beta) -> None:
        self.settings = dataclasses.replace(self.settings, beta=beta)
        self.rule = beta_rule(beta)

    def decide(self, evidence: Evidence) -> Correction:
        assert evidence.offset_similarities is not None
        seen = evidence.similarities, evidence.offset_similarities
        return Correction(self.rule.choose(*seen, evidence.scale, evidence.directions))
