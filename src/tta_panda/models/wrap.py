"""Models that are in memory already, and those that a function of the user's makes, named `MODULE:FUNCTION`.

The module is found in the current folder or among installed packages, and its code runs: the name asks for it. The
function is called without arguments. It returns a model that keeps the protocol, or what `wrap_model` takes: a network
of timm, or a tuple such as (network, tokenizer). A class, or a model that is in the module, will do as well.
"""

from __future__ import annotations

import copy
import pkgutil
import sys
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from tta_panda.errors import InvalidInputError, ModelLoadError
from tta_panda.models.base import ImageModel
from tta_panda.models.checkpoints import file_digest, weights_hash
from tta_panda.models.devices import Precision, check_precision
from tta_panda.models.loading import current_folder_importable, failures_explained
from tta_panda.models.names import ModelName

_ADAPTERS = {
    "open_clip": "tta_panda.models.openclip:OpenClipModel",
    "transformers": "tta_panda.models.transformers:TransformersModel",
    "timm": "tta_panda.models.linear:LinearHeadModel",
}
"""Adapters by the library of the network."""


def wrap_model(
    network: nn.Module,
    tokenizer: Any = None,
    processor: Any = None,
    *,
    name: str | None = None,
    precision: Precision = "fp32",
) -> ImageModel:
    """A network of open_clip, transformers or timm as a model, without changing the network.

    The model shares the network's weights, but not its training mode and `requires_grad` flags; weights that are not
    float32 are copied. It stays on the network's device. A timm classifier has no text encoder, as in `load_model`.

    Args:
        network: the network.
        tokenizer: for open_clip what `open_clip.get_tokenizer` returns, for transformers the model's tokenizer.
        processor: for transformers, the image processor, or what `AutoProcessor` returns, which has a tokenizer, too.
        name: what the model is called in messages and records; by default, the name of the network's class.
        precision: what the encoders compute in: `"fp32"`, `"bf16"` or `"fp16"`.
    """
    libraries = [cls.__module__.partition(".")[0] for cls in type(network).__mro__]
    adapter = next((_ADAPTERS[library] for library in libraries if library in _ADAPTERS), None)
    if adapter is None or not isinstance(network, nn.Module):
        raise InvalidInputError(
            f"wrap_model takes networks of open_clip, transformers or timm, got {type(network).__name__} of "
            f"{type(network).__module__}. Others are wrapped in a few lines, see docs/models.md."
        )
    check_precision(precision, str(next(network.parameters()).device))
    label, make = name or type(network).__name__, pkgutil.resolve_name(adapter)
    with torch.inference_mode(False):
        model = make(frozen_copy(network), tokenizer, processor, name=label)
    model.precision = precision
    return cast(ImageModel, model)


def frozen_copy(network: nn.Module) -> nn.Module:
    """A copy in eval mode that requires no gradients, is float32 and shares the weights that are."""
    shared: dict[int, Any] = {id(buffer): _usable(buffer) for buffer in network.buffers()}
    for parameter in network.parameters():
        shared[id(parameter)] = nn.Parameter(_usable(parameter), requires_grad=False)
    return copy.deepcopy(network, shared).eval().float()


def _usable(tensor: Tensor) -> Tensor:
    """The same memory, or a copy where the tensor was made in inference mode and no gradient could pass it."""
    return tensor.detach().clone() if tensor.is_inference() else tensor.detach()


def load_factory(name: ModelName) -> ImageModel:
    """What the function returns, wrapped if need be."""
    with failures_explained(f"Cannot load {name}"), current_folder_importable():
        target: Any = pkgutil.resolve_name(str(name))
        made = target if isinstance(target, nn.Module) else target()
    if isinstance(made, ImageModel):
        return cast(ImageModel, cast(nn.Module, made).eval().requires_grad_(False))
    network, *more = made if isinstance(made, tuple) else (made,)
    if not isinstance(network, nn.Module):
        raise ModelLoadError(
            f"{name} returned {type(network).__name__}; expected a model, as docs/models.md describes it, or a network "
            "of open_clip, transformers or timm with what wrap_model needs beside it: (network, tokenizer)."
        )
    return wrap_model(network, *more, name=str(name))


def factory_digest(name: ModelName) -> str:
    """A short hash of the weights that the function gives and of the file that defines it. Makes the model."""
    model = load_factory(name)
    source = getattr(sys.modules[name.source], "__file__", None)
    return weights_hash(cast(nn.Module, model))[:6] + file_digest([Path(source)] if source else [])[:6]
