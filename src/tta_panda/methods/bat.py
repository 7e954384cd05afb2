"""BAT (Maharana et al. 2025, "BATCLIP: Bimodal Online Test-Time Adaptation for CLIP")."""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tta_panda.methods.base import BatchSize, EncoderPasses
from tta_panda.methods.features import Batch, Encoded
from tta_panda.methods.losses import entropy
from tta_panda.methods.trained import TrainedMethod
from tta_panda.models.base import VisionLanguageModel, ZeroShotClassifier
from tta_panda.options import NonNegative


class BAT(TrainedMethod):
    """Trains both encoders towards confident predictions, and class means close to their texts and far apart.

    The defaults are those of BAT's own code for CIFAR-10-C; for ImageNet-C it uses `lr=5e-4`.

    Args:
        lr: learning rate of AdamW.
        weight_decay: weight decay of AdamW.
    """

    adapts_text = True
    use_of_text = "trains the text encoder"

    weight_decay: NonNegative = 0.01

    def make_optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, lr=self.lr, weight_decay=self.weight_decay)

    def _adapt(self, batch: Batch) -> Tensor:
        classifier = cast(ZeroShotClassifier, self.classifier)
        text = classifier.encode_prompts(cast(VisionLanguageModel, self.model))  # (K, D)
        self.passes.count("texts", len(classifier.prompts), text.requires_grad)
        encoded = self.encode(batch, text)
        logits = self.classify(encoded, text)
        self.step(entropy(logits).mean() - self._agreement(encoded, text, logits.argmax(dim=1)))
        if not (self.follows_reference and self.features.active is not None):
            return logits
        with torch.no_grad():  # the authors' code encodes images again, but keeps the earlier text features
            return self.classify(self.encode(batch), text)

    @staticmethod
    def _agreement(encoded: Encoded, text: Tensor, predicted: Tensor) -> Tensor:
        """Return the agreement of class means of raw features with the texts, plus the distances between the means."""
        raw = encoded.raw
        assert raw is not None
        belongs = F.one_hot(predicted, len(text)).to(raw.dtype)  # (B, K)
        counts = belongs.sum(dim=0)
        present = (counts > 0).to(raw.dtype)  # (K,)
        means = belongs.T @ raw / counts.clamp_min(1)[:, None]  # (K, D), zero for other classes
        alignment = (means * text).sum() / present.sum()
        unit = F.normalize(means, dim=1)
        distances = torch.outer(present, present) - unit @ unit.T
        return alignment + distances.triu(diagonal=1).sum() * 2  # over ordered pairs

    @classmethod
    def expected_passes(cls, batch: BatchSize, options: dict[str, Any]) -> EncoderPasses:
        passes = super().expected_passes(batch, options)
        passes.texts_with_gradient = batch.classes * batch.templates
        if options["protocol"] == "reference" and batch.negatives:
            passes.images += batch.images + batch.negatives
        return passes
