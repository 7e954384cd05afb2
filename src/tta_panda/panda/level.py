"""Level: equalise the mean similarity of each class over images of other classes with a similar corruption."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Self

import torch
from torch import Tensor

from tta_panda.chunks import in_chunks
from tta_panda.errors import InvalidInputError
from tta_panda.options import Count
from tta_panda.panda.beta import HALF_LIFE
from tta_panda.panda.debias import Beta, Correction, Debias, Debiaser, Evidence, Strength
from tta_panda.panda.negatives import SamplerName
from tta_panda.panda.offset import Panda, PandaDebiaser
from tta_panda.panda.signature import signatures
from tta_panda.panda.statistics import (
    PRIOR,
    ClassDiversity,
    RunningMean,
    agreement,
    batch_mean,
    centred,
    correlation,
    largest,
)
from tta_panda.transfers import to_device

REFINEMENT = 0.5
"""Share of a first correction with which images are predicted again, to decide which classes they do not show."""

GATE = 0.25
"""Share of the level that is withheld if the gate's negatives do not share the bias at all."""

_FLOATS_AT_ONCE = 1 << 20


@dataclass(frozen=True, repr=False)
class Level(Debias):
    """Subtract from the logits of an image the level of each class among images that are corrupted alike.

    A level is the mean similarity of a class to images of other classes. Each image has its own, over the latest images
    with the most similar `signatures`, so a stream may mix corruptions, or change from one to another. It needs no
    extra pass and works at any batch size. Negatives, if there are any, are not subtracted: Panda's predictions
    decide which classes are absent, and a level that negatives do not share is reduced.

    Limitation: misclassified images count against their own class, so accuracy can fall if a stream consists of a
    single class or a few classes dominate it. A stream of one class without a bias and a stream of another class with
    one can have the same embeddings, so no method that sees only these can prevent this.

    Args:
        gamma: strength. `"auto"` is 1 for streams of several classes, and decreases to 0 for a single class; with a
            gate, it is reduced by up to a quarter if level and negatives do not agree over the classes.
        gate: the `Panda` whose negatives are compared with the level; None for no gate.
        exponent: how certain the absence of a class must be for an image to count.
        similar_images: number of images that determine the level of an image; the weight of each decreases with its
            distance in signature. With at least `recent_images`, all images have nearly the same level.
        recent_images: number of latest images to choose from. Their signatures and similarities are stored: with 1,000
            classes, 16 MB for 2,000 images.
    """

    gamma: Strength | Literal["auto"] = "auto"
    gate: Panda | None = None
    exponent: Strength = 8.0
    similar_images: Count = 200
    recent_images: Count = 2000

    @property
    def name(self) -> str:
        return "level" if self.gate is None else f"{self.gate.name}+level"

    def with_default_sampler(self, sampler: SamplerName) -> Self:
        return dataclasses.replace(self, gate=self.gate and self.gate.with_default_sampler(sampler))

    def start(self, patch_size: int, seed: int) -> LevelDebiaser:
        return LevelDebiaser(self, patch_size, seed)


