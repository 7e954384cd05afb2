"""Sums over the predictions of a stream, saved with every checkpoint and added up over workers."""

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
MIN_STRENGTH = 0.005
"""A smaller beta or gamma is shown as 0.00."""


Stats = list[float]
"""Count, sum, minimum and maximum of some numbers; empty if there are none."""


def _merge(one: Stats, other: Stats) -> Stats:
    if not (one and other):
        return one or other
    return [one[0] + other[0], one[1] + other[1], min(one[2], other[2]), max(one[3], other[3])]


def _as_dict(stats: Stats) -> dict[str, float] | None:
    return {"mean": stats[1] / stats[0], "min": stats[2], "max": stats[3]} if stats else None


@dataclass(eq=False)
class Summary:
    """Counts of predictions, and of changed and skipped pictures; accuracy and bias of labelled pictures.

    Names that begin with `plain` refer to the unadapted model.
    """

    class_names: tuple[str, ...]
    predicted: Tensor  # (K,) how often each class is predicted
    plain_predicted: Tensor  # (K,)
    labels: Tensor  # (K,) how often each class occurs, in the labelled pictures
    probabilities: Tensor  # (K,) summed over the labelled pictures
    plain_probabilities: Tensor  # (K,)
    correct: int = 0
    corrected: int = 0
    """Labelled pictures that only the method classifies correctly."""
    worsened: int = 0
    """Labelled pictures that only the unadapted model classifies correctly."""
    changed: int = 0
    pictures: int = 0
    """All pictures, including skipped ones."""
    skipped: int = 0
    seconds: float = 0.0
    """Summed over workers, if there are several."""
    busy: float = 0.0
    """Seconds spent in the method and its encoder rather than waiting for pictures."""
    reasons: dict[str, str] = field(default_factory=dict)
    """Why pictures were skipped, by path; the first `MAX_REASONS` only."""
    beta: Stats = field(default_factory=list)  # over the batches, as is gamma
    gamma: Stats = field(default_factory=list)
    streams: int = 0
    """Number of finished streams; every shard of several workers is one."""
    explanation: str = ""
    """The method's `explain()` after the last stream."""

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
        """Summarise a batch; the probabilities (B, K) are those of the readable pictures."""
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
        """Add the summary of further pictures to this one."""
        for name, value in vars(other).items():
            if isinstance(value, Tensor | int | float):
                setattr(self, name, getattr(self, name) + value)
        self.explanation = other.explanation or self.explanation
        self.beta, self.gamma = _merge(self.beta, other.beta), _merge(self.gamma, other.gamma)
        self.reasons = dict(list({**self.reasons, **other.reasons}.items())[:MAX_REASONS])

    @property
    def labelled(self) -> int:
        return int(self.labels.sum())

    def _bias(self, probabilities: Tensor) -> float:
        """L1 distance between the mean prediction and the label frequencies."""
        return float((probabilities - self.labels).abs().sum()) / self.labelled

    def explain(self, method: str) -> list[str]:
        """Lines about the bias that was found, the correction, and how many predictions changed, or why none did."""
        read = self.pictures - self.skipped
        lines = []
        if self.explanation:
            of = f"The last of {self.streams:,} shards, which are separate streams: " if self.streams > 1 else ""
            lines.append(of + self.explanation)
        ranges = [
            f"{symbol} {least:.2f} to {greatest:.2f}, mean {total / batches:.2f}"
            for symbol, stats in (("β", self.beta), ("γ", self.gamma))
            for batches, total, least, greatest in ([stats] if stats else [])
            if batches > 1
        ]
        if ranges:
            lines.append(f"Over all batches: {'; '.join(ranges)}.")
        if read:
            images = f"{read:,} prediction{'s' if read > 1 else ''}"
            reason = "" if self.changed else f": {self._why_unchanged(method)}"
            lines.append(f"{method} changed {self.changed:,} of {images} ({self.changed / read:.1%}){reason}.")
        if self.labelled:
            facts = self.facts()
            low, high = facts["gain_interval"]
            gain = f"{100 * facts['gain']:+.1f} points, paired 95 % interval {100 * low:+.1f} to {100 * high:+.1f}"
            lines.append(
                f"{self.labelled:,} labelled images: accuracy {facts['plain_accuracy']:.1%} -> {facts['accuracy']:.1%} "
                f"({gain}), prediction bias {facts['plain_bias']:.3f} -> {facts['bias']:.3f}; {self.corrected:,} "
                f"fixed, {self.worsened:,} broken."
            )
        return lines

    def _why_unchanged(self, method: str) -> str:
        """Why no prediction differs from that of the unadapted model."""
        subtracted = self.gamma or self.beta
        if method == "clip":
            return "clip is the unadapted model"
        if "+" not in method:
            return "adaptation was too weak to move any image to another class"
        if subtracted and subtracted[3] < MIN_STRENGTH:
            return "nothing was subtracted"
        return "in every image, the correction is smaller than the lead of the predicted class"

    def facts(self) -> dict[str, Any]:
        """The sums as plain values, as `--json` prints them."""
        read, seconds = self.pictures - self.skipped, max(self.seconds, 1e-9)
        counts = zip(self.class_names, self.plain_predicted, self.predicted, strict=True)
        facts: dict[str, Any] = {
            "pictures": self.pictures,
            "skipped": self.skipped,
            "reasons": self.reasons,
            "changed": self.changed,
            "explanation": self.explanation,
            "beta": _as_dict(self.beta),
            "gamma": _as_dict(self.gamma),
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
