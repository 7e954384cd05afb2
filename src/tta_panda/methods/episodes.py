"""Adaptation that starts afresh with every image: a few steps of AdamW from a given point, many images at once."""

from __future__ import annotations

from abc import abstractmethod
from functools import partial
from typing import TypedDict, Unpack

import torch
from torch import Tensor

from tta_panda.checks import check_range
from tta_panda.chunks import in_chunks
from tta_panda.methods.batch import Encoded
from tta_panda.methods.losses import marginal_entropy, take_views
from tta_panda.methods.views import ViewMethod, ViewOptions
from tta_panda.models.base import Classifier


class EpisodicOptions(ViewOptions, TypedDict, total=False):
    """The arguments of every episodic method."""

    lr: float
    steps: int


class EpisodicMethod(ViewMethod):
    """A method that takes a few steps for each image alone, so that its confident views agree.

    The defaults are those of the code of TPT and TPS, which uses AugMix for fine-grained data sets; for ImageNet and
    its variants it has `augmentation="crops"`.

    Args:
        lr: learning rate of AdamW.
        steps: updates per image; which views are confident is decided before the first.
        common: the arguments of every method with views.
    """

    start: Tensor  # (...), what is tuned, before the first step
    images_at_once: int

    def __init__(self, classifier: Classifier, *, lr: float = 5e-3, steps: int = 1, **common: Unpack[ViewOptions]):
        super().__init__(classifier, **common)
        check_range("lr", lr, 0)
        check_range("steps", steps, 1)
        self.lr = lr
        self.steps = steps
        self.add_state("skipped_steps", 0)

    @abstractmethod
    def logits(self, features: Tensor, tuned: Tensor) -> Tensor:
        """(b, n, K) of features (b, n, D), each image with its own row of `tuned` (b, ...)."""

    @torch.no_grad()
    def _adapt_encoded(self, encoded: Encoded) -> Tensor:
        features = self.view_features(encoded)  # (B, V, D)
        order, count = self.rank(self.view_logits(encoded))
        kept, plain = take_views(features, order[:, :count]), features[:, :1]
        solve = partial(self._solve, bias=encoded.bias)
        return in_chunks(lambda piece: solve(kept[piece], plain[piece]), len(kept), self.images_at_once)

    def _solve(self, kept: Tensor, plain: Tensor, bias: Tensor | float) -> Tensor:
        """Logits (b, K) of plain images (b, 1, D), tuned on their confident views (b, n, D).

        AdamW works number by number and the losses do not share any, so stacking images changes nothing. An image whose
        gradient is NaN or infinite stays as it is.
        """
        tuned = self.start.expand(len(kept), *self.start.shape).clone().requires_grad_(True)
        optimizer = torch.optim.AdamW([tuned], lr=self.lr, weight_decay=0.01, fused=True)
        for _ in range(self.steps):
            with torch.enable_grad():
                loss = marginal_entropy(self.logits(kept, tuned) + bias).sum()
            gradient = torch.autograd.grad(loss, tuned)[0]
            broken = (~gradient.flatten(1).sum(dim=1).isfinite()).nonzero()[:, 0]  # images whose step is left out
            untouched = tuned.detach()[broken]
            tuned.grad = gradient.index_fill_(0, broken, 0.0).contiguous()  # as the fused step takes it to be
            optimizer.step()
            tuned[broken] = untouched  # AdamW shrinks weights even without a gradient
            self.skipped_steps += len(broken)
        return self.logits(plain, tuned.detach())[:, 0] + bias
