"""What all ways of debiasing share: frozen settings, and the state of one stream that they start."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple, Self

import pydantic
from torch import Tensor

from tta_panda.options import check_option, declared_options
from tta_panda.panda.negatives import SamplerName
from tta_panda.state import Stateful

if TYPE_CHECKING:
    from tta_panda.panda.offset import PandaDebiaser

HalfLife = Annotated[float, pydantic.Field(ge=1)]
"""In images: after this many, an earlier one counts half as much."""

Strength = Annotated[float, pydantic.Field(ge=0, allow_inf_nan=False)]

Beta = Strength | Literal["auto"]
"""How much of the offset is subtracted; `"auto"` chooses it from the stream, without labels."""


class Evidence(NamedTuple):
    """What the classifier makes of a batch, without gradient: all that a correction is decided from."""

    features: Tensor  # v (B, D)
    similarities: Tensor  # l (B, K), logits without their scale
    offset_similarities: Tensor | None  # b (1 or B, K), of the negatives where there are any
    scale: float
    directions: float  # in how many directions the class embeddings differ, at most K - 1


class Correction(NamedTuple):
    """What is decided once for all passes over a batch. `Correction()` changes nothing."""

    beta: float | None = None  # how much of the negatives' offset is subtracted from features
    shift: Tensor | None = None  # (1, D), subtracted from features
    bias: Tensor | None = None  # (K,), added to logits


@dataclass(frozen=True, repr=False)
class Debias(ABC):
    """Settings. Any number of methods can share them; each starts a `Debiaser` of its own."""

    def __post_init__(self) -> None:
        for name, option in declared_options(type(self)).items():
            object.__setattr__(self, name, check_option(name, getattr(self, name), option.annotation))

    @property
    @abstractmethod
    def name(self) -> str:
        """What follows the `+` in the name of a debiased method, such as `panda`."""

    @abstractmethod
    def start(self, patch_size: int, seed: int) -> Debiaser:
        """The state of a new stream; `patch_size` is the model's default, `seed` that of the negatives."""

    def with_default_sampler(self, sampler: SamplerName) -> Self:
        """The same settings, with `sampler` where none was chosen."""
        return self

    def __repr__(self) -> str:
        """The first setting, and all others that differ from their defaults."""
        first, *others = dataclasses.fields(self)
        shown = [first.name, *(field.name for field in others if getattr(self, field.name) != field.default)]
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"


class Debiaser(Stateful, ABC):
    """The state of one stream: what it has shown of the bias so far."""

    settings: Debias
    gamma: float | None = None
    """How much of the level was subtracted last, for debiasers with a level."""

    @property
    def source(self) -> PandaDebiaser | None:
        """What draws negatives; None where none are needed."""
        return None

    @property
    @abstractmethod
    def fixed(self) -> Correction | None:
        """The correction of every batch, where it depends on the settings alone.

        Where this is `Correction()`, results are exactly those of the plain method.
        """

    @property
    @abstractmethod
    def beta(self) -> float | None:
        """How much of the offset is subtracted: the fixed beta, or the one that was chosen last."""

    @abstractmethod
    def set_beta(self, beta: Beta) -> None:
        """Replace beta in the settings; `"auto"` starts to choose afresh."""

    @abstractmethod
    def decide(self, evidence: Evidence) -> Correction:
        """The correction of the next batch of the stream."""

    @abstractmethod
    def explain(self, class_names: Sequence[str], class_embeddings: Tensor) -> str:
        """The bias that the stream has shown so far and what was subtracted, or why nothing was, in a few words."""
