"""Worker processes, and files written all at once."""

from __future__ import annotations

import math
import os
import pickle
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tta_panda import workers
from tta_panda.errors import BrokenImageError, TtaPandaError, UnknownNameError
from tta_panda.files import atomic_path, remove_parts, write_atomically
from tta_panda.workers import available_cores, worker_pool


def add(shared: dict[str, int], task: int) -> tuple[int, int]:
    shared["calls"] = shared.get("calls", 0) + 1
    return shared["base"] + task, os.getpid()


@pytest.mark.parametrize("count", [1, 2])
def test_results_come_in_order(count: int) -> None:
    shared = {"base": 100}
    with worker_pool(count, shared) as pool_map:
        results = list(pool_map(add, range(20)))
    assert [value for value, _ in results] == list(range(100, 120))
    here = {process == os.getpid() for _, process in results}
    assert here == {count == 1}
    assert shared.get("calls", 0) == (20 if count == 1 else 0)


def fail(_shared: object, name: str) -> None:
    raise UnknownNameError("corruption", name, ["fog"])


def test_errors_of_workers_arrive_as_they_are() -> None:
    with worker_pool(2) as pool_map, pytest.raises(UnknownNameError, match=r"corruption 'frog'\. Did you mean 'fog'"):
        list(pool_map(fail, ["frog"]))


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
    assert workers._cpu_quota(own, tmp_path / "groups") == expected
    assert workers._cpu_quota(tmp_path / "absent", tmp_path / "groups") == math.inf


def test_a_quota_below_one_core_leaves_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_cpu_quota", lambda *_: 0.2)
    assert available_cores() == 1


def fail_halfway(target: Path) -> None:
    with atomic_path(target) as part:
        part.write_text("half")
        assert target.read_text() == "first"
        raise RuntimeError


def test_a_file_is_replaced_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "note.json"
    write_atomically(target, "first")
    with pytest.raises(RuntimeError):
        fail_halfway(target)
    assert target.read_text() == "first"
    write_atomically(target, "zwölf".encode())
    assert target.read_text("utf-8") == "zwölf"
    assert os.listdir(tmp_path) == ["note.json"]


def test_temporary_names_differ_and_keep_the_suffix(tmp_path: Path) -> None:
    with atomic_path(tmp_path / "a.npy") as first, atomic_path(tmp_path / "a.npy") as second:
        assert first != second
        for part in (first, second):
            assert part.parent == tmp_path and part.suffix == ".npy" and part.name.startswith(".")
            np.save(part, np.arange(3))  # numpy would append the suffix
    assert os.listdir(tmp_path) == ["a.npy"]


def test_parts_of_killed_processes_are_removed(tmp_path: Path) -> None:
    (tmp_path / ".a.0123456789abcdef.part.npy").write_text("half")
    (tmp_path / "a.npy").write_text("whole")
    remove_parts(tmp_path)
    assert os.listdir(tmp_path) == ["a.npy"]
