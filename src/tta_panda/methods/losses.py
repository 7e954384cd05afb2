"""Losses and measures on logits that need no labels.

Everything is computed in float32 and with log_softmax: half precision would lose the entropies of confident
predictions, and `p log p` of a probability that underflowed would be NaN.
"""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

MATCHING_TEMPERATURE = 0.01
"""Of the similarities in `matching_loss`."""


def entropy(logits: Tensor) -> Tensor:
    """Return the Shannon entropy of the softmax in nats, over the last dimension."""
    return entropy_of(logits.float().log_softmax(dim=-1))


def entropy_of(log_probabilities: Tensor) -> Tensor:
    """Return the entropy in nats of log-probabilities, over the last dimension."""
    return -(log_probabilities.exp() * log_probabilities).sum(dim=-1)


def marginal_entropy(logits: Tensor) -> Tensor:
    """Return the entropy (...) of the mean softmax over the views of logits (..., V, K)."""
    log_mean = logits.float().log_softmax(dim=-1).logsumexp(dim=-2) - math.log(logits.shape[-2])  # (..., K)
    return entropy_of(log_mean)


def matching_loss(matches: Tensor, features: Tensor, texts: Tensor, *, transpose: bool) -> Tensor:
    """Return the cross entropy of images with the texts of all images, of which similar ones should match, too.

    Args:
        matches: (B, B), logits of images (rows) with texts (columns).
        features: (B, D), unit features of the images.
        texts: (B, D), unit features of their texts.
        transpose: transpose the targets, as the authors of CLIPArTT and WATT do in their code.
    """
    similarities = (features @ features.T + texts @ texts.T) / 2
    targets = (similarities / MATCHING_TEMPERATURE).softmax(dim=1)
    return F.cross_entropy(matches, targets.T if transpose else targets)


def top_class(logits: Tensor) -> Tensor:
    """Return the class (...) of the largest logit (..., K), without gradient."""
    if logits.device.type != "cpu":
        return logits.argmax(dim=-1)
    return torch.from_numpy(np.asarray(logits.numpy().argmax(axis=-1)))  # ten times as fast as torch for 1000 classes
