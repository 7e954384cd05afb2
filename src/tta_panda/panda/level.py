"""Level: equalise the mean similarity of each class over images of other classes with a similar corruption."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Self

import torch
from torch import Tensor

from tta_panda.errors import InvalidInputError
from tta_panda.options import Count
from tta_panda.panda.debias import Beta, Correction, Debias, Debiaser, Evidence, Strength
from tta_panda.panda.negatives import SamplerName
from tta_panda.panda.offset import Panda, PandaDebiaser
from tta_panda.panda.signature import signatures
from tta_panda.panda.statistics import PRIOR, ClassDiversity, RunningMean, batch_mean, largest
from tta_panda.transfers import to_device

REFINEMENT = 0.5
"""Weight of corrected logits when images are predicted again, to decide which classes they do not show."""

FREQUENCY = 2.0
"""Weight of the logarithm of class frequencies in these predictions, if the stream seems to have a single class."""

VARIED = (1.0, 1.3)
"""Ratios of upward to downward deviations between which this weight decreases to 0; see `ClassDiversity`."""

DOUBT = 4.0
"""How quickly this weight rises where a gate's negatives do not share the bias."""


@dataclass(frozen=True, repr=False)
class Level(Debias):
    """Subtract from the logits of an image the level of each class among images that are corrupted alike.

    A level is the mean similarity of a class to images of other classes. Each image has its own, over the latest images
    with the most similar `signatures`, so a stream may mix corruptions, or change from one to another. It needs no
    extra pass and works at any batch size. Negatives, if there are any, are not subtracted: Panda's predictions are a
    first guess of which classes an image does not show.

    Misclassified images count against their own class, which matters if a stream has one class or a few. So the less
    images differ, the more classes that are often predicted are taken to be present. Limitation: images of one class
    and images of all classes that are pulled to this class can have the same embeddings, so accuracy can still fall.

    Args:
        gamma: strength. `"auto"` is 1 for streams of several classes, and decreases to 0 if images hardly differ.
        gate: the `Panda` whose predictions are the first guess; None to start from the plain ones.
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
        self.images_seen = self.add_state("images_seen", 0)
        # Of the latest N images: signatures (N, 4), similarities (N, K), and how certainly each class is absent (N, K).
        self.signatures: Tensor | None = self.add_state("signatures", None)
        self.similarities: Tensor | None = self.add_state("similarities", None)
        self.absence: Tensor | None = self.add_state("absence", None)
        self.level: Tensor | None = self.add_state("level", None)  # (K,), the mean over the last batch
        half_life = settings.recent_images / 2
        self.diversity = self.add_state("diversity", ClassDiversity(half_life))
        self.frequencies = self.add_state("frequencies", RunningMean(half_life))  # (K,), as predicted
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
        logits, doubt = scale * similarities, torch.ones((), device=similarities.device)
        if self.gate is not None:
            assert evidence.offset_similarities is not None
            beta = self.gate.decide(evidence).beta
            logits = logits if beta is None else logits - scale * beta * evidence.offset_similarities
            doubt = (DOUBT * (1 - self.gate.auto.agreement)).clamp(max=1)
        diversity = self.diversity.update(similarities)
        self.gamma = diversity if self.settings.gamma == "auto" else self.settings.gamma
        frequencies = self.frequencies.update(batch_mean(logits.softmax(dim=1)), len(logits))
        trust = FREQUENCY * (1 - self.diversity.between(*VARIED)) * doubt
        prior = (trust * frequencies.clamp_min(1e-4).log()).to(logits.dtype)

        signature = to_device(signatures(evidence.images).to(similarities.dtype), similarities.device)
        self.images_seen += len(signature)
        self.signatures = self._store(self.signatures, signature)
        self.similarities = self._store(self.similarities, similarities)
        self.absence = self._store(self.absence, self._absence(logits + prior))
        weights = nearness(signature, self.signatures[: self.images_seen], self.settings.similar_images)
        levels = self._levels(weights)
        # Predict again: images that the bias pulls to a class do not show it.
        refined = torch.lerp(logits, scale * (similarities - self.gamma * levels), REFINEMENT)
        self.absence = self._store(self.absence, self._absence(refined + prior))
        levels = self._levels(weights)
        self.level = levels.mean(dim=0)
        return Correction(bias=-self.gamma * scale * levels)

    def _absence(self, logits: Tensor) -> Tensor:
        """Return the weight (B, K) of each image for the level of each class: how certain it is of another class."""
        return (1 - logits.softmax(dim=1)) ** self.settings.exponent

    def _store(self, stored: Tensor | None, latest: Tensor) -> Tensor:
        """Replace the oldest rows by the last ones of (B, ...), which belong to the images seen last."""
        size = self.settings.recent_images
        if stored is None:
            stored = latest.new_zeros(size, latest.shape[1])
        places = torch.arange(self.images_seen - len(latest), self.images_seen, device=latest.device) % size
        stored[places[-size:]] = latest[-size:]
        return stored

    def _levels(self, weights: Tensor) -> Tensor:
        """Return the centred level of each class (B, K), given the weight (B, N) of each stored image."""
        assert self.similarities is not None and self.absence is not None
        similarities, absence = self.similarities[: weights.shape[1]], self.absence[: weights.shape[1]]
        if weights.device.type == "cpu":  # a single image uses few; a GPU would wait for their indices
            used = weights.any(dim=0).nonzero()[:, 0]
            weights, similarities, absence = weights[:, used], similarities[used], absence[used]
        prior = PRIOR * (weights @ similarities.mean(dim=1, keepdim=True))
        total = weights @ (absence * similarities) + prior
        levels = total / (weights @ absence + PRIOR * weights.sum(dim=1, keepdim=True))
        return levels - levels.mean(dim=1, keepdim=True)

    def explain(self, class_names: Sequence[str], class_embeddings: Tensor) -> str:
        if self.gamma is None or self.level is None:
            return "No batch has been seen."
        resembled = "" if self.gate is None else self.gate.resembled(class_names, class_embeddings)
        favoured = f"Independent of the image, the model favours {largest(self.level.double(), class_names)}."
        if self.gamma < 0.005 and self.settings.gamma == "auto":
            return f"{resembled}{favoured} Nothing was subtracted: the images look like a single class."
        return f"{resembled}{favoured} γ = {self.gamma:.2f} of this was subtracted from the logits of the last batch."


def nearness(signature: Tensor, known: Tensor, count: int) -> Tensor:
    """Return weights (B, N) of images with known signatures (N, S), for images with signatures (B, S).

    They are 1 for the same signature, and decrease with the distance to nearly 0 for the last of the `count` nearest.
    """
    spread = known.std(dim=0, correction=0) + 1e-6
    # Not by matrix multiplication, which is inexact for small distances.
    distances = torch.cdist(signature / spread, known / spread, compute_mode="donot_use_mm_for_euclid_dist")
    farthest = distances.kthvalue(min(count, len(known)), dim=1, keepdim=True).values
    return (1 - distances / (1.001 * farthest + 1e-9)).clamp_min(0)
