"""kill -9 at moments all over the life of a process: the same command goes on, and nothing is lost, doubled or torn."""

from __future__ import annotations

import dataclasses
import os
import random
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from commands import (
    COMMANDS,
    RAY,
    SOME,
    Command,
    Damage,
    assert_nothing_runs,
    files,
    footprint,
    fork,
    identities,
    units,
    wait_for_group,
    write_inputs,
)

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs kill -9")

SEED = 0
PER_FOLDER = 3
WIDTH = max(len(command.name) for command in COMMANDS)


@dataclass
class Trial:
    """What kills have done to a command."""

    command: Command
    life: float
    """Seconds that an uninterrupted run takes, as the machine is just now."""
    moments: list[float] = field(default_factory=list)
    """When a process was killed, in seconds of its own life."""
    tried: int = 0
    """Processes that were to be killed; some had ended before."""
    writing: int = 0
    """Processes that had written something when they were killed; others were starting."""
    damage: Damage = field(default_factory=Damage)

    def kill(self, arguments: list[str], output: Path, shares: list[float]) -> float | None:
        """Kill a process after the last of these shares of a life, and remove it from them, unless it ends before."""
        before, moment = footprint(output), shares[-1] * self.life
        lived = live(arguments, moment, lingers=bool(self.command.extra))
        self.tried += 1
        if lived is None:
            shares.pop()
            self.moments.append(moment)
            self.writing += footprint(output) != before
        return lived

    def __str__(self) -> str:
        counts = (self.tried, len(self.moments), self.writing, *dataclasses.astuple(self.damage))
        return f"{self.command!s:{WIDTH}}" + "".join(f"{count:9}" for count in counts) + f"{self.life:9.1f}"


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    finish(["--version"])  # libraries are imported before any life is measured
    return write_inputs(tmp_path_factory.mktemp("inputs"))


@pytest.fixture(scope="module")
def table(request: pytest.FixtureRequest) -> Iterator[list[Trial]]:
    """Trials, which are printed when all have been made."""
    trials: list[Trial] = []
    yield trials
    plugins = request.config.pluginmanager
    terminal, capture = plugins.get_plugin("terminalreporter"), plugins.get_plugin("capturemanager")
    headers = ("tried", "hit", "writing", *(each.name for each in dataclasses.fields(Damage)), "life (s)")
    lines = [f"{'command':{WIDTH}}" + "".join(f"{header:>9}" for header in headers), *map(str, trials)]
    for trial in trials:
        lines.append(f"{trial.command}, seed {SEED}: killed at {', '.join(f'{m:.2f}' for m in trial.moments)} s")
    if terminal is not None:  # the workers of pytest-xdist have none
        with capture.global_and_fixture_disabled():
            terminal.write_line("\n\n" + "\n".join(lines))


def kill_and_resume(command: Command, inputs: Path, folder: Path, kills: int) -> Trial:
    """Kill the processes of a command, up to three in every folder, and let the last one there finish.

    Half of the moments are drawn from all of a life, and half from its part after the first file was written. Where a
    process ends before its moment, the folder is finished, and the next process is to be killed at that moment.
    """
    uninterrupted = folder / "uninterrupted"
    again = command.arguments(inputs, uninterrupted)
    start, life = watch(again, uninterrupted)
    trial = Trial(command, life)
    settled = units(uninterrupted, command.settled)
    expected = units(uninterrupted, *command.compared)
    finish(again)  # there is nothing left to do, and nothing changes
    trial.damage.add(expected, units(uninterrupted, *command.compared))
    rng = random.Random(f"{SEED} {command}")
    shares = [(place + rng.random()) / kills for place in range(kills)]  # one in each part of a life
    shares[::2] = [(start + share * (life - start)) / life for share in shares[::2]]
    rng.shuffle(shares)
    for place in range(2 * kills):
        if not shares:
            break
        output, finished = folder / str(place), set()
        arguments = command.arguments(inputs, output)
        for number in range(PER_FOLDER + 1):
            killed = number < PER_FOLDER and bool(shares)
            lived = trial.kill(arguments, output, shares) if killed else finish(arguments)
            trial.damage.remade += len(finished - identities(output, command.settled))
            if lived is not None:
                trial.life = max(trial.life, lived) if number else lived  # the machine has more or less to do
                break
            trial.damage.add(settled, units(output, command.settled), finished=False)
            finished = identities(output, command.settled)
        trial.damage.add(expected, units(output, *command.compared))
    return trial


def watch(arguments: list[str], output: Path) -> tuple[float, float]:
    """Run a command to its end; returns when it wrote its first file, and when it ended, in seconds of its life."""
    with ThreadPoolExecutor() as pool:
        begin = time.monotonic()
        life = pool.submit(finish, arguments)
        while not files(output, "**/*", "**/.*") and not life.done():
            time.sleep(0.01)
        return time.monotonic() - begin, life.result()


def finish(arguments: list[str]) -> float:
    """Run a command to its end; returns the seconds that it took."""
    lived = live(arguments, 600)
    assert lived is not None, f"{arguments} takes too long"
    return lived


def live(arguments: list[str], at_most: float, *, lingers: bool = False) -> float | None:
    """Run a command, and kill it when it is so old; its workers end by themselves.

    Returns the seconds that it took, or None where it was killed. `lingers` does not wait for those workers.
    """
    with tempfile.NamedTemporaryFile() as errors:
        begin = time.monotonic()
        process = fork(arguments, Path(errors.name))
        process.join(at_most)
        if process.exitcode is None:
            process.kill()
            process.join()
            if not lingers:
                wait_for_group(process.pid)
            return None
        assert process.exitcode == 0, errors.read().decode()
        return time.monotonic() - begin


@pytest.mark.slow
@pytest.mark.parametrize("command", SOME, ids=str)
def test_two_kills_lose_nothing(command: Command, inputs: Path, tmp_path: Path) -> None:
    trial = kill_and_resume(command, inputs, tmp_path, kills=2)
    assert trial.damage == Damage(), trial
    assert len(trial.moments) == 2


@pytest.mark.faults
@pytest.mark.parametrize("command", [pytest.param(each, marks=each.marks, id=each.name) for each in COMMANDS])
def test_thirty_kills_lose_nothing(command: Command, inputs: Path, tmp_path: Path, table: list[Trial]) -> None:
    trial = kill_and_resume(command, inputs, tmp_path, kills=30)
    table.append(trial)
    if command.extra == "ray":  # whose agents try for a minute to tell a dead driver something
        assert_nothing_runs(os.getsid(0), RAY)
    assert trial.damage == Damage(), trial
    assert len(trial.moments) == 30 and trial.writing >= 10
