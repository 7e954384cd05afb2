"""Centring: subtract the mean image embedding. The control for Panda, without any negative."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from torch import Tensor

from tta_panda.checks import check_range
from tta_panda.errors import InvalidInputError
from tta_panda.panda.beta import Beta
from tta_panda.panda.debias import Correction, Debias, Debiaser, Evidence
from tta_panda.panda.running import decay


@dataclass(frozen=True, repr=False)
class Centering(Debias):
    """Subtract the mean embedding of the batch, or of the stream so far.

    Costs nothing, and suits shuffled streams of all classes: where labels are few or come in runs, the mean holds the
    class itself, and subtracting that ruins the predictions. With one image in a batch nothing is left of it.

    Args:
        beta: strength; 1 centres, as in CBC.
        half_life: None takes the mean of the batch; otherwise that of the stream, in which an image counts half as
            much after this many further ones.
    """

    beta: float = 1.0
    half_life: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.beta < math.inf:
            raise InvalidInputError(f"beta must be a number >= 0, got {self.beta!r}.")
        if self.half_life is not None:
            check_range("half_life", self.half_life, 1)

    def start(self, patch_size: int, seed: int) -> CenteringDebiaser:
        return CenteringDebiaser(self)


class CenteringDebiaser(Debiaser):
    """The running mean of a stream."""

    settings: Centering

    def __init__(self, centering: Centering):
        self.settings = centering
        super().__init__()

    def reset(self) -> None:
        self.images = 0.0
        self.total: Tensor | float = 0.0  # (D,)

    @property
    def is_active(self) -> bool:
        return self.settings.beta != 0

    @property
    def beta(self) -> float:
        return self.settings.beta

    def set_beta(self, beta: Beta) -> None:
        self.settings = dataclasses.replace(self.settings, beta=beta)  # type: ignore[arg-type]  # refused where it is "auto"

    def decide(self, evidence: Evidence) -> Correction:
        features, half_life = evidence.features, self.settings.half_life
        kept = 0.0 if half_life is None else decay(len(features), half_life)
        earlier = self.total.to(features.device) if isinstance(self.total, Tensor) else 0.0
        self.images = kept * self.images + len(features)
        self.total = kept * earlier + features.sum(dim=0)
        return Correction(shift=self.beta * self.total[None] / self.images)
