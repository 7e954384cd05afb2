"""Copies of a model whose normalisation layers can be trained while everything else stays shared and frozen."""

from __future__ import annotations

import copy
from typing import Any, TypeVar, cast

import torch
from torch import nn

from tta_panda.errors import InvalidInputError
from tta_panda.models.base import VisionLanguageModel

NORMALISATION_LAYERS = (nn.LayerNorm, nn.GroupNorm, nn.modules.batchnorm._BatchNorm)

Model = TypeVar("Model", bound=VisionLanguageModel)


def normalisation_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    """Weight and bias of every normalisation layer, by their names in `module`."""
    return {
        f"{prefix}.{name}": parameter
        for prefix, layer in module.named_modules()
        if isinstance(layer, NORMALISATION_LAYERS)
        for name, parameter in layer.named_parameters(recurse=False)
    }


def adaptable_copy(model: Model) -> tuple[Model, dict[str, nn.Parameter]]:
    """A copy of `model` with its own, trainable normalisation parameters of the image encoder, and these parameters.

    All other tensors are the original's, so the copy costs almost no memory and the caller's model never changes.
    """
    module = cast(nn.Module, model)
    trained = {id(parameter) for parameter in normalisation_parameters(model.image_encoder).values()}
    if not trained:
        raise InvalidInputError(f"The image encoder of {model.name} has no normalisation layer with weights to adapt.")
    tensors = [*module.parameters(), *module.buffers()]
    tools = [value for name, value in vars(module).items() if not name.startswith("_")]  # a tokenizer, say
    shared: dict[int, Any] = {id(item): item for item in (*tensors, *tools) if id(item) not in trained}
    with torch.inference_mode(False):
        twin = cast(Model, copy.deepcopy(module, shared))
        adapted = normalisation_parameters(twin.image_encoder)
        for parameter in adapted.values():
            parameter.requires_grad_(True)
    return twin, adapted
