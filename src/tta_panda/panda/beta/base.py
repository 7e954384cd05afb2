"""What a rule is that chooses beta."""

from __future__ import annotations

from abc import abstractmethod

from torch import Tensor

from tta_panda.panda.running import Running


class BetaRule(Running):
    """Chooses a beta for every batch of a stream, from what it has seen of the stream so far."""

    beta: float | None
    """The last choice; None before the first."""

    @abstractmethod
    def choose(self, similarities: Tensor, offset_similarities: Tensor, scale: float, directions: float) -> float:
        """Beta for this batch, from `l` (B, K) and `b` (1 or B, K), both without gradient.

        Classes differ in this many `directions`, K - 1 at most.
        """


class FixedBeta(BetaRule):
    """The same beta for every batch."""

    def __init__(self, beta: float):
        self.beta = beta
        super().__init__()

    def reset(self) -> None:
        pass

    def choose(self, similarities: Tensor, offset_similarities: Tensor, scale: float, directions: float) -> float:
        assert self.beta is not None
        return self.beta
