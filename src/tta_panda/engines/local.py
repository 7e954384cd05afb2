"""This machine: this process, or several that share its cores."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

from tta_panda.engines.base import (
    TRIES,
    Advance,
    Answer,
    Done,
    Engine,
    Result,
    Settled,
    Task,
    Work,
    answer,
    prepare_worker,
    settle,
)
from tta_panda.engines.crew import Crew, Worker
from tta_panda.workers import WorkerPool, available_cores, call_shared


class LocalEngine(Engine):
    """Does tasks in this process, or, with several workers, in processes of their own."""

    def __init__(self, workers: int = 1):
        self.workers: int = workers

    def run(self, work: Work[Task, Result], tasks: Sequence[Task], advance: Advance[Task]) -> Settled[Task, Result]:
        if self.workers < 2 or not tasks:
            return _run_here(work, tasks, advance)
        # However few tasks are left: the last bits of a result can depend on the number of threads.
        threads = max(1, available_cores() // self.workers)
        return Crew[Task](partial(_Process, work, threads), min(self.workers, len(tasks))).run(tasks, advance)


def _run_here(work: Work[Task, Result], tasks: Sequence[Task], advance: Advance[Task]) -> Settled[Task, Result]:
    """Do tasks one after the other in this process."""
    for task in tasks:
        for _ in range(TRIES):
            settled = settle(task, answer(work, task, partial(advance, task)))
            if isinstance(settled, Done):
                break
        yield settled


class _Process(Worker):
    """A pool of one process: the death of another would break a larger one."""

    def __init__(self, work: Work[Any, Any], threads: int):
        self._pool = WorkerPool(1, work)
        self.ready = self._pool.submit(call_shared, prepare_worker, threads)

    def submit(self, task: Any) -> Future[Answer]:
        return self._pool.submit(call_shared, answer, task)

    def stop(self) -> None:
        self._pool.kill()
        self._pool.shutdown(cancel_futures=True)
