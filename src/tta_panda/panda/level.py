"""Level: give every class the same mean similarity where it is absent."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal, Self

import torch
from torch import Tensor

from tta_panda.checks import check_range
from tta_panda.errors import InvalidInputError
from tta_panda.panda.absent import AbsentLevel, RunningMean, Variety, agreement, centred
from tta_panda.panda.beta import Beta
from tta_panda.panda.debias import Correction, Debias, Debiaser, Evidence
from tta_panda.panda.negatives import SamplerName
from tta_panda.panda.offset import Panda
from tta_panda.panda.source import OffsetSource

Judge = Literal["plain", "panda"]


@dataclass(frozen=True, repr=False)
class Level(Debias):
    """Subtract, from the logits, the level of each class where it is absent.

    Needs no encoder pass and works at any batch size. Negatives, if given, are a witness only and not subtracted: they
    tell a bias that comes from the corruption from one that comes from the labels. What it cannot do: images that are
    misread count as impostors of their own class, so accuracy can fall where one class is alone in the stream or a few
    dominate it; with two classes, nothing tells bias from labels, and half of the level is subtracted, with a gate a
    quarter.

    Args:
        gamma: strength. `"auto"` is 1 where the stream shows several classes, and falls to 0 as it shows one only; with
            a gate, up to half of it is withheld, the less the better level and negatives agree over the classes.
        gate: the `Panda` whose negatives are the witness; None for none.
        judge: whose predictions say which classes are absent: those of the plain method, or of the gate's Panda. Makes
            no difference without a gate.
        exponent: how sure it must be that a class is absent for an image to count.
        half_life: after this many images, an earlier one counts half as much.
    """

    gamma: float | Literal["auto"] = "auto"
    gate: Panda | None = None
    judge: Judge = "panda"
    exponent: float = 8.0
    half_life: float = 200.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.gamma != "auto":
            check_range("gamma", self.gamma, 0)
        check_range("exponent", self.exponent, 0)
        check_range("half_life", self.half_life, 1)

    def drawn_by(self, sampler: SamplerName) -> Self:
        return dataclasses.replace(self, gate=self.gate and self.gate.drawn_by(sampler))

    def start(self, patch_size: int, seed: int) -> LevelDebiaser:
        return LevelDebiaser(self, patch_size, seed)


class LevelDebiaser(Debiaser):
    """The running levels of a stream, and the state of the gate."""

    settings: Level

    def __init__(self, level: Level, patch_size: int, seed: int):
        self.settings = level
        self.patch_size = patch_size
        self.seed = seed
        super().__init__()

    def reset(self) -> None:
        settings = self.settings
        self.gamma: float | None = None
        self.level = AbsentLevel(settings.exponent, settings.half_life)
        self.variety = Variety(settings.half_life)
        self.offset = RunningMean(settings.half_life)
        self.gate = None if settings.gate is None else settings.gate.start(self.patch_size, self.seed)

    @property
    def is_active(self) -> bool:
        return self.settings.gamma != 0

    @property
    def source(self) -> OffsetSource | None:  # type: ignore[override]
        return None if self.gate is None else self.gate.source

    @property
    def beta(self) -> float | None:
        """That of the judge; it is not subtracted."""
        return None if self.gate is None else self.gate.beta

    def set_beta(self, beta: Beta) -> None:
        if self.gate is None or self.settings.gate is None:
            raise InvalidInputError(f"A level without a gate has no beta to set to {beta!r}.")
        gate = dataclasses.replace(self.settings.gate, beta=beta)
        self.settings = dataclasses.replace(self.settings, gate=gate)
        self.gate.set_beta(beta)

    @torch.no_grad()
    def decide(self, evidence: Evidence) -> Correction:
        similarities = evidence.similarities.cpu().double()
        judged = similarities
        if self.gate is not None and self.settings.judge == "panda":
            assert evidence.offset_similarities is not None
            beta = self.gate.decide(evidence).beta or 0.0
            judged = similarities - beta * evidence.offset_similarities.cpu().double()
        level = self.level.update(similarities, (evidence.scale * judged).softmax(dim=1))
        self.gamma = self._strength(level, evidence) if self.settings.gamma == "auto" else self.settings.gamma
        bias = (-self.gamma * evidence.scale * level).to(evidence.similarities.dtype)  # some devices know no float64
        return Correction(bias=bias.to(evidence.similarities.device))

    def _strength(self, level: Tensor, evidence: Evidence) -> float:
        variety = self.variety.update(evidence.similarities.cpu().double())
        if evidence.offset_similarities is None:
            return variety
        offset = self.offset.update(evidence.offset_similarities, len(evidence.similarities))
        return variety * (0.5 + 0.5 * agreement(level, centred(offset), evidence.directions))
