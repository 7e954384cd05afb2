"""MEMO (Zhang et al. 2022, "MEMO: Test Time Robustness via Adaptation and Augmentation")."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn

from tta_panda.methods.base import BatchSize, EncoderPasses
from tta_panda.methods.features import Batch, Views
from tta_panda.methods.losses import marginal_entropy
from tta_panda.methods.trained import TrainedMethod
from tta_panda.options import Count, NonNegative
from tta_panda.transfers import to_device
from tta_panda.views import apply_view_plan


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
        answers = []
        for i, single in enumerate(encoded.split()):
            own = slice(i, i + 1)
            views = apply_view_plan(to_device(batch.originals[own], batch.images.device), plan[own])[0]  # (V, 3, S, S)
            self.weights.reset()
            self.step(marginal_entropy(self.classify(self.encode_like(single, views))))
            with torch.no_grad():
                answers.append(self.classify(self.encode_like(single, batch.images[own])))
        return torch.cat(answers)

    @classmethod
    def expected_passes(cls, batch: BatchSize, options: dict[str, Any]) -> EncoderPasses:
        passes = super().expected_passes(batch, options)
        passes.images += 2 * batch.images + batch.negatives
        passes.images_with_gradient = options["views"] * batch.images
        return passes
