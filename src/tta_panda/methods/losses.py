"""Losses on logits that need no labels."""

from __future__ import annotations

from torch import Tensor


def entropy(logits: Tensor) -> Tensor:
    """Shannon entropy of the softmax in nats, over the last dimension.

    Through log_softmax: `p log p` of a probability that underflowed would be NaN.
    """
    log_probabilities = logits.log_softmax(dim=-1)
    return -(log_probabilities.exp() * log_probabilities).sum(dim=-1)
