"""Work over many rows in pieces."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint


def in_chunks(work: Callable[[slice], Tensor], count: int, size: int, *, recompute: bool = True) -> Tensor:
    """`work(slice(0, count))`, made of pieces of at most `size` rows.

    With `recompute`, the backward pass computes the pieces again, one at a time: it needs the memory of one piece, and
    the gradients are the same.
    """
    pieces = [slice(start, min(start + size, count)) for start in range(0, count, size)]
    if len(pieces) == 1:
        return work(pieces[0])
    if recompute and torch.is_grad_enabled():
        return torch.cat([checkpoint(work, piece, use_reentrant=False) for piece in pieces])
    return torch.cat([work(piece) for piece in pieces])


def even_size(count: int, most: int) -> int:
    """Rows of each piece, at most `most`, such that pieces are as few and as equal as possible."""
    return math.ceil(count / math.ceil(count / most))
