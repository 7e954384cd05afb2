"""Sums over the predictions of a stream, saved with every checkpoint."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from tta_panda.prediction.predict import Prediction

MAX_REASONS = 20
MIN_STRENGTH = 0.005
"""A smaller beta or gamma is shown as 0.00."""


class Summary:
    """Counts of predictions, and of changed and skipped pictures; accuracy and bias of labelled pictures.

    Names that begin with `plain` refer to the unadapted model. All attributes are plain values or tensors, and are part
    of a checkpoint.
    """

    def __init__(self, class_names: Sequence[str]):
        self.class_names = tuple(class_names)
        zeros = torch.zeros(len(class_names), dtype=torch.double)  # sums are never changed in place
        self.predicted = self.plain_predicted = zeros  # (K,) how often each class is predicted
        self.labels = zeros  # (K,) how often each class occurs, in the labelled pictures
        self.probabilities = self.plain_probabilities = zeros  # (K,) summed over the labelled pictures
        self.pictures = self.skipped = self.changed = 0  # all pictures, including skipped ones
        self.compared = self.rejected = 0  # pictures with a p-value that may be rejected
        self.correct = 0
        self.corrected = self.worsened = 0  # labelled pictures that only the method, or only the plain model gets right
        self.seconds = 0.0
        self.busy = 0.0
        """Seconds spent in the method and its encoder rather than waiting for pictures."""
        self.reasons: dict[str, str] = {}
        """Why pictures were skipped, by path; the first `MAX_REASONS` only."""
        self.strengths: dict[str, dict[str, float]] = {}
        """Number of batches, and sum, minimum and maximum of beta and gamma over them."""
        self.explanation = ""
        """The method's `explain()` after the stream."""

    def update(self, predictions: Sequence[Prediction], own: Tensor, plain: Tensor) -> None:
        """Add a batch; the probabilities (B, K) are those of the readable pictures."""
        index = {name: k for k, name in enumerate(self.class_names)}
        read = [each for each in predictions if each.error is None]
        labels = torch.tensor([index.get(each.label or "", -1) for each in read], dtype=torch.long)
        known, truth = labels >= 0, labels[labels >= 0]
        right, plain_right = (each[known].argmax(dim=1) == truth for each in (own, plain))
        classes = len(self.class_names)
        self.predicted = self.predicted + own.argmax(dim=1).bincount(minlength=classes)
        self.plain_predicted = self.plain_predicted + plain.argmax(dim=1).bincount(minlength=classes)
        self.labels = self.labels + truth.bincount(minlength=classes)
        self.probabilities = self.probabilities + own[known].double().sum(dim=0)
        self.plain_probabilities = self.plain_probabilities + plain[known].double().sum(dim=0)
        self.pictures += len(predictions)
        self.skipped += len(predictions) - len(read)
        self.changed += sum(each.changed for each in read)
        self.compared += sum(each.rejected is not None for each in read)
        self.rejected += sum(bool(each.rejected) for each in read)
        self.correct += int(right.sum())
        self.corrected += int((right & ~plain_right).sum())
        self.worsened += int((plain_right & ~right).sum())
        for each in predictions:
            if each.error is not None and len(self.reasons) < MAX_REASONS:
                self.reasons[each.path or str(each.index)] = each.error

    def update_strength(self, name: str, value: float | None) -> None:
        """Add the beta or gamma of a batch, if the method has one."""
        if value is not None:
            before = self.strengths.get(name, {"batches": 0, "sum": 0.0, "min": value, "max": value})
            self.strengths[name] = {
                "batches": before["batches"] + 1,
                "sum": before["sum"] + value,
                "min": min(before["min"], value),
                "max": max(before["max"], value),
            }

    def _range(self, name: str) -> dict[str, float] | None:
        """Mean, minimum and maximum of beta or gamma; None if the method has none."""
        found = self.strengths.get(name)
        return found and {"mean": found["sum"] / found["batches"], "min": found["min"], "max": found["max"]}

    @property
    def labelled(self) -> int:
        return int(self.labels.sum())

    def _bias(self, probabilities: Tensor) -> float:
        """L1 distance between the mean prediction and the label frequencies."""
        return float((probabilities - self.labels).abs().sum()) / self.labelled

    def explain(self, method: str) -> list[str]:
        """Lines about the bias that was found, the correction, and how many predictions changed, or why none did."""
        read = self.pictures - self.skipped
        lines = [self.explanation] if self.explanation else []
        ranges = [
            f"{symbol} {found['min']:.2f} to {found['max']:.2f}, mean {found['sum'] / found['batches']:.2f}"
            for symbol, found in (("β", self.strengths.get("beta")), ("γ", self.strengths.get("gamma")))
            if found and found["batches"] > 1
        ]
        if ranges:
            lines.append(f"Over all batches: {'; '.join(ranges)}.")
        if read:
            images = f"{read:,} prediction{'s' if read > 1 else ''}"
            reason = "" if self.changed else f": {self._why_unchanged(method)}"
            lines.append(f"{method} changed {self.changed:,} of {images} ({self.changed / read:.1%}){reason}.")
        if self.compared:
            share = f"{self.rejected:,} of {self.compared:,} images ({self.rejected / self.compared:.1%})"
            lines.append(f"{share} rejected: they may show none of the classes.")
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
        subtracted = self.strengths.get("gamma") or self.strengths.get("beta")
        if method == "clip":
            return "clip is the unadapted model"
        if "+" not in method:
            return "adaptation was too weak to move any image to another class"
        if subtracted and subtracted["max"] < MIN_STRENGTH:
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
            "rejected": self.rejected,
            "explanation": self.explanation,
            "beta": self._range("beta"),
            "gamma": self._range("gamma"),
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
