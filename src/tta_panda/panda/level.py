"""Level: give every class the same mean similarity where it is absent."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Self

import torch
from torch import Tensor

from tta_panda.errors import InvalidInputError
from tta_panda.panda.debias import Beta, Correction, Debias, Debiaser, Evidence, HalfLife, Strength
from tta_panda.panda.negatives import SamplerName
from tta_panda.panda.offset import Panda, PandaDebiaser
from tta_panda.panda.statistics import (
    AbsentLevel,
    ClassDiversity,
    RunningMean,
    agreement,
    batch_mean,
    centred,
    correlation,
    largest,
)


@dataclass(frozen=True, repr=False)
class Level(Debias):
    """Subtract, from the logits, the mean similarity of each class over the images that are not of it.

    Needs no encoder pass and works at any batch size. Negatives, if there are any, are not subtracted: they only tell a
    bias that comes from the corruption from one that comes from the labels. Limits: images that are misclassified count
    against their own class, so accuracy can fall where one class is alone in the stream or a few dominate it; with two
    classes, nothing tells bias from labels, and half of the level is subtracted, with a gate a quarter.

    Args:
        gamma: strength. `"auto"` is 1 where the stream shows several classes, and falls to 0 as it shows one only; with
            a gate, up to half of it is withheld, the less the better level and negatives agree over the classes.
        gate: the `Panda` whose negatives are compared with the level; None for none.
        predictions: the predictions that say which classes are absent: those of the `"plain"` method, or of the gate's
            `"panda"`. Makes no difference without a gate.
        exponent: how sure it must be that a class is absent for an image to count.
        half_life: after this many images, an earlier one counts half as much.
    """

    gamma: Strength | Literal["auto"] = "auto"
    gate: Panda | None = None
    predictions: Literal["plain", "panda"] = "panda"
    exponent: Strength = 8.0
    half_life: HalfLife = 200.0

    @property
    def name(self) -> str:
        return "level" if self.gate is None else f"{self.gate.name}+level"

    def with_default_sampler(self, sampler: SamplerName) -> Self:
        return dataclasses.replace(self, gate=self.gate and self.gate.with_default_sampler(sampler))

    def start(self, patch_size: int, seed: int) -> LevelDebiaser:
        return LevelDebiaser(self, patch_size, seed)


class LevelDebiaser(Debiaser):
    """The running levels of a stream, and the state of the gate."""

    def __init__(self, settings: Level, patch_size: int, seed: int):
        super().__init__()
        self.settings: Level = settings
        self.gamma: float | None = self.add_state("gamma", None)
        self.level = self.add_state("level", AbsentLevel(settings.exponent, settings.half_life))
        self.diversity = self.add_state("diversity", ClassDiversity(settings.half_life))
        self.offset = self.add_state("offset", RunningMean(settings.half_life))
        gate = None if settings.gate is None else settings.gate.start(patch_size, seed)
        self.gate = self.add_state("gate", gate)

    @property
    def source(self) -> PandaDebiaser | None:
        return self.gate

    @property
    def fixed(self) -> Correction | None:
        return Correction() if self.settings.gamma == 0 else None

    @property
    def beta(self) -> float | None:
        """The gate's beta; it is not subtracted."""
        return None if self.gate is None else self.gate.beta

    def set_beta(self, beta: Beta) -> None:
        if self.gate is None:
            raise InvalidInputError(f"A level without a gate has no beta to set to {beta!r}.")
        self.gate.set_beta(beta)
        self.settings = dataclasses.replace(self.settings, gate=self.gate.settings)

    @torch.no_grad()
    def decide(self, evidence: Evidence) -> Correction:
        scale, similarities = evidence.scale, evidence.similarities.cpu().double()
        logits = scale * similarities
        if self.gate is not None and self.settings.predictions == "panda":
            assert evidence.offset_similarities is not None
            beta = self.gate.decide(evidence).beta or 0.0
            logits = scale * (similarities - beta * evidence.offset_similarities.cpu().double())
        level = self.level.update(similarities, logits.softmax(dim=1))
        if self.settings.gamma == "auto":
            gamma = self.diversity.update(similarities)
            if evidence.offset_similarities is not None:
                offset = self.offset.update(batch_mean(evidence.offset_similarities), len(similarities))
                gamma *= 0.5 + 0.5 * agreement(level, centred(offset), evidence.directions)
        else:
            gamma = self.settings.gamma
        self.gamma = gamma
        bias = (-gamma * scale * level).to(evidence.similarities.dtype)  # some devices know no float64
        return Correction(bias=bias.to(evidence.similarities.device))

    def explain(self, class_names: Sequence[str], class_embeddings: Tensor) -> str:
        if self.gamma is None:
            return "No batch has been seen."
        level = self.level.value
        favoured = f"Whatever the image, the model favours {largest(level, class_names)}."
        if self.gamma < 0.005 and self.settings.gamma == "auto":
            return f"{favoured} Nothing was subtracted: the images look like a single class."
        text = f"{favoured} γ = {self.gamma:.2f} of this was subtracted from the logits of the last batch."
        if self.gate is None or self.settings.gamma != "auto":
            return text
        resembled = self.gate.resembled(class_names, class_embeddings)
        shared = correlation(level, centred(self.offset.value))
        return f"{resembled}{text} Negatives show the same bias with r = {shared:.2f}."
