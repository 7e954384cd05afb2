"""BAT (Maharana et al. 2025, "BATCLIP: Bimodal Online Test-Time Adaptation for CLIP")."""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tta_panda.errors import UnsupportedModelError
from tta_panda.methods.base import Protocol, TrainedMethod
from tta_panda.methods.checks import check_range
from tta_panda.methods.losses import entropy
from tta_panda.models.base import Classifier, VisionLanguageModel, ZeroShotClassifier
from tta_panda.panda import Encoded, Panda


class BAT(TrainedMethod):
    """Both encoders adapt: confident predictions, class means near their texts and far from each other.

    Args:
        lr: learning rate of AdamW.
        weight_decay: of AdamW.
    """

    def __init__(
        self,
        classifier: Classifier,
        *,
        lr: float = 1e-3,
        weight_decay: float = 0.01,
        debias: Panda | None = None,
        protocol: Protocol = "paper",
        seed: int = 0,
    ):
        check_range("lr", lr, 0)
        check_range("weight_decay", weight_decay, 0)
        if not isinstance(classifier, ZeroShotClassifier):
            raise UnsupportedModelError(f"BAT adapts a text encoder, too, which {classifier.model.name} does not have.")
        super().__init__(classifier, text=True, debias=debias, protocol=protocol, seed=seed)
        self.prompts = classifier
        self.lr = lr
        self.weight_decay = weight_decay

    def make_optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, lr=self.lr, betas=(0.9, 0.999), weight_decay=self.weight_decay)

    def _adapt(self, images: Tensor) -> Tensor:
        batch = self.features.draw(images)
        with torch.enable_grad():
            text = self.prompts.encode_prompts(cast(VisionLanguageModel, self.model))  # (K, D)
            self.passes.count_texts(text)
            encoded = self.encode(batch)
            logits = self._classify(encoded, text)
            self.step(entropy(logits).mean() - self._agreement(encoded, text, logits.argmax(dim=1)))
        if not (self.follows_reference and self.features.debiaser is not None):
            return logits
        with torch.no_grad():  # the authors' code predicts anew, but with the text features of before
            return self._classify(self.encode(batch), text)

    def _classify(self, encoded: Encoded, text: Tensor) -> Tensor:
        return self.classifier.logits(self.features.debias(encoded, text), text)

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
