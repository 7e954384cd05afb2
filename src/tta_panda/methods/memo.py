"""MEMO (Zhang et al. 2022, "MEMO: Test Time Robustness via Adaptation and Augmentation")."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn

from tta_panda.methods.base import BatchSize, EncoderPasses
from tta_panda.methods.features import Batch, Encoded, Views
from tta_panda.methods.losses import marginal_entropy
from tta_panda.methods.trained import TrainedMethod
from tta_panda.options import Count, NonNegative
from tta_panda.views import ViewPlan, apply_view_plan


class MEMO(TrainedMethod):
    """Takes one step for each image, from the initial weights, so that its augmented views agree.

    The image is then classified with the new weights, which are not kept. The correction of a batch is decided with the
    initial weights.

    The defaults are those of MEMO's own code for ImageNet-C, which trains all weights; for CIFAR-10-C it uses `lr=5e-3`
    and `views=32`.

    Args:
        lr: learning rate of SGD.
        views: number of views per image, without the image itself.
        norm_statistics: statistics that BatchNorm layers normalise with; MEMO's own code mixes the running ones with
            those of the image.
    """

    lr: NonNegative = 2.5e-4
    views: Count = 64
    norm_statistics: Literal["batch", "running"] | None = "running"

    def _views(self) -> Views:
        return Views(self.views + 1, "augmix")

    def make_optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=self.lr)

    def _adapt(self, batch: Batch) -> Tensor:
        self.weights.reset()
        with torch.no_grad():
            encoded = self.encode(batch)
        plan = self.features.plan_views(batch.originals)
        return torch.cat([self._adapt_to(batch, image, encoded, plan) for image in range(len(batch.images))])

    def _adapt_to(self, batch: Batch, image: int, encoded: Encoded, plan: ViewPlan) -> Tensor:
        """Return logits (1, K) of one image of the batch, after a step on its views."""
        own = slice(image, image + 1)
        corrected = encoded.select(torch.tensor([image]))
        views = apply_view_plan(batch.originals[own].to(batch.images.device), plan[own])[0]  # (V, 3, S, S)
        self.weights.reset()
        logits = self.classify(self.encode_like(corrected, views))
        self.step(marginal_entropy(logits[None]).sum())
        with torch.no_grad():
            return self.classify(self.encode_like(corrected, batch.images[own]))

    @classmethod
    def expected_passes(cls, batch: BatchSize, options: dict[str, Any]) -> EncoderPasses:
        passes = super().expected_passes(batch, options)
        passes.images += 2 * batch.images + batch.negatives
        passes.images_with_gradient = options["views"] * batch.images
        return passes
