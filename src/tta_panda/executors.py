"""Run tasks in this process or in several local processes; `ray_executor.py` runs them on a cluster.

A task whose worker process is lost (killed, out of memory) is retried. A task that raises is not, because it would
raise again.
"""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

from tta_panda.errors import InvalidInputError, StoreError, TtaPandaError, TtaPandaWarning, WorkerError

TRIES = 3
"""How often a task is tried if its worker is lost."""

LOST = f"Its worker process was lost {TRIES} times, perhaps because memory ran out. Use fewer --workers."

Task = TypeVar("Task")
Result = TypeVar("Result")

Report = Callable[[float], None]
"""Called by a task with the fraction of the task that was just completed."""


class Executor:
    """Runs a function on tasks, one after the other in this process; subclasses use several processes.

    Results do not depend on the executor or its number of workers.
    """

    in_this_process = True

    def run(
        self,
        function: Callable[[Task, Report], Result],
        tasks: Iterable[Task],
        report: Callable[[Task, float], None] = lambda _task, _share: None,
    ) -> Generator[tuple[Task, Result | StoreError | WorkerError]]:
        """Run `function(task, report)` on all tasks; yield each task with its result or error as it finishes.

        Errors that the user has to correct, such as an unknown name, are raised at once. Closing the generator stops
        the workers.

        Args:
            function: sent to each worker once, with everything that it refers to.
            report: called with a task and the fraction of the task that was just completed.
        """
        for task in tasks:
            yield task, _reportable(run_task(function, task, partial(report, task)))

    def map(self, function: Callable[[Task], Result], tasks: Iterable[Task]) -> Generator[Result]:
        """Yield `function(task)` in the order of the tasks; raise the first error."""
        finished: dict[int, Result] = {}
        position = 0
        with contextlib.closing(self.run(partial(_run_numbered, function), enumerate(tasks))) as results:
            for (number, _), result in results:
                if isinstance(result, StoreError | WorkerError):
                    raise result
                finished[number] = result
                while position in finished:
                    yield finished.pop(position)
                    position += 1


def _run_numbered(function: Callable[[Task], Result], task: tuple[int, Task], _report: Report) -> Result:
    return function(task[1])


def run_task(function: Callable[[Task, Report], Result], task: Task, report: Report) -> Result | TtaPandaError:
    """Return the result of a task, or the error that it raised."""
    try:
        return function(task, report)
    except Exception as error:
        return as_worker_error(error)


def as_worker_error(error: Exception) -> TtaPandaError:
    """Return this package's errors unchanged, and others as a `WorkerError` with type, message, line and traceback."""
    if isinstance(error, TtaPandaError):
        return error
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    return WorkerError(f"{type(error).__name__}: {error}{place}", "".join(traceback.format_exception(error)))


def _reportable(result: Result | TtaPandaError) -> Result | StoreError | WorkerError:
    """Raise errors that the user has to correct; return others, such as a full disk of a single worker."""
    if isinstance(result, TtaPandaError) and not isinstance(result, StoreError | WorkerError):
        raise result
    return result


def local_executor(workers: int | None) -> Executor:
    """Make an executor on this machine. None starts one process per core, and 1 uses this process."""
    if workers is None:
        workers = available_cores()
    if workers < 1:
        raise InvalidInputError(f"The number of workers must be at least 1, got {workers}.")
    return Executor() if workers == 1 else ProcessExecutor(workers)


