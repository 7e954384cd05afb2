"""The commands that go on after an interruption, as rows of a table, and what two runs of one must have in common."""

from __future__ import annotations

import contextlib
import glob
import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
from data_files import write_clean_cifar, write_image
from PIL import Image

from tta_panda.cli import main
from tta_panda.data import load_data

_MEASURED = ("seconds", "images_per_second", "peak_memory")
"""Fields of a record that no two runs have in common."""


def environment() -> dict[str, str]:
    """Of the commands. Where others use the machine, too, Ray's workers would wait for them or be killed for memory."""
    own = {"OMP_NUM_THREADS": "1", "TERM": "dumb", "RAY_worker_niceness": "0", "RAY_memory_monitor_refresh_ms": "0"}
    return {**os.environ, **own}


@dataclass(frozen=True)
class Command:
    """A command that finishes what a killed process has left.

    Args:
        line: what is typed, with {inputs} and {output} for two folders, {images} per stream and {workers}.
        settled: wildcard of the files in the output that appear complete and never change.
        compared: wildcards of the files that two runs have in common. Those of hidden files say that a command removes
            what a killed process was writing; another one may be writing to a folder of records.
        extra: the library that it needs, and the extra that installs it.
    """

    name: str
    line: str
    settled: str
    compared: tuple[str, ...]
    extra: str = ""

    @property
    def marks(self) -> list[pytest.MarkDecorator]:
        missing = bool(self.extra) and find_spec(self.extra) is None
        return [pytest.mark.skipif(missing, reason=f"needs tta-panda[{self.extra}]")]

    def arguments(self, inputs: Path, output: Path, *, images: int = 60, workers: int = 2) -> list[str]:
        filled = {"inputs": inputs, "output": output, "images": images, "workers": workers}
        return [word.format_map(filled) for word in self.line.split()]

    def __str__(self) -> str:
        return self.name


_BENCH = "bench --method clip,tent --corruption fog,snow --limit {images} --batch-size 20 -o {output}"
_BENCHED = ("*.json", "tables/*-accuracy.csv", "tables/*-bias.csv")  # other tables have seconds in them

LOCAL = [
    Command("bench", f"{_BENCH} --workers 1", "*.json", _BENCHED),
    Command("bench --workers", f"{_BENCH} --workers {{workers}}", "*.json", _BENCHED),
    Command(
        "reproduce",
        "reproduce fig-histograms --quick --limit 20 --seed 0 --workers 1 -o {output}",
        "records/*.json",
        ("records/*.json", "*/*.csv"),
    ),
    Command(
        "data make",
        "data make cifar10-c --from {inputs}/clean -o {output} --severity 3,5 --workers {workers}"
        " --corruption fog,contrast,motion_blur,snow,shot_noise,frost",
        "*/*.npy",
        ("*/*", "*/.*"),
    ),
    Command(
        "corrupt",
        "corrupt {inputs}/photos {output} --clean --severity 3,5 --workers {workers}"
        " --corruption fog,glass_blur,snow,zoom_blur",
        "**/*.png",
        ("**/*", "**/.*"),
    ),
    Command(
        "predict --state",
        "predict {inputs}/symbols --model mini --method tent+panda --batch-size 4 --order shuffled -o {output}/rows.csv"
        " --state {output}/own.state --resume",
        "",
        ("*", ".*"),
    ),
]

COMMANDS = [
    *LOCAL,
    Command(  # with more to do: a cluster takes several seconds to start
        "bench --engine ray",
        "bench --method clip,tent --corruption fog,snow,frost,contrast --limit 200 --batch-size 20 -o {output}"
        " --engine ray --workers {workers}",
        "*.json",
        _BENCHED,
        "ray",
    ),
]

SOME = [command for command in LOCAL if command.name == "predict --state"]
"""For the short version of a test; `make test-faults` has them all."""


