"""Ray clusters that lose nodes, workers, disks and their driver: what can be done is done, and nothing is lost."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from commands import assert_nothing_runs, environment
from records import make, plan, without_time

from tta_panda.evaluation.store import RunStore
from tta_panda.ray_executor import RayExecutor

pytest.importorskip("ray")
pytestmark = [pytest.mark.faults, pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")]

BENCH = ["bench", "--method", "clip,tent", "--corruption", "fog,snow,frost,contrast", "--limit", "100"]
RUNS = 16
ON_RAY = ["--engine", "ray", "--workers", "2"]


def start(*arguments: object) -> subprocess.Popen[str]:
    """A command in a session of its own, in which Ctrl-C is not ignored as in a shell's background."""
    return subprocess.Popen(
        [sys.executable, "-m", "tta_panda", *map(str, arguments)],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


def finish(*arguments: object, code: int = 0) -> str:
    """Its output, when it has ended with this exit code."""
    process = start(*arguments)
    output, errors = process.communicate(timeout=600)
    assert process.returncode == code, errors
    return output + errors


def wait_for(reached: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    while not reached():
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)


def kill(process: subprocess.Popen[str]) -> None:
    """Kill a driver. Its workers end at once; two agents of Ray's first try for a minute to tell the dead driver."""
    process.kill()
    process.communicate()
    assert_nothing_runs(process.pid, "TtaPandaWorker")


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    """The records of an uninterrupted run by the local engine."""
    folder = tmp_path_factory.mktemp("local")
    finish(*BENCH, "--workers", "2", "-o", folder)
    return contents(folder)


def contents(folder: Path) -> list[dict]:
    return [without_time(record) for record in RunStore(folder).records()]


def test_a_node_is_removed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from ray.cluster_utils import Cluster

    size = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
    cluster = Cluster(initialize_head=True, head_node_args={**size, "include_dashboard": False})
    nodes = [cluster.add_node(**size) for _ in range(2)]
    configs = plan(["clip", "clip+panda", "tent", "tent+panda"], corruptions=["fog", "snow", "frost"], limit=50)
    settled = 0

    def remove_a_node(_task: object, _share: float) -> None:
        nonlocal settled
        settled += 1
        if settled == 2:
            cluster.remove_node(nodes.pop(), allow_graceful=False)

    try:
        outcome = make(configs, tmp_path / "ray", executor=RayExecutor(cluster.address, 3), report=remove_a_node)
    finally:
        cluster.shutdown()
    assert len(nodes) == 1 and not capsys.readouterr().out
    assert not outcome.missing() and len(outcome.records) == len(configs)
    alone = make(configs, tmp_path / "local")
    assert [without_time(record) for record in outcome.records.values()] == [
        without_time(record) for record in alone.records.values()
    ]


def test_the_driver_is_killed_and_started_again(tmp_path: Path, expected: list[dict]) -> None:
    killed = []
    for count in (1, 6, 11):
        process = start(*BENCH, *ON_RAY, "-o", tmp_path)
        wait_for(lambda count=count: len(list(tmp_path.glob("*.json"))) >= count, process)
        kill(process)
        killed.append(process.pid)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.json")}
    finish(*BENCH, *ON_RAY, "-o", tmp_path)
    assert contents(tmp_path) == expected and len(expected) == RUNS
    assert before.items() <= {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.json")}.items()
    left = list(tmp_path.glob(".*"))  # not removed: another process may be writing it
    assert len(left) <= len(killed) and all(path.match(".*.part.json") for path in left)
    for session in killed:
        assert_nothing_runs(session)


@pytest.mark.parametrize("interruption", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_ends_all_processes_at_once(tmp_path: Path, interruption: int, expected: list[dict]) -> None:
    process = start(*BENCH, *ON_RAY, "-o", tmp_path)
    wait_for(lambda: any(tmp_path.glob("*.json")), process)
    process.send_signal(interruption)
    process.communicate(timeout=600)
    assert process.returncode == 128 + interruption and len(contents(tmp_path)) < RUNS
    assert_nothing_runs(process.pid)
    finish(*BENCH, *ON_RAY, "-o", tmp_path)
    assert contents(tmp_path) == expected


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk with room for a few features."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode:
        pytest.skip("cannot mount a small disk")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_the_disk_of_workers_is_full(tmp_path: Path, full_disk: Path, expected: list[dict]) -> None:
    output = tmp_path / "runs"
    said = finish(*BENCH, *ON_RAY, "--cache", full_disk, "-o", output, code=1)
    assert "failed: clip" in said and "No space left on device" in said
    made = contents(output)
    assert {record["config"]["method"]["name"] for record in made} >= {"tent", "tent+panda"}  # they need no cache
    assert all(record in expected for record in made)
    finish(*BENCH, *ON_RAY, "-o", output)
    assert contents(output) == expected
