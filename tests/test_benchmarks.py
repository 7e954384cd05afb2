"""The benchmarks run, and their timer compares ways fairly. No time is asserted."""

from __future__ import annotations

import importlib
import runpy
import sys
from pathlib import Path

import pytest
from data_files import write_clean_cifar

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
SMALL = ["--rounds", "1", "--batch-size", "4", "--classes", "3"]
COMMANDS = {
    "methods": [*SMALL, "--method", "clip,bat"],
    "panda": [*SMALL, "--method", "clip"],
    "sweep": [*SMALL, "--sweep", "clip"],
    "growth": [*SMALL, "--axis", "negatives", "--values", "1", "2", "4", "--method", "clip"],
    "views": [*SMALL, "--size", "32", "--views", "3"],
    "soak": [*SMALL, "--images", "40", "--readings", "10", "--method", "clip+panda,predict"],
    "rehearsal": [
        "--from",
        "cifar",
        "--model",
        "ViT-S-32-alt",
        "--images",
        "4",
        "--method",
        "clip,tent",
        "--preset",
        "cifar10-c",
    ],
}
ROWS = {
    "methods": ["clip", "bat"],
    "panda": ["clip"],
    "sweep": ["clip"],
    "growth": ["clip+panda"] * 4,
    "views": ["augmix", "crops"],
    "soak": ["clip+panda", "predict"],
    "rehearsal": ["clip", "tent"],
}


@pytest.fixture(autouse=True)
def _beside_each_other(monkeypatch):
    """Scripts import the modules beside them, as they do when they are run."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield
    for name in ("timer", "workload"):
        sys.modules.pop(name, None)


def test_every_benchmark_is_tested():
    scripts = {path.stem for path in BENCHMARKS.glob("*.py")} - {"timer", "workload"}
    assert scripts == set(COMMANDS)


@pytest.mark.parametrize(
    "script", [pytest.param(name, marks=pytest.mark.slow if name == "rehearsal" else ()) for name in COMMANDS]
)
def test_a_benchmark_prints_a_table(script, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    write_clean_cifar(tmp_path / "cifar")
    monkeypatch.setattr(sys, "argv", [script, *COMMANDS[script]])
    runpy.run_path(str(BENCHMARKS / f"{script}.py"), run_name="__main__")
    note, _, *table = capsys.readouterr().out.strip().splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table]
    assert note.endswith(".") and "thread(s)" in note
    assert [row[0] for row in rows[2:]] == ROWS[script]
    assert len({len(row) for row in rows}) == 1


def test_ways_are_called_in_random_order_after_a_warm_up():
    timer = importlib.import_module("timer")
    called: list[str] = []
    ways = {"a": lambda: called.append("a"), "b": lambda: called.append("b")}
    timings = timer.interleave(ways, before={"a": lambda: called.append("before a")}, rounds=8)
    assert {way: len(taken) for way, taken in timings.items()} == {"a": 8, "b": 8}
    assert called.count("before a") == called.count("a") == 9
    assert all(called[place - 1] == "before a" for place, name in enumerate(called) if name == "a")
    rounds = [name for name in called if name != "before a"]
    assert {tuple(rounds[at : at + 2]) for at in range(0, 18, 2)} == {("a", "b"), ("b", "a")}


def test_rounds_end_when_margins_are_small():
    timer = importlib.import_module("timer")
    ways = {"a": lambda: None, "b": lambda: None}
    assert len(timer.interleave(ways, precision=float("inf"))["a"]) == timer.MIN_ROUNDS


def test_ratios_are_taken_round_by_round():
    timer = importlib.import_module("timer")
    timings = timer.Timings({"a": [1.0, 2.0, 4.0], "b": [2.0, 4.0, 8.0]})
    assert timings.ratio("b", "a") == (2.0, 0.0)
    assert timings.milliseconds("b") == 4000


def test_the_documentation_has_a_command_for_every_benchmark():
    page = (BENCHMARKS.parent / "docs" / "speed.md").read_text(encoding="utf-8")
    assert all(f"python benchmarks/{script}.py " in page for script in COMMANDS)
