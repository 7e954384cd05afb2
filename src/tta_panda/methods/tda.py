"""TDA (Karmanov et al. 2024, "Efficient Test-Time Adaptation of Vision-Language Models")."""

from __future__ import annotations

import math
from typing import Unpack

import torch
import torch.nn.functional as F
from torch import Tensor

from tta_panda.checks import check_range
from tta_panda.methods.base import FrozenMethod, MethodOptions
from tta_panda.methods.batch import Encoded
from tta_panda.methods.losses import entropy_of, likeliest
from tta_panda.methods.memory import Entries, empty_memory, offer
from tta_panda.models.base import Classifier


class TDA(FrozenMethod):
    """Adds to the logits of a class by similarity to its certain images, and subtracts by that to doubtful ones.

    Images are taken one by one, in the order of the batch, and are in the caches when they are classified. The caches
    hold plain features; text logits, and what they say of an image, come from debiased ones.

    The defaults are those of TDA's own code for ImageNet. It has none for corruptions, and searched `alpha` and
    `sharpness` for each data set.

    Args:
        slots: certain images that a class can remember; the least certain one makes room.
        alpha: weight of the cache of certain images.
        sharpness: how fast the weight of an image falls with its distance.
        doubt_slots: images in doubt that a class can remember.
        doubt_alpha: weight of the cache of images in doubt.
        doubt_sharpness: as `sharpness`, for images in doubt.
        least_doubt: images are in doubt whose entropy in nats is above this share of log2 K,
        most_doubt: and below this one.
        least_probability: an image in doubt counts against the classes of a higher probability.
        common: the arguments of every method.
    """

    def __init__(
        self,
        classifier: Classifier,
        *,
        slots: int = 3,
        alpha: float = 2.0,
        sharpness: float = 5.0,
        doubt_slots: int = 2,
        doubt_alpha: float = 0.117,
        doubt_sharpness: float = 1.0,
        least_doubt: float = 0.2,
        most_doubt: float = 0.5,
        least_probability: float = 0.03,
        **common: Unpack[MethodOptions],
    ):
        super().__init__(classifier, **common)
        check_range("slots", slots, 1)
        check_range("doubt_slots", doubt_slots, 1)
        ranges = {
            "alpha": alpha,
            "sharpness": sharpness,
            "doubt_alpha": doubt_alpha,
            "doubt_sharpness": doubt_sharpness,
        }
        ranges |= {"least_doubt": least_doubt, "most_doubt": most_doubt, "least_probability": least_probability}
        for option, value in ranges.items():
            check_range(option, value, 0)
        self.slots, self.doubt_slots = slots, doubt_slots
        self.alpha, self.doubt_alpha = alpha, doubt_alpha
        self.sharpness, self.doubt_sharpness = sharpness, doubt_sharpness
        self.least_doubt, self.most_doubt = least_doubt, most_doubt
        self.least_probability = least_probability
        classes = len(classifier.class_names)
        self.largest_doubt = math.log2(classes)
        self.certain: Entries
        self.doubtful: Entries  # with the classes (N, K) that an image may be
        nothing = empty_memory(classifier.class_embeddings)
        self.add_state("certain", nothing)
        self.add_state("doubtful", {**nothing, "possible": nothing["labels"].new_empty(0, classes, dtype=torch.bool)})

    @torch.no_grad()
    def _adapt_encoded(self, encoded: Encoded) -> Tensor:
        logits = self.classify(encoded)  # (B, K)
        log_probabilities = logits.log_softmax(dim=-1)
        probabilities, entropies = log_probabilities.exp(), entropy_of(log_probabilities)
        keys = F.normalize(encoded.features, dim=-1)
        seen = {"features": keys, "labels": likeliest(logits), "entropies": entropies}
        possible = (self.least_probability < probabilities) & (probabilities < 1)
        doubt = entropies / self.largest_doubt
        is_doubtful = (self.least_doubt < doubt) & (doubt < self.most_doubt)
        certain = offer(self.certain, seen, self.slots)
        doubtful = offer(self.doubtful, {**seen, "possible": possible}, self.doubt_slots, is_doubtful)
        _, pro = certain.attention(keys, self.sharpness)  # (N, B)
        _, contra = doubtful.attention(keys, self.doubt_sharpness)
        against = contra.T @ doubtful.entries["possible"].to(keys.dtype)  # (B, K)
        labels = certain.entries["labels"]
        self.certain, self.doubtful = certain.settle(), doubtful.settle()
        return (logits - self.doubt_alpha * against).index_add(1, labels, pro.T, alpha=self.alpha)
