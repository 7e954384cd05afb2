"""Zero (Farina et al. 2024, "Frustratingly Easy Test-Time Adaptation of Vision-Language Models")."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from tta_panda.methods.features import Encoded
from tta_panda.methods.losses import top_class
from tta_panda.methods.views import ViewMethod, by_confidence, count_kept
from tta_panda.options import NonNegative, Share
from tta_panda.views import Augmentation


class Zero(ViewMethod):
    """The confident views of an image vote. Its logits are the votes.

    The defaults are those of Zero's own code; `keep` was 0.1 in earlier versions of it. The paper derives the vote as
    the mean of the views' probabilities at a softmax temperature of zero.

    Args:
        keep: share of them, the lowest in entropy, that votes; at least one does.
        augmentation: `"augmix"`, or `"crops"` for crops and flips only.
        temperature: of the views' probabilities. Zero makes each a vote; 1 averages them as they are, which is plain
            positive augmentation.
    """

    keep: Share = 0.3
    augmentation: Augmentation = "crops"
    temperature: NonNegative = 0.0

    def _adapt(self, encoded: Encoded) -> Tensor:
        logits = self.view_logits(encoded)
        logits = by_confidence(logits, logits)  # (B, V, K), most confident first
        count = count_kept(self.keep, logits.shape[1])
        if self.temperature > 0:
            # Logarithms throughout: the mean of probabilities that underflow would be an infinite logit.
            return (logits[:, :count] / self.temperature).log_softmax(dim=-1).logsumexp(dim=1) - math.log(count)
        votes = F.one_hot(top_class(logits[:, :count]), logits.shape[-1]).sum(dim=1)  # (B, K)
        if self.follows_reference:  # the first class of those with most votes wins
            return votes.float()
        return votes + 0.5 * _deciding_votes(votes, logits, count)  # half a vote decides ties only


def _deciding_votes(votes: Tensor, logits: Tensor, count: int) -> Tensor:
    """One (B, K) for the winner of each tie in votes (B, K).

    The views that did not vote decide, the most confident first: those of logits (B, V, K) after the first `count`.
    """
    tied = votes == votes.amax(dim=1, keepdim=True)  # (B, K)
    others = logits[:, count:] if count < logits.shape[1] else logits[:, :1]
    opinions = top_class(others)  # (B, R)
    among_tied = tied.gather(1, opinions)  # (B, R)
    first = among_tied.int().argmax(dim=1, keepdim=True)  # of the views that name one of the tied classes
    named = opinions.gather(1, first)[:, 0]
    otherwise = top_class(others[:, 0].masked_fill(~tied, -torch.inf))
    winner = F.one_hot(torch.where(among_tied.any(dim=1), named, otherwise), tied.shape[1])
    return winner * (tied.sum(dim=1, keepdim=True) > 1)
