"""Beta by mutual information: predictions that are varied over the images and confident on each."""

from __future__ import annotations

import torch
from torch import Tensor

from tta_panda.panda.absent import RunningMean, centred, correlation
from tta_panda.panda.beta.base import BetaRule
from tta_panda.panda.running import Running, decay

GRID = torch.linspace(0, 1, 21)  # (G,)

TOLERANCE = 1e-5
"""In nats. Mutual information is a difference of entropies of up to ln K, which float32 gives to a few 1e-6."""

_FLOATS_AT_ONCE = 1 << 17  # what stays in a processor's cache


class MutualInformation(Running):
    """Mutual information of images and predictions along a stream, for every beta of a grid."""

    def __init__(self, half_life: float | None = None):
        self.half_life = half_life
        super().__init__()

    def reset(self) -> None:
        self.images = 0.0
        self.probabilities = torch.zeros((), dtype=torch.float64)  # (G, K) sums over the stream
        self.entropies = torch.zeros((), dtype=torch.float64)  # (G,)

    def update(self, plain: Tensor, bias: Tensor) -> Tensor:
        """In nats (G,), after one more batch with logits `plain - beta * bias`, (B, K) and (1 or B, K)."""
        probabilities, entropies = [], []
        by_class, bias_by_class = plain.T.contiguous(), bias.T.contiguous()  # a softmax over columns is much the faster
        for betas in GRID.split(max(1, _FLOATS_AT_ONCE // plain.numel())):
            log_probabilities = (by_class - betas.view(-1, 1, 1) * bias_by_class).log_softmax(dim=1)  # (g, K, B)
            each = log_probabilities.exp()
            probabilities.append(each.sum(dim=2))
            entropies.append(-log_probabilities.mul_(each).sum(dim=1).sum(dim=1, dtype=torch.float64))
        kept = decay(len(plain), self.half_life)
        self.images = kept * self.images + len(plain)
        self.probabilities = kept * self.probabilities + torch.cat(probabilities)
        self.entropies = kept * self.entropies + torch.cat(entropies)
        mean = self.probabilities / self.images
        return -torch.xlogy(mean, mean).sum(dim=1) - self.entropies / self.images


class InformationBeta(BetaRule):
    """Most informative predictions, as far as the bias is one that the negatives share. Forgets nothing.

    Of a grid of betas in [0, 1], the one whose predictions over the stream so far have the largest mutual information
    with the inputs: varied over images, confident on each. Of betas that are equal in this up to rounding, the smallest
    is taken, so that nothing is subtracted where it makes no difference. A class prior that is not uniform looks like
    bias, too, but negatives hold no objects and so do not share it. Hence the chosen beta is multiplied by the
    correlation over classes, where positive, between the mean similarities of images and of negatives.
    """

    def reset(self) -> None:
        self.beta: float | None = None
        self.information = MutualInformation()
        self.similarities, self.offset_similarities = RunningMean(), RunningMean()

    @torch.no_grad()
    def choose(self, similarities: Tensor, offset_similarities: Tensor, scale: float, directions: float) -> float:
        plain, bias = similarities.float().cpu(), offset_similarities.float().cpu()
        information = self.information.update(scale * plain, scale * bias)
        best = int((information >= information.max() - TOLERANCE).int().argmax())  # the first of equals
        means = [self.similarities.update(plain, len(plain)), self.offset_similarities.update(bias, len(plain))]
        self.beta = float(GRID[best]) * max(0.0, correlation(*map(centred, means)))
        return self.beta
