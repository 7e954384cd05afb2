"""How strongly the offset is subtracted: a fixed beta, or one chosen from unlabelled predictions.

The offset moves all logits of a batch by one vector, `z = s (l - beta b)` with `l = v t'` and `b = n t'`, so the effect
of any beta can be judged from `l` and `b` without encoding anything again.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from tta_panda.errors import InvalidInputError

GRID_STEPS = 20


class BetaRule(Protocol):
    """Chooses beta for a batch and remembers what it needs of the stream."""

    def choose(self, similarities: Tensor, offset_similarities: Tensor, scale: float) -> float:
        """Beta for this batch, from `l` (B, K) and `b` (1 or B, K); both without gradient."""

    def reset(self) -> None: ...

    def state_dict(self) -> dict[str, Tensor]: ...

    def load_state_dict(self, state: dict[str, Tensor]) -> None: ...


class FixedBeta:
    """The same beta for every batch."""

    def __init__(self, beta: float):
        self.beta = beta

    def choose(self, similarities: Tensor, offset_similarities: Tensor, scale: float) -> float:
        return self.beta

    def reset(self) -> None:
        pass

    def state_dict(self) -> dict[str, Tensor]:
        return {}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        pass


class AutoBeta:
    """Most informative predictions, as far as the bias is one that the negatives share. Needs no labels.

    Of a grid of betas in [0, 1], the one whose predictions over the stream so far have the largest mutual information
    with the inputs: varied over images, confident on each. A class prior that is not uniform looks like bias, too, but
    negatives hold no objects and so do not share it. Hence the chosen beta is multiplied by the correlation over
    classes, where positive, between the mean similarities of images and of negatives.
    """

    def __init__(self) -> None:
        self.grid = torch.linspace(0, 1, GRID_STEPS + 1)  # (G,)
        self.reset()

    def reset(self) -> None:
        self.images = torch.zeros(())
        self.probabilities = torch.zeros(())  # (G, K) sums over the stream
        self.entropies = torch.zeros(())  # (G,)
        self.similarities = torch.zeros(())  # (K,)
        self.offset_similarities = torch.zeros(())  # (K,)

    @torch.no_grad()
    def choose(self, similarities: Tensor, offset_similarities: Tensor, scale: float) -> float:
        plain, bias = similarities.float().cpu(), offset_similarities.float().cpu()
        logits = scale * (plain - self.grid.view(-1, 1, 1) * bias)  # (G, B, K)
        log_probabilities = logits.log_softmax(dim=-1)
        self.images = self.images + plain.shape[0]
        self.probabilities = self.probabilities + log_probabilities.exp().sum(dim=1)
        self.entropies = self.entropies - (log_probabilities.exp() * log_probabilities).sum(dim=(1, 2))
        self.similarities = self.similarities + plain.sum(dim=0)
        self.offset_similarities = self.offset_similarities + bias.expand_as(plain).sum(dim=0)
        most_informative = float(self.grid[self.mutual_information().argmax()])
        return most_informative * max(0.0, self.shared_bias())

    def mutual_information(self) -> Tensor:
        """In nats, for every beta of the grid: (G,)."""
        mean = self.probabilities / self.images
        return -torch.xlogy(mean, mean).sum(dim=1) - self.entropies / self.images

    def shared_bias(self) -> float:
        """Correlation over classes between the running mean similarities of images and of negatives."""
        pair = torch.stack([self.similarities, self.offset_similarities])
        pair = pair - pair.mean(dim=1, keepdim=True)
        norms = pair.norm(dim=1)
        return float(pair[0] @ pair[1] / norms.prod()) if norms.min() > 0 else 0.0

    def state_dict(self) -> dict[str, Tensor]:
        return {name: getattr(self, name) for name in self._STATE}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        for name in self._STATE:
            setattr(self, name, state[name].clone().cpu())

    _STATE = ("images", "probabilities", "entropies", "similarities", "offset_similarities")


def beta_rule(beta: float | str) -> BetaRule:
    """The rule for `beta="auto"` or a number."""
    if beta == "auto":
        return AutoBeta()
    if isinstance(beta, (str, bool)) or not 0 <= beta < float("inf"):
        raise InvalidInputError(f'beta must be "auto" or a number >= 0, got {beta!r}.')
    return FixedBeta(float(beta))
