"""Engines: the same results wherever they are made, and nothing lost when workers fail."""

from __future__ import annotations

import multiprocessing
import os
from concurrent.futures import Future
from pathlib import Path

import pytest
from mishaps import Doubling, Job, Threads
from records import make_runner, plan, without_time

from tta_panda import register_method
from tta_panda.engines.base import TRIES, Done, Engine, Failed
from tta_panda.engines.crew import Crew, Worker
from tta_panda.engines.local import LocalEngine
from tta_panda.errors import InvalidInputError, WorkerError
from tta_panda.evaluation.run import divide
from tta_panda.workers import available_cores

NO_PROGRESS = lambda _job, _share: None  # noqa: E731


def settle(engine: Engine, jobs: list[Job]) -> dict[int, Done | Failed]:
    """What came of each job, by its number."""
    return {each.task.number: each for each in engine.run(Doubling(), jobs, NO_PROGRESS)}


@pytest.fixture
def tries(tmp_path: Path) -> tuple[Path, Path]:
    """Folders of what fails once, and of what fails always."""
    folders = tmp_path / "once", tmp_path / "always"
    for folder in folders:
        folder.mkdir()
    return folders


# This machine


@pytest.mark.parametrize("kind", ["raise", "full"])
def test_a_task_that_raises_is_tried_again_and_then_reported(kind: str, tries: tuple[Path, Path]) -> None:
    once, always = tries
    settled = settle(LocalEngine(), [Job(0), Job(1, kind, once, 1), Job(2, kind, always, 99), Job(3)])
    assert {n: each.result for n, each in settled.items() if isinstance(each, Done)} == {
        n: (2 * n, os.getpid()) for n in (0, 1, 3)
    }
    reason = "RuntimeError: out of luck (mishaps.py, line" if kind == "raise" else "No space left on device"
    assert isinstance(settled[2], Failed) and reason in settled[2].reason
    assert len(list(always.iterdir())) == TRIES


def test_what_users_have_to_mend_is_raised_at_once(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="beta must be at least 0"):
        settle(LocalEngine(), [Job(0, "refuse", tmp_path, 99), Job(1)])
    assert len(list(tmp_path.iterdir())) == 1


def test_processes_do_all_tasks_though_one_is_killed(tries: tuple[Path, Path]) -> None:
    once, always = tries
    jobs, shares = [Job(0), Job(1, "die", once, 1), Job(2, "raise", always, 99), Job(3), Job(4)], []
    settled = list(LocalEngine(2).run(Doubling(), jobs, lambda _job, share: shares.append(share)))
    done = [each.result for each in settled if isinstance(each, Done)]
    assert sorted(number for number, _ in done) == [0, 2, 6, 8]
    assert os.getpid() not in {process for _, process in done}
    assert shares == [1.0] * 5
    [failed] = [each for each in settled if isinstance(each, Failed)]
    assert failed.task.number == 2 and "out of luck" in failed.reason
    assert not multiprocessing.active_children()


def test_the_last_task_that_is_left_is_done_as_it_would_have_been_among_others() -> None:
    """With the threads of one of two workers: a run that was resumed gives the same bits as one that was not."""
    engine = LocalEngine(2)
    [settled] = engine.run(Threads(), [Job(0)], NO_PROGRESS)
    assert isinstance(settled, Done)
    threads, process = settled.result
    assert threads == max(1, available_cores() // 2) and process != os.getpid()
    assert list(engine.run(Threads(), [], NO_PROGRESS)) == []


# Workers


class FakeWorker(Worker):
    """Does as it is told: to start or not, and to die or to double a number."""

    def __init__(self, start: str = "ready"):
        self.ready: Future[object] = Future()
        self.stopped = False
        if start == "ready":
            self.ready.set_result(None)
        elif start == "dies":
            self.ready.set_exception(RuntimeError("no such image\nand more"))

    def submit(self, task: str) -> Future[object]:
        future: Future[object] = Future()
        if task == "deadly":
            future.set_exception(RuntimeError("killed"))
        else:
            future.set_result(2 * int(task))
        return future

    def stop(self) -> None:
        self.stopped = True


def run_crew(starts: list[str], size: int, tasks: list[str]) -> tuple[list[Done | Failed], list[FakeWorker]]:
    """What came of tasks, and all workers that were started; when `starts` are used up, they are ready."""
    workers: list[FakeWorker] = []

    def start() -> FakeWorker:
        workers.append(FakeWorker(starts[len(workers)] if len(workers) < len(starts) else "ready"))
        return workers[-1]

    return list(Crew(start, size).run(tasks, NO_PROGRESS)), workers


def test_a_deadly_task_is_tried_a_few_times_and_the_others_are_done() -> None:
    settled, workers = run_crew([], 2, ["1", "deadly", "2", "3"])
    assert sorted(each.result for each in settled if isinstance(each, Done)) == [2, 4, 6]
    [failed] = [each for each in settled if isinstance(each, Failed)]
    assert failed.reason == "A worker process ended unexpectedly, perhaps because memory ran out (killed)"
    assert len(workers) == 2 + TRIES and all(worker.stopped for worker in workers)


def test_workers_that_find_no_room_hold_up_nothing() -> None:
    settled, workers = run_crew(["waits", "waits", "ready"], 3, ["1", "2", "3"])
    assert len(settled) == 3 and len(workers) == 3 and all(worker.stopped for worker in workers)


def test_workers_that_cannot_start_are_given_up() -> None:
    settled, workers = run_crew(["ready"] + ["dies"] * TRIES, 2, ["1", "2"])
    assert len(settled) == 2 and len(workers) <= 1 + TRIES
    with pytest.raises(WorkerError, match=r"in 3 tries: A worker process ended .* \(no such image\)"):
        run_crew(["dies"] * 99, 2, ["1", "2"])


def test_no_more_workers_than_tasks() -> None:
    assert len(run_crew([], 8, ["1", "2"])[1]) == 2


# Runs


def test_a_run_that_fails_takes_no_other_of_its_pass_with_it(tmp_path: Path, registered: None) -> None:
    register_method("mishap", "mishaps:Mishap")
    folder = tmp_path / "tries"
    folder.mkdir()
    configs = plan(["clip", "mishap"], settings={"folder": str(folder), "times": 99}, limit=20)
    assert len(divide(configs)) == 1
    outcome = make_runner(tmp_path / "runs").run(configs)
    assert [record.config.method.name for record in outcome.records.values()] == ["clip"]
    [row] = outcome.missing()
    assert (row["what"], row["status"]) == ("mishap on fog at severity 5, seed 0", "failed")
    assert row["reason"].startswith("RuntimeError: out of luck")
    assert len(list(folder.iterdir())) == 2 * TRIES  # with the other, and alone
    for path in folder.iterdir():
        path.unlink()
    settings = {"folder": str(folder), "times": 1}
    again = make_runner(tmp_path / "runs").run(plan(["clip", "mishap"], settings=settings, limit=20))
    assert again.existed == 1 and not again.failed and len(again.records) == 2
    clip, mishap = (without_time(record) for record in again.records.values())
    assert {name for name in clip if clip[name] != mishap[name]} == {"config"}
