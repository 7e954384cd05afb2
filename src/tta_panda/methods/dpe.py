"""DPE (Zhang et al. 2024, "Dual Prototype Evolving for Test-Time Generalization of Vision-Language Models")."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from tta_panda.methods.features import Encoded
from tta_panda.methods.image_cache import Entries, empty_cache, update_cache
from tta_panda.methods.losses import entropy, marginal_entropy
from tta_panda.methods.views import ConfidentViewMethod
from tta_panda.options import Count, NonNegative
from tta_panda.transfers import to_device, to_host

TEMPERATURE = 0.01
"""Softmax temperature at which prototypes of images are matched with those of texts."""

EPSILON = 1e-3
"""Of AdamW, so large that its first step depends on the size of the gradient."""


class DPE(ConfidentViewMethod):
    """Classifies by prototypes of texts and of cached images, after a step of both that makes confident views agree.

    The step is undone after each image. Prototypes of texts also evolve: certain images move them for good. Cached
    features are plain; wherever images are compared with texts, they are debiased.

    The defaults are those of DPE's own code for ImageNet, whose texts are the mean of templates and descriptions.

    Args:
        slots: maximum number of images per class in the cache; a more certain image replaces the least certain one.
        alpha: weight of the cache.
        sharpness: how fast the weight of a prototype decreases with distance.
        alignment: weight of the loss that matches prototypes of images with those of texts.
        lr: learning rate of AdamW.
        max_entropy: an image moves the texts if its entropy in nats, divided by log2 K, is below this.
    """

    slots: Count = 3
    alpha: NonNegative = 6.0
    sharpness: NonNegative = 5.0
    alignment: NonNegative = 0.5
    lr: NonNegative = 6e-4
    max_entropy: NonNegative = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        texts = self.classifier.class_embeddings
        self.texts: Tensor
        self.add_state("texts", F.normalize(texts, dim=-1))  # (K, D)
        self.moves = self.add_state("moves", texts.new_zeros(()))  # of the texts so far
        self.cache: Entries
        self.add_state("cache", empty_cache(texts))

    def _adapt(self, encoded: Encoded) -> Tensor:
        return torch.cat([self._evolve(image) for image in encoded.split()])

    def _evolve(self, image: Encoded) -> Tensor:
        """Return logits (1, K) of one image, and learn from it."""
        assert image.views is not None
        # Both are 1 unless the classifier is a linear head.
        length = image.features.norm().clamp_min(1e-12)
        norms = self.classifier.class_embeddings.norm(dim=-1, keepdim=True)  # (K, 1)
        all_views = image.views / length  # (1, V, D)
        shift = (image.features - image.debiased) / length  # (1, D)

        def by_text(views: Tensor, texts: Tensor) -> Tensor:
            return self.classify(image, texts * norms * length, views - shift)

        def by_both(views: Tensor, texts: Tensor, images: Tensor) -> Tensor:
            votes = (self.sharpness * (views @ images.T - 1)).exp()  # (V, k)
            return by_text(views, texts).index_add(1, classes, votes, alpha=self.alpha)

        logits = by_text(all_views, F.normalize(self.texts, dim=-1))  # (1, V, K)
        views, logits = (self.confident(each, logits)[0] for each in (all_views, logits))
        mean = views.mean(dim=0, keepdim=True)
        label, certainty = to_host(logits.mean(dim=0).argmax()[None], marginal_entropy(logits)[None])
        seen = {"features": mean, "labels": label, "entropies": certainty}
        self.cache = update_cache(self.cache, seen, self.slots).apply()
        cached = self.cache["labels"].unique(return_inverse=True, return_counts=True)
        classes, index, counts = (to_device(each, mean.device) for each in cached)
        images = torch.zeros_like(self.texts[classes]).index_add_(0, index, self.cache["features"]) / counts[:, None]

        with torch.enable_grad():
            start = [each.clone().requires_grad_(True) for each in (self.texts, images)]
            texts, images = (F.normalize(each, dim=-1) for each in start)
            # The authors' code uses the mean of the views' features.
            loss = marginal_entropy(by_both(mean if self.follows_reference else views, texts, images))
            matches = F.normalize(start[1] - shift, dim=-1) @ texts[classes].T / TEMPERATURE
            loss = loss + self.alignment * F.cross_entropy(matches, torch.arange(len(classes), device=matches.device))
        gradients = torch.autograd.grad(loss, start)
        # The first step of AdamW, whose weights are the differences from these prototypes: zero, and so not decayed.
        steps = (self.lr * gradient / (gradient.abs() + EPSILON) for gradient in gradients)
        texts, images = (F.normalize(each.detach() - step, dim=-1) for each, step in zip(start, steps, strict=True))
        answer = by_both(all_views[:, 0], texts, images)
        is_certain = entropy(answer)[0] < self.max_entropy * math.log2(answer.shape[1])
        self.moves = self.moves + is_certain
        self.texts = ((self.moves * self.texts + texts) / (self.moves + 1)).where(is_certain, self.texts)
        return answer
