"""Models that are in memory already."""

from __future__ import annotations

import copy
import pkgutil
from typing import Any, cast

import torch
from torch import Tensor, nn

from tta_panda.errors import InvalidInputError
from tta_panda.models.base import VisionLanguageModel
from tta_panda.models.devices import Precision, check_precision
from tta_panda.models.sources import SOURCES


def wrap_model(
    network: nn.Module,
    tokenizer: Any = None,
    processor: Any = None,
    *,
    name: str | None = None,
    precision: Precision = "fp32",
) -> VisionLanguageModel:
    """A network of open_clip, transformers or timm as a model, without changing the network.

    The model shares the network's weights, but not its training mode and `requires_grad` flags; weights that are not
    float32 are copied. It stays on the network's device. A timm classifier is an `ImageModel` only, as in `load_model`.

    Args:
        network: the network.
        tokenizer: for open_clip what `open_clip.get_tokenizer` returns, for transformers the model's tokenizer.
        processor: for transformers, the image processor, or what `AutoProcessor` returns, which has a tokenizer, too.
        name: what the model is called in messages and records; by default, the name of the network's class.
        precision: what the encoders compute in: `"fp32"`, `"bf16"` or `"fp16"`.
    """
    libraries = [cls.__module__.partition(".")[0] for cls in type(network).__mro__]
    source = next((SOURCES[name] for name in libraries if name in SOURCES and SOURCES[name].adapter), None)
    if source is None or source.adapter is None or not isinstance(network, nn.Module):
        raise InvalidInputError(
            f"wrap_model takes networks of open_clip, transformers or timm, got {type(network).__name__} of "
            f"{type(network).__module__}. Others are wrapped in a few lines, see docs/models.md."
        )
    adapter = pkgutil.resolve_name(source.adapter)
    check_precision(precision, str(next(network.parameters()).device))
    with torch.inference_mode(False):
        label = name or type(network).__name__
        return cast(VisionLanguageModel, adapter.wrap(frozen_copy(network), tokenizer, processor, label, precision))


def frozen_copy(network: nn.Module) -> nn.Module:
    """A copy in eval mode that requires no gradients, is float32 and shares the weights that are."""
    shared: dict[int, Any] = {id(buffer): _usable(buffer) for buffer in network.buffers()}
    for parameter in network.parameters():
        shared[id(parameter)] = nn.Parameter(_usable(parameter), requires_grad=False)
    return copy.deepcopy(network, shared).eval().float()


def _usable(tensor: Tensor) -> Tensor:
    """The same memory, or a copy where the tensor was made in inference mode and no gradient could pass it."""
    return tensor.detach().clone() if tensor.is_inference() else tensor.detach()
