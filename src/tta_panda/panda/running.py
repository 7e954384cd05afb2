"""What is remembered of a stream."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor


class Running(ABC):
    """Something that a stream changes. The attributes that `reset` sets are its state, and may be such things, too.

    Sub-classes store their settings before they call this constructor.
    """

    def __init__(self) -> None:
        settings = set(vars(self))
        self.reset()
        self._state = [name for name in vars(self) if name not in settings]

    @abstractmethod
    def reset(self) -> None:
        """Forget the stream."""

    def state_dict(self) -> dict[str, Any]:
        return {name: _saved(getattr(self, name)) for name in self._state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in self._state:
            setattr(self, name, _loaded(getattr(self, name), state[name]))


def _saved(value: Any) -> Any:
    if isinstance(value, Running):
        return value.state_dict()
    return value.get_state() if isinstance(value, torch.Generator) else value


def _loaded(current: Any, saved: Any) -> Any:
    if isinstance(current, Running):
        current.load_state_dict(saved)
        return current
    if isinstance(current, torch.Generator):
        return current.set_state(saved.cpu())
    return saved.clone().cpu() if isinstance(saved, Tensor) else saved


def decay(images: int, half_life: float | None) -> float:
    """What remains of a sum after this many images; all of it where nothing is forgotten."""
    return 1.0 if half_life is None else 0.5 ** (images / half_life)
