"""Sums over the predictions of a stream: small enough to save with every checkpoint, and to add up over workers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

if TYPE_CHECKING:
    from tta_panda.prediction.predict import Prediction

MAX_REASONS = 20


@dataclass(eq=False)
class Summary:
    """Counts of predictions, of changed and of skipped pictures; accuracy and bias where labels are known.

    Names that begin with `plain` are of the classifier without adaptation and without Panda.
    """

    class_names: tuple[str, ...]
    predicted: Tensor  # (K,) how often each class is predicted
    plain_predicted: Tensor  # (K,)
    labels: Tensor  # (K,) how often each class occurs, in the labelled pictures
    probabilities: Tensor  # (K,) summed over the labelled pictures
    plain_probabilities: Tensor  # (K,)
    correct: int = 0
    corrected: int = 0
    """Labelled pictures that only the method has right."""
    worsened: int = 0
    """Labelled pictures that only the plain classifier has right."""
    changed: int = 0
    pictures: int = 0
    """All of them, the skipped ones included."""
    skipped: int = 0
    seconds: float = 0.0
    """Of several workers, the sum of theirs."""
    busy: float = 0.0
    """Seconds in which the method and its encoder worked; in the others they waited for pictures."""
    reasons: dict[str, str] = field(default_factory=dict)
    """Why pictures were skipped, by path, for the first of them."""

    @classmethod
    def empty(cls, class_names: Sequence[str]) -> Self:
        zeros = torch.zeros(len(class_names), dtype=torch.double)  # sums are never changed in place
        return cls(tuple(class_names), zeros, zeros, zeros, zeros, zeros)

    @classmethod
    def of_batch(
        cls,
        class_names: Sequence[str],
        predictions: Sequence[Prediction],
        own: Tensor,
        plain: Tensor,
        seconds: float,
        busy: float,
    ) -> Self:
        """Count a batch, with the probabilities (B, K) of the pictures that could be read."""
        index = {name: k for k, name in enumerate(class_names)}
        read = [each for each in predictions if each.error is None]
        labels = torch.tensor([index.get(each.label or "", -1) for each in read], dtype=torch.long)
        known, truth = labels >= 0, labels[labels >= 0]
        right, plain_right = (each[known].argmax(dim=1) == truth for each in (own, plain))
        classes = len(class_names)
        return cls(
            tuple(class_names),
            own.argmax(dim=1).bincount(minlength=classes),
            plain.argmax(dim=1).bincount(minlength=classes),
            truth.bincount(minlength=classes),
            own[known].double().sum(dim=0),
            plain[known].double().sum(dim=0),
            correct=int(right.sum()),
            corrected=int((right & ~plain_right).sum()),
            worsened=int((plain_right & ~right).sum()),
            changed=sum(each.changed for each in read),
            pictures=len(predictions),
            skipped=len(predictions) - len(read),
            seconds=seconds,
            busy=busy,
            reasons={each.path or str(each.index): each.error for each in predictions if each.error is not None},
        )

    def add(self, other: Summary) -> None:
        """Add what another summary has counted of further pictures."""
        for name, value in vars(other).items():
            if name not in ("class_names", "reasons"):
                setattr(self, name, getattr(self, name) + value)
        self.reasons = dict(list({**self.reasons, **other.reasons}.items())[:MAX_REASONS])

    @property
    def labelled(self) -> int:
        return int(self.labels.sum())

    def _bias(self, probabilities: Tensor) -> float:
        """L1 distance between the mean prediction and the label frequencies."""
        return float((probabilities - self.labels).abs().sum()) / self.labelled

    def facts(self) -> dict[str, Any]:
        """What `--json` prints."""
        read, seconds = self.pictures - self.skipped, max(self.seconds, 1e-9)
        counts = zip(self.class_names, self.plain_predicted, self.predicted, strict=True)
        facts: dict[str, Any] = {
            "pictures": self.pictures,
            "skipped": self.skipped,
            "reasons": self.reasons,
            "changed": self.changed,
            "seconds": round(self.seconds, 3),
            "pictures_per_second": round(read / seconds, 2),
            "busy": round(self.busy / seconds, 4),
            "classes": {name: {"plain": int(plain), "predicted": int(own)} for name, plain, own in counts},
        }
        if self.labelled:
            gain = (self.corrected - self.worsened) / self.labelled
            variance = (self.corrected + self.worsened) / self.labelled - gain**2  # of paired differences
            half = 1.96 * math.sqrt(max(0.0, variance) / self.labelled)
            facts |= {
                "labelled": self.labelled,
                "accuracy": self.correct / self.labelled,
                "plain_accuracy": self.correct / self.labelled - gain,
                "gain": gain,
                "gain_interval": [gain - half, gain + half],
                "bias": self._bias(self.probabilities),
                "plain_bias": self._bias(self.plain_probabilities),
            }
        return facts
