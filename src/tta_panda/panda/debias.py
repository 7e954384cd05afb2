"""What any way of debiasing is: frozen settings, and the state of one stream that they start."""

from __future__ import annotations

import dataclasses
import functools
import typing
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from torch import Tensor

from tta_panda.checks import check_type
from tta_panda.panda.beta import Beta
from tta_panda.panda.negatives import SamplerName
from tta_panda.panda.running import Running
from tta_panda.panda.source import OffsetSource


class Evidence(NamedTuple):
    """What the classifier makes of a batch, without gradient: all that a correction is decided from."""

    features: Tensor  # v (B, D)
    similarities: Tensor  # l (B, K), logits without their scale
    offset_similarities: Tensor | None  # b (1 or B, K), of the negatives where there are any
    scale: float
    directions: float  # in how many the class embeddings differ, K - 1 at most


class Correction(NamedTuple):
    """What is decided once for all passes over a batch."""

    beta: float | None = None  # how much of the negatives' offset is subtracted from features, if any
    shift: Tensor | None = None  # (1, D), subtracted from features
    bias: Tensor | None = None  # (K,), added to logits


@dataclass(frozen=True, repr=False)
class Debias(ABC):
    """Settings. Any number of methods can be given the same ones; each starts a `Debiaser` of its own."""

    def __post_init__(self) -> None:
        for name, annotation in _type_hints(type(self)).items():
            check_type(name, getattr(self, name), annotation)

    @abstractmethod
    def start(self, patch_size: int, seed: int) -> Debiaser:
        """The state of a new stream; `patch_size` is the model's own, `seed` that of the negatives."""

    def drawn_by(self, sampler: SamplerName) -> Self:
        """The same, with negatives drawn by `sampler` where nothing else was said."""
        return self

    def __repr__(self) -> str:
        """The first setting, and whatever else is not a default."""
        first, *others = dataclasses.fields(self)
        shown = [first.name, *(field.name for field in others if getattr(self, field.name) != field.default)]
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"


@functools.cache
def _type_hints(kind: type) -> dict[str, Any]:
    """Of a class: the same for all its objects, and slow to find out."""
    return typing.get_type_hints(kind)


class Debiaser(Running):
    """The state of one stream: what it has shown so far of the bias."""

    settings: Debias
    source: OffsetSource | None = None
    """Where negatives come from; None where none are needed."""
    gamma: float | None = None
    """How much of the level was subtracted last, where one is."""

    @property
    def is_active(self) -> bool:
        """Whether anything can be corrected at all. Where not, results are the plain method's exactly."""
        return True

    @property
    def fixed(self) -> Correction | None:
        """The correction of every batch, where no evidence is needed to decide it."""
        return None

    @property
    @abstractmethod
    def beta(self) -> float | None:
        """How much of the offset is subtracted: the fixed share, or the one that was chosen last."""

    @abstractmethod
    def set_beta(self, beta: Beta) -> None:
        """Replace the setting, and choose afresh."""

    @abstractmethod
    def decide(self, evidence: Evidence) -> Correction:
        """The correction of the next batch of the stream."""
