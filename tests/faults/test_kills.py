"""kill -9 at moments all over the life of a process: the same command goes on, and nothing is lost, doubled or torn."""

from __future__ import annotations

import dataclasses
import os
import random
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from commands import COMMANDS, SOME, Command, Damage, fork, identities, units, wait_for_group, write_inputs

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs kill -9")

SEED = 0


@dataclass
class Trial:
    """What kills have done to a command."""

    command: Command
    life: float
    """Seconds that an undisturbed run takes."""
    moments: list[float] = field(default_factory=list)
    """When a process was to be killed, in seconds of its own life."""
    hits: int = 0
    """Processes that had not ended before."""
    damage: Damage = field(default_factory=Damage)

    def __str__(self) -> str:
        counts = (len(self.moments), self.hits, *dataclasses.astuple(self.damage))
        return f"{self.command!s:16}" + "".join(f"{count:9}" for count in counts) + f"{self.life:9.1f}"


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
    headers = ("kills", "hit", *(each.name for each in dataclasses.fields(Damage)), "life (s)")
    lines = [f"{'command':16}" + "".join(f"{header:>9}" for header in headers), *map(str, trials)]
    for trial in trials:
        lines.append(f"{trial.command}, seed {SEED}: killed at {', '.join(f'{m:.2f}' for m in trial.moments)} s")
    if terminal is not None:  # the workers of pytest-xdist have none
        with capture.global_and_fixture_disabled():
            terminal.write_line("\n\n" + "\n".join(lines))


def kill_and_resume(command: Command, inputs: Path, folder: Path, kills: int) -> Trial:
    """Kill a command twice in every folder, the second time while it goes on, and let it finish there."""
    undisturbed = folder / "undisturbed"
    again = command.arguments(inputs, undisturbed)
    trial = Trial(command, finish(again))
    settled = units(undisturbed, command.settled)
    expected = units(undisturbed, *command.compared)
    idle = finish(again)  # there is nothing left to do, and nothing changes
    trial.damage.add(expected, units(undisturbed, *command.compared))
    rng = random.Random(f"{SEED} {command}")
    shares = [(place + rng.random()) / kills for place in range(kills)]  # one in each part of a life
    rng.shuffle(shares)
    for place in range(0, kills, 2):
        output, life, finished = folder / str(place), trial.life, set()
        arguments = command.arguments(inputs, output)
        for share in shares[place : place + 2]:
            trial.moments.append(share * life)
            lived = live(arguments, share * life)
            trial.hits += lived is None
            if lived is not None and not finished:
                trial.life = lived  # the machine has less to do than before
            trial.damage.add(settled, units(output, command.settled), finished=False)
            trial.damage.remade += len(finished - identities(output, command.settled))
            finished = identities(output, command.settled)
            life = min(trial.life, idle + trial.life - share * life)
        finish(arguments)
        trial.damage.add(expected, units(output, *command.compared))
        trial.damage.remade += len(finished - identities(output, command.settled))
    return trial


def finish(arguments: list[str]) -> float:
    """Run a command to its end; returns the seconds that it took."""
    lived = live(arguments, 600)
    assert lived is not None, f"{arguments} takes too long"
    return lived


def live(arguments: list[str], at_most: float) -> float | None:
    """Run a command, and kill it when it is so old; its workers end by themselves.

    Returns the seconds that it took, or None where it was killed.
    """
    with tempfile.NamedTemporaryFile() as errors:
        begin = time.monotonic()
        process = fork(arguments, Path(errors.name))
        process.join(at_most)
        if process.exitcode is None:
            process.kill()
            process.join()
            wait_for_group(process.pid)
            return None
        assert process.exitcode == 0, errors.read().decode()
        return time.monotonic() - begin


@pytest.mark.parametrize("command", SOME, ids=str)
def test_two_kills_lose_nothing(command: Command, inputs: Path, tmp_path: Path) -> None:
    trial = kill_and_resume(command, inputs, tmp_path, kills=2)
    assert trial.damage == Damage(), trial
    assert trial.hits


@pytest.mark.faults
@pytest.mark.parametrize("command", COMMANDS, ids=str)
def test_thirty_kills_lose_nothing(command: Command, inputs: Path, tmp_path: Path, table: list[Trial]) -> None:
    trial = kill_and_resume(command, inputs, tmp_path, kills=30)
    table.append(trial)
    assert trial.damage == Damage(), trial
    assert trial.hits >= 20
