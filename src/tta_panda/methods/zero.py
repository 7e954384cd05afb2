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
    """Majority vote of the confident views of an image. The logits are the counts of votes.

    The defaults are those of Zero's own code; `keep` was 0.1 in earlier versions of it. The paper derives the vote as
    the mean of the views' probabilities at a softmax temperature of zero.

    Args:
        keep: fraction of the views, those with the lowest entropy, that votes; at least one view does.
        temperature: softmax temperature of the views' probabilities. Zero gives votes; 1 averages the probabilities,
            which is plain test-time augmentation.
    """

    keep: Share = 0.3
    augmentation: Augmentation = "crops"
    temperature: NonNegative = 0.0

    def _adapt(self, encoded: Encoded) -> Tensor:
        logits = self.view_logits(encoded)
        logits = by_confidence(logits, logits)  # (B, V, K), most confident first
        count = count_kept(self.keep, logits.shape[1])
        if self.temperature > 0:
            # In log space: the mean of probabilities that underflow would give an infinite logit.
            return (logits[:, :count] / self.temperature).log_softmax(dim=-1).logsumexp(dim=1) - math.log(count)
        votes = F.one_hot(top_class(logits[:, :count]), logits.shape[-1]).sum(dim=1)  # (B, K)
        if self.follows_reference:  # ties are won by the first class
            return votes.float()
        return votes + 0.5 * _tie_breaks(votes, logits, count)  # half a vote only decides ties


def _tie_breaks(votes: Tensor, logits: Tensor, count: int) -> Tensor:
    """Return ones (B, K) for the winner of each tie in votes (B, K).

    Ties are broken by the most confident view that did not vote and predicts one of the tied classes. The first `count`
    views of the logits (B, V, K) have voted.
    """
    tied = votes == votes.amax(dim=1, keepdim=True)  # (B, K)
    others = logits[:, count:] if count < logits.shape[1] else logits[:, :1]
    opinions = top_class(others)  # (B, R)
    among_tied = tied.gather(1, opinions)  # (B, R)
    first = among_tied.int().argmax(dim=1, keepdim=True)  # the first view that predicts one of the tied classes
    named = opinions.gather(1, first)[:, 0]
    otherwise = top_class(others[:, 0].masked_fill(~tied, -torch.inf))
    winner = F.one_hot(torch.where(among_tied.any(dim=1), named, otherwise), tied.shape[1])
    return winner * (tied.sum(dim=1, keepdim=True) > 1)
