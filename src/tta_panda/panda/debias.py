"""Base classes of debiasing: frozen settings, and the state of one stream."""

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
from tta_panda.transfers import Index, select

if TYPE_CHECKING:
    from tta_panda.panda.offset import PandaDebiaser

HalfLife = Annotated[float, pydantic.Field(ge=1)]
"""Half-life in images: after this many, an earlier image counts half as much."""

Strength = Annotated[float, pydantic.Field(ge=0, allow_inf_nan=False)]

Beta = Strength | Literal["auto"]
"""How much of the offset is subtracted; `"auto"` chooses this from the stream, without labels."""


class Evidence(NamedTuple):
    """The features and similarities of a batch, without gradient, from which a correction is decided."""

    features: Tensor  # v (B, D)
    similarities: Tensor  # l (B, K), logits without their scale
    offset_similarities: Tensor | None  # b (1 or B, K), of the negatives if there are any
    scale: float
    directions: float | Tensor  # effective number of dimensions in which the class embeddings differ, at most K - 1
    images: Tensor | None = None  # (B, C, H, W), as passed by the caller


class Correction(NamedTuple):
    """The correction of a batch, the same for all passes over it. `Correction()` changes nothing."""

    beta: float | Tensor | None = None  # how much of the negatives' offset is subtracted from features
    shift: Tensor | None = None  # (1, D), subtracted from features
    bias: Tensor | None = None  # (B, K), added to logits

    def select(self, index: Index) -> Correction:
        """Select the correction of some of the images."""
        return self if self.bias is None else self._replace(bias=select(self.bias, index))


@dataclass(frozen=True, repr=False)
class Debias(ABC):
    """Settings of debiasing, which methods can share; each method starts its own `Debiaser`."""

    def __post_init__(self) -> None:
        for name, option in declared_options(type(self)).items():
            object.__setattr__(self, name, check_option(name, getattr(self, name), option.annotation))

    @property
    @abstractmethod
    def name(self) -> str:
        """Suffix after the `+` in the name of a debiased method, such as `panda`."""

    @abstractmethod
    def start(self, patch_size: int, seed: int) -> Debiaser:
        """Create the state of a new stream; `patch_size` is the model's default, `seed` is for the negatives."""

    def with_default_sampler(self, sampler: SamplerName) -> Self:
        """Return these settings with `sampler` as sampler, unless one was chosen."""
        return self

    def __repr__(self) -> str:
        """Show the first setting, and all others that differ from their defaults."""
        first, *others = dataclasses.fields(self)
        shown = [first.name, *(field.name for field in others if getattr(self, field.name) != field.default)]
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"


class Debiaser(Stateful, ABC):
    """The state of debiasing on one stream."""

    settings: Debias
    gamma: float | Tensor | None = None
    """How much of the level was subtracted last, for debiasers with a level."""

    @property
    def source(self) -> PandaDebiaser | None:
        """The debiaser that draws negatives; None if none are needed."""
        return None

    @property
    @abstractmethod
    def fixed(self) -> Correction | None:
        """The correction of every batch, if it only depends on the settings.

        If this is `Correction()`, results are exactly those of the plain method.
        """

    @property
    @abstractmethod
    def beta(self) -> float | Tensor | None:
        """How much of the offset is subtracted: the fixed beta, or the last choice."""

    @abstractmethod
    def set_beta(self, beta: Beta) -> None:
        """Replace beta in the settings; `"auto"` starts choosing from scratch."""

    @abstractmethod
    def decide(self, evidence: Evidence) -> Correction:
        """Decide the correction of the next batch of the stream."""

    @abstractmethod
    def explain(self, class_names: Sequence[str], class_embeddings: Tensor) -> str:
        """Describe the bias of the stream so far, and what was subtracted or why nothing was."""
