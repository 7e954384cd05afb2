"""ROID (Marsden et al. 2024, "Universal Test-time Adaptation"), and its successor CMF as an option."""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tta_panda.methods.base import BatchSize, EncoderPasses
from tta_panda.methods.features import Batch, Encoded
from tta_panda.methods.losses import entropy
from tta_panda.methods.trained import TrainedMethod, lerp
from tta_panda.options import NonNegative, Share
from tta_panda.views.strong import apply_strong_plan, sample_strong_plan

MOMENTUM = 0.9
"""Of the mean prediction."""

CLIP = 0.99
"""Largest probability in the likelihood ratio."""

PARAMETERS = 38400
"""The number of trained parameters that `filter_noise` is for; it grows in proportion."""


class ROID(TrainedMethod):
    """Increases likelihood ratios of certain and diverse images, and agreement with their augmented copies.

    Images whose prediction is similar to the mean of earlier ones are not used. After each step, the weights move back
    towards the initial ones, and predictions are corrected by the frequencies of predicted classes in the batch.

    The defaults are those of ROID's own code for CIFAR-10-C; for ImageNet-C it uses `optimizer="sgd"`, `lr=2.5e-4`.

    Args:
        optimizer: `"adam"`, or `"sgd"` with momentum 0.9.
        restore: share of the way back to the initial weights after each step.
        filter_noise: move towards filtered weights instead of the initial ones, as in CMF (Lee & Chang 2024, "Continual
            Momentum Filtering"), which uses 0.005: how fast the filter follows. None for no filter.
    """

    optimizer: Literal["adam", "sgd"] = "adam"
    restore: Share = 0.01
    filter_noise: NonNegative | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.mean_prediction: Tensor  # (K,)
        texts = self.classifier.class_embeddings
        self.add_state("mean_prediction", texts.new_full((len(texts),), 1 / len(texts)))
        self.generator: torch.Generator
        self.add_state("generator", torch.Generator().manual_seed(self.seed))
        if self.filter_noise is not None:
            self.hidden: dict[str, Tensor]
            self.add_state("hidden", self.weights.initial)
            self.variance: float
            self.add_state("variance", 0.0)

    def make_optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        if self.optimizer == "sgd":
            return torch.optim.SGD(parameters, lr=self.lr, momentum=0.9)
        return super().make_optimizer(parameters)

    def _adapt(self, batch: Batch) -> Tensor:
        encoded = self.encode(batch)
        logits = self.classify(encoded)
        weights, kept = self._weigh(logits.detach())
        losses = _likelihood_ratio(logits[kept])
        losses = losses + _disagreement(logits[kept], self._augmented(batch, encoded, kept))
        if self.backward((weights[kept] * losses).sum() / len(logits)) is not None:
            self.weights.optimizer.step()
            self._restore()
        return self._with_prior(logits.detach())

    def _weigh(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return the weights (B,) of images, and the indices of diverse ones; update the mean prediction."""
        predictions = logits.softmax(dim=-1)
        diversity = _scaled(1 - F.cosine_similarity(self.mean_prediction[None], predictions, dim=1))
        weights = (3 * diversity * _scaled(-entropy(logits))).exp()
        self.mean_prediction = predictions.mean(dim=0).lerp(self.mean_prediction, MOMENTUM)
        return weights, (diversity >= diversity.mean()).nonzero()[:, 0]

    def _augmented(self, batch: Batch, encoded: Encoded, kept: Tensor) -> Tensor:
        """Return logits of augmented images, debiased like the images themselves."""
        images = batch.images[kept]
        plan = sample_strong_plan(images.shape, self.generator, shared=self.follows_reference, degrade=False)
        return self.classify(self.encode_like(encoded.select(kept), apply_strong_plan(images, plan)))

    def _restore(self) -> None:
        """Move the weights back towards the initial or the filtered ones."""
        towards = self.weights.initial
        if self.filter_noise is not None:
            noise = self.filter_noise * sum(p.numel() for p in self.adapted.values()) / PARAMETERS
            hidden = lerp(self.hidden, towards, self.restore)
            variance = (1 - self.restore) ** 2 * self.variance + noise
            kept = max(0.89, (1 - noise) / (variance + 1 - noise))
            kept = 1.0 if kept >= 0.9999 else kept
            self.variance = kept * variance
            towards = self.hidden = lerp(self.weights.parameters, hidden, kept)
        self.weights.load(lerp(self.weights.parameters, towards, self.restore))

    def _with_prior(self, logits: Tensor) -> Tensor:
        """Correct logits (B, K) by smoothed frequencies of the classes in the batch."""
        images, classes = logits.shape
        prior = logits.softmax(dim=-1).mean(dim=0)
        smooth = max(1 / images, 1 / classes) / prior.max()
        prior = (prior + smooth) / (1 + smooth * classes)
        return logits * prior if self.follows_reference else logits + prior.log()

    @classmethod
    def expected_passes(cls, batch: BatchSize, options: dict[str, Any]) -> EncoderPasses:
        passes = super().expected_passes(batch, options)
        passes.images_with_gradient += batch.images
        return passes


def _scaled(values: Tensor) -> Tensor:
    """Scale values (B,) to the range from 0 to 1; equal ones are 0."""
    low, high = values.aminmax()
    return (values - low) / (high - low).clamp_min(1e-12)


def _likelihood_ratio(logits: Tensor) -> Tensor:
    """Return minus the expected logarithm of the likelihood ratio (B,) between a class and all others."""
    probabilities = logits.softmax(dim=-1).clamp(max=CLIP)
    return -(probabilities * (probabilities / (1 - probabilities) + 1e-5).log()).sum(dim=-1)


def _disagreement(logits: Tensor, others: Tensor) -> Tensor:
    """Return the mean of both cross entropies (B,) between two predictions."""
    forth = F.cross_entropy(others, logits.softmax(dim=-1), reduction="none")
    return (forth + F.cross_entropy(logits, others.softmax(dim=-1), reduction="none")) / 2
