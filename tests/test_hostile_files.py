"""Files made by others cannot make a command wait, nor name code to run or files elsewhere to read."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import pytest
import torch
from records import make_record

from tta_panda.data.cifar import CIFAR10, read_note
from tta_panda.data.dataset import cached_text
from tta_panda.data.listing import read_lines
from tta_panda.data.source import file_md5
from tta_panda.errors import TtaPandaError
from tta_panda.evaluation.store import RunStore
from tta_panda.files import open_regular
from tta_panda.images import read_image
from tta_panda.methods.feature_cache import FeatureCache, Pass
from tta_panda.methods.state import read_state
from tta_panda.models import load_model
from tta_panda.models.checkpoints import read_state_dict
from tta_panda.models.openclip import OpenClipModel
from tta_panda.prediction.files import read_rows

RECORD = make_record()


# --- pipes and devices ------------------------------------------------------------------------------------------------

needs_pipes = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")

READERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "picture": ("a.jpg", read_image),
    "record": (f"{RECORD.config.key}.json", lambda path: RunStore(path.parent).load(RECORD.config)),
    "folder of records": (f"{RECORD.config.key}.json", lambda path: RunStore(path.parent).records()),
    "divergence": (f"{RECORD.config.key}.diverged", lambda path: RunStore(path.parent).divergences([RECORD.config])),
    "state": ("a.state", read_state),
    "weights": ("a.pt", read_state_dict),
    "list of names": ("classes.txt", read_lines),
    "pickle of CIFAR": ("test_batch", lambda path: CIFAR10.load_clean(path.parent)),
    "archive": ("a.tar", file_md5),
    "note": ("fog.json", read_note),
    "rows of predictions": ("rows.csv", lambda path: list(read_rows(path))),
    "model directory": ("config.json", lambda path: load_model(f"transformers:{path.parent}")),
}


@pytest.fixture
def no_waiting() -> Iterator[None]:
    """Fail where a call waits for somebody to write to a pipe: for minutes, so that a busy machine passes, too."""

    def fail(_signal: int, _frame: FrameType | None) -> None:
        pytest.fail("waited for a pipe")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(180)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@needs_pipes
@pytest.mark.parametrize("kind", READERS)
def test_pipes_are_refused_and_not_waited_for(kind: str, tmp_path: Path, no_waiting: None) -> None:
    name, read = READERS[kind]
    os.mkfifo(tmp_path / name)
    with contextlib.suppress(TtaPandaError, OSError):  # some readers skip what they cannot read
        read(tmp_path / name)


@needs_pipes
def test_pipes_in_caches_are_as_good_as_nothing(
    tmp_path: Path, tiny: OpenClipModel, monkeypatch: pytest.MonkeyPatch, no_waiting: None
) -> None:
    cache, made = FeatureCache(tmp_path / "features", tiny), Pass(torch.ones(2, 3), 1.0)
    cache.save("key", made)
    (entry,) = (tmp_path / "features").glob("*/*")
    entry.unlink()
    os.mkfifo(entry)
    assert cache.load("key") is None
    cache.save("key", made)
    assert cache.load("key") is not None

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    file = tmp_path / "data"
    file.write_text("content")
    os.utime(file, (0, 0))
    monkeypatch.setattr("tta_panda.data.dataset._CLOCK_TICK", -(10**12))
    assert cached_text(["what"], [file], lambda: "first") == "first"
    (entry,) = (tmp_path / "cache" / "tta-panda" / "files").iterdir()
    entry.unlink()
    os.mkfifo(entry)
    assert cached_text(["what"], [file], lambda: "second") == "second"


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="this system has no devices among its files")
def test_devices_are_refused() -> None:
    with pytest.raises(OSError, match="not a regular file"):
        open_regular(Path("/dev/zero"))
