"""Latte (Bao et al. 2025, "Collaborative Test-Time Adaptation of Vision-Language Models in Federated Learning")."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from tta_panda.methods.base import FrozenMethod
from tta_panda.methods.features import Encoded
from tta_panda.methods.image_cache import Entries, empty_cache, make_entries, update_cache
from tta_panda.methods.losses import entropy
from tta_panda.models.base import Classifier
from tta_panda.options import Count, NonNegative
from tta_panda.transfers import to_device, to_host

MIN_NORM = 1e-3
"""Prototypes that are shorter than this are ignored: no cached image is similar."""


class Latte(FrozenMethod):
    """Combines text predictions with those of a cache of confident images, which several clients may exchange.

    Images are processed one by one, in the order of the batch, and enter the cache before they are classified. The
    cache contains plain features; text logits, entropies and pseudo-labels are computed on debiased ones.

    Without other clients, only the own cache is used. Otherwise, set `external` of each client to what
    `latte.exchange` returns for it.

    The defaults are those of Latte's own code for CIFAR-10-C.

    Args:
        slots: maximum number of images per class in the cache; a more certain image replaces the least certain one.
        alpha: weight of the cache's prediction relative to the text's.
        sharpness: sharpness of the attention to cached images.
        entropy_weight: how fast the weight of a cached image decreases with its entropy.
    """

    slots: Count = 12
    alpha: NonNegative = 1.0
    sharpness: NonNegative = 60.0
    entropy_weight: NonNegative = 1.5

    def __post_init__(self) -> None:
        super().__post_init__()
        self.cache: Entries
        self.external: Entries  # prototypes of other clients, less certain than the images that replace them
        for name in ("cache", "external"):
            self.add_state(name, empty_cache(self.classifier.class_embeddings))

    def _adapt(self, encoded: Encoded) -> Tensor:
        logits = self.classify(encoded)  # (B, K)
        lengths = encoded.features.norm(dim=-1, keepdim=True)  # (B, 1)
        keys = F.normalize(encoded.features, dim=-1)
        seen = make_entries(keys, logits)
        # The most certain entries of both caches remain the most certain ones when images enter.
        update = update_cache(update_cache(self.cache, self.external, self.slots).apply(), seen, self.slots)
        self.cache = update_cache(self.cache, seen, self.slots).apply()
        cosines, weights = update.attention(keys, self.sharpness)
        weights *= _certainty(update.entries, logits.shape[1], self.entropy_weight)
        cosines = update.prototype_cosines(cosines, weights, logits.shape[1], MIN_NORM)
        # Prototypes have the norms of the class embeddings.
        scales = self.classifier.logit_scale * self.classifier.class_embeddings.norm(dim=-1)
        votes: Tensor = self.alpha * cosines * lengths * scales
        return logits + votes


def exchange(
    caches: Sequence[Entries], classifier: Classifier, count: int, entropy_weight: float = Latte.entropy_weight
) -> list[Entries]:
    """Return the prototypes that each client receives from the others: for each class, the `count` most similar.

    Args:
        caches: the `cache` of each client.
        classifier: a classifier with the class embeddings of all clients.
        count: maximum number of prototypes per class; similarity is that to the client's own prototype.
        entropy_weight: as for `Latte`.
    """
    texts = classifier.class_embeddings
    sums = [
        torch.zeros_like(texts).index_add_(
            0,
            to_device(cache["labels"], texts.device),
            _certainty(cache, len(texts), entropy_weight) * cache["features"],
        )
        for cache in caches
    ]
    prototypes = F.normalize(torch.stack(sums), dim=-1)  # (N, K, D), zero for classes without images
    entropies = entropy(classifier.logits(prototypes))  # (N, K)
    similarities = torch.einsum("ikd,jkd->ikj", prototypes, prototypes)
    is_own = torch.eye(len(caches), dtype=torch.bool, device=texts.device)[:, None]
    similarities.masked_fill_(is_own | ~prototypes.any(dim=-1).T, -torch.inf)
    received = []
    for own in similarities:  # (K, N)
        values, clients = own.topk(min(count, len(caches) - 1), dim=1)
        labels, ranks = values.isfinite().nonzero(as_tuple=True)
        clients = clients[labels, ranks]
        certain = dict(zip(("labels", "entropies"), to_host(labels, entropies[clients, labels]), strict=True))
        received.append({"features": prototypes[clients, labels], **certain})
    return received


def _certainty(entries: Entries, classes: int, weight: float) -> Tensor:
    """Return weights (N, 1) of entries that decrease with their entropy."""
    certainty = (-weight * entries["entropies"] / math.log(classes)).exp()
    return to_device(certainty, entries["features"].device)[:, None]
