"""The Ray executor on a real cluster of several nodes; tests/faults/test_ray.py has what takes longer."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from faulty import Job, double
from records import make, plan, without_time
from typer.testing import CliRunner

from tta_panda import register_method
from tta_panda.cli import app
from tta_panda.errors import InvalidInputError, MissingExtraError, WorkerError
from tta_panda.evaluation.store import RunStore
from tta_panda.executors import TRIES
from tta_panda.ray_executor import RayExecutor, divide

pytest.importorskip("ray")


@pytest.mark.parametrize(
    ("machines", "workers", "gpus", "expected"),
    [
        ([(4, 0)], None, None, (4, 1, 0)),
        ([(4, 0)], 2, None, (2, 2, 0)),
        ([(5, 0), (5, 0)], 3, None, (3, 2, 0)),  # with 3 cores each, there were room for two
        ([(3, 0), (1, 0)], 2, None, (2, 1, 0)),
        ([(2, 0)], 8, None, (8, 1, 0)),  # six wait for machines that join
        ([(64, 8), (64, 8)], None, None, (16, 8, 1)),
        ([(64, 8), (32, 0)], None, None, (8, 8, 1)),  # one without GPUs has no workers
        ([(64, 8)], None, 0.25, (32, 2, 0.25)),
        ([(64, 8)], None, 2, (4, 16, 2)),
        ([(64, 8)], 4, 0, (4, 16, 0)),
    ],
)
def test_a_cluster_is_divided(machines, workers, gpus, expected) -> None:
    assert divide(machines, workers, gpus) == expected


def test_there_must_be_room_for_one() -> None:
    with pytest.raises(InvalidInputError, match=r"8 cores and 0 GPUs: no room for a worker with 1 core and 0\.5 GPUs"):
        divide([(8, 0)], None, 0.5)


def test_mistakes_get_a_sentence(monkeypatch, tmp_path) -> None:
    with pytest.raises(WorkerError, match=r"no Ray cluster at 127\.0\.0\.1:1 .*ray start --head"):
        list(RayExecutor("127.0.0.1:1").run(double, [Job(1)]))
    command = ["bench", "--method", "clip", "--corruption", "fog", "--engine", "ray", "--address", "127.0.0.1:1"]
    result = CliRunner().invoke(app, [*command, "-o", str(tmp_path)])
    assert result.exit_code == 1 and "no Ray cluster at 127.0.0.1:1" in str(result.exception)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"pip install \"tta-panda\[ray\]\""):
        list(RayExecutor().run(double, [Job(1)]))
    for options, message in {
        ("--address", "auto"): "--engine ray",
        ("--gpus-per-worker", "1"): "--engine ray",
        ("--engine", "rya"): "'ray'",
    }.items():
        result = CliRunner().invoke(app, ["bench", *options, "-o", str(tmp_path)])
        assert result.exit_code == 1 and message in str(result.exception)


def authentication(_task: object, _report: object) -> str | None:
    return os.environ.get("RAY_AUTH_MODE")


@pytest.mark.slow
def test_a_cluster_that_is_started_takes_calls_with_its_token_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    assert [mode for _, mode in RayExecutor(workers=1).run(authentication, [Job(0)])] == ["token"]


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """Two nodes of one core each."""
    from ray.cluster_utils import Cluster

    size = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
    cluster = Cluster(initialize_head=True, head_node_args={**size, "include_dashboard": False})
    cluster.add_node(**size)
    yield cluster.address
    cluster.shutdown()


@pytest.mark.slow
def test_records_are_those_of_this_process(cluster: str, tmp_path: Path, registered: None) -> None:
    register_method("faulty", "faulty_method:Faulty")
    for folder in ("local", "ray"):
        (tmp_path / folder).mkdir()
    outcomes = {}
    for name, executor in {"local": None, "ray": RayExecutor(cluster)}.items():
        settings = {"kind": "die", "folder": str(tmp_path / name), "times": int(name == "ray")}
        configs = plan(["clip+panda", "tent", "faulty"], settings=settings, limit=20)
        outcomes[name] = make(configs, tmp_path / "runs" / name, executor=executor)
        assert RunStore(tmp_path / "runs" / name).existing(configs) == outcomes[name].records
    assert len(list((tmp_path / "ray").iterdir())) == 1  # a worker was killed
    assert not outcomes["ray"].missing()
    local, remote = (list(outcome.records.values()) for outcome in outcomes.values())
    assert [record.environment for record in local] == [record.environment for record in remote]
    for one, other in zip(local[:2], remote[:2], strict=True):
        assert without_time(one) == without_time(other)


def test_tasks_that_raise_or_lose_their_workers_are_reported(
    cluster: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for kind in ("raise", "die"):
        (tmp_path / kind).mkdir()
    jobs = [Job(0), *(Job(1, kind, tmp_path / kind, 99) for kind in ("raise", "die")), Job(2)]
    results = {}
    for job, result in RayExecutor(cluster, 2).run(double, jobs):
        print(job.number)  # stdout is that of the caller between results
        results[job] = result
    assert capsys.readouterr().out.split() == [str(job.number) for job in results]
    assert (results[jobs[0]][0], results[jobs[3]][0]) == (0, 4)
    assert str(results[jobs[1]]).startswith("RuntimeError: out of luck (faulty.py, line")
    assert "in double" in results[jobs[1]].traceback and len(list((tmp_path / "raise").iterdir())) == 1
    assert "lost 3 times" in str(results[jobs[2]]) and len(list((tmp_path / "die").iterdir())) == TRIES
    with pytest.raises(InvalidInputError, match="beta must be at least 0"):
        list(RayExecutor(cluster).run(double, [Job(0, "refuse", tmp_path, 99)]))
