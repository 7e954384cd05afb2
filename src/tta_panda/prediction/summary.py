"""What all predictions of a stream come to, in running sums that are small enough to save with every checkpoint."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Self

import torch
from torch import Tensor

from tta_panda.data.dataset import UNLABELLED
from tta_panda.prediction.predict import PredictedBatch

MOST_REASONS = 20


@dataclass
class Tally:
    """Predictions of the method, or of the plain classifier."""

    predicted: list[int]  # (K,) how often each class was predicted
    correct: int = 0
    probabilities: list[float] = field(default_factory=list)  # (K,) sums over the labelled pictures

    def add(self, probabilities: Tensor, labels: Tensor) -> Tensor:
        """Count probabilities (B, K); returns which of the labelled pictures are right."""
        chosen, known = probabilities.argmax(dim=1), labels != UNLABELLED
        self.predicted = _plus(self.predicted, chosen.bincount(minlength=len(self.predicted)))
        self.probabilities = _plus(self.probabilities, probabilities[known].double().sum(dim=0))
        right = chosen[known] == labels[known]
        self.correct += int(right.sum())
        return right

    def add_part(self, other: Tally) -> None:
        self.predicted = _sums(self.predicted, other.predicted)
        self.probabilities = _sums(self.probabilities, other.probabilities)
        self.correct += other.correct

    def bias(self, labels: Sequence[int]) -> float:
        """L1 distance between the mean prediction and the label frequencies."""
        differences = zip(self.probabilities, labels, strict=True)
        return sum(abs(probability - count) for probability, count in differences) / sum(labels)


@dataclass
class Summary:
    """Counts of predictions, of what changed and of what was skipped; accuracy and bias where labels are known."""

    class_names: list[str]
    own: Tally
    plain: Tally
    labels: list[int]  # (K,) of the labelled pictures
    only_own: int = 0
    """Labelled pictures that only the method has right."""
    only_plain: int = 0
    changed: int = 0
    pictures: int = 0
    """All of them, the skipped ones included."""
    skipped: int = 0
    reasons: dict[str, str] = field(default_factory=dict)
    """Why pictures could not be read, by path, for the first of them."""
    seconds: float = 0.0
    busy: float = 0.0
    """Seconds in which the method and its encoder worked; in the others they waited for pictures."""

    @classmethod
    def of(cls, class_names: Sequence[str]) -> Self:
        nothing = [0] * len(class_names)
        own, plain = (Tally(nothing, probabilities=[0.0] * len(class_names)) for _ in range(2))
        return cls(list(class_names), own, plain, labels=nothing)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        return cls(**{**content, "own": Tally(**content["own"]), "plain": Tally(**content["plain"])})

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def add(self, batch: PredictedBatch, labels: Sequence[int]) -> None:
        """Count a batch; `labels` are those of all its pictures."""
        self.pictures += len(batch.predictions)
        self.busy += batch.seconds
        for prediction in batch.predictions:
            if prediction.error is None:
                self.changed += prediction.changed
            else:
                self.skipped += 1
                if len(self.reasons) < MOST_REASONS:
                    self.reasons[prediction.path or str(prediction.index)] = prediction.error
        read = torch.tensor(
            [label for label, prediction in zip(labels, batch.predictions, strict=True) if prediction.error is None],
            dtype=torch.long,
        )
        self.labels = _plus(self.labels, read[read != UNLABELLED].bincount(minlength=len(self.class_names)))
        own, plain = self.own.add(batch.probabilities, read), self.plain.add(batch.plain_probabilities, read)
        self.only_own += int((own & ~plain).sum())
        self.only_plain += int((plain & ~own).sum())

    def add_part(self, other: Summary) -> None:
        """Count what another summary has counted of further pictures. Seconds are then those of all workers."""
        self.own.add_part(other.own)
        self.plain.add_part(other.plain)
        self.labels = _sums(self.labels, other.labels)
        self.reasons = dict(list({**self.reasons, **other.reasons}.items())[:MOST_REASONS])
        for name in ("only_own", "only_plain", "changed", "pictures", "skipped", "seconds", "busy"):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    @property
    def labelled(self) -> int:
        return sum(self.labels)

    @property
    def gain(self) -> tuple[float, float]:
        """Accuracy of the method less that of the plain classifier, and half of its 95 % interval, paired."""
        n, better, worse = self.labelled, self.only_own, self.only_plain
        mean = (better - worse) / n
        return mean, 1.96 * math.sqrt(max(0.0, (better + worse) / n - mean**2) / n)

    def facts(self) -> dict[str, Any]:
        """What `--json` prints."""
        read = self.pictures - self.skipped
        facts: dict[str, Any] = {
            "pictures": self.pictures,
            "skipped": self.skipped,
            "reasons": self.reasons,
            "changed": self.changed,
            "seconds": round(self.seconds, 3),
            "pictures_per_second": round(read / max(self.seconds, 1e-9), 2),
            "busy": round(self.busy / max(self.seconds, 1e-9), 4),
            "classes": {
                name: {"plain": plain, "predicted": own}
                for name, plain, own in zip(self.class_names, self.plain.predicted, self.own.predicted, strict=True)
            },
        }
        if self.labelled:
            gain, half = self.gain
            facts |= {
                "labelled": self.labelled,
                "accuracy": self.own.correct / self.labelled,
                "plain_accuracy": self.plain.correct / self.labelled,
                "gain": gain,
                "gain_interval": [gain - half, gain + half],
                "bias": self.own.bias(self.labels),
                "plain_bias": self.plain.bias(self.labels),
            }
        return facts


def _plus(sums: Sequence[Any], more: Tensor) -> list[Any]:
    return _sums(sums, more.tolist())


def _sums(one: Sequence[Any], other: Sequence[Any]) -> list[Any]:
    return [each + new for each, new in zip(one, other, strict=True)]
