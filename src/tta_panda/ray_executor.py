"""Run tasks on a Ray cluster: one that is running, or one that is started on this machine for the time of the work.

Results are sent back to this process, so machines need no common file system for them. Models and data have to be
reachable from each machine under the same names.
"""

from __future__ import annotations

import os
import pickle
import signal
import socket
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple, TextIO, cast

from tta_panda.errors import InvalidInputError, StoreError, WorkerError, missing_extra
from tta_panda.executors import (
    LOST,
    TRIES,
    Executor,
    Report,
    Result,
    Task,
    available_cores,
    load_function,
    reportable,
    run_task,
)

OBJECT_STORE = 200 * 2**20
"""Bytes that a cluster of our own keeps for what travels between processes, which is little."""


class RayExecutor(Executor):
    """Runs tasks on a Ray cluster; Ray itself runs tasks of lost workers and nodes again.

    Args:
        address: of a running cluster, as `host:6379`, or `auto` for the one that this machine belongs to; None starts
            one on this machine.
        workers: how many tasks are run at a time; by default one per GPU, or per core of a cluster without GPUs. Where
            there is less room, the others wait until machines join.
        gpus_per_worker: a fraction lets several workers share a GPU; by default 1 where the cluster has GPUs.
    """

    def __init__(self, address: str | None = None, workers: int | None = None, gpus_per_worker: float | None = None):
        self.address = address
        self.workers = workers
        self.gpus_per_worker = gpus_per_worker

    def run(
        self,
        function: Callable[[Task, Report], Result],
        tasks: Iterable[Task],
        report: Callable[[Task, float], None] = lambda _task, _share: None,
    ) -> Generator[tuple[Task, Result | StoreError | WorkerError]]:
        waiting = deque(tasks)
        if not waiting:
            return
        ray = _import_ray()
        with redirect_stdout(cast(TextIO, _StdoutOfThisThread())), self._connected(ray) as stays_connected:
            machines = [Machine.of(node["Resources"]) for node in ray.nodes() if node["Alive"]]
            share = divide(machines, self.workers, self.gpus_per_worker)
            start = ray.remote(TtaPandaWorker).options(
                num_cpus=share.cpus, num_gpus=share.gpus, max_restarts=-1, max_task_retries=TRIES - 1
            )
            content = pickle.dumps(function)
            actors = [
                start.remote(content, share.cpus, Path.cwd(), sys.path) for _ in range(min(share.workers, len(waiting)))
            ]
            # Only workers that have started get tasks: others may wait for room for a long time.
            starting: dict[Future[Any], Any] = {actor.is_ready.remote().future(): actor for actor in actors}
            running: dict[Future[Any], tuple[Any, Task]] = {}
            try:
                while waiting or running:
                    # Not `ray.wait`, in which SIGTERM becomes a Ctrl-C.
                    for future in wait([*starting, *running], return_when=FIRST_COMPLETED).done:
                        if future in starting:
                            actor = starting.pop(future)
                            _check_started(ray, future)
                        else:
                            actor, task = running.pop(future)
                            report(task, 1.0)
                            yield task, _result(ray, future)
                        if waiting:
                            task = waiting.popleft()
                            running[actor.run.remote(task).future()] = actor, task
            finally:
                for actor in actors if stays_connected else ():  # else they end with the connection
                    ray.kill(actor)

    @contextmanager
    def _connected(self, ray: Any) -> Iterator[bool]:
        """Join the cluster, or start one that ends with the block, unless this process belongs to one already.

        Gives whether the connection stays after the block.
        """
        if ray.is_initialized():
            yield True
            return
        own_handler = signal.getsignal(signal.SIGTERM)
        try:
            with redirect_stdout(sys.stderr):
                self._connect(ray)
            if callable(own_handler) and threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, own_handler)  # Ray has set one of its own
            yield False
        finally:
            with redirect_stdout(sys.stderr):  # messages of threads that are left
                ray.shutdown()

    def _connect(self, ray: Any) -> None:
        quiet = {"logging_level": "error", "log_to_driver": False}
        try:
            if self.address is not None:
                _check_reachable(self.address)
                ray.init(self.address, **quiet)
                return
            cores = max(available_cores(), self.workers or 1)
            ray.init("local", num_cpus=cores, include_dashboard=False, object_store_memory=OBJECT_STORE, **quiet)
        except (OSError, ValueError, RuntimeError) as error:
            where = f"at {self.address}" if self.address else "on this machine"
            raise WorkerError(
                f"There is no Ray cluster {where} ({_first_line(error)}). Start one with: ray start --head, or omit "
                "--address to have one started."
            ) from error


