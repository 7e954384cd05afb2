"""What all adapters share on the image side: size, normalisation, device and precision."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from tta_panda.errors import ModelLoadError
from tta_panda.framing import Framing
from tta_panda.models.devices import AUTOCAST, Precision, check_precision
from tta_panda.models.images import check_images, fit_images

PAPER_PATCH_SIZE = 32


class ImageAdapter(nn.Module):
    """The base of adapters: takes images of any size, hands the network what it was trained on.

    Args:
        name: what the model is called in messages and records.
        framing: how pictures of other sizes become the square that the network sees.
        mean: of the network's training images, per channel.
        std: the same, standard deviation.
        precision: `"fp32"`, or what the encoders compute in; weights, gradients and features are float32 all the same.
        negative_patch_size: side of Panda's patches; by default the paper's, or half the side of small images.
    """

    def __init__(
        self,
        name: str,
        framing: Framing,
        mean: Sequence[float],
        std: Sequence[float],
        precision: Precision = "fp32",
        negative_patch_size: int | None = None,
    ):
        super().__init__()
        check_precision(precision)
        self.name = name
        self.framing = framing
        self.image_size = framing.size
        self.precision = precision
        self.negative_patch_size = negative_patch_size or min(PAPER_PATCH_SIZE, framing.size // 2)
        self.mean: Tensor
        self.std: Tensor
        self.register_buffer("mean", torch.tensor(tuple(mean)).view(3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(tuple(std)).view(3, 1, 1), persistent=False)

    def freeze(self) -> None:
        """As the protocol has it: nothing trains and nothing is random. Methods that train do it on copies."""
        self.eval().requires_grad_(False)

    @property
    def device(self) -> torch.device:
        return self.mean.device

    def prepare(self, images: Tensor) -> Tensor:
        check_images(images)
        return fit_images(images.to(self.device), self.framing)

    def pixels(self, images: Tensor) -> Tensor:
        """What the network takes: prepared and normalised."""
        return (self.prepare(images) - self.mean) / self.std

    def autocast(self) -> torch.autocast:
        """The encoders' precision; what comes out is brought to float32 before anything is computed from it."""
        dtype = AUTOCAST[self.precision]
        return torch.autocast(self.device.type, dtype=dtype, enabled=dtype is not None)


def square_side(size: int | Sequence[int], name: str) -> int:
    """The side of a network's input, given as a number or as height and width."""
    sides = [size] if isinstance(size, int) else list(size)
    if len(set(sides)) != 1:
        raise ModelLoadError(
            f"{name} takes images of {'x'.join(map(str, sides))} px, but only square inputs are supported. Load it "
            "with a square image size, if it has one."
        )
    return sides[0]
