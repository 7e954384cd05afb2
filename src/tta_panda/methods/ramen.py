"""Ramen (Bao et al. 2026, "Robust Test-Time Adaptation of Vision-Language Models with Active Sample Selection")."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tta_panda.methods.base import BatchSize, EncoderPasses
from tta_panda.methods.features import Batch, Encoded
from tta_panda.methods.image_cache import Entries, empty_cache, make_entries, update_cache
from tta_panda.methods.losses import entropy
from tta_panda.methods.trained import TrainedMethod
from tta_panda.options import Count, NonNegative
from tta_panda.transfers import to_device


class Ramen(TrainedMethod):
    """Takes one step for each image, from the initial weights, on the entropies of the most similar images so far.

    Their gradients are cached. The nearest images of every predicted class contribute, certain and near ones more, so a
    stream may mix corruptions. The image is then classified with the new weights, which are not kept.

    Features are compared without correction; predictions are debiased, by the correction that the initial weights give
    the batch.

    The defaults are those of Ramen's own code for CIFAR-10-C, which averages seven prompts, the templates named `mint`.

    Args:
        lr: size of the step in each parameter; gradients only decide its sign.
        slots: maximum number of images per predicted class in the cache, the latest. Each takes two bytes per trained
            parameter, 80 kB for ViT-B.
        neighbours: number of images per predicted class that contribute.
        sharpness: how fast the weight of an image decreases with its distance.
    """

    lr: NonNegative = 0.01
    slots: Count = 7500
    neighbours: Count = 50
    sharpness: NonNegative = 5.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.cache: Entries  # with the gradients of all parameters, by name
        gradients = {name: p.new_empty(0, *p.shape, dtype=torch.half) for name, p in self.weights.initial.items()}
        self.add_state("cache", empty_cache(self.classifier.class_embeddings) | gradients)

    def _adapt(self, batch: Batch) -> Tensor:
        self.weights.reset()
        with torch.no_grad():
            encoded = self.encode(batch)
            logits = self.classify(encoded)
        single = encoded.split()
        gradients = [self._gradient(*image) for image in zip(single, batch.images.split(1), strict=True)]
        seen = make_entries(encoded.features, logits)
        seen |= {name: torch.stack([each[name] for each in gradients]).half() for name in self.adapted}
        self.cache = update_cache(self.cache, seen, self.slots, oldest_first=True).apply()
        attention = self._attention(encoded.features)
        sums = {name: torch.tensordot(attention, self.cache[name].float(), dims=1) for name in self.adapted}
        answers = []
        for i, image in enumerate(batch.images.split(1)):
            self.weights.load(
                {name: start - self.lr * sums[name][i].sign() for name, start in self.weights.initial.items()}
            )
            with torch.no_grad():
                answers.append(self.classify(self.encode_like(single[i], image)))
        return torch.cat(answers)

    def _gradient(self, encoded: Encoded, image: Tensor) -> dict[str, Tensor]:
        """Return the gradients of the entropy of one image (1, 3, S, S) by name; zero if they are not finite."""
        is_finite = self.backward(entropy(self.classify(self.encode_like(encoded, image))).sum()) is not None
        return {name: each if is_finite else torch.zeros_like(each) for name, each in self.gradients().items()}

    def _attention(self, features: Tensor) -> Tensor:
        """Return the weights (B, N) of cached images; zero but for the nearest of each class."""
        cached, labels = self.cache["features"], self.cache["labels"]
        entropies = to_device(self.cache["entropies"], cached.device)
        distances = torch.cdist(features, cached, compute_mode="donot_use_mm_for_euclid_dist")  # (B, N)
        weights = torch.zeros_like(distances)
        for label in labels.unique():
            own = to_device((labels == label).nonzero()[:, 0], cached.device)
            near = distances[:, own].topk(min(self.neighbours, len(own)), largest=False)
            chosen = own[near.indices]
            weights.scatter_(1, chosen, (-entropies[chosen] - self.sharpness * near.values).exp())
        return weights

    @classmethod
    def expected_passes(cls, batch: BatchSize, options: dict[str, Any]) -> EncoderPasses:
        passes = super().expected_passes(batch, options)
        passes.images += 2 * batch.images + batch.negatives
        passes.images_with_gradient = batch.images
        return passes
