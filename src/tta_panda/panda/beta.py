"""How strongly the offset is subtracted: a fixed beta, or one chosen from unlabelled predictions.

The offset moves all logits of a batch by one vector, `z = s (l - beta b)` with `l = v t'` and `b = n t'`, so the effect
of any beta can be judged from `l` and `b` without encoding anything again.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

Beta = float | Literal["auto"]

GRID = torch.linspace(0, 1, 21)  # (G,)

TOLERANCE = 1e-5
"""In nats. Mutual information is a difference of entropies of up to ln K, which float32 gives to a few 1e-6."""

_FLOATS_AT_ONCE = 1 << 17  # what stays in a processor's cache


class FixedBeta:
    """The same beta for every batch: the interface of a rule, without anything to remember."""

    def __init__(self, beta: float):
        self.beta = beta

    def choose(self, similarities: Tensor, offset_similarities: Tensor, scale: float) -> float:
        """Beta for this batch, from `l` (B, K) and `b` (1 or B, K); both without gradient."""
        return self.beta

    def reset(self) -> None:
        pass

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


class AutoBeta:
    """Most informative predictions, as far as the bias is one that the negatives share. Needs no labels.

    Of a grid of betas in [0, 1], the one whose predictions over the stream so far have the largest mutual information
    with the inputs: varied over images, confident on each. Of betas that are equal in this up to rounding, the smallest
    is taken, so that nothing is subtracted where it makes no difference. A class prior that is not uniform looks like
    bias, too, but negatives hold no objects and so do not share it. Hence the chosen beta is multiplied by the
    correlation over classes, where positive, between the mean similarities of images and of negatives.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.beta: float | None = None  # the last choice
        self.images = 0
        self.probabilities = torch.zeros((), dtype=torch.float64)  # (G, K) sums over the stream
        self.entropies = torch.zeros((), dtype=torch.float64)  # (G,)
        self.similarities = torch.zeros((), dtype=torch.float64)  # (K,)
        self.offset_similarities = torch.zeros((), dtype=torch.float64)  # (K,)

    @torch.no_grad()
    def choose(self, similarities: Tensor, offset_similarities: Tensor, scale: float) -> float:
        plain, bias = scale * similarities.float().cpu(), scale * offset_similarities.float().cpu()
        probabilities, entropies = [], []
        for betas in GRID.split(max(1, _FLOATS_AT_ONCE // plain.numel())):
            log_probabilities = (plain - betas.view(-1, 1, 1) * bias).log_softmax(dim=-1)  # (g, B, K)
            each = log_probabilities.exp()
            probabilities.append(each.sum(dim=1))
            entropies.append(-log_probabilities.mul_(each).sum(dim=2).sum(dim=1, dtype=torch.float64))
        self.images += plain.shape[0]
        self.probabilities = self.probabilities + torch.cat(probabilities)
        self.entropies = self.entropies + torch.cat(entropies)
        self.similarities = self.similarities + plain.sum(dim=0)
        self.offset_similarities = self.offset_similarities + bias.expand_as(plain).sum(dim=0)
        information = self.mutual_information()
        best = int((information >= information.max() - TOLERANCE).int().argmax())  # the first of equals
        self.beta = float(GRID[best]) * max(0.0, self.shared_bias())
        return self.beta

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

    def state_dict(self) -> dict[str, Any]:
        return dict(vars(self))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, value.clone().cpu() if isinstance(value, Tensor) else value)


def beta_rule(beta: Beta) -> FixedBeta | AutoBeta:
    return AutoBeta() if beta == "auto" else FixedBeta(float(beta))
