"""A Ray cluster: one that is running, or one that is started on this machine for the time of the work.

Every worker is an actor that keeps model and data. What it makes is sent back to this process, so machines need no file
system in common for results; model and data have to be reachable from each of them, under the same names.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

from tta_panda.engines.base import (
    Advance,
    Answer,
    Engine,
    Result,
    Settled,
    Task,
    Work,
    answer,
    prepare_worker,
)
from tta_panda.engines.crew import Crew, Worker
from tta_panda.errors import InvalidInputError, WorkerError, missing_extra
from tta_panda.workers import available_cores

OBJECT_STORE = 200 * 2**20
"""Bytes that a cluster of our own keeps for what travels between processes, which is little."""


class RayEngine(Engine):
    """Does tasks on a Ray cluster.

    Args:
        address: of a running cluster, as `host:6379`, or `auto` for the one that this machine belongs to; None starts
            one on this machine.
        workers: how many tasks are done at a time; by default one per GPU, or per core of a cluster without GPUs. Where
            there is less room, the others wait until machines join.
        gpus_per_worker: a fraction lets several workers share a GPU; by default 1 where the cluster has GPUs.
    """

    def __init__(self, address: str | None = None, workers: int | None = None, gpus_per_worker: float | None = None):
        self.address = address
        self.workers = workers
        self.gpus_per_worker = gpus_per_worker

    def run(self, work: Work[Task, Result], tasks: Sequence[Task], advance: Advance[Task]) -> Settled[Task, Result]:
        if not tasks:
            return
        ray = _import_ray()
        with redirect_stdout(sys.stderr), self._connected(ray):  # Ray prints on stdout that a node has died
            machines = [Machine.of(node["Resources"]) for node in ray.nodes() if node["Alive"]]
            share = divide(machines, self.workers, self.gpus_per_worker)
            yield from Crew[Task](partial(_Actor, ray, share, work), share.workers).run(tasks, advance)

    @contextmanager
    def _connected(self, ray: Any) -> Iterator[None]:
        """Join the cluster, or start one that ends with the block, unless this process belongs to one already."""
        if ray.is_initialized():
            yield
            return
        own_handler = signal.getsignal(signal.SIGTERM)
        try:
            self._connect(ray)
            if callable(own_handler) and threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, own_handler)  # Ray has set one of its own
            yield
        finally:
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
                f"There is no Ray cluster {where} ({str(error).strip().splitlines()[0]}). Start one with: ray start "
                "--head, or omit --address to have one started."
            ) from error


def _check_reachable(address: str) -> None:
    """Raise an OSError where nobody answers; Ray would try for many minutes."""
    host, colon, port = address.rpartition(":")
    if colon and port.isdigit():
        socket.create_connection((host.removeprefix("ray://"), int(port)), timeout=10).close()


class Machine(NamedTuple):
    """What a node of the cluster has."""

    cpus: int
    gpus: float

    @classmethod
    def of(cls, resources: dict[str, float]) -> Machine:
        return cls(int(resources.get("CPU", 0)), resources.get("GPU", 0.0))

    def room(self, cpus: int, gpus: float) -> int:
        """For how many workers that need so much."""
        most = self.cpus // cpus
        return min(most, int(self.gpus / gpus + 1e-9)) if gpus else most


class Share(NamedTuple):
    """How many workers there are, and what each of them gets."""

    workers: int
    cpus: int
    gpus: float


def divide(machines: Sequence[Machine], workers: int | None, gpus: float | None) -> Share:
    """Divide a cluster among workers, so that each has as many cores as there are for all."""
    if gpus is None:
        gpus = float(any(machine.gpus >= 1 for machine in machines))
    room = {cpus: sum(each.room(cpus, gpus) for each in machines) for cpus in range(1, 1 + _most_cpus(machines))}
    if not room.get(1):
        cores, cards = sum(each.cpus for each in machines), sum(each.gpus for each in machines)
        raise InvalidInputError(
            f"The cluster has {cores} cores and {cards:g} GPUs: no room for a worker with 1 core and {gpus:g} GPUs. "
            "Choose --gpus-per-worker to fit, or 0."
        )
    workers = workers or room[1]
    return Share(workers, max((cpus for cpus, several in room.items() if several >= workers), default=1), gpus)


def _most_cpus(machines: Sequence[Machine]) -> int:
    return max((machine.cpus for machine in machines), default=0)


def _import_ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent to anybody
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else Ray warns of what it will do one day
    try:
        import ray
    except ImportError as error:
        raise missing_extra("--engine ray needs", "ray") from error
    return ray


class _Actor(Worker):
    """A process on some machine of the cluster."""

    def __init__(self, ray: Any, share: Share, work: Work[Any, Any]):
        self._ray = ray
        resources = {"num_cpus": share.cpus, "num_gpus": share.gpus}
        start = ray.remote(TtaPandaWorker).options(**resources).remote
        self._actor = start(Path.cwd(), sys.path)
        self.ready = self._actor.prepare.remote(work, share.cpus).future()

    def submit(self, task: Any) -> Future[Answer]:
        return cast("Future[Answer]", self._actor.answer.remote(task).future())

    def stop(self) -> None:
        if self._ray.is_initialized():
            self._ray.kill(self._actor)


class TtaPandaWorker:
    """What runs in the process of an actor; Ray shows its name."""

    def __init__(self, folder: Path, paths: Sequence[str]):
        sys.path += [path for path in paths if path not in sys.path]
        if folder.is_dir():
            os.chdir(folder)  # names of files and modules mean what they mean to the user

    def prepare(self, work: Work[Any, Any], threads: int) -> Answer:
        self._work = work
        return prepare_worker(work, threads)

    def answer(self, task: Any) -> Answer:
        return answer(self._work, task)
