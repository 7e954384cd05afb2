"""OnZeta (Qian and Hu 2024, "Online Zero-Shot Classification with CLIP")."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from tta_panda.methods.base import FrozenMethod
from tta_panda.methods.features import Encoded
from tta_panda.options import Count, NonNegative, Share

WARM_UP = 100
"""Number of images after which the weight of proxies is √½ of the final one, for streams of unknown length."""


class OnZeta(FrozenMethod):
    """Balances the classes that texts predict, and learns a proxy of each class from these predictions.

    Images are processed one by one, in the order of the batch, and none is stored. Both predictions compare debiased
    features.

    The defaults are those of OnZeta's own code, which knows the number of images in advance: the weight of the proxies
    grows with the root of time up to the last image. Set `length` for this. Without it, the weight grows faster and
    approaches the same value; this is not published, and was chosen on the embedded validation data.

    Args:
        length: number of images in the stream; None if it is unknown.
        proxy_weight: weight of the proxies' prediction at the end of the stream.
        proxy_lr: learning rate of the proxies; like that of the balance, it decreases with the root of the time.
        sharpness: factor of the logits of proxies, relative to those of texts.
        balance_lr: learning rate of the balance; 0 for none.
        min_share: every class gets at least this share of the images, relative to 1/K.
    """

    length: Count | None = None
    proxy_weight: Share = 0.8
    proxy_lr: NonNegative = 0.5
    sharpness: NonNegative = 0.25
    balance_lr: NonNegative = 20.0
    min_share: NonNegative = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        texts = self.classifier.class_embeddings
        self._norms = texts.norm(dim=-1, keepdim=True)  # (K, 1), 1 unless the classifier is a linear head
        self.proxies: Tensor
        self.add_state("proxies", F.normalize(texts, dim=-1))
        self.balance: Tensor
        self.add_state("balance", texts.new_zeros(len(texts)))
        self.count = self.add_state("count", 0)  # images so far

    def _adapt(self, encoded: Encoded) -> Tensor:
        return torch.cat([self._learn(image) for image in encoded.split()])

    def _learn(self, image: Encoded) -> Tensor:
        """Return log-probabilities (1, K) of one image, and learn from it."""
        self.count += 1
        slowdown = math.sqrt(self.count)
        by_text = (self.classify(image) + self.balance).log_softmax(dim=-1)
        excess = by_text[0].exp() - self.min_share / by_text.shape[1]
        self.balance = (self.balance - self.balance_lr / slowdown * excess).clamp_min(0)

        by_proxy = (self.sharpness * self.classify(image, self.proxies * self._norms)).log_softmax(dim=-1)
        rate = self.proxy_lr / slowdown * self.sharpness * self.classifier.logit_scale
        error = by_proxy.exp() - by_text.exp()
        direction = image.debiased / image.features.norm().clamp_min(1e-12)
        self.proxies = F.normalize(self.proxies - rate * error.T @ direction, dim=-1)

        progress = min(1.0, self.count / (self.length or self.count + WARM_UP))
        weight = torch.full_like(by_text[0], self.proxy_weight * math.sqrt(progress))
        return torch.logaddexp(by_proxy + weight.log(), by_text + (-weight).log1p())
