"""Folders that cannot be written, are full, or are written by two processes; and clocks that go back."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest
from commands import LOCAL, Command, Damage, start, units, wait_for_group, write_inputs
from test_cli import Outcome

from tta_panda.cli import main
from tta_panda.files import locked

IMAGES = 20
BY_NAME = {command.name: command for command in LOCAL}
SHORT = ("corrupt", "predict --state")
every_command = pytest.mark.parametrize(  # with Ray, the same process writes as without
    "command",
    [pytest.param(each, id=str(each), marks=[] if each.name in SHORT else pytest.mark.faults) for each in LOCAL],
)
Call = Callable[[Command, Path], Outcome]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_inputs(tmp_path_factory.mktemp("inputs"), IMAGES)


@pytest.fixture
def call(inputs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    """A command on little data, in this process."""
    monkeypatch.setenv("TERM", "dumb")

    def run(command: Command, output: Path) -> Outcome:
        arguments = command.arguments(inputs, output, images=IMAGES, workers=1)
        monkeypatch.setattr(sys, "argv", ["tta-panda", *arguments])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        return Outcome(ended.value.code, *capsys.readouterr())

    return run


def assert_explained(outcome: Outcome, output: Path, reason: str) -> None:
    """The command ended with one message, which names the place and the reason."""
    assert outcome.code == 1
    *progress, message = outcome.stderr.splitlines()
    assert all(line.endswith(" left") for line in progress)
    assert message.startswith("error: Cannot ") and str(output) in message and reason in message


# --- folders ----------------------------------------------------------------------------------------------------------


def mount(*arguments: object) -> None:
    done = subprocess.run(["mount", *map(str, arguments)], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"a file system cannot be mounted here: {done.stderr.strip()}")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system in memory; its size can be changed by mounting it again."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount("-t", "tmpfs", "-o", "size=64m", "tmpfs", folder)
    yield folder
    subprocess.run(["umount", folder], check=True)


@every_command
def test_below_a_file_there_is_no_folder(command: Command, call: Call, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    assert_explained(call(command, tmp_path / "file" / "out"), tmp_path / "file", "Not a directory")


@every_command
def test_a_folder_that_cannot_be_written(command: Command, call: Call, small_disk: Path) -> None:
    mount("-o", "remount,ro", small_disk)
    assert_explained(call(command, small_disk / "out"), small_disk, "Read-only file system")


@every_command
@pytest.mark.parametrize(
    "kilobytes", [48, *(pytest.param(size, marks=pytest.mark.faults) for size in (8, 20, 100, 300))]
)
def test_a_full_disk_costs_nothing_that_was_finished(
    command: Command, kilobytes: int, call: Call, small_disk: Path, tmp_path: Path
) -> None:
    mount("-o", f"remount,size={kilobytes}k", small_disk)
    output = small_disk / "out"
    outcome = call(command, output)
    if outcome.code or kilobytes < 100:  # else there may be room for all of it
        assert_explained(outcome, small_disk, "No space left on device")
    mount("-o", "remount,size=64m", small_disk)
    assert call(command, output).code == 0
    assert call(command, tmp_path / "uninterrupted").code == 0
    damage = Damage()
    damage.add(units(tmp_path / "uninterrupted", *command.compared), units(output, *command.compared))
    assert damage == Damage()


# --- two at once ------------------------------------------------------------------------------------------------------


@pytest.mark.faults
@pytest.mark.parametrize("name", ["bench", "reproduce", "data make", "corrupt"])
def test_two_processes_in_one_folder(name: str, inputs: Path, tmp_path: Path) -> None:
    command, output = BY_NAME[name], tmp_path / "out"
    pair = [start(command.arguments(inputs, output, images=IMAGES)) for _ in range(2)]
    messages = [process.communicate(timeout=600)[1] for process in pair]
    alone = start(command.arguments(inputs, tmp_path / "alone", images=IMAGES))
    alone.communicate(timeout=600)
    for process, message in zip(pair, messages, strict=True):
        wait_for_group(process.pid)
        assert process.returncode == 0 or "Another process is writing to" in message
    assert 0 in {process.returncode for process in pair}
    damage = Damage()
    damage.add(units(tmp_path / "alone", *command.compared), units(output, *command.compared))
    assert damage == Damage()


@pytest.mark.parametrize("name", ["data make", "corrupt"])
def test_a_folder_that_another_process_writes_is_left_alone(name: str, call: Call, tmp_path: Path) -> None:
    folder = tmp_path / "CIFAR-10-C" if name == "data make" else tmp_path
    with locked(folder):
        outcome = call(BY_NAME[name], tmp_path)
    assert outcome.code == 1
    assert outcome.stderr.startswith(f"error: Another process is writing to {folder}; wait for it, or choose another ")
    assert os.listdir(folder) == [".tta-panda.lock"]


def test_predictions_that_another_process_writes_are_left_alone(call: Call, tmp_path: Path) -> None:
    rows = tmp_path / "rows.csv"
    with locked(rows, lock_file=tmp_path / "rows.csv.lock"):
        outcome = call(BY_NAME["predict --state"], tmp_path)
    assert outcome.code == 1
    assert outcome.stderr.startswith(f"error: Another process is writing to {rows}; wait for it, or choose another ")
    assert os.listdir(tmp_path) == ["rows.csv.lock"]


# --- clocks -----------------------------------------------------------------------------------------------------------


def test_images_from_the_future_are_corrupted_once(call: Call, inputs: Path, tmp_path: Path) -> None:
    """As files of a camera whose clock is ahead, or after this machine's clock was put back."""
    command, output = BY_NAME["corrupt"], tmp_path / "out"
    tomorrow = time.time() + 86_400
    images = sorted(inputs.glob("photos/*/*.png"))
    for image in images:
        os.utime(image, (tomorrow, tomorrow))
    assert call(command, output).code == 0
    made = {path: path.stat().st_ino for path in output.rglob("*.png")}
    assert call(command, output).code == 0
    assert {path: path.stat().st_ino for path in output.rglob("*.png")} == made
    os.utime(images[0], (tomorrow + 1, tomorrow + 1))
    assert call(command, output).code == 0
    again = {path for path in made if path.stat().st_ino != made[path]}
    assert {path.name for path in again} == {images[0].name} and len(again) == 9


@pytest.mark.parametrize("name", [pytest.param("bench", marks=pytest.mark.faults), "predict --state"])
def test_a_clock_that_goes_back_changes_nothing(
    name: str, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = BY_NAME[name]
    assert call(command, tmp_path / "uninterrupted").code == 0
    now, hours = time.time(), count()
    monkeypatch.setattr(time, "time", lambda: now - 3600 * next(hours))
    monkeypatch.setattr(time, "time_ns", lambda: int(1e9 * time.time()))
    assert call(command, tmp_path / "out").code == 0
    damage = Damage()
    damage.add(units(tmp_path / "uninterrupted", *command.compared), units(tmp_path / "out", *command.compared))
    assert damage == Damage() and next(hours) > 1
