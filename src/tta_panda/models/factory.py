"""Load models by name, wrap networks as models, and make classifiers from models and class names.

A name `MODULE:FUNCTION` stands for a model that a function of the user returns. The module is imported, which runs its
code, from the current folder or the installed packages. The function is called without arguments. It returns a model
that implements the protocol, or the arguments of `wrap_model`: a network of timm, or a tuple such as (network,
tokenizer). Instead of a function, the name may refer to a class or a model.
"""

from __future__ import annotations

import copy
import pkgutil
import sys
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from tta_panda.errors import InvalidInputError, ModelLoadError, TtaPandaWarning
from tta_panda.models.base import (
    Classifier,
    ImageAdapter,
    ImageModel,
    VisionLanguageModel,
    ZeroShotClassifier,
)
from tta_panda.models.checkpoints import check_directory, failures_explained, file_digest, model_files, weights_hash
from tta_panda.models.devices import (
    Backend,
    OpenVinoEncoder,
    Precision,
    check_backend,
    check_precision,
    resolve_device,
)
from tta_panda.models.feature_cache import FeatureCache
from tta_panda.models.linear import LinearClassifier, LinearHeadModel
from tta_panda.models.names import SOURCES, ModelName, current_folder_importable, parse_model_name
from tta_panda.models.prompts import Templates, find_templates


def load_model(name: str, device: str = "cpu", precision: Precision = "fp32", backend: Backend = "torch") -> ImageModel:
    """Load a model by name; see `tta_panda.models.names` for the syntax of names.

    Args:
        name: `"mini"`, `"lite0"`, `"ViT-B-32-quickgelu:openai"`, `"ViT-B-32-quickgelu:weights/clip.safetensors"`, a
            local directory such as `"./clip"`, `"hf-hub:..."`, `"transformers:..."`, `"timm:..."`, or
            `"module:function"` for your own model. Most are `VisionLanguageModel`s; `lite0` and timm's classifiers have
            no text encoder, so `make_classifier` uses the rows of their heads.
        device: a device of torch, or `"auto"` for the best available one.
        precision: precision of the encoders' computations: `"fp32"`, `"bf16"` or `"fp16"`.
        backend: library that computes image embeddings: `"torch"`, or `"openvino"` on the CPU, which is faster for
            convolutional networks and supports methods that do not train.
    """
    device = resolve_device(device)
    check_precision(precision, device)
    check_backend(backend, device, precision)
    parsed = parse_model_name(name)
    source = SOURCES[parsed.library]
    if parsed.directory:
        check_directory(parsed.directory)
    with torch.inference_mode(False):  # models that were created in inference mode cannot be trained
        model = pkgutil.resolve_name(source.load)(parsed).to(device)
    model.preset = source.preset
    if isinstance(model, ImageAdapter):
        model.precision = precision
    elif precision != "fp32":
        raise InvalidInputError(f"{name} controls its own precision; use it with precision fp32.")
    if backend == "openvino":
        model.encode_image = OpenVinoEncoder(model)
    return cast(ImageModel, model)


def make_classifier(
    model: ImageModel,
    class_names: Iterable[str],
    templates: str | Templates = "photo",
    cache: FeatureCache | None = None,
) -> Classifier:
    """Make the classifier of a model for these classes, from text embeddings or from the rows of a linear head.

    Args:
        model: the model.
        class_names: two or more different names; underscores are read as spaces.
        templates: templates of the prompts: `"photo"`, `"mint"`, `"openai"`, the path of a file of prompts, or your
            own, as for `ZeroShotClassifier`. For a model without a text encoder they are ignored, with a warning.
        cache: where text embeddings are kept.
    """
    if isinstance(model, VisionLanguageModel):
        prompts = find_templates(templates) if isinstance(templates, str) else templates
        return ZeroShotClassifier(model, class_names, prompts, cache)
    if not isinstance(model, LinearHeadModel):
        raise InvalidInputError(
            f"{type(model).__name__} has neither a text encoder nor a linear head; tta_panda.check_model(model) lists "
            "what is missing."
        )
    if templates != "photo":
        warnings.warn(
            f"{model.name} has no text encoder, so the templates {templates!r} are ignored.",
            TtaPandaWarning,
            stacklevel=2,
        )
    return LinearClassifier(model, class_names)


