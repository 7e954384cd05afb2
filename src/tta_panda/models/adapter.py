"""What all adapters share: size, normalisation, device, precision, and input embeddings in the place of tokens."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import Tensor, nn

from tta_panda.errors import ModelLoadError
from tta_panda.images import Framing
from tta_panda.models.devices import AUTOCAST, Precision, full_precision
from tta_panda.models.prepare import check_prepared, prepare_images

PAPER_PATCH_SIZE = 32


class ImageAdapter(nn.Module):
    """The base class of adapters: takes images of any size and gives the network what it was trained on.

    Args:
        name: what the model is called in messages and records.
        framing: how pictures of other sizes become the square that the network sees.
        mean: of the network's training images, per channel.
        std: the same, standard deviation.
    """

    precision: Precision = "fp32"
    """Of the encoders' computations; weights, gradients and features are float32 in any case."""
    preset: str | None = None
    """The settings that suit the model, if it has its own."""

    def __init__(self, name: str, framing: Framing, mean: Sequence[float], std: Sequence[float]):
        super().__init__()
        self.name = name
        self.framing = framing
        self.image_size = framing.size
        self.negative_patch_size = min(PAPER_PATCH_SIZE, framing.size // 2)  # half the side of small images
        self.mean: Tensor
        self.std: Tensor
        self.register_buffer("mean", torch.tensor(tuple(mean), dtype=torch.float32).view(3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(tuple(std), dtype=torch.float32).view(3, 1, 1), persistent=False)

    def __repr__(self) -> str:
        facts = f"image_size={self.image_size}, device='{self.device}', precision={self.precision!r}"
        return f"{type(self).__name__}({self.name!r}, {facts})"

    @property
    def device(self) -> torch.device:
        return self.mean.device

    def prepare(self, images: Tensor) -> Tensor:
        return prepare_images(images, self.framing, self.device)

    def pixels(self, prepared: Tensor) -> Tensor:
        """Prepared images normalised by the network's mean and standard deviation."""
        check_prepared(prepared, self.image_size)
        return ((prepared - self.mean) / self.std).contiguous(memory_format=self.memory_format)

    @functools.cached_property
    def memory_format(self) -> torch.memory_format:
        """Channels last for networks of several convolutions, which are faster with it."""
        convolutions = sum(isinstance(layer, nn.Conv2d) for layer in self.modules())
        return torch.channels_last if convolutions > 1 else torch.contiguous_format

    def autocast(self) -> AbstractContextManager[object]:
        """Compute in the encoders' precision; their outputs are converted to float32."""
        dtype = AUTOCAST[self.precision]
        return full_precision(self.device) if dtype is None else torch.autocast(self.device.type, dtype=dtype)


def square_side(size: int | Sequence[int], name: str) -> int:
    """The side of a network's input, given as a number or as height and width."""
    sides = [size] if isinstance(size, int) else list(size)
    if len(set(sides)) != 1:
        raise ModelLoadError(
            f"{name} takes images of {'x'.join(map(str, sides))} px, but only square inputs are supported. Load it "
            "with a square image size, if it has one."
        )
    return sides[0]


@contextmanager
def embeddings_replaced(layer: nn.Module, embedded: Tensor) -> Iterator[None]:
    """Make a layer return `embedded`, so that the text encoder around it runs with its own masks and pooling."""
    handle = layer.register_forward_hook(lambda _layer, _tokens, _output: embedded)
    try:
        yield
    finally:
        handle.remove()


def first_embedding(network: nn.Module) -> nn.Module:
    """The layer that turns tokens into input embeddings: text encoders declare it before that of positions."""
    return next(module for module in network.modules() if isinstance(module, nn.Embedding))
