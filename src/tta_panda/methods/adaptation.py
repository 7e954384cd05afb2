"""Copies of a model whose normalisation layers can be trained while everything else stays shared and frozen."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from functools import partial
from typing import Any, Literal, TypeVar, cast

import torch
from torch import Tensor, nn

from tta_panda.errors import UnsupportedModelError
from tta_panda.models.backends import check_trainable
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
    check_trainable(model)
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

    A layer stays in evaluation mode with statistics that change nothing: its input is standardised first, with
    gradients through mean and variance, which gives what training mode would give. A single image has no statistics of
    a batch, so it is standardised by the running ones.
    """

    def __init__(self) -> None:
        self.layers = 0  # that use them
        self._images: int | None = None  # how many of the first in a pass are images; None for all

    @torch.inference_mode(False)  # statistics of the caller's inference mode could not be used in training
    def attach(self, encoder: nn.Module) -> None:
        """Use them from now on."""
        for layer in encoder.modules():
            if isinstance(layer, nn.modules.batchnorm._BatchNorm) and layer.running_mean is not None:
                assert layer.running_var is not None
                mean, scale = layer.running_mean.float(), (layer.running_var.float() + layer.eps).rsqrt()
                layer.register_forward_pre_hook(partial(self._standardise, running=(mean, scale)))
                layer.running_mean = torch.zeros_like(layer.running_mean)
                layer.running_var = torch.ones_like(layer.running_var) - layer.eps
                self.layers += 1

    @contextlib.contextmanager
    def of(self, images: int) -> Iterator[None]:
        """Passes in which only so many are images; negatives come after them."""
        self._images = images
        try:
            yield
        finally:
            self._images = None

    def _standardise(
        self, layer: nn.Module, inputs: tuple[Tensor, ...], running: tuple[Tensor, Tensor]
    ) -> tuple[Tensor]:
        values = inputs[0].float()
        images = len(values) if self._images is None else self._images
        if images < 2:
            mean, scale = (each.view(_per_channel(values)) for each in running)
            standard = (values - mean) * scale
        else:
            standard = Standardise.apply(values, images, cast(nn.BatchNorm2d, layer).eps)
        return (standard.to(inputs[0].dtype),)


class Standardise(torch.autograd.Function):
    """Values (N, C, ...) with the mean and variance of the first of them, the images, taken to 0 and 1.

    Autograd could derive it from `var_mean`, which takes several times as long as the kernels of BatchNorm.
    """

    @staticmethod
    def forward(ctx: Any, values: Tensor, images: int, eps: float) -> Tensor:
        standard, mean, scale = torch.native_batch_norm(values[:images], None, None, None, None, True, 0.0, eps)
        ctx.save_for_backward(values, mean, scale)
        ctx.images, ctx.eps = images, eps
        if images == len(values):
            return standard
        shape = _per_channel(values)
        return torch.cat([standard, (values[images:] - mean.view(shape)) * scale.view(shape)])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        values, mean, scale = ctx.saved_tensors
        images, others, shape = values[: ctx.images], values[ctx.images :], _per_channel(values)
        statistics = (None, None, None, mean, scale, True, ctx.eps, [True, False, False])
        of_images = torch.ops.aten.native_batch_norm_backward(gradient[: ctx.images], images, *statistics)[0]
        if not len(others):
            return of_images, None, None
        # What follows the images depends on them through mean and scale only.
        mean, scale = mean.view(shape), scale.view(shape)
        count, over = images.numel() // images.shape[1], [0, *range(2, values.ndim)]
        of_others = gradient[ctx.images :] * scale
        by_mean = -of_others.sum(over, keepdim=True) / count
        by_variance = -(of_others * (others - mean)).sum(over, keepdim=True) * scale.square() / count
        of_images.add_(by_mean - by_variance * mean).addcmul_(by_variance, images)
        return torch.cat([of_images, of_others]), None, None


def _per_channel(values: Tensor) -> tuple[int, ...]:
    """The shape in which one number for each channel fits values (N, C, ...)."""
    return (1, -1, *(1 for _ in values.shape[2:]))
