"""Losses and measures on logits that need no labels.

All in float32 and through log_softmax: half precision would lose the entropies of confident predictions, and
`p log p` of a probability that underflowed would be NaN.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor


def entropy(logits: Tensor) -> Tensor:
    """Shannon entropy of the softmax in nats, over the last dimension."""
    return entropy_of(logits.float().log_softmax(dim=-1))


def entropy_of(log_probabilities: Tensor) -> Tensor:
    """The same where the logarithms of the softmax are known."""
    return -(log_probabilities.exp() * log_probabilities).sum(dim=-1)


def marginal_entropy(logits: Tensor) -> Tensor:
    """Entropy (B,) of the mean softmax over the views of logits (B, V, K)."""
    log_mean = logits.float().log_softmax(dim=-1).logsumexp(dim=1) - math.log(logits.shape[1])  # (B, K)
    return entropy_of(log_mean)


def likeliest(logits: Tensor) -> Tensor:
    """Class (...) of the largest of logits (..., K), without gradient."""
    if logits.device.type != "cpu":
        return logits.argmax(dim=-1)
    return torch.from_numpy(np.asarray(logits.numpy().argmax(axis=-1)))  # of 1000 classes in a tenth of torch's time


def by_confidence(logits: Tensor) -> Tensor:
    """Indices (B, V) of the views of logits (B, V, K), lowest entropy first."""
    return entropy(logits).argsort(dim=1, stable=True)


def take_views(values: Tensor, index: Tensor) -> Tensor:
    """The views `index` (B, n) of values (B, V, ...) as (B, n, ...)."""
    return values[torch.arange(len(values), device=values.device)[:, None], index]
