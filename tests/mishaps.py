"""What goes wrong on purpose: work for engines, and a method, whose first tries fail."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch

from tta_panda import FrozenMethod
from tta_panda.engines.base import Work
from tta_panda.errors import InvalidInputError, StoreError


def fail(kind: str, folder: Path, times: int) -> None:
    """Fail in some way, but not more often than `times`; the folder remembers, whichever process asks."""
    tries = len(list(folder.iterdir()))
    if tries >= times:
        return
    (folder / f"{tries}-{os.getpid()}").touch()
    if kind == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    elif kind == "full":
        raise StoreError("Cannot write features (No space left on device).")
    elif kind == "refuse":
        raise InvalidInputError("beta must be at least 0, got -1.")
    raise RuntimeError("out of luck")


class Job(NamedTuple):
    """A number to double."""

    number: int
    kind: str = ""
    folder: Path = Path()
    times: int = 0


class Doubling(Work[Job, tuple[int, int]]):
    """Gives twice the number, and the process that did it."""

    def __call__(self, task: Job, advance: Callable[[float], None]) -> tuple[int, int]:
        advance(0.5)
        if task.kind:
            fail(task.kind, task.folder, task.times)
        advance(0.5)
        return 2 * task.number, os.getpid()


class Threads(Work[Job, tuple[int, int]]):
    """Gives the number of threads that torch may use, and the process."""

    def __call__(self, task: Job, advance: Callable[[float], None]) -> tuple[int, int]:
        return torch.get_num_threads(), os.getpid()


class Mishap(FrozenMethod):
    """Zero-shot CLIP that fails first."""

    def __init__(self, classifier, *, kind: str = "raise", folder: str = "", times: int = 1, **common):
        super().__init__(classifier, **common)
        self.kind, self.folder, self.times = kind, folder, times

    def _adapt_encoded(self, encoded):
        fail(self.kind, Path(self.folder), self.times)
        return self.classify(encoded)
