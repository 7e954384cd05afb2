"""Text encoders that are given input embeddings in the place of tokens."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from torch import Tensor, nn


@contextlib.contextmanager
def embeddings_replaced(layer: nn.Module, embedded: Tensor) -> Iterator[None]:
    """Let a layer give `embedded`, so that the text encoder around it runs as it is, masks and pooling included."""
    handle = layer.register_forward_hook(lambda _layer, _tokens, _output: embedded)
    try:
        yield
    finally:
        handle.remove()


def first_embedding(text: nn.Module) -> nn.Module:
    """The layer that turns tokens into input embeddings: text encoders declare it before that of positions."""
    return next(module for module in text.modules() if isinstance(module, nn.Embedding))
