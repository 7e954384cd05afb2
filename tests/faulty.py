"""What goes wrong on purpose: functions for executors, and a method, whose first tries fail."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import NamedTuple

import torch

from tta_panda import FrozenMethod
from tta_panda.errors import InvalidInputError, StoreError
from tta_panda.executors import Report


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


def double(job: Job, report: Report) -> tuple[int, int]:
    """Twice the number, and the process that computed it."""
    report(0.5)
    if job.kind:
        fail(job.kind, job.folder, job.times)
    report(0.5)
    return 2 * job.number, os.getpid()


def count_threads(_job: Job, _report: Report) -> tuple[int, int]:
    """The number of threads that torch may use, and the process."""
    return torch.get_num_threads(), os.getpid()


class Faulty(FrozenMethod):
    """Zero-shot CLIP that fails first."""

    kind: str = "raise"
    folder: str = ""
    times: int = 1

    def _adapt(self, encoded):
        fail(self.kind, Path(self.folder), self.times)
        return self.classify(encoded)
