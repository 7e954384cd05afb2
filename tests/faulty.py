"""Functions that fail on purpose, for executors; without torch, so that workers start at once."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import NamedTuple

from tta_panda.errors import InvalidInputError, StoreError, UnknownNameError
from tta_panda.executors import Report, worker_number


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


def number_of_worker(job: Job, _report: Report) -> int:
    fail(job.kind, job.folder, job.times)
    return worker_number()


def add(base: dict[str, int], task: int) -> tuple[int, int]:
    base["calls"] += 1
    return base["value"] + task, os.getpid()


def refuse(name: str) -> None:
    raise UnknownNameError("corruption", name, ["fog"]) if name == "frog" else RuntimeError(name)


class OnlyHere:
    """Loads in the process that saved it only."""

    def __init__(self, process: int):
        if process != os.getpid():
            raise RuntimeError("wrong process")
        self.process = process

    def __reduce__(self) -> tuple[type[OnlyHere], tuple[int]]:
        return OnlyHere, (self.process,)

    def __call__(self, job: Job) -> int:
        return job.number
