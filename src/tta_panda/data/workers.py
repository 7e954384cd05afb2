"""Work on several processes whose results come back in order, so that their number changes nothing but the time."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

from tta_panda.errors import DataError, InvalidInputError

Task = TypeVar("Task")
Result = TypeVar("Result")
Map = Callable[[Callable[[Any], Any], Iterable[Any]], Iterator[Any]]
"""`map`, here or elsewhere."""


def default_workers() -> int:
    return os.cpu_count() or 1


def _prepare_nothing() -> None:
    """Unlike a lambda, it can be sent to a process."""


@contextlib.contextmanager
def worker_pool(
    workers: int, initializer: Callable[..., None] = _prepare_nothing, arguments: Sequence[Any] = ()
) -> Iterator[Map]:
    """A `map` over this many processes, each of which calls `initializer` first; one worker is this process."""
    if workers < 1:
        raise InvalidInputError(f"The number of workers must be at least 1, got {workers}.")
    if workers == 1:
        initializer(*arguments)
        yield map
        return
    # Not forked: a process with threads (torch, OpenCV) must not be.
    context = multiprocessing.get_context("spawn")
    others = multiprocessing.active_children()
    pool = ProcessPoolExecutor(workers, context, _start_worker, (initializer, tuple(arguments)))
    try:
        yield pool.map
    except KeyboardInterrupt:
        for process in multiprocessing.active_children():
            if process not in others:
                process.terminate()  # nobody wants to wait for work that was called off
        raise
    except BrokenProcessPool as error:
        raise DataError(
            "A worker process ended unexpectedly, perhaps for want of memory. What is finished is kept; run the same "
            "command again, with fewer --workers if it happens again."
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _start_worker(initializer: Callable[..., None], arguments: Sequence[Any]) -> None:
    import cv2

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interruption is the parent's business
    cv2.setNumThreads(1)  # the processes share the cores already
    threading.Thread(target=_end_with_parent, daemon=True).start()
    initializer(*arguments)


def _end_with_parent() -> None:
    """A worker whose parent was killed would wait for work forever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
