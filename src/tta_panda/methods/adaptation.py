"""Copies of a model whose normalisation layers can be trained while everything else stays shared and frozen."""

from __future__ import annotations

import copy
from typing import Any, TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from tta_panda.errors import UnsupportedModelError
from tta_panda.models.base import ImageModel, VisionLanguageModel
from tta_panda.models.devices import check_trainable

NORMALISATION_LAYERS = (nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, nn.modules.batchnorm._BatchNorm)

Model = TypeVar("Model", bound=ImageModel)


def is_normalisation(layer: nn.Module) -> bool:
    """Whether this is a normalisation layer of torch, or a custom one: named like it, with vectors as parameters."""
    if isinstance(layer, NORMALISATION_LAYERS):
        return True
    own = list(layer.parameters(recurse=False))
    return "norm" in type(layer).__name__.lower() and bool(own) and all(parameter.ndim == 1 for parameter in own)


def normalisation_parameters(module: nn.Module, skip_last_blocks: int = 0) -> dict[str, nn.Parameter]:
    """Return weight and bias of every normalisation layer of an encoder, by name.

    The last `skip_last_blocks` blocks, and all modules that the encoder declares after them, are omitted.
    """
    first_skipped = _first_of_last_blocks(module, skip_last_blocks) if skip_last_blocks else None
    parameters: dict[str, nn.Parameter] = {}
    for prefix, layer in module.named_modules():
        if prefix == first_skipped:
            break
        if is_normalisation(layer):
            parameters |= {f"{prefix}.{name}": p for name, p in layer.named_parameters(recurse=False)}
    return parameters


def find_blocks(module: nn.Module) -> tuple[str, int]:
    """Return name and length of an encoder's list of blocks: the longest list of modules with normalisation layers."""
    lists = {name: item for name, item in module.named_modules() if isinstance(item, (nn.ModuleList, nn.Sequential))}
    blocks = {name: len(item) for name, item in lists.items() if all(map(normalisation_parameters, item))}
    return max(blocks.items(), key=lambda entry: entry[1], default=("", 0))


def _first_of_last_blocks(module: nn.Module, count: int) -> str:
    """Return the name of the first of the last `count` blocks."""
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
    """Return a copy of `model` with its own, trainable normalisation parameters, and these parameters by name.

    All other tensors are shared with the original, so the copy takes almost no memory and the caller's model never
    changes.

    Args:
        model: the model.
        text: train the normalisation layers of the text encoder, too.
        skip_last_blocks: leave out this many last blocks of the image encoder.
    """
    check_trainable(model)
    module = cast(nn.Module, model)
    trained = {id(parameter) for parameter in _adaptable(model, text, skip_last_blocks).values()}
    tensors = [*module.parameters(), *module.buffers()]
    attributes = [value for name, value in vars(module).items() if not name.startswith("_")]  # a tokenizer, say
    shared: dict[int, Any] = {id(item): item for item in (*tensors, *attributes) if id(item) not in trained}
    with torch.inference_mode(False):
        duplicate = cast(Model, copy.deepcopy(module, shared))
        adapted = _adaptable(duplicate, text, skip_last_blocks)
        for parameter in adapted.values():
            parameter.requires_grad_(True)
    return duplicate, adapted


def _adaptable(model: ImageModel, text: bool, skip_last_blocks: int) -> dict[str, nn.Parameter]:
    image = normalisation_parameters(model.image_encoder, skip_last_blocks)
    if not image:
        raise UnsupportedModelError(
            f"The image encoder of {model.name} has no normalisation layer with weights for this method to adapt."
        )
    adapted = {f"image.{name}": parameter for name, parameter in image.items()}
    if text:
        if not isinstance(model, VisionLanguageModel) or model.text_encoder is None:
            raise UnsupportedModelError(f"{model.name} has no text encoder, which this method needs to adapt.")
        parameters = normalisation_parameters(model.text_encoder)
        adapted |= {f"text.{name}": parameter for name, parameter in parameters.items()}
    return adapted


def has_batch_norm(encoder: nn.Module) -> bool:
    """Whether an encoder has layers that can normalise with the statistics of a batch."""
    return any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in encoder.modules())


class BatchStatistics(TorchFunctionMode):
    """Context in which BatchNorm normalises with the mean and variance of the images in a pass.

    Args:
        images: number of images. The negatives after them are normalised with the same statistics, but do not
            contribute to these.
    """

    def __init__(self, images: int):
        super().__init__()
        self.images = images

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is not F.batch_norm:
            return function(*args, **(kwargs or {}))
        values, weight, bias, eps = args[0], kwargs["weight"], kwargs["bias"], kwargs["eps"]
        if len(values) == self.images:
            return F.batch_norm(values, None, None, weight, bias, training=True, eps=eps)
        return NormaliseByFirst.apply(values, weight, bias, self.images, eps)


class NormaliseByFirst(torch.autograd.Function):
    """BatchNorm of values (N, C, ...) with the mean and variance of the first of them, on torch's own kernels.

    Writing it with `var_mean` and autograd takes several times as long.
    """

    @staticmethod
    def forward(ctx: Any, values: Tensor, weight: Tensor | None, bias: Tensor | None, first: int, eps: float) -> Tensor:
        normalised = torch.empty_like(values)
        affine, dtype = (weight, bias), torch.promote_types(values.dtype, torch.float32)  # of mean and scale
        mean, scale = values.new_empty(2, values.shape[1], dtype=dtype)
        unused = mean[:0], scale[:0]
        torch.native_batch_norm(
            values[:first], *affine, None, None, True, 0.0, eps, out=(normalised[:first], mean, scale)
        )
        variance = scale.square().reciprocal() - eps
        torch.native_batch_norm(
            values[first:], *affine, mean, variance, False, 0.0, eps, out=(normalised[first:], *unused)
        )
        ctx.save_for_backward(values, weight, mean, variance, scale)
        ctx.first, ctx.eps = first, eps
        return normalised

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        values, weight, mean, variance, scale = ctx.saved_tensors
        scales = torch.ones_like(scale) if weight is None else weight  # without a weight, torch returns no sums
        grad_values, grad_weight, grad_bias = torch.ops.aten.native_batch_norm_backward(
            gradient, values, scales, mean, variance, mean, scale, False, ctx.eps, [True, True, True]
        )
        # The first values also affect all outputs by way of mean and variance.
        first = values[: ctx.first]
        share = scale * scales * first.shape[1] / first.numel()
        slope = share * scale * grad_weight
        level = share * grad_bias - slope * mean
        shape = (1, -1, *(1 for _ in values.shape[2:]))
        grad_values[: ctx.first].sub_(level.view(shape)).addcmul_(first, slope.view(shape), value=-1)
        return (grad_values, *((None, None) if weight is None else (grad_weight, grad_bias)), None, None)
