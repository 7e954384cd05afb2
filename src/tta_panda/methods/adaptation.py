"""Copies of a model whose normalisation layers can be trained while everything else stays shared and frozen."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from typing import Any, Literal, TypeVar, cast

import torch
from torch import Tensor, nn

from tta_panda.errors import UnsupportedModelError
from tta_panda.models.base import ImageModel, VisionLanguageModel

NORMALISATION_LAYERS = (nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, nn.modules.batchnorm._BatchNorm)

Model = TypeVar("Model", bound=ImageModel)

NormStatistics = Literal["batch", "running"]


def is_normalisation(layer: nn.Module) -> bool:
    """Whether this is a normalisation layer of torch, or one that is named like it and only scales and shifts."""
    if isinstance(layer, NORMALISATION_LAYERS):
        return True
    own = list(layer.parameters(recurse=False))
    return "norm" in type(layer).__name__.lower() and bool(own) and all(parameter.ndim == 1 for parameter in own)


def normalisation_parameters(module: nn.Module, skip_last_blocks: int = 0) -> dict[str, nn.Parameter]:
    """Weight and bias of every normalisation layer of an encoder, by name.

    `skip_last_blocks` omits this many last blocks, and whatever the encoder declares after them.
    """
    first_skipped = _last_blocks(module, skip_last_blocks) if skip_last_blocks else None
    parameters: dict[str, nn.Parameter] = {}
    for prefix, layer in module.named_modules():
        if prefix == first_skipped:
            break
        if is_normalisation(layer):
            parameters |= {f"{prefix}.{name}": p for name, p in layer.named_parameters(recurse=False)}
    return parameters


def find_blocks(module: nn.Module) -> tuple[str, int]:
    """Name and length of the blocks of an encoder: its longest list of modules that all have normalisation."""
    lists = {name: item for name, item in module.named_modules() if isinstance(item, (nn.ModuleList, nn.Sequential))}
    blocks = {name: len(item) for name, item in lists.items() if all(map(normalisation_parameters, item))}
    return max(blocks.items(), key=lambda entry: entry[1], default=("", 0))


def _last_blocks(module: nn.Module, count: int) -> str:
    """Name of the first of the `count` last blocks."""
    name, length = find_blocks(module)
    if not count < length:
        raise UnsupportedModelError(
            f"skip_last_blocks={count} leaves no block to adapt: this image encoder has {length} block(s). Pass "
            f"skip_last_blocks={max(0, length - 1)} or less; 0 adapts all."
        )
    return f"{name}.{length - count}"


def adaptable_copy(
    model: Model, *, text: bool = False, skip_last_blocks: int = 0
) -> tuple[Model, dict[str, nn.Parameter]]:
    """A copy of `model` with its own, trainable normalisation parameters, and these parameters by name.

    All other tensors are the original's, so the copy costs almost no memory and the caller's model never changes.
    With `text`, the text encoder's layers are trained, too; `skip_last_blocks` is about the image encoder.
    """
    module = cast(nn.Module, model)
    trained = {id(parameter) for parameter in _adaptable(model, text, skip_last_blocks).values()}
    tensors = [*module.parameters(), *module.buffers()]
    tools = [value for name, value in vars(module).items() if not name.startswith("_")]  # a tokenizer, say
    shared: dict[int, Any] = {id(item): item for item in (*tensors, *tools) if id(item) not in trained}
    with torch.inference_mode(False):
        twin = cast(Model, copy.deepcopy(module, shared))
        adapted = _adaptable(twin, text, skip_last_blocks)
        for parameter in adapted.values():
            parameter.requires_grad_(True)
    return twin, adapted


def _adaptable(model: ImageModel, text: bool, skip_last_blocks: int) -> dict[str, nn.Parameter]:
    image = normalisation_parameters(model.image_encoder, skip_last_blocks)
    if not image:
        raise UnsupportedModelError(
            f"The image encoder of {model.name} has no normalisation layer with weights, which this method adapts."
        )
    adapted = {f"image.{name}": parameter for name, parameter in image.items()}
    if text:
        if not isinstance(model, VisionLanguageModel) or model.text_encoder is None:
            raise UnsupportedModelError(f"{model.name} has no text encoder, which this method adapts, too.")
        words = normalisation_parameters(model.text_encoder)
        adapted |= {f"text.{name}": parameter for name, parameter in words.items()}
    return adapted


class BatchStatistics:
    """Lets the BatchNorm layers of an encoder normalise with the mean and variance of the images in a pass.

    A layer stays in evaluation mode and never writes its running statistics: its input is brought to these first, with
    gradients through mean and variance, which gives what training mode would give. A single image has no statistics of
    a batch, so it is left to the running ones.
    """

    def __init__(self) -> None:
        self.layers = 0  # that use them
        self._images: int | None = None  # how many of the first in a pass are images; None for all

    def attach(self, encoder: nn.Module) -> None:
        """Use them from now on."""
        for layer in encoder.modules():
            if isinstance(layer, nn.modules.batchnorm._BatchNorm) and layer.running_mean is not None:
                layer.register_forward_pre_hook(self._standardise)
                self.layers += 1

    @contextlib.contextmanager
    def of(self, images: int) -> Iterator[None]:
        """Passes in which only so many are images; negatives come after them."""
        self._images = images
        try:
            yield
        finally:
            self._images = None

    def _standardise(self, layer: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor] | None:
        norm = cast(nn.BatchNorm2d, layer)
        assert norm.running_mean is not None and norm.running_var is not None
        images = inputs[0][: self._images].float()
        if len(images) < 2:
            return None
        per_channel = (1, -1, *(1 for _ in images.shape[2:]))
        variance, mean = torch.var_mean(images, dim=[0, *range(2, images.ndim)], correction=0)
        scale = ((norm.running_var.float() + norm.eps) / (variance + norm.eps)).sqrt()
        shift = norm.running_mean.float() - mean * scale
        moved = inputs[0].float() * scale.view(per_channel) + shift.view(per_channel)
        return (moved.to(inputs[0].dtype),)
