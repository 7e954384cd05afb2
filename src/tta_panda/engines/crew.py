"""Workers in processes of their own, who are handed one task at a time, and replaced when they die."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any, Generic, NamedTuple

from tta_panda.engines.base import TRIES, Advance, Answer, Done, Failed, Failure, Settled, Task, settle
from tta_panda.errors import WorkerError


class Worker(ABC):
    """A process that does one task at a time, here or on another machine."""

    ready: Future[Answer]
    """What `prepare_worker` gave in it."""

    @abstractmethod
    def submit(self, task: Any) -> Future[Answer]:
        """Hand over a task. The future has an exception if the worker dies."""

    @abstractmethod
    def stop(self) -> None:
        """End it, whatever it is doing."""


class _Start(NamedTuple):
    worker: Worker
    tries: int


class _Try(NamedTuple, Generic[Task]):
    worker: Worker
    task: Task
    tries: int


class Crew(Generic[Task]):
    """Some workers, and where they stand.

    Args:
        start: starts a worker, without waiting for it.
        size: how many there are to be. Fewer will do: those that find no room wait for it.
    """

    def __init__(self, start: Callable[[], Worker], size: int):
        self._start = start
        self._size = size
        self._starting: dict[Future[Answer], _Start] = {}
        self._busy: dict[Future[Answer], _Try[Task]] = {}
        self._idle: list[Worker] = []
        self._waiting: deque[tuple[Task, int]] = deque()

    def run(self, tasks: Sequence[Task], advance: Advance[Task]) -> Settled[Task, Any]:
        """Do all tasks, and yield each as soon as it is settled."""
        self._waiting.extend((task, 1) for task in tasks)
        try:
            for _ in range(min(self._size, len(tasks))):
                self._begin()
            while self._waiting or self._busy:
                self._assign()
                for future in wait([*self._starting, *self._busy], return_when=FIRST_COMPLETED).done:
                    if future in self._starting:
                        self._started(future)
                    elif settled := self._finished(future):
                        advance(settled.task, 1.0)
                        yield settled
        finally:
            starting, busy = ([each.worker for each in them.values()] for them in (self._starting, self._busy))
            for worker in (*self._idle, *starting, *busy):
                worker.stop()

    def _begin(self, tries: int = 1) -> None:
        worker = self._start()
        self._starting[worker.ready] = _Start(worker, tries)

    def _assign(self) -> None:
        while self._waiting and self._idle:
            worker, (task, tries) = self._idle.pop(), self._waiting.popleft()
            self._busy[worker.submit(task)] = _Try(worker, task, tries)

    def _started(self, future: Future[Answer]) -> None:
        """A worker is ready, or could not be started. Its place is given up after some tries."""
        worker, tries = self._starting.pop(future)
        settled = settle(None, _answer(future))
        if isinstance(settled, Done):
            self._idle.append(worker)
            return
        worker.stop()
        if tries < TRIES:
            self._begin(tries + 1)
        elif not (self._starting or self._busy or self._idle):
            raise WorkerError(f"No worker could be started in {TRIES} tries: {settled.reason}")

    def _finished(self, future: Future[Answer]) -> Done[Task, Any] | Failed[Task] | None:
        """What came of a task, unless it is to be tried again."""
        worker, task, tries = self._busy.pop(future)
        if future.exception():
            worker.stop()
            self._begin()
        else:
            self._idle.append(worker)
        settled = settle(task, _answer(future))
        if isinstance(settled, Failed) and tries < TRIES:
            self._waiting.append((task, tries + 1))
            return None
        return settled


def _answer(future: Future[Answer]) -> Answer:
    error = future.exception()
    if error is None:
        return future.result()
    reason = next(iter(str(error).strip().splitlines()), "no reason is known")
    return Failure(f"A worker process ended unexpectedly, perhaps because memory ran out ({reason})")
