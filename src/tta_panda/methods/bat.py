"""BAT (Maharana et al. 2025, "BATCLIP: Bimodal Online Test-Time Adaptation for CLIP")."""

from __future__ import annotations

from typing import Unpack, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tta_panda.checks import check_range
from tta_panda.errors import UnsupportedModelError
from tta_panda.methods.base import check_classifier
from tta_panda.methods.batch import Batch, Encoded
from tta_panda.methods.losses import entropy
from tta_panda.methods.trained import TrainedMethod, TrainedOptions
from tta_panda.models.base import Classifier, VisionLanguageModel, ZeroShotClassifier


class BAT(TrainedMethod):
    """Both encoders adapt: confident predictions, class means near their texts and far from each other.

    The defaults are those of BAT's own code for CIFAR-10-C; for ImageNet-C it has `lr=5e-4`.

    Args:
        lr: learning rate of AdamW.
        weight_decay: of AdamW.
        common: the arguments of every method that trains the encoder.
    """

    adapts_text = True

    def __init__(
        self, classifier: Classifier, *, lr: float = 1e-3, weight_decay: float = 0.01, **common: Unpack[TrainedOptions]
    ):
        check_classifier(classifier)
        if not isinstance(classifier, ZeroShotClassifier):
            raise UnsupportedModelError(f"BAT adapts a text encoder, too, which {classifier.model.name} does not have.")
        super().__init__(classifier, lr=lr, **common)
        check_range("weight_decay", weight_decay, 0)
        self.prompts = classifier
        self.weight_decay = weight_decay

    def make_optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, lr=self.lr, weight_decay=self.weight_decay)

    def _adapt(self, batch: Batch) -> Tensor:
        with torch.enable_grad():
            text = self.prompts.encode_prompts(cast(VisionLanguageModel, self.model))  # (K, D)
            self.passes.count("texts", text, each=len(self.prompts.templates))
            encoded = self.encode(batch, text)
            logits = self.classify(encoded, text)
            self.step(entropy(logits).mean() - self._agreement(encoded, text, logits.argmax(dim=1)))
        if not (self.follows_reference and self.features.are_debiased):
            return logits
        with torch.no_grad():  # the authors' code predicts anew, but with the text features of before
            return self.classify(self.encode(batch), text)

    @staticmethod
    def _agreement(encoded: Encoded, text: Tensor, predicted: Tensor) -> Tensor:
        """How well class means of raw features agree with the texts, plus how far they are from each other."""
        raw = encoded.raw
        assert raw is not None
        present, member = predicted.unique(return_inverse=True)  # (C,), (B,)
        belongs = F.one_hot(member, len(present)).to(raw.dtype)  # (B, C)
        means = belongs.T @ raw / belongs.sum(dim=0)[:, None]  # (C, D)
        alignment = (means * text[present]).sum(dim=1).mean()
        unit = F.normalize(means, dim=1)
        separation = (1 - unit @ unit.T).triu(diagonal=1).sum() * 2  # over ordered pairs
        return alignment + separation
