"""Base classes of methods that use many augmented views of each image."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from tta_panda.chunks import in_chunks
from tta_panda.methods.base import FrozenMethod
from tta_panda.methods.features import Encoded, Views
from tta_panda.methods.losses import entropy, marginal_entropy
from tta_panda.options import Count, NonNegative, Share
from tta_panda.views import Augmentation


class ViewMethod(FrozenMethod):
    """Base class of methods that use augmented views of single images, without state.

    Args:
        views: number of views per image, including the plain image.
        augmentation: `"augmix"`, or `"crops"` for crops and flips only.
    """

    views: Count = 64
    augmentation: Augmentation = "augmix"

    def _views(self) -> Views:
        return Views(self.views, self.augmentation)

    def view_features(self, encoded: Encoded) -> Tensor:
        """Return the features (B, V, D) of all views that the method uses."""
        return encoded.debiased_views

    def view_logits(self, encoded: Encoded) -> Tensor:
        """Return the logits (B, V, K) of all views."""
        return self.classify(encoded, self.class_embeddings, self.view_features(encoded))


def by_confidence(values: Tensor, logits: Tensor) -> Tensor:
    """Sort values of views (B, V, ...) by increasing entropy of their logits (B, V, K)."""
    order = entropy(logits).argsort(dim=1, stable=True)
    return values[torch.arange(len(values), device=values.device)[:, None], order]


def count_kept(keep: float, views: int) -> int:
    """Return the number of views for a fraction of them, at least one."""
    return max(1, int(keep * views + 1e-9))


class ConfidentViewMethod(ViewMethod):
    """Base class of methods that use the confident ones among the views of an image.

    Args:
        keep: fraction of the views, those with the lowest entropy, that is used; at least one view is.
    """

    keep: Share = 0.1

    def confident(self, values: Tensor, logits: Tensor) -> Tensor:
        """Select values (B, n, ...) of the confident views, from those of all views (B, V, ...) by logits (B, V, K)."""
        return by_confidence(values, logits)[:, : count_kept(self.keep, logits.shape[1])]


class EpisodicMethod(ConfidentViewMethod):
    """Base class of methods that take a few steps of AdamW for each image, so that its confident views agree.

    The defaults are those of the code of TPT and TPS, which uses AugMix for fine-grained data sets; for ImageNet and
    its variants it uses `augmentation="crops"`.

    Args:
        lr: learning rate of AdamW.
        steps: number of updates per image.
    """

    selects_every_step: ClassVar[bool] = False
    """Whether confident views are selected at every step, not only before the first."""

    lr: NonNegative = 5e-3
    steps: Count = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        self.add_state("skipped_steps", 0)
        self.start: Tensor  # (...), the tuned tensor before the first step
        self.images_at_once: int

    @abstractmethod
    def logits(self, features: Tensor, tuned: Tensor) -> Tensor:
        """Return logits (b, n, K) of features (b, n, D), with the tuned tensor (b, ...) of each image."""

    def loss(self, features: Tensor, tuned: Tensor, bias: Tensor) -> Tensor:
        """Return the loss, summed over images, of their confident views (b, n, D)."""
        return marginal_entropy(self.logits(features, tuned) + bias[:, None]).sum()

    def _adapt(self, encoded: Encoded) -> Tensor:
        features = self.view_features(encoded)  # (B, V, D)
        kept = self.confident(features, self.view_logits(encoded))
        bias = features.new_zeros(len(features), 1) if encoded.bias is None else encoded.bias
        skipped = torch.zeros((), dtype=torch.long, device=features.device)
        logits = in_chunks(
            lambda piece: self._solve(features[piece], kept[piece], bias[piece], skipped),
            len(features),
            self.images_at_once,
        )
        self.skipped_steps += int(skipped)
        return logits

    def _solve(self, features: Tensor, kept: Tensor, bias: Tensor, skipped: Tensor) -> Tensor:
        """Tune on the confident views (b, n, D), and return logits (b, K) of the first of all views (b, V, D).

        AdamW is elementwise and the losses of images share no parameters, so images can be stacked. Steps whose
        gradient is NaN or infinite are skipped for the image concerned, and added to `skipped` ().
        """
        tuned = self.start.expand(len(kept), *self.start.shape).clone().requires_grad_(True)
        optimizer = torch.optim.AdamW([tuned], lr=self.lr, weight_decay=0.01, fused=True)
        for step in range(self.steps):
            if step and self.selects_every_step:
                kept = self.confident(features, self.logits(features, tuned.detach()) + bias[:, None])
            with torch.enable_grad():
                loss = self.loss(kept, tuned, bias)
            gradient = torch.autograd.grad(loss, tuned)[0]
            is_finite = gradient.flatten(1).sum(dim=1).isfinite()  # (b,), else the image's step is skipped
            skipped += (~is_finite).sum()
            is_finite = is_finite.view(-1, *(1 for _ in self.start.shape))
            before = tuned.detach().clone()
            tuned.grad = gradient.where(is_finite, 0.0).contiguous()  # required by the fused step
            optimizer.step()
            tuned.copy_(tuned.where(is_finite, before))  # AdamW decays weights even if the gradient is zero
        return self.logits(features[:, :1], tuned.detach())[:, 0] + bias