class ProcessExecutor(Executor):
    """Runs tasks in processes that share the cores of this machine."""

    in_this_process = False

    def __init__(self, workers: int):
        self.workers = workers

    def run(
        self,
        function: Callable[[Task, Report], Result],
        tasks: Iterable[Task],
        report: Callable[[Task, float], None] = lambda _task, _share: None,
    ) -> Generator[tuple[Task, Result | StoreError | WorkerError]]:
        # The same even if fewer tasks are left: the last bits of a result can depend on the number of threads.
        threads, numbers = max(1, available_cores() // self.workers), list(range(self.workers))
        start = partial(_WorkerProcess, pickle.dumps(function), threads, numbers)
        return run_on_workers(tasks, report, self.workers, start, BrokenProcessPool)


class Worker(Protocol):
    """A process that runs one task at a time."""

    def ready(self) -> Future[Any]:
        """Return a future that is done as soon as the process has started."""

    def run(self, task: Any) -> Future[Any]:
        """Return the future result of `run_task` in the process."""

    def kill(self) -> None:
        """Kill the process."""


def run_on_workers(
    tasks: Iterable[Task],
    report: Callable[[Task, float], None],
    workers: int,
    start: Callable[[], Worker],
    lost: type[Exception],
) -> Generator[tuple[Task, Any]]:
    """Yield each task with its result or error as it finishes; a lost worker is replaced and its task retried.

    Args:
        tasks: the tasks.
        report: called with a task and the fraction of the task that was just completed.
        workers: number of workers. Only those that have started get tasks; others may be waiting for resources.
        start: starts a worker.
        lost: the exception that the futures of a lost worker raise.
    """
    waiting = deque((task, 1) for task in tasks)
    idle: list[Worker] = []
    starting: dict[Future[Any], tuple[Worker, int]] = {}
    running: dict[Future[Any], tuple[Worker, Task, int]] = {}

    def start_worker(tries: int = 1) -> None:
        worker = start()
        starting[worker.ready()] = worker, tries

    try:
        for _ in range(min(workers, len(waiting))):
            start_worker()
        while waiting or running:
            while waiting and idle:
                worker, (task, tries) = idle.pop(), waiting.popleft()
                running[worker.run(task)] = worker, task, tries
            for future in wait([*starting, *running], return_when=FIRST_COMPLETED).done:
                error = future.exception()
                if future in starting:
                    worker, tries = starting.pop(future)
                    if error is None:
                        idle.append(worker)
                        continue
                    worker.kill()
                    if not isinstance(error, lost) or tries == TRIES:
                        raise WorkerError(f"A worker could not be started: {first_line(error)}") from error
                    start_worker(tries + 1)
                    continue
                worker, task, tries = running.pop(future)
                if not isinstance(error, lost):
                    idle.append(worker)
                else:
                    worker.kill()
                    start_worker()
                    if tries < TRIES:
                        waiting.append((task, tries + 1))
                        continue
                report(task, 1.0)
                yield task, WorkerError(LOST) if isinstance(error, lost) else _reportable(future.result())
    finally:
        for worker in (*idle, *(each[0] for each in starting.values()), *(each[0] for each in running.values())):
            worker.kill()


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its type if the message is empty."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


_INTERRUPTIONS = (signal.SIGINT, signal.SIGTERM)
"""Signals that terminals and schedulers send to all processes of a command. The main process stops the workers."""


class _WorkerProcess(ProcessPoolExecutor):
    """A pool of one process, so that losing one worker does not break the tasks of others.

    It takes the first of the free numbers, and returns it when it is killed.
    """

    def __init__(self, function: bytes, threads: int, free_numbers: list[int]):
        self._free_numbers, self._number = free_numbers, free_numbers.pop(0)
        # "spawn", because a process with threads (torch, OpenCV) must not be forked.
        super().__init__(1, multiprocessing.get_context("spawn"), _start_worker, (function, threads, self._number))

    def ready(self) -> Future[Any]:
        with _interruptions_blocked():  # the process starts here, and inherits the signal mask
            return self.submit(os.getpid)

    def run(self, task: Any) -> Future[Any]:
        return self.submit(_run_in_worker, task)

    def kill(self) -> None:
        for process in list((self._processes or {}).values()):
            process.kill()
        self.shutdown(cancel_futures=True)
        self._free_numbers.append(self._number)


@contextlib.contextmanager
def _interruptions_blocked() -> Iterator[None]:
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _INTERRUPTIONS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_function: Callable[[Any, Report], Any] | None = None  # set in worker processes only
_number = 0


def worker_number() -> int:
    """Return the number of this worker among those of its machine; 0 in a process that is no worker."""
    return _number


def _start_worker(function: bytes, threads: int, number: int) -> None:
    for interruption in _INTERRUPTIONS:
        signal.signal(interruption, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    global _function, _number
    _function, _number = load_function(function, threads), number


def _run_in_worker(task: Any) -> Any:
    assert _function is not None
    return run_task(_function, task, lambda _share: None)


def load_function(function: bytes, threads: int) -> Callable[[Any, Report], Any]:
    """Unpickle a function in a worker and limit its threads; one that cannot be loaded raises the error when called."""
    warnings.simplefilter("ignore", TtaPandaWarning)  # the main process has shown these already
    try:
        loaded: Callable[[Any, Report], Any] = pickle.loads(function)
    except Exception as error:
        return partial(_raise, as_worker_error(error))
    import cv2

    cv2.setNumThreads(1)  # the processes share the cores already
    if "torch" in sys.modules:  # imported with the function, if it uses it
        sys.modules["torch"].set_num_threads(threads)
    return loaded


def _raise(error: Exception, _task: object, _report: Report) -> None:
    raise error


def _end_with_parent() -> None:
    """Exit when the parent process is killed; this process would otherwise wait for tasks forever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def available_cores() -> int:
    """Return the number of cores this process may use, considering SLURM, taskset and the quota of a container."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, math.ceil(min(affinity, _cpu_quota(Path("/proc/self/cgroup")))))


def _cpu_quota(own_group: Path, groups: Path = Path("/sys/fs/cgroup")) -> float:
    """Return the number of cores that control groups (version 2) grant this process; infinity without a limit."""
    try:
        name = next(line[3:] for line in own_group.read_text().splitlines() if line.startswith("0::"))
    except (OSError, StopIteration):
        return math.inf
    group = groups / name.strip("/")
    quotas = [math.inf]
    for folder in (group, *group.parents):  # the smallest limit of the group and its parents applies
        if folder.is_relative_to(groups):
            with contextlib.suppress(OSError, ValueError):
                granted, period = (folder / "cpu.max").read_text().split()
                quotas.append(float(granted) / float(period))  # "max", no limit, is not a number
    return min(quotas)
