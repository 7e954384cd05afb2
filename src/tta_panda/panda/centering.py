"""Centring: subtract the mean image embedding. The control for Panda, without any negative."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from tta_panda.panda.debias import Beta, Correction, Debias, Debiaser, Evidence, HalfLife, Strength
from tta_panda.panda.statistics import RunningMean


@dataclass(frozen=True, repr=False)
class Centering(Debias):
    """Subtract the mean embedding of the batch, or of the stream so far.

    Costs nothing, and suits shuffled streams of all classes: where labels are few or come in runs, the mean holds the
    class itself, and subtracting it ruins the predictions. A batch of one image becomes zero.

    Args:
        beta: strength; 1 centres, as in CBC.
        half_life: None takes the mean of the batch; otherwise that of the stream, in which an image counts half as
            much after this many further ones.
    """

    beta: Strength = 1.0
    half_life: HalfLife | None = None

    @property
    def name(self) -> str:
        return "center" if self.half_life is None else "running"

    def start(self, patch_size: int, seed: int) -> CenteringDebiaser:
        return CenteringDebiaser(self)


class CenteringDebiaser(Debiaser):
    """The running mean of a stream, if one is asked for."""

    def __init__(self, settings: Centering):
        super().__init__()
        self.settings: Centering = settings
        mean = None if settings.half_life is None else RunningMean(settings.half_life)
        self.mean = self.add_state("mean", mean)

    @property
    def fixed(self) -> Correction | None:
        return Correction() if self.settings.beta == 0 else None

    @property
    def beta(self) -> float:
        return self.settings.beta

    def set_beta(self, beta: Beta) -> None:
        self.settings = dataclasses.replace(self.settings, beta=beta)  # type: ignore[arg-type]  # "auto" is refused

    def decide(self, evidence: Evidence) -> Correction:
        mean = evidence.features.mean(dim=0)
        if self.mean is not None:
            mean = self.mean.update(mean, len(evidence.features))
        return Correction(shift=self.beta * mean[None])

    def explain(self, class_names: Sequence[str], class_embeddings: Tensor) -> str:
        where = "batch" if self.mean is None else "stream so far"
        return f"{self.beta:g} times the mean image embedding of the {where} was subtracted."
