"""State that changes along a stream: declared with `add_state`, and reset, saved and loaded here."""

from __future__ import annotations

import contextlib
import copy
import reprlib
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from tta_panda.errors import InvalidInputError

T = TypeVar("T")


class Stateful:
    """An object whose state is declared with `add_state`, usually in its constructor."""

    state_device = torch.device("cpu")
    """Device that tensors of a loaded state are moved to, unless their default is a tensor: then to its device."""

    def __init__(self) -> None:
        self._defaults: dict[str, Any] = {}

    def add_state(self, name: str, default: T) -> T:
        """Declare `self.<name>`: state that starts as `default`, is reset to it, and is part of `state_dict`.

        Returns the new value of the attribute, so that a declaration can include its type:
        `self.mean: Tensor | None = self.add_state("mean", None)`.

        Args:
            name: name of the attribute.
            default: a tensor, a number, a string or None, or a dictionary of these; a `torch.Generator` in its current
                state; or another `Stateful`, which is reset, saved and loaded along with this one.
        """
        self._defaults[name] = default
        self.reset_state(name)
        return cast(T, getattr(self, name))

    def reset_state(self, name: str) -> None:
        """Set one declared state to its default."""
        default = self._defaults[name]
        if isinstance(default, Stateful):
            default.reset()
        setattr(self, name, default if isinstance(default, Stateful) else _copy(default))

    def reset(self) -> None:
        """Set all declared states to their defaults."""
        for name in self._defaults:
            self.reset_state(name)

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of all declared states, as dictionaries of tensors and plain values."""
        return {name: _saved(getattr(self, name)) for name in self._defaults}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load copies of the states that `state_dict` returned; raise before changing anything if they do not match."""
        self.check_state_dict(state)
        for name in self._defaults:
            current = getattr(self, name)
            if isinstance(current, Stateful):
                current.load_state_dict(state[name])
            elif isinstance(current, torch.Generator):
                current.set_state(state[name].cpu())
            else:
                setattr(self, name, _loaded(state[name], self._defaults[name], self.state_device))

    def check_state_dict(self, state: Any) -> None:
        """Raise `InvalidInputError` unless this has the structure that `state_dict` returns."""
        if not isinstance(state, dict) or state.keys() != self._defaults.keys():
            raise InvalidInputError(
                f"A state of {type(self).__name__} has {', '.join(self._defaults) or 'no entries'}."
            )
        for name, default in self._defaults.items():
            if isinstance(default, Stateful):
                default.check_state_dict(state[name])
            elif not _fits(state[name], default):
                raise InvalidInputError(f"{name} of {type(self).__name__} cannot be {reprlib.repr(state[name])}.")


def _fits(value: Any, default: Any, grows: bool = False) -> bool:
    """Whether a state may have this value; one whose default is None may be a number or a tensor."""
    if isinstance(default, dict):
        return (
            isinstance(value, dict)
            and value.keys() == default.keys()
            and all(_fits(value[name], default[name], grows=True) for name in default)
        )
    if isinstance(default, Tensor):
        # Caches are dictionaries of tensors whose first dimension grows. A scalar may become a tensor of any shape.
        return (
            isinstance(value, Tensor)
            and value.is_floating_point() == default.is_floating_point()
            and (not default.ndim or value.shape == default.shape or (grows and value.shape[1:] == default.shape[1:]))
        )
    if isinstance(default, torch.Generator):
        with contextlib.suppress(RuntimeError, TypeError, AttributeError):
            torch.Generator().set_state(value.cpu())
            return True
        return False
    kinds = (int, float, Tensor, type(None)) if default is None else (type(default), int)
    return isinstance(value, kinds)


def _loaded(value: Any, default: Any, device: torch.device) -> Any:
    if isinstance(default, dict):
        return {name: _loaded(value[name], default[name], device) for name in default}
    return _copy(value, default.device if isinstance(default, Tensor) else device)


def _saved(value: Any) -> Any:
    if isinstance(value, Stateful):
        return value.state_dict()
    return value.get_state() if isinstance(value, torch.Generator) else _copy(value)


def _copy(value: Any, device: torch.device | None = None) -> Any:
    """Copy a value, onto `device` if given; the copy may be changed in place, even if made in inference mode."""
    if isinstance(value, dict):  # a deep copy would be much slower, because it copies the storages of tensors
        return {name: _copy(item, device) for name, item in value.items()}
    if isinstance(value, Tensor):
        with torch.inference_mode(False):
            return value.detach().to(device or value.device, copy=True)
    if isinstance(value, torch.Generator):
        return torch.Generator(value.device).set_state(value.get_state())
    return copy.deepcopy(value)
