"""Beta by the sizes of bias and offset, where the stream shows that it holds several classes."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tta_panda.panda.absent import AbsentLevel, RunningMean, Variety, agreement, centred, correlation
from tta_panda.panda.beta.base import BetaRule
from tta_panda.panda.beta.information import MutualInformation
from tta_panda.panda.beta.shrinkage import HALF_LIFE, information_weight, most_informative

NEGLIGIBLE = 0.05
"""A weight of mutual information below this is not worth its cost: that of more than 450 classes."""


class SlopeBeta(BetaRule):
    """How large the bias of absent classes is beside the offset, as far as these agree and the stream is varied.

    Between the slope of the regression of levels on the offset, which noise in the offset of many classes makes too
    small, and the ratio of their sizes, which ignores how they agree, the geometric mean is taken. Absence is judged by
    the predictions that the last beta gives. No other beta is tried, so that thousands of classes cost nothing.
    """

    def reset(self) -> None:
        self.beta: float | None = None
        self.level = AbsentLevel(1.0, HALF_LIFE)
        self.offset = RunningMean(HALF_LIFE)
        self.variety = Variety(HALF_LIFE)

    @torch.no_grad()
    def choose(self, similarities: Tensor, offset_similarities: Tensor, scale: float, directions: float) -> float:
        plain, bias = similarities.cpu(), offset_similarities.cpu()
        judged = scale * (plain - (self.beta or 0.0) * bias)
        level = self.level.update(plain, judged.softmax(dim=1))
        offset = centred(self.offset.update(bias, len(plain)))
        agreed = agreement(level, offset, directions)
        self.beta = self.variety.update(plain) * self._beta_of(level, offset, agreed, scale * plain, scale * bias)
        return self.beta

    def _beta_of(self, level: Tensor, offset: Tensor, agreed: float, plain: Tensor, bias: Tensor) -> float:
        return agreed * slope(level, offset)


class AutoBeta(SlopeBeta):
    """The slope of bias on offset, blended with mutual information: the rule behind `beta="auto"`.

    Little or nothing is subtracted where negatives do not share the bias of the images, where the stream shows a single
    class, and, with few classes, where predictions do not gain from it. What it cannot do: in a stream of one class
    alone, accuracy can still fall by tens of points where negatives look like that class, though on average it hardly
    does; with two classes it halves what mutual information chooses, which label shift can mislead; and in the first
    dozens of images of a stream its choice is noisy.
    """

    def reset(self) -> None:
        super().reset()
        self.information = MutualInformation(HALF_LIFE)

    def _beta_of(self, level: Tensor, offset: Tensor, agreed: float, plain: Tensor, bias: Tensor) -> float:
        weight = information_weight(len(level))
        if weight < NEGLIGIBLE:
            return super()._beta_of(level, offset, agreed, plain, bias)
        informative = most_informative(self.information.update(plain.float(), bias.float()))
        if len(level) == 2:  # level and offset cannot but agree or disagree
            return informative if correlation(level, offset) > 0 else 0.0
        return agreed * ((1 - weight) * slope(level, offset) + weight * informative)


def slope(level: Tensor, offset: Tensor) -> float:
    """Of centred vectors (K,), between regression and ratio of sizes, from 0 to 1."""
    size = float(offset.norm())
    agreeing = max(0.0, correlation(level, offset))
    return min(1.0, math.sqrt(agreeing) * float(level.norm()) / size) if size > 0 else 0.0
