"""Spread work over several processes. Results come back in order, so the number of processes does not change them."""

from __future__ import annotations

import contextlib
import functools
import math
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

from tta_panda.allocator import keep_freed_memory
from tta_panda.errors import DataError, InvalidInputError

Map = Callable[[Callable[[Any, Any], Any], Iterable[Any]], Iterator[Any]]
"""Called with a function and its tasks: yields `function(shared, task)` for each task, in order."""


def available_cores() -> int:
    """Number of cores this process may use: under SLURM, taskset or a container's quota, fewer than the machine has."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, math.ceil(min(affinity, _cpu_quota(Path("/proc/self/cgroup")))))


def _cpu_quota(own_group: Path, groups: Path = Path("/sys/fs/cgroup")) -> float:
    """Number of cores that control groups (version 2) grant to this process; infinity without a limit."""
    try:
        name = next(line[3:] for line in own_group.read_text().splitlines() if line.startswith("0::"))
    except (OSError, StopIteration):
        return math.inf
    group = groups / name.strip("/")
    quotas = [math.inf]
    for folder in (group, *group.parents):  # the smallest limit on the way up counts
        if folder.is_relative_to(groups):
            with contextlib.suppress(OSError, ValueError):
                granted, period = (folder / "cpu.max").read_text().split()
                quotas.append(float(granted) / float(period))  # "max", no limit, is not a number
    return min(quotas)


@contextlib.contextmanager
def worker_pool(workers: int | None, shared: Any = None) -> Iterator[Map]:
    """A `map` over several processes; with one worker, the work is done in this process.

    Args:
        workers: number of processes; None for one per core.
        shared: what all tasks need; it is sent to each process once, not with every task.
    """
    if workers is None:
        workers = available_cores()
    if workers < 1:
        raise InvalidInputError(f"The number of workers must be at least 1, got {workers}.")
    if workers == 1:
        yield lambda function, tasks: map(functools.partial(function, shared), tasks)
        return
    pool = WorkerPool(workers, shared)
    try:
        yield lambda function, tasks: pool.map(functools.partial(call_shared, function), tasks)
    except KeyboardInterrupt:
        pool.kill()  # do not wait for unfinished work
        raise
    except BrokenProcessPool as error:
        raise DataError(
            "A worker process ended unexpectedly, perhaps because memory ran out. What is finished is kept; run the "
            "same command again, with fewer --workers if it happens again."
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


class WorkerPool(ProcessPoolExecutor):
    """Processes that end with this one; `call_shared` hands `shared` to functions there."""

    def __init__(self, workers: int, shared: Any):
        # A process with threads (torch, OpenCV) must not be forked.
        super().__init__(workers, multiprocessing.get_context("spawn"), _start_worker, (shared,))

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        with _interruptions_held():  # the first task starts the processes
            return super().submit(function, *args, **kwargs)

    def kill(self) -> None:
        """End all processes, whatever they are doing."""
        for process in list((self._processes or {}).values()):
            process.kill()


_INTERRUPTIONS = (signal.SIGINT, signal.SIGTERM)
"""Terminals and schedulers send these to all processes of a command; the main one ends the others."""


@contextlib.contextmanager
def _interruptions_held() -> Iterator[None]:
    """Spare the processes that this block starts all interruptions, from their first moment on."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _INTERRUPTIONS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_shared: Any = None  # set in worker processes only


def _start_worker(shared: Any) -> None:
    import cv2

    global _shared
    _shared = shared
    for interruption in _INTERRUPTIONS:
        signal.signal(interruption, signal.SIG_IGN)
    cv2.setNumThreads(1)  # the processes share the cores already
    keep_freed_memory()
    threading.Thread(target=_end_with_parent, daemon=True).start()


def call_shared(function: Callable[[Any, Any], Any], task: Any) -> Any:
    """Call a function in a process of a pool, with what all its tasks share."""
    return function(_shared, task)


def _end_with_parent() -> None:
    """End this process when its parent is killed; it would otherwise wait for work forever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