class LevelDebiaser(Debiaser):
    """The state of `Level`: the latest images of a stream, and the state of the gate."""

    def __init__(self, settings: Level, patch_size: int, seed: int):
        super().__init__()
        self.settings: Level = settings
        self.gamma: float | Tensor | None = self.add_state("gamma", None)
        # Of the latest N images: signatures (N, 4), similarities (N, K), and how certainly each class is absent (N, K).
        self.signatures: Tensor | None = self.add_state("signatures", None)
        self.similarities: Tensor | None = self.add_state("similarities", None)
        self.absence: Tensor | None = self.add_state("absence", None)
        self.level: Tensor | None = self.add_state("level", None)  # (K,), the mean over the last batch
        self.diversity = self.add_state("diversity", ClassDiversity(HALF_LIFE))
        self.offset = self.add_state("offset", RunningMean(HALF_LIFE))
        gate = None if settings.gate is None else settings.gate.start(patch_size, seed)
        self.gate = self.add_state("gate", gate)

    @property
    def source(self) -> PandaDebiaser | None:
        return self.gate

    @property
    def fixed(self) -> Correction | None:
        return Correction() if self.settings.gamma == 0 else None

    @property
    def beta(self) -> float | Tensor | None:
        """The gate's beta; it is not subtracted."""
        return None if self.gate is None else self.gate.beta

    def set_beta(self, beta: Beta) -> None:
        if self.gate is None:
            raise InvalidInputError(f"A level without a gate has no beta to set to {beta!r}.")
        self.gate.set_beta(beta)
        self.settings = dataclasses.replace(self.settings, gate=self.gate.settings)

    @torch.no_grad()
    def decide(self, evidence: Evidence) -> Correction:
        if evidence.images is None:
            raise InvalidInputError("This batch was encoded without its images, which a level needs.")
        scale, similarities = evidence.scale, evidence.similarities
        logits = scale * similarities
        if self.gate is not None:
            assert evidence.offset_similarities is not None
            beta = self.gate.decide(evidence).beta
            logits = logits if beta is None else logits - scale * beta * evidence.offset_similarities
        signature = to_device(signatures(evidence.images).to(similarities.dtype), similarities.device)
        absence = self._absence(logits)
        self.signatures = self._append(self.signatures, signature)
        self.similarities = self._append(self.similarities, similarities)
        self.absence = self._append(self.absence, absence)
        neighbours = nearest(signature, self.signatures, self.settings.similar_images)
        levels = self._levels(neighbours)
        self.level = levels.mean(dim=0)
        self.gamma = self._strength(evidence)
        if self.gate is None:  # predict again, as images that the bias pulls to a class do not show it
            self.absence[-len(absence) :] = self._absence(scale * (similarities - REFINEMENT * self.gamma * levels))
            levels = self._levels(neighbours)
        return Correction(bias=-self.gamma * scale * levels)

    def _absence(self, logits: Tensor) -> Tensor:
        """Return the weight (B, K) of each image for the level of each class: how certain it is of another class."""
        return (1 - logits.softmax(dim=1)) ** self.settings.exponent

    def _append(self, earlier: Tensor | None, latest: Tensor) -> Tensor:
        if earlier is None:
            return latest
        return torch.cat([earlier, latest])[-max(self.settings.recent_images, len(latest)) :]

    def _levels(self, neighbours: Neighbours) -> Tensor:
        """Return the centred level of each class (B, K) over the neighbours of each image."""
        assert self.similarities is not None and self.absence is not None
        similarities, absence, classes = self.similarities, self.absence, self.similarities.shape[1]
        prior = PRIOR * similarities.mean()

        def levels(chunk: slice) -> Tensor:
            indices, near = neighbours.indices[chunk], neighbours.weights[chunk, :, None]  # (b, n), (b, n, 1)
            weights = near * absence[indices]  # (b, n, K)
            total = (weights * similarities[indices]).sum(dim=1) + prior * near.sum(dim=1)
            return total / (weights.sum(dim=1) + PRIOR * near.sum(dim=1))

        at_once = max(1, _FLOATS_AT_ONCE // (neighbours.indices.shape[1] * classes))
        found = in_chunks(levels, len(neighbours.indices), at_once)
        return found - found.mean(dim=1, keepdim=True)

    def _strength(self, evidence: Evidence) -> float | Tensor:
        if self.settings.gamma != "auto":
            return self.settings.gamma
        gamma = self.diversity.update(evidence.similarities)
        if evidence.offset_similarities is not None and self.gate is not None:
            assert self.level is not None
            offset = self.offset.update(batch_mean(evidence.offset_similarities), len(evidence.similarities))
            gamma = gamma * (1 - GATE * (1 - agreement(self.level.double(), centred(offset), evidence.directions)))
        return gamma

    def explain(self, class_names: Sequence[str], class_embeddings: Tensor) -> str:
        if self.gamma is None or self.level is None:
            return "No batch has been seen."
        level = self.level.double()
        favoured = f"Independent of the image, the model favours {largest(level, class_names)}."
        if self.gamma < 0.005 and self.settings.gamma == "auto":
            return f"{favoured} Nothing was subtracted: the images look like a single class."
        text = f"{favoured} γ = {self.gamma:.2f} of this was subtracted from the logits of the last batch."
        if self.gate is None or self.settings.gamma != "auto":
            return text
        resembled = self.gate.resembled(class_names, class_embeddings)
        shared = correlation(level, centred(self.offset.value))
        return f"{resembled}{text} Negatives show the same bias with r = {shared:.2f}."


class Neighbours(NamedTuple):
    """The most similar of the latest images, for each image of a batch."""

    indices: Tensor  # (B, n)
    weights: Tensor  # (B, n), from 1 for the same signature to 0 for the most distant neighbour


def nearest(signature: Tensor, known: Tensor, count: int) -> Neighbours:
    """Find the `count` nearest of the known signatures (N, S) for each of a batch (B, S), in units of their spread."""
    spread = known.std(dim=0, correction=0) + 1e-6
    # Not by matrix multiplication, which is inexact for small distances.
    distances = torch.cdist(signature / spread, known / spread, compute_mode="donot_use_mm_for_euclid_dist")
    near, indices = distances.topk(min(count, len(known)), largest=False)
    return Neighbours(indices, (1 - near / (near[:, -1:] + 1e-9)).clamp_min(0))
