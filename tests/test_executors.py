"""Executors: the same results in this process and in others, and nothing lost when workers are."""

from __future__ import annotations

import math
import multiprocessing
import os
import pickle
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from faulty import Job, OnlyHere, add, double, number_of_worker, refuse
from faulty_method import count_threads
from records import make, plan, without_time

from tta_panda import executors, register_method
from tta_panda.errors import (
    BrokenImageError,
    InvalidInputError,
    StoreError,
    TtaPandaError,
    UnknownNameError,
    WorkerError,
)
from tta_panda.evaluation.run import divide_into_tasks
from tta_panda.executors import TRIES, Executor, ProcessExecutor, available_cores, local_executor

EXECUTORS = [Executor(), ProcessExecutor(2)]


@pytest.fixture
def tries(tmp_path: Path) -> tuple[Path, Path]:
    """Two folders in which jobs count their tries."""
    folders = tmp_path / "once", tmp_path / "always"
    for folder in folders:
        folder.mkdir()
    return folders


@pytest.mark.parametrize("executor", EXECUTORS, ids=lambda each: type(each).__name__)
def test_tasks_that_raise_are_run_once_and_the_others_are_done(
    executor: executors.Executor, tries: tuple[Path, Path]
) -> None:
    jobs = [Job(0), Job(1, "raise", tries[0], 99), Job(2, "full", tries[1], 99), Job(3)]
    results = {job.number: result for job, result in executor.run(double, jobs)}
    assert (results[0][0], results[3][0]) == (0, 6)
    assert [len(list(folder.iterdir())) for folder in tries] == [1, 1]
    error = results[1]
    assert isinstance(error, WorkerError)
    assert str(error).startswith("RuntimeError: out of luck (faulty.py, line")
    assert "Traceback" in error.traceback and "in double" in error.traceback
    assert isinstance(results[2], StoreError) and "No space left on device" in str(results[2])


@pytest.mark.parametrize("executor", EXECUTORS, ids=lambda each: type(each).__name__)
def test_what_users_have_to_correct_is_raised_at_once(executor: executors.Executor, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="beta must be at least 0"):
        list(executor.run(double, [Job(0, "refuse", tmp_path, 99), Job(1)]))
    assert len(list(tmp_path.iterdir())) == 1
    assert not multiprocessing.active_children()


def test_lost_workers_are_replaced_and_their_tasks_run_again(tries: tuple[Path, Path]) -> None:
    once, always = tries
    jobs, shares = [Job(0), Job(1, "die", once, 1), Job(2, "die", always, 99), Job(3), Job(4)], []
    results = dict(ProcessExecutor(2).run(double, jobs, lambda _job, share: shares.append(share)))
    error = results.pop(jobs[2])
    assert sorted(number for number, _ in results.values()) == [0, 2, 6, 8]
    assert os.getpid() not in {process for _, process in results.values()}
    assert shares == [1.0] * 5
    assert isinstance(error, WorkerError) and "lost 3 times" in str(error)
    assert len(list(always.iterdir())) == TRIES
    assert not multiprocessing.active_children()


def test_a_worker_takes_the_number_of_the_one_that_it_replaces(tries: tuple[Path, Path]) -> None:
    jobs = [Job(number, "die", tries[0], 2) for number in range(4)]
    numbers = {result for _, result in ProcessExecutor(2).run(number_of_worker, jobs)}
    assert len(list(tries[0].iterdir())) == 2 and numbers <= {0, 1}


