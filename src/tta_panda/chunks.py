"""Run a function over many rows in chunks."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint


def in_chunks(work: Callable[[slice], Tensor], count: int, size: int) -> Tensor:
    """Return `work(slice(0, count))`, computed in chunks of at most `size` rows.

    The backward pass recomputes the chunks one at a time (gradient checkpointing): it needs the memory of one chunk,
    and the gradients are the same.
    """
    chunks = [slice(start, min(start + size, count)) for start in range(0, count, size)]
    if len(chunks) == 1:
        return work(chunks[0])
    if torch.is_grad_enabled():
        return torch.cat([checkpoint(work, chunk, use_reentrant=False) for chunk in chunks])
    return torch.cat([work(chunk) for chunk in chunks])