def write_inputs(folder: Path, images: int = 60) -> Path:
    """What the commands work on."""
    write_clean_cifar(folder / "clean", count=10 * images)
    for index in range(images // 4):
        write_image(folder / "photos" / f"{index % 4}" / f"{index}.png", 240, 240, seed=index)
    symbols = load_data("glyphs-val-c", "fog", limit=images)
    for index, (image, label) in enumerate(zip(symbols.images, symbols.labels, strict=True)):
        path = folder / "symbols" / symbols.class_names[label] / f"{index:03}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)
    return folder


_forks = multiprocessing.get_context("forkserver") if os.name == "posix" else multiprocessing
_OWN = ("cli", "evaluation.run", "experiments", "methods.tent", "models.openclip", "prediction.job", "reporting.page")
_forks.set_forkserver_preload([*(f"tta_panda.{name}" for name in _OWN), "open_clip", "torch._dynamo", "ray"])


def fork(arguments: list[str], errors: Path) -> BaseProcess:
    """The command line as a process group of its own, which has imported the libraries when it begins to live."""
    process = _forks.Process(target=_become, args=(arguments, str(errors), environment()))
    process.start()
    return process


def _become(arguments: list[str], errors: str, own_environment: dict[str, str]) -> None:
    os.setpgid(0, 0)
    for stream, path in ((1, os.devnull), (2, errors)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)
    os.environ.update(own_environment)
    sys.argv = ["tta-panda", *arguments]
    main()


def start(arguments: list[str]) -> subprocess.Popen[str]:
    """The command line as a process group of its own, in which Ctrl-C is not ignored as in a shell's background."""
    return subprocess.Popen(
        [sys.executable, "-m", "tta_panda", *arguments],
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


def wait_for_group(group: int | None, seconds: float = 300) -> None:
    """Wait until nothing is left of what a process has started."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            os.killpg(group or 0, 0)
        except ProcessLookupError:
            return
        assert time.monotonic() < deadline, f"processes of group {group} are still there"
        time.sleep(0.02)


RAY = r"ray::|/ray/"
"""What the command lines of all processes of a cluster match."""


def processes_of(session: int) -> list[str]:
    """Command lines of what is still running of a session; Ray's processes stay in that of their driver."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[3]) == session and fields[0] != "Z":
                found.append(stat.with_name("cmdline").read_text().replace("\0", " "))
    return found


def assert_nothing_runs(session: int, pattern: str = "", seconds: float = 300) -> None:
    """No process of a session whose command line matches is left after so many seconds."""
    end = time.monotonic() + seconds
    while (left := [line for line in processes_of(session) if re.search(pattern, line)]) and time.monotonic() < end:
        time.sleep(0.2)
    assert not left


Unit = tuple[str, bytes]
"""A name and a content: those of a file, or the path and the rest of a row of predictions."""


def files(folder: Path, *wildcards: str) -> dict[str, Path]:
    found = {name for wildcard in wildcards for name in glob.glob(wildcard, root_dir=folder, recursive=True)}
    paths = {name: folder / name for name in sorted(found) if not name.endswith(".tta-panda.lock")}
    return {name: path for name, path in paths.items() if path.is_file()}


def units(folder: Path, *wildcards: str) -> list[Unit]:
    """What some files hold, without what no two runs have in common."""
    return [unit for name, path in files(folder, *wildcards).items() for unit in _units_of(path, name)]


def footprint(folder: Path) -> set[tuple[str, int, int]]:
    """All files, by what changes when a command writes anything."""
    found = {name: path.stat() for name, path in files(folder, "**/*", "**/.*").items()}
    return {(name, stat.st_ino, stat.st_size) for name, stat in found.items()}


def identities(folder: Path, wildcard: str) -> set[tuple[str, int]]:
    """Files by what changes when one is made again."""
    return {(name, path.stat().st_ino) for name, path in files(folder, wildcard).items()}


def _units_of(path: Path, name: str) -> Iterator[Unit]:
    content = path.read_bytes()
    if path.suffix == ".json" and isinstance(record := _parsed(content), dict):
        content = json.dumps({key: value for key, value in record.items() if key not in _MEASURED}).encode()
    elif path.suffix == ".state":  # which lists the tensors in any order
        content = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])["__metadata__"]["digest"].encode()
    elif path.name == "rows.csv":
        yield from ((line.split(b",")[0].decode(), line) for line in content.splitlines())
    yield name, content


def _parsed(content: bytes) -> object:
    try:
        return json.loads(content)
    except ValueError:
        return None


@dataclass
class Damage:
    """How many records, files and rows differ from those of an uninterrupted run."""

    lost: int = 0
    doubled: int = 0
    torn: int = 0
    remade: int = 0
    """Finished already when a process was killed, and made again by the next."""

    def add(self, expected: list[Unit], found: list[Unit], *, finished: bool = True) -> None:
        """Compare; what is not finished may lack anything."""
        names, own_names = (Counter(name for name, _ in some) for some in (expected, found))
        self.lost += (names - own_names).total() if finished else 0
        self.doubled += (own_names - names).total()
        self.torn += len({name for name, _ in set(found) - set(expected)} & names.keys())
