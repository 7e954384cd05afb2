"""Work over many rows in pieces."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint


def in_chunks(work: Callable[[slice], Tensor], count: int, size: int) -> Tensor:
    """`work(slice(0, count))`, made of pieces of at most `size` rows.

    A backward pass computes the pieces again, one at a time: it needs the memory of one piece, and the gradients are
    the same.
    """
    pieces = [slice(start, min(start + size, count)) for start in range(0, count, size)]
    if len(pieces) == 1:
        return work(pieces[0])
    if torch.is_grad_enabled():
        return torch.cat([checkpoint(work, piece, use_reentrant=False) for piece in pieces])
    return torch.cat([work(piece) for piece in pieces])
