"""ETA (Niu et al. 2022, "Efficient Test-Time Model Adaptation without Forgetting"), EATA without its regulariser."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tta_panda.methods.base import Protocol, TrainedMethod
from tta_panda.methods.checks import check_range
from tta_panda.methods.losses import entropy
from tta_panda.models.base import Classifier
from tta_panda.panda import Panda


class ETA(TrainedMethod):
    """Entropy minimisation on the images that are reliable and not like those seen before, the surest weighted most.

    Args:
        lr: learning rate of Adam.
        margin: reliable images have an entropy below `margin * ln K`.
        d_margin: images whose prediction has a cosine of this or more with the mean prediction so far are redundant;
            1 keeps all of them.
    """

    def __init__(
        self,
        classifier: Classifier,
        *,
        lr: float = 1e-3,
        margin: float = 0.5,
        d_margin: float = 1.0,
        debias: Panda | None = None,
        protocol: Protocol = "paper",
        seed: int = 0,
    ):
        for name, value in (("lr", lr), ("margin", margin), ("d_margin", d_margin)):
            check_range(name, value, 0)
        super().__init__(classifier, debias=debias, protocol=protocol, seed=seed)
        self.lr = lr
        self.entropy_margin = margin * math.log(len(classifier.class_names))
        self.d_margin = d_margin
        self.mean_prediction: Tensor | None  # (K,) of the images kept so far
        self.add_state("mean_prediction", None)

    def make_optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters, lr=self.lr, betas=(0.9, 0.999), weight_decay=0.0)

    def _adapt(self, images: Tensor) -> Tensor:
        with torch.enable_grad():
            logits = self.logits(self.features.draw(images))
            entropies = entropy(logits)
            kept = self._select(logits.detach(), entropies.detach())
            if kept.any():
                weights = (self.entropy_margin - entropies[kept].detach()).exp()
                self.step((weights * entropies[kept]).mean())
        return logits

    def _select(self, logits: Tensor, entropies: Tensor) -> Tensor:
        """Which images (B,) to learn from; their predictions enter the running mean."""
        predictions = logits.softmax(dim=-1)
        kept = entropies < self.entropy_margin
        if self.mean_prediction is not None and self._drops_redundant:
            similarity = F.cosine_similarity(self.mean_prediction[None], predictions, dim=1)
            kept &= similarity.abs() < self.d_margin
        if kept.any():
            mean = predictions[kept].mean(dim=0)
            self.mean_prediction = mean if self.mean_prediction is None else 0.9 * self.mean_prediction + 0.1 * mean
        return kept

    @property
    def _drops_redundant(self) -> bool:
        # A cosine of 1 can come out as slightly more or less: a margin of 1 must not depend on that.
        # The authors' code lacks this filter where features are debiased.
        return self.d_margin < 1 and not (self.follows_reference and self.features.debiaser is not None)
