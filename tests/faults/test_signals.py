"""Ctrl-C and SIGTERM: a command ends at once and says what is kept; nothing of it goes on."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import pytest
from commands import COMMANDS, SOME, Command, files, start, wait_for_group, write_inputs

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals")

GOES_ON = {
    "bench": "Finished runs are in {output}; the same command continues from there.",
    "bench --engine ray": "Finished runs are in {output}; the same command continues from there.",
    "bench --workers": "Finished runs are in {output}; the same command continues from there.",
    "reproduce": "Finished runs are in {output}; the same command continues from there.",
    "data make": "Finished files are in {output}; the same command makes the others.",
    "corrupt": "Finished images are in {output}; the same command continues from there.",
    "predict --state": "Finished predictions are kept; the same command with --resume completes {output}/rows.csv.",
}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_inputs(tmp_path_factory.mktemp("inputs"))


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(each, marks=each.marks if each in SOME else [*each.marks, pytest.mark.faults], id=each.name)
        for each in COMMANDS
    ],
)
@pytest.mark.parametrize("to_all", [pytest.param(True, id="group"), pytest.param(False, marks=pytest.mark.faults)])
@pytest.mark.parametrize("caught", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.faults)])
def test_an_interrupted_command_says_what_is_kept(
    command: Command, caught: signal.Signals, to_all: bool, inputs: Path, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    process = start(command.arguments(inputs, output))
    deadline = time.monotonic() + 600
    while not files(output, command.settled or "*"):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    (os.killpg if to_all else os.kill)(process.pid, caught)
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 128 + caught
    said = [line for line in errors.splitlines() if not re.search(r": \d+%", line)]  # but for progress
    said = said[-1:] if command.extra else said  # Ray itself may report the tasks that it will not run again
    assert said == [f"Interrupted. {GOES_ON[command.name].format(output=output)}"]
    wait_for_group(process.pid)


@pytest.mark.faults
def test_a_watched_folder_is_finished_and_its_state_written(inputs: Path, tmp_path: Path) -> None:
    classes = ",".join(sorted(path.name for path in (inputs / "symbols").iterdir()))
    rows, state = tmp_path / "rows.jsonl", tmp_path / "own.state"
    watching = [
        "predict",
        "--model",
        "mini",
        "--watch",
        str(inputs / "symbols"),
        "--classes",
        classes,
        "-o",
        str(rows),
        "--state",
        str(state),
    ]
    process = start(watching)
    deadline = time.monotonic() + 600
    while not rows.exists() or rows.read_bytes().count(b"\n") < 60:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGTERM)
    _, errors = process.communicate(timeout=600)
    assert (process.returncode, errors) == (0, "") and state.exists()