def test_the_last_task_has_the_threads_of_one_of_several_workers() -> None:
    """A run that was resumed gives the same bits as one that was not."""
    [(_, (threads, process))] = ProcessExecutor(2).run(count_threads, [Job(0)])
    assert threads == max(1, available_cores() // 2) and process != os.getpid()
    assert list(ProcessExecutor(2).run(count_threads, [])) == []


@pytest.mark.parametrize("workers", [1, 2])
def test_map_keeps_the_order(workers: int) -> None:
    base = {"value": 100, "calls": 0}
    results = list(local_executor(workers).map(partial(add, base), range(20)))
    assert [value for value, _ in results] == list(range(100, 120))
    assert {process == os.getpid() for _, process in results} == {workers == 1}
    assert base["calls"] == (20 if workers == 1 else 0)


def test_map_raises_errors_of_workers() -> None:
    with pytest.raises(UnknownNameError, match=r"corruption 'frog'\. Did you mean 'fog'"):
        list(ProcessExecutor(2).map(refuse, ["frog"]))
    with pytest.raises(WorkerError, match="RuntimeError: bad luck"):
        list(ProcessExecutor(2).map(refuse, ["bad luck"]))


def test_a_function_that_workers_cannot_load_is_an_error() -> None:
    with pytest.raises(WorkerError, match="RuntimeError: wrong process"):
        list(ProcessExecutor(2).map(OnlyHere(os.getpid()), [Job(1)]))


def test_the_number_of_workers_is_checked() -> None:
    with pytest.raises(InvalidInputError, match="at least 1, got 0"):
        local_executor(0)


def test_a_run_that_fails_is_run_once_and_takes_no_other_with_it(tmp_path: Path, registered: None) -> None:
    register_method("faulty", "faulty_method:Faulty")
    folder = tmp_path / "tries"
    folder.mkdir()
    configs = plan(["clip", "faulty"], settings={"folder": str(folder), "times": 99}, limit=20)
    assert len(divide_into_tasks(configs)) == 1
    outcome = make(configs, tmp_path / "runs")
    assert [record.config.method.name for record in outcome.records.values()] == ["clip"]
    [row] = outcome.missing()
    assert (row["what"], row["status"]) == ("faulty on fog at severity 5, seed 0", "failed")
    assert row["reason"].startswith("RuntimeError: out of luck")
    assert "in _adapt" in row["traceback"]
    [once] = folder.iterdir()
    once.unlink()
    settings = {"folder": str(folder), "times": 0}
    again = make(plan(["clip", "faulty"], settings=settings, limit=20), tmp_path / "runs")
    assert again.existed == 1 and not again.failures and len(again.records) == 2
    clip, faulty = (without_time(record) for record in again.records.values())
    assert {name for name in clip if clip[name] != faulty[name]} == {"config"}


def everything_below(kind: type[TtaPandaError]) -> Iterator[type[TtaPandaError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from everything_below(child)


@pytest.mark.parametrize("kind", [*everything_below(TtaPandaError)], ids=lambda kind: kind.__name__)
def test_errors_survive_being_pickled(kind: type[TtaPandaError]) -> None:
    arguments = {UnknownNameError: ("corruption", "frog", ["fog"]), BrokenImageError: ("fog.png", "empty file")}
    error = kind(*arguments.get(kind, ("a message",)))
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert (str(copy), vars(copy)) == (str(error), vars(error))


def test_cores_are_those_that_the_process_may_use() -> None:
    if not hasattr(os, "sched_setaffinity"):
        pytest.skip("this system has no affinity")
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert available_cores() == 1
    finally:
        os.sched_setaffinity(0, allowed)
    assert 1 <= available_cores() <= len(allowed)


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({}, math.inf),
        ({"": "max 100000"}, math.inf),
        ({"a/b": "150000 100000"}, 1.5),
        ({"a": "200000 100000", "a/b": "max 100000"}, 2),
        ({"a": "50000 100000", "a/b": "400000 100000"}, 0.5),
        ({"a/b": "nonsense"}, math.inf),
        ({"a/c": "100000 100000"}, math.inf),
    ],
)
def test_quotas_of_containers_count(tmp_path: Path, limits: dict[str, str], expected: float) -> None:
    own = tmp_path / "cgroup"
    own.write_text("1:name=systemd:/other\n0::/a/b\n")
    for folder, limit in limits.items():
        (tmp_path / "groups" / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / "groups" / folder / "cpu.max").write_text(f"{limit}\n")
    assert executors._cpu_quota(own, tmp_path / "groups") == expected
    assert executors._cpu_quota(tmp_path / "absent", tmp_path / "groups") == math.inf


def test_a_quota_below_one_core_leaves_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors, "_cpu_quota", lambda *_: 0.2)
    assert available_cores() == 1
