"""Run tasks on a Ray cluster: a running one, or a temporary one on this machine.

Results are sent back to this process, so the machines need no shared file system for them. Models and data must be
available on each machine under the same names.
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
"""Bytes of shared memory for a temporary cluster, whose processes exchange little data."""


class RayExecutor(Executor):
    """Runs tasks on a Ray cluster.

    Args:
        address: address of a running cluster, such as `host:6379`, or `auto` for the one that this machine belongs to;
            None starts one on this machine.
        workers: number of tasks that run at a time; by default one per GPU, or per core on a cluster without GPUs. If
            the cluster is too small, some workers wait until machines join.
        gpus_per_worker: a fraction lets several workers share a GPU; by default 1 if the cluster has GPUs.
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
        """Connect to the cluster or start one for the block, unless this process is connected already."""
        if ray.is_initialized():
            yield
            return
        own_handler = signal.getsignal(signal.SIGTERM)
        try:
            with redirect_stdout(sys.stderr):
                self._connect(ray)
            if callable(own_handler) and threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, own_handler)  # Ray has replaced it
            yield
        finally:
            with redirect_stdout(sys.stderr):  # messages of remaining threads
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
                "--address to start one here."
            ) from error


class _StdoutOfThisThread:
    """Stdout for the thread that created it, stderr for others: Ray's threads print when a worker or a node dies."""

    def __init__(self) -> None:
        self._thread, self._stdout = threading.get_ident(), sys.stdout

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stdout if threading.get_ident() == self._thread else sys.stderr, name)


def _check_reachable(address: str) -> None:
    """Raise an `OSError` if the address cannot be reached; Ray would retry for many minutes."""
    host, colon, port = address.rpartition(":")
    if colon and port.isdigit():
        socket.create_connection((host.removeprefix("ray://"), int(port)), timeout=10).close()


def divide(nodes: Sequence[tuple[int, float]], workers: int | None, gpus: float | None) -> tuple[int, int, float]:
    """Divide a cluster among workers; return their number, and the cores and GPUs of each.

    Args:
        nodes: cores and GPUs of each machine.
        workers: number of workers; by default as many as fit. Each gets the same, largest possible number of cores.
        gpus: GPUs of each worker; by default 1 if the cluster has GPUs.
    """
    if gpus is None:
        gpus = float(any(of_node >= 1 for _, of_node in nodes))

    def fitting(cpus: int) -> int:
        """Return how many workers with this many cores fit on the cluster."""
        return sum(min(c // cpus, int(g / gpus + 1e-9)) if gpus else c // cpus for c, g in nodes)

    if not fitting(1):
        total_cores, total_gpus = (sum(column) for column in zip((0, 0.0), *nodes, strict=True))
        raise InvalidInputError(
            f"The cluster has {total_cores} cores and {total_gpus:g} GPUs: no room for a worker with 1 core and "
            f"{gpus:g} GPUs. Choose a smaller --gpus-per-worker, or 0."
        )
    workers = workers or fitting(1)
    max_cores = max(cpus for cpus, _ in nodes)
    return workers, max((cpus for cpus in range(1, 1 + max_cores) if fitting(cpus) >= workers), default=1), gpus


def _import_ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no telemetry
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # silences a deprecation warning
    try:
        import ray
    except ImportError as error:
        raise missing_extra("--engine ray needs", "ray") from error
    return ray


class _RayWorker:
    """A handle on a worker of the cluster."""

    def __init__(self, ray: Any, actor: Any):
        self._ray, self._actor = ray, actor

    def ready(self) -> Future[Any]:
        return cast(Future[Any], self._actor.is_ready.remote().future())

    def run(self, task: Any) -> Future[Any]:
        return cast(Future[Any], self._actor.run.remote(task).future())

    def kill(self) -> None:
        self._ray.kill(self._actor)


class TtaPandaWorker:
    """A Ray actor that runs tasks; Ray shows the name of this class to users."""

    def __init__(self, function: bytes, threads: int, folder: Path, paths: Sequence[str]):
        sys.path += [path for path in paths if path not in sys.path]
        if folder.is_dir():
            os.chdir(folder)  # relative paths and modules are found where the command was started
        self._function = load_function(function, threads)

    def is_ready(self) -> bool:
        return True

    def run(self, task: Any) -> Any:
        return run_task(self._function, task, lambda _share: None)