class _StdoutOfThisThread:
    """Stdout for the thread that made it, stderr for all others: those of Ray print when a worker or a node dies."""

    def __init__(self) -> None:
        self._thread, self._stdout = threading.get_ident(), sys.stdout

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stdout if threading.get_ident() == self._thread else sys.stderr, name)


def _check_started(ray: Any, future: Future[Any]) -> None:
    try:
        future.result()
    except ray.exceptions.RayError as error:
        raise WorkerError(f"A worker could not be started: {_first_line(error)}") from error


def _result(ray: Any, future: Future[Any]) -> Any:
    try:
        return reportable(future.result())
    except ray.exceptions.RayError as error:
        return WorkerError(f"{LOST} ({_first_line(error)})")


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def _check_reachable(address: str) -> None:
    """Raise an OSError where nobody answers; Ray would try for many minutes."""
    host, colon, port = address.rpartition(":")
    if colon and port.isdigit():
        socket.create_connection((host.removeprefix("ray://"), int(port)), timeout=10).close()


class Machine(NamedTuple):
    """The resources of a node of the cluster."""

    cpus: int
    gpus: float

    @classmethod
    def of(cls, resources: dict[str, float]) -> Machine:
        return cls(int(resources.get("CPU", 0)), resources.get("GPU", 0.0))

    def room(self, cpus: int, gpus: float) -> int:
        """The number of workers that fit, if each needs this much."""
        fitting = self.cpus // cpus
        return min(fitting, int(self.gpus / gpus + 1e-9)) if gpus else fitting


class Share(NamedTuple):
    """The number of workers, and what each of them gets."""

    workers: int
    cpus: int
    gpus: float


def divide(machines: Sequence[Machine], workers: int | None, gpus: float | None) -> Share:
    """Divide a cluster among workers, with as many cores for each as all of them can have."""
    if gpus is None:
        gpus = float(any(machine.gpus >= 1 for machine in machines))
    max_cpus = max((machine.cpus for machine in machines), default=0)
    room = {cpus: sum(each.room(cpus, gpus) for each in machines) for cpus in range(1, 1 + max_cpus)}
    if not room.get(1):
        cores, cards = sum(each.cpus for each in machines), sum(each.gpus for each in machines)
        raise InvalidInputError(
            f"The cluster has {cores} cores and {cards:g} GPUs: no room for a worker with 1 core and {gpus:g} GPUs. "
            "Choose --gpus-per-worker to fit, or 0."
        )
    workers = workers or room[1]
    return Share(workers, max((cpus for cpus, several in room.items() if several >= workers), default=1), gpus)


def _import_ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent to anybody
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else Ray warns of what it will do one day
    try:
        import ray
    except ImportError as error:
        raise missing_extra("--engine ray needs", "ray") from error
    return ray


class TtaPandaWorker:
    """The process of a worker; Ray shows the name of this class."""

    def __init__(self, function: bytes, threads: int, folder: Path, paths: Sequence[str]):
        sys.path += [path for path in paths if path not in sys.path]
        if folder.is_dir():
            os.chdir(folder)  # relative paths and modules are found where the command was started
        self._function = load_function(function, threads)

    def is_ready(self) -> bool:
        return True

    def run(self, task: Any) -> Any:
        return run_task(self._function, task, lambda _share: None)
