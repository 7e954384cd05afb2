"""WATT (Osowiechi et al. 2024, "WATT: Weight Average Test-Time Adaptation of CLIP")."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tta_panda.methods.base import BatchSize, EncoderPasses
from tta_panda.methods.features import Batch
from tta_panda.methods.losses import matching_loss
from tta_panda.methods.trained import TrainedMethod
from tta_panda.models.base import ZeroShotClassifier
from tta_panda.models.prompts import WATT as TEMPLATES
from tta_panda.options import Count


class WATT(TrainedMethod):
    """Averages weights that were trained with different prompts, from the initial weights for every batch.

    With each of eight templates, images are matched with the texts of their predicted classes. The mean of the weights
    after the templates starts the next round, and finally predicts, with the mean of the texts. The classifier's own
    templates are not used. Nothing persists over batches. Where all images of a batch have the same text, such as a
    single image, no step is taken.

    The defaults are those of WATT-S for CIFAR-10-C and CIFAR-100-C; WATT-P uses `parallel=True`, `rounds=50`.

    Args:
        lr: learning rate of Adam.
        rounds: number of averages per batch.
        steps: number of steps per template and round.
        parallel: train every template of a round from the same weights (WATT-P), instead of from those of the previous
            template (WATT-S).
    """

    use_of_text = "embeds the class names with several templates"
    extra_passes = 1

    rounds: Count = 5
    steps: Count = 2
    parallel: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        model, names = self.classifier.model, self.classifier.class_names
        with torch.inference_mode(False):
            each = [ZeroShotClassifier(model, names, template).class_embeddings for template in TEMPLATES]
            self.texts = torch.stack(each)  # (T, K, D)
            self.mean_texts = F.normalize(self.texts.mean(dim=0), dim=-1)  # (K, D)

    def _adapt(self, batch: Batch) -> Tensor:
        self.weights.reset()
        if len(batch.images) > 1:
            for number in range(self.rounds):
                self._train(batch, first=number == 0)
        with torch.no_grad():
            return self.classify(self.encode(batch, self.mean_texts), self.mean_texts)

    def _train(self, batch: Batch, first: bool) -> None:
        """Take the steps of one round with all templates, and average the weights after each."""
        start, learnt = self.weights.copy(), []
        for texts in self.texts:
            if self.parallel and first:
                self.weights.reset()
            elif self.parallel:
                self.weights.load(start)  # and keep the moments of the optimiser, as the authors do
            for _ in range(self.steps):
                encoded = self.encode(batch, self.mean_texts)
                logits = self.classify(encoded, texts)
                own = logits.argmax(dim=1)  # (B,)
                if (own == own[0]).all():  # the gradient is zero, and Adam would magnify its rounding errors
                    break
                transpose = self.follows_reference
                self.step(matching_loss(logits[:, own], encoded.features, texts[own], transpose=transpose))
            learnt.append(self.weights.copy())
        self.weights.load({name: torch.stack([each[name] for each in learnt]).mean(dim=0) for name in start})

    @classmethod
    def expected_passes(cls, batch: BatchSize, options: dict[str, Any]) -> EncoderPasses:
        passes = super().expected_passes(batch, options)
        passes.images_with_gradient *= options["rounds"] * len(TEMPLATES) * options["steps"]
        return passes