def weights_digest(name: str) -> str | None:
    """Return a short hash of the local weights and files behind a name; None for published weights."""
    parsed = parse_model_name(name)
    source = SOURCES[parsed.library]
    if parsed.library == "python":  # the file of a function does not determine the weights
        return _function_digest(parsed)
    files = [parsed.file] if parsed.file else []
    if parsed.directory:
        files = model_files(parsed.directory, source.weights)
    return file_digest(files) if files and all(file.is_file() for file in files) else None


# --- networks in memory, and functions that return models -------------------------------------------------------------


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
    """Wrap a network of open_clip, transformers or timm as a model, without changing the network.

    The model shares the network's weights, but not its training mode and `requires_grad` flags; weights that are not
    float32 are copied. It stays on the network's device. A timm classifier has no text encoder, as in `load_model`.

    Args:
        network: the network.
        tokenizer: for open_clip, the result of `open_clip.get_tokenizer`; for transformers, the model's tokenizer.
        processor: for transformers, the image processor, or the result of `AutoProcessor.from_pretrained`, which
            includes a tokenizer.
        name: name of the model in messages and records; by default, the name of the network's class.
        precision: precision of the encoders' computations: `"fp32"`, `"bf16"` or `"fp16"`.
    """
    libraries = [cls.__module__.partition(".")[0] for cls in type(network).__mro__]
    adapter = next((_ADAPTERS[library] for library in libraries if library in _ADAPTERS), None)
    if hasattr(network, "_orig_mod"):
        raise InvalidInputError(
            "wrap_model takes networks that are not compiled. Wrap the network itself, and compile its image encoder "
            "afterwards: model.image_encoder.compile()"
        )
    if adapter is None or not isinstance(network, nn.Module):
        raise InvalidInputError(
            f"wrap_model takes networks of open_clip, transformers or timm, got {type(network).__name__} of "
            f"{type(network).__module__}. Others can be wrapped in a few lines, see docs/models.md."
        )
    if any(parameter.is_meta for parameter in network.parameters()):
        raise InvalidInputError(f"{type(network).__name__} has no weights: its parameters are on the device meta.")
    check_precision(precision, str(next(network.parameters()).device))
    label, make = name or type(network).__name__, pkgutil.resolve_name(adapter)
    with torch.inference_mode(False):
        model = make(frozen_copy(network), tokenizer, processor, name=label)
    model.precision = precision
    return cast(ImageModel, model)


def frozen_copy(network: nn.Module) -> nn.Module:
    """Return a float32 copy in eval mode that requires no gradients and shares all float32 weights."""
    shared: dict[int, Any] = {id(buffer): _usable(buffer) for buffer in network.buffers()}
    for parameter in network.parameters():
        shared[id(parameter)] = nn.Parameter(_usable(parameter), requires_grad=False)
    return copy.deepcopy(network, shared).eval().float()


def _usable(tensor: Tensor) -> Tensor:
    """Detach a tensor; copy it if it was created in inference mode, which autograd does not support."""
    return tensor.detach().clone() if tensor.is_inference() else tensor.detach()


def load_function(name: ModelName) -> ImageModel:
    """Call the function and return its model, wrapped if necessary."""
    with failures_explained(f"Cannot load {name}"), current_folder_importable():
        target: Any = pkgutil.resolve_name(str(name))
        made = target if isinstance(target, nn.Module) else target()
    if isinstance(made, ImageModel):
        return cast(ImageModel, cast(nn.Module, made).eval().requires_grad_(False))
    network, *more = made if isinstance(made, tuple) else (made,)
    if not isinstance(network, nn.Module):
        raise ModelLoadError(
            f"{name} returned {type(network).__name__}; expected a model, see docs/models.md, or a network of "
            "open_clip, transformers or timm with the other arguments of wrap_model: (network, tokenizer)."
        )
    return wrap_model(network, *more, name=str(name))


def _function_digest(name: ModelName) -> str:
    """Return a short hash of the weights of the function's model and of the file that defines it; runs the function."""
    model = load_function(name)
    source = getattr(sys.modules[name.source], "__file__", None)
    return weights_hash(cast(nn.Module, model))[:6] + file_digest([Path(source)] if source else [])[:6]
