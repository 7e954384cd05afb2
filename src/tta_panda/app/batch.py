"""One batch, encoded once: what a method says of it at any beta."""

from __future__ import annotations

import threading
from typing import NamedTuple, cast

import torch
from torch import Tensor

from tta_panda.app.pictures import Pictures
from tta_panda.data.dataset import UNLABELLED
from tta_panda.evaluation.metrics import Scores, StreamMetrics
from tta_panda.methods import METHODS, create_method
from tta_panda.methods.base import FrozenMethod
from tta_panda.methods.locking import one_at_a_time
from tta_panda.methods.views import ViewMethod
from tta_panda.models import Classifier
from tta_panda.panda import Beta


def frozen_methods() -> list[str]:
    """Methods that need a single pass over each picture, whatever beta is."""
    found = {name: METHODS.get(name) for name in METHODS}
    return [name for name, kind in found.items() if issubclass(kind, FrozenMethod) and not issubclass(kind, ViewMethod)]


class Outcome(NamedTuple):
    """What a method says of a batch at one beta."""

    beta: float
    probabilities: Tensor  # (B, K)
    metrics: StreamMetrics | None
    """Of the pictures whose class is known, if any."""

    @property
    def predicted(self) -> Tensor:
        return self.probabilities.argmax(dim=1)

    @property
    def counts(self) -> list[int]:
        """How often each class is predicted."""
        return self.predicted.bincount(minlength=self.probabilities.shape[1]).tolist()


class EncodedBatch:
    """Pictures and their negatives after the encoder.

    Args:
        pictures: the batch.
        classifier: for the classes of the pictures.
        method: one of `frozen_methods()`.
    """

    def __init__(self, pictures: Pictures, classifier: Classifier, method: str = "clip"):
        self.pictures = pictures
        self.class_names = classifier.class_names
        self._method = cast(FrozenMethod, create_method(f"{method}+panda", classifier, beta="auto"))
        self._lock = threading.RLock()  # the slider may move on while an earlier beta is at work
        features = self._method.features
        batch = features.prepare(pictures.tensor)
        self._encoded = features.encode_frozen(batch)
        assert batch.negatives is not None and self._encoded.offset is not None
        self.negatives = batch.negatives.images.cpu()  # (M, 3, S, S), in [0, 1]
        self.resemblance: list[float] = classifier.logits(self._encoded.offset).softmax(dim=1).mean(dim=0).tolist()
        """How likely the classifier finds each class in the mean of the negatives."""
        self.plain, self.auto = self.at(0.0), self.at("auto")

    @property
    def label_counts(self) -> list[int] | None:
        """How often each class occurs, where that is known of any picture."""
        known = self.pictures.labels[self.pictures.labels != UNLABELLED]
        return known.bincount(minlength=len(self.class_names)).tolist() if len(known) else None

    @one_at_a_time
    @torch.no_grad()
    def at(self, beta: Beta) -> Outcome:
        """What the method says when it starts with this batch; nothing is encoded again."""
        self._method.reset()
        self._method.beta = beta
        logits = self._method.adapt_encoded(self._encoded).cpu()
        known = self.pictures.labels != UNLABELLED
        metrics = StreamMetrics(len(self.class_names)) if known.any() else None
        if metrics:
            metrics.update(Scores.of(logits[known], self.pictures.labels[known]))
        return Outcome(self._method.beta or 0.0, logits.softmax(dim=1), metrics)
