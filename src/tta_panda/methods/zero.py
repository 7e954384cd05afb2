"""Zero (Farina et al. 2024, "Frustratingly Easy Test-Time Adaptation of Vision-Language Models")."""

from __future__ import annotations

import math
from typing import Unpack

import torch
import torch.nn.functional as F
from torch import Tensor

from tta_panda.checks import check_range
from tta_panda.methods.base import MethodOptions
from tta_panda.methods.batch import Encoded
from tta_panda.methods.losses import likeliest, take_views
from tta_panda.methods.views import ViewMethod
from tta_panda.models.base import Classifier
from tta_panda.views import Augmentation


class Zero(ViewMethod):
    """The confident views of an image vote. Its logits are the votes.

    The defaults are those of Zero's own code; `keep` was 0.1 in earlier versions of it. The paper derives the vote as
    the mean of the views' probabilities at a softmax temperature of zero.

    Args:
        views: how many of each image, the plain one included.
        keep: share of them, the lowest in entropy, that votes.
        augmentation: `"augmix"`, or `"crops"` for crops and flips only.
        temperature: of the views' probabilities. Zero makes each a vote; 1 averages them as they are, which is plain
            positive augmentation.
        common: the arguments of every method.
    """

    def __init__(
        self,
        classifier: Classifier,
        *,
        views: int = 64,
        keep: float = 0.3,
        augmentation: Augmentation = "crops",
        temperature: float = 0.0,
        **common: Unpack[MethodOptions],
    ):
        super().__init__(classifier, views=views, keep=keep, augmentation=augmentation, **common)
        check_range("temperature", temperature, 0)
        self.temperature = temperature

    @torch.no_grad()
    def _adapt_encoded(self, encoded: Encoded) -> Tensor:
        logits = self.view_logits(encoded)
        order, count = self.rank(logits)
        logits = take_views(logits, order)  # (B, V, K), most confident first
        if self.temperature > 0:
            # Logarithms throughout: the mean of probabilities that underflow would be an infinite logit.
            return (logits[:, :count] / self.temperature).log_softmax(dim=-1).logsumexp(dim=1) - math.log(count)
        votes = F.one_hot(likeliest(logits[:, :count]), logits.shape[-1]).sum(dim=1)  # (B, K)
        if self.follows_reference:  # the first class of those with most votes wins
            return votes.float()
        return votes + 0.5 * _deciding_votes(votes, logits, count)  # half a vote decides ties only


def _deciding_votes(votes: Tensor, logits: Tensor, count: int) -> Tensor:
    """One (B, K) for the winner of each tie in votes (B, K).

    The views that did not vote decide, the most confident first: those of logits (B, V, K) after the first `count`.
    """
    tied = votes == votes.amax(dim=1, keepdim=True)  # (B, K)
    others = logits[:, count:] if count < logits.shape[1] else logits[:, :1]
    opinions = likeliest(others)  # (B, R)
    among_tied = tied.gather(1, opinions)  # (B, R)
    first = among_tied.int().argmax(dim=1, keepdim=True)  # of the views that name one of the tied classes
    named = opinions.gather(1, first)[:, 0]
    otherwise = likeliest(others[:, 0].masked_fill(~tied, -torch.inf))
    winner = F.one_hot(torch.where(among_tied.any(dim=1), named, otherwise), tied.shape[1])
    return winner * (tied.sum(dim=1, keepdim=True) > 1)
