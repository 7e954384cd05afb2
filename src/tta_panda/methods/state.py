"""Saved states of methods: what they belong to, and whether a method can go on from one."""

from __future__ import annotations

import copy
import reprlib
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tta_panda.errors import InvalidInputError

if TYPE_CHECKING:
    from tta_panda.methods.base import Method

_SHOWN_DIFFERENCES = 3


def describe(method: Method) -> dict[str, Any]:
    """What two methods must have in common for one to go on from the other's state, in plain values."""
    return {
        "method": type(method).__name__,
        "class_names": list(method.classifier.class_names),
        "embedding_size": method.classifier.class_embeddings.shape[1],
        **method.options,
        "debias": repr(method.debias),
        **{name: list(parameter.shape) for name, parameter in getattr(method, "adapted", {}).items()},
    }


def check_state(state: Any, method: Method) -> None:
    """Refuse a state that the method cannot go on from, and say why."""
    if not isinstance(state, dict) or "made_by" not in state:
        raise InvalidInputError(f"This is not what a method's state_dict() returns: {str(state)[:100]}")
    saved, own = state["made_by"], describe(method)
    differing = [key for key in {**own, **saved} if saved.get(key) != own.get(key)]
    if differing:
        shown = [
            f"{key} is {_short(saved.get(key))} in the state, {_short(own.get(key))} here"
            for key in differing[:_SHOWN_DIFFERENCES]
        ]
        raise InvalidInputError(
            f"This state does not fit this {type(method).__name__}: {'; '.join(shown)}. Make the method like the "
            "one that was saved."
        )


def on_device(value: Any, device: torch.device) -> Any:
    """A copy of a declared state, with tensors where the method computes."""
    return value.to(device, copy=True) if isinstance(value, Tensor) else copy.deepcopy(value)


def _short(value: Any) -> str:
    return value if isinstance(value, str) else reprlib.repr(value)
