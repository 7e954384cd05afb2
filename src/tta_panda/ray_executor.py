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
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any, TextIO, cast

from tta_panda.errors import InvalidInputError, StoreError, WorkerError, missing_extra
from tta_panda.executors import (
    Executor,
    Report,
    Result,
    Task,
    available_cores,
    first_line,
    load_function,
    run_on_workers,
    run_task,
)

OBJECT_STORE = 200 * 2**20
"""Bytes that a cluster of our own keeps for what travels between processes, which is little."""


class RayExecutor(Executor):
    """Runs tasks on a Ray cluster.

    Args:
        address: of a running cluster, as `host:6379`, or `auto` for the one that this machine belongs to; None starts
            one on this machine.
        workers: how many tasks are run at a time; by default one per GPU, or per core of a cluster without GPUs. Where
            there is less room, the others wait until machines join.
        gpus_per_worker: a fraction lets several workers share a GPU; by default 1 where the cluster has GPUs.
    """

    in_this_process = False

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
        tasks = list(tasks)
        if not tasks:
            return
        ray = _import_ray()
        with redirect_stdout(cast(TextIO, _StdoutOfThisThread())), self._connected(ray):
            found = [node["Resources"] for node in ray.nodes() if node["Alive"]]
            nodes = [(int(each.get("CPU", 0)), each.get("GPU", 0.0)) for each in found]
            workers, cpus, gpus = divide(nodes, self.workers, self.gpus_per_worker)
            remote = ray.remote(TtaPandaWorker).options(num_cpus=cpus, num_gpus=gpus)
            arguments = pickle.dumps(function), cpus, Path.cwd(), sys.path
            start = lambda: _RayWorker(ray, remote.remote(*arguments))  # noqa: E731
            yield from run_on_workers(tasks, report, workers, start, ray.exceptions.RayError)

    @contextmanager
    def _connected(self, ray: Any) -> Iterator[None]:
        """Join the cluster, or start one that ends with the block, unless this process belongs to one already."""
        if ray.is_initialized():
            yield
            return
        own_handler = signal.getsignal(signal.SIGTERM)
        try:
            with redirect_stdout(sys.stderr):
                self._connect(ray)
            if callable(own_handler) and threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, own_handler)  # Ray has set one of its own
            yield
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
                f"There is no Ray cluster {where} ({first_line(error)}). Start one with: ray start --head, or omit "
                "--address to have one started."
            ) from error


class _StdoutOfThisThread:
    """Stdout for the thread that made it, stderr for all others: those of Ray print when a worker or a node dies."""

    def __init__(self) -> None:
        self._thread, self._stdout = threading.get_ident(), sys.stdout

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stdout if threading.get_ident() == self._thread else sys.stderr, name)


def _check_reachable(address: str) -> None:
    """Raise an OSError where nobody answers; Ray would try for many minutes."""
    host, colon, port = address.rpartition(":")
    if colon and port.isdigit():
        socket.create_connection((host.removeprefix("ray://"), int(port)), timeout=10).close()


def divide(nodes: Sequence[tuple[int, float]], workers: int | None, gpus: float | None) -> tuple[int, int, float]:
    """Divide a cluster among workers: their number, and the cores and GPUs of each.

    Args:
        nodes: cores and GPUs of each machine.
        workers: their number, if it is given; each gets as many cores as all of them can have.
        gpus: of each worker, if it is given.
    """
    if gpus is None:
        gpus = float(any(of_node >= 1 for _, of_node in nodes))

    def fitting(cpus: int) -> int:
        """How many workers with this many cores fit on the cluster."""
        return sum(min(c // cpus, int(g / gpus + 1e-9)) if gpus else c // cpus for c, g in nodes)

    if not fitting(1):
        cores, cards = (sum(column) for column in zip((0, 0.0), *nodes, strict=True))
        raise InvalidInputError(
            f"The cluster has {cores} cores and {cards:g} GPUs: no room for a worker with 1 core and {gpus:g} GPUs. "
            "Choose --gpus-per-worker to fit, or 0."
        )
    workers = workers or fitting(1)
    most = max(cpus for cpus, _ in nodes)
    return workers, max((cpus for cpus in range(1, 1 + most) if fitting(cpus) >= workers), default=1), gpus


def _import_ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent to anybody
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else Ray warns of what it will do one day
    try:
        import ray
    except ImportError as error:
        raise missing_extra("--engine ray needs", "ray") from error
    return ray


class _RayWorker:
    """A worker of the cluster, as this process sees it."""

    def __init__(self, ray: Any, actor: Any):
        self._ray, self._actor = ray, actor

    def ready(self) -> Future[Any]:
        return cast(Future[Any], self._actor.is_ready.remote().future())

    def run(self, task: Any) -> Future[Any]:
        return cast(Future[Any], self._actor.run.remote(task).future())

    def kill(self) -> None:
        self._ray.kill(self._actor)


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
