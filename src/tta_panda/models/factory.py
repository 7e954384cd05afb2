"""Models that a function of the user's makes, named `MODULE:FUNCTION`.

The module is found in the current folder or among installed packages, and its code runs: the name asks for it. The
function is called without arguments. It returns a model that keeps the protocol, or what `wrap_model` takes: a network
of timm, or a tuple such as (network, tokenizer). A class, or a model that is in the module, will do as well.
"""

from __future__ import annotations

import pkgutil
import sys
from pathlib import Path
from typing import Any, cast

from torch import nn

from tta_panda.errors import InvalidInputError, ModelLoadError
from tta_panda.models.base import ImageModel
from tta_panda.models.checkpoints import file_digest, weights_hash
from tta_panda.models.devices import Precision
from tta_panda.models.loading import failures_explained, importing_from_here
from tta_panda.models.names import ModelName
from tta_panda.models.wrap import wrap_model


def load_factory(name: ModelName, device: str = "cpu", precision: Precision = "fp32") -> ImageModel:
    """What the function returns, wrapped if need be, on the device."""
    with failures_explained(f"Cannot load {name}"), importing_from_here():
        target: Any = pkgutil.resolve_name(str(name))
        made = target if isinstance(target, nn.Module) else target()
    if not isinstance(made, ImageModel):
        return _wrapped(made, str(name), device, precision)
    if precision != "fp32":
        raise InvalidInputError(f"{name} decides itself what it computes in; use it with precision fp32.")
    return cast(ImageModel, cast(nn.Module, made).to(device).eval().requires_grad_(False))


def _wrapped(made: Any, name: str, device: str, precision: Precision) -> ImageModel:
    network, *more = made if isinstance(made, tuple) else (made,)
    if not isinstance(network, nn.Module):
        raise ModelLoadError(
            f"{name} returned {type(network).__name__}; expected a model, as docs/models.md describes it, or a network "
            "of open_clip, transformers or timm with what wrap_model needs beside it: (network, tokenizer)."
        )
    return wrap_model(network.to(device), *more, name=name, precision=precision)


def factory_digest(name: ModelName) -> str:
    """A short hash of the weights that the function gives and of the file that defines it. Makes the model."""
    model = load_factory(name)
    source = getattr(sys.modules[name.source], "__file__", None)
    return weights_hash(cast(nn.Module, model))[:6] + file_digest([Path(source)] if source else [])[:6]
