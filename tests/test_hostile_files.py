"""Files made by others cannot make a command wait, nor name code to run or files elsewhere to read."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import safetensors.torch
import torch
from pydantic import TypeAdapter, ValidationError
from records import make_record
from typer.testing import CliRunner

from tta_panda import ZeroShotClassifier
from tta_panda.cli import app
from tta_panda.data import load_data
from tta_panda.data.cifar import CIFAR10, read_note
from tta_panda.data.dataset import cached_text
from tta_panda.data.listing import read_image_list, read_lines
from tta_panda.data.source import file_md5
from tta_panda.errors import TtaPandaError
from tta_panda.evaluation.config import RunConfig
from tta_panda.evaluation.record import FailedRun
from tta_panda.evaluation.store import RunStore
from tta_panda.files import open_regular
from tta_panda.images import read_image
from tta_panda.methods.state import _FORMAT, _digest, load_method, read_state
from tta_panda.models import load_model
from tta_panda.models.checkpoints import read_state_dict
from tta_panda.models.feature_cache import FeatureCache, Pass
from tta_panda.models.openclip import OpenClipModel
from tta_panda.models.prompts import find_templates
from tta_panda.prediction.files import read_rows
from tta_panda.reporting.exchange import read_clip_benchmark
from tta_panda.reporting.leaderboard import read_submissions

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
    "list of paths and labels": ("a.txt", lambda path: load_data("lists", root=path.parent)),
    "split of CoOp": ("split_zhou_A.json", lambda path: load_data("coop", root=path.parent)),
    "shard": ("0.tar", lambda path: load_data(f"wds:{path}")),
    "folder of shards": ("0.tar", lambda path: load_data(f"wds:{path.parent}")),
    "configuration": ("run.yaml", lambda path: _bench(path)),
    "prompts": ("a.json", lambda path: find_templates(str(path))),
    "context of CoOp": ("a.safetensors", lambda path: find_templates(str(path))),
    "result of CLIP_benchmark": ("a.json", read_clip_benchmark),
    "leaderboard": (f"{RECORD.config.key}.json", lambda path: read_submissions(path.parent.parent)),
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
    """So are links to themselves."""
    name, read = READERS[kind]
    file = tmp_path / "own" / name
    file.parent.mkdir()
    for make in (os.mkfifo, lambda path: path.symlink_to(path)):
        make(file)
        with contextlib.suppress(TtaPandaError, OSError):  # some readers skip what they cannot read
            read(file)
        file.unlink()


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


# --- names of code and of places elsewhere ----------------------------------------------------------------------------

OPENED: list[str] = []
"""Every path that this process opens."""

sys.addaudithook(lambda event, args: OPENED.append(str(args[0])) if event == "open" else None)


def _load_state(path: Path) -> object:
    header = {"format": _FORMAT, "content": path.read_text(), "digest": _digest(path.read_text(), {})}
    safetensors.torch.save_file({}, path.with_suffix(".state"), header)
    return load_method(path.with_suffix(".state"), ZeroShotClassifier(load_model("mini"), ["heart", "star"]))


def _saved_state() -> str:
    content = {"name": "tent", "options": {"norm_statistics": "batch"}, "debias": ["Panda", {"sampler": "pool"}]}
    return json.dumps({**content, "seed": 0, "state": {"made_by": {"method": "Tent"}}, "facts": {"settings": "none"}})


def _bench(path: Path) -> object:
    return CliRunner().invoke(app, ["bench", "--dry-run", "-o", str(path.with_name("runs")), "--config", str(path)])


def _use_record(path: Path) -> None:
    """Use a record in every way, under the name that its configuration asks for."""
    content = path.read_bytes()
    with contextlib.suppress(ValidationError, TtaPandaError):
        config = TypeAdapter(RunConfig).validate_python(json.loads(content)["config"])
        path = path.rename(path.with_name(f"{config.key}.json"))
        RunStore(path.parent).load(config)
    output = path.parent.parent / "made"
    CliRunner().invoke(app, ["report", str(path.parent), "-o", str(output / "page.html"), "--export", str(output)])
    _make_leaderboard(path)
    path.unlink(missing_ok=True)


def _make_leaderboard(path: Path) -> object:
    page = path.parent.parent / "made" / "leaderboard.html"
    return CliRunner().invoke(app, ["report", str(path.parent.parent), "--leaderboard", "-o", str(page)])


def _load_shard(path: Path) -> object:
    shard = path.with_suffix(".tar")
    with tarfile.open(shard, "w") as tar:
        for name, text in json.loads(path.read_text()):
            member = tarfile.TarInfo(name)
            member.size = len(text.encode())
            tar.addfile(member, io.BytesIO(text.encode()))
    shard.with_name("classes.txt").write_text("cat\n")
    images = load_data(f"wds:{shard}")
    return images.without_broken().fingerprint()  # type: ignore[attr-defined]


def _load_cached(path: Path) -> object:
    cache = FeatureCache(path.parent, load_model("mini"))
    cache.save("key", Pass(torch.ones(2, 3), 1.0))
    (entry,) = path.parent.glob("*/*.safetensors")
    safetensors.torch.save_file({"features": torch.ones(2, 3)}, entry, json.loads(path.read_text()))
    return cache.load("key")


def _load_list(path: Path) -> object:
    path.with_name("a.txt").write_text(f"{path.read_text()} 0\n")
    path.unlink()
    path.with_name("classes.txt").write_text("cat\n")
    return load_data("lists", root=path.parent)


def _load_variants(path: Path) -> object:
    variant, image = json.loads(path.read_text())
    path.with_name("variants.txt").write_text(variant)
    path.with_name("images_variant_test.txt").write_text(f"{image} {variant}")
    return load_data("fgvc-aircraft", root=path.parent)


RESULT = {
    "dataset": "cifar10", "model": "ViT-B-32", "pretrained": "openai", "task": "zeroshot_classification",
    "metrics": {"acc1": 0.5}, "language": "en",
}  # fmt: skip

NAMING: dict[str, tuple[str, str, Callable[[Path], object]]] = {
    "record": (READERS["record"][0], RECORD.model_dump_json(), _use_record),
    "result of CLIP_benchmark": ("result.json", json.dumps(RESULT), _make_leaderboard),
    "divergence": (
        f"{RECORD.config.key}.diverged",
        FailedRun.of(RECORD.config, "diverged", ValueError("NaN")).model_dump_json(),
        READERS["divergence"][1],
    ),
    "state": ("state.json", _saved_state(), _load_state),
    "feature cache": ("header.json", '{"seconds": "1.0", "digest": "0"}', _load_cached),
    "configuration": (
        "run.yaml",
        json.dumps({"model": "mini", "method": "clip", "data": "glyphs-c", "data_root": ".", "output": "runs"}),
        _bench,
    ),
    "prompts": ("prompts.json", '{"cat": ["a cat"]}', lambda path: find_templates(str(path))),
    "note": ("fog.json", '{"severities": [5], "from": "data"}', lambda path: read_note(path.with_suffix(".npy"))),
    "split of CoOp": (
        "split_zhou_A.json",
        '{"test": [["a.png", 0, "cat"]]}',
        lambda path: load_data("coop", root=path.parent),
    ),
    "list of variants": ("variants.json", '["707", "1"]', _load_variants),
    "list of paths and labels": ("list.json", '"a.png"', _load_list),
    "list of images": ("list.txt", '"a.png"', read_image_list),
    "shard": ("shard.json", '[["a.png", "no picture"], ["a.cls", "0"]]', _load_shard),
    "model directory": (
        "open_clip_config.json",
        json.dumps({"model_cfg": {"vision_cfg": {"timm_model_name": "vit"}, "text_cfg": {"hf_model_name": "bert"}}}),
        lambda path: load_model(str(path.parent)),
    ),
}


@pytest.mark.parametrize("kind", NAMING)
def test_no_file_names_code_or_a_place_elsewhere(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each text in the file in turn names a module in the current folder, or a file outside of the own folder."""
    name, content, read = NAMING[kind]
    own, outside = tmp_path / "own", tmp_path / "outside"
    own.mkdir()
    outside.mkdir()
    (outside / "file").write_text("{}")
    (tmp_path / "planted_module.py").write_text("def make(*args, **options):\n    return None\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for forged_name in ("planted_module:make", "../outside/file", "/../../../outside/file", str(outside / "file")):
        for forged in _with_each_text_replaced(json.loads(content), forged_name):
            (own / name).write_text(forged if isinstance(forged, str) else json.dumps(forged))
            OPENED.clear()
            with contextlib.suppress(TtaPandaError):
                read(own / name)
            assert "planted_module" not in sys.modules
            assert not [path for path in OPENED if os.path.realpath(path).startswith(f"{outside}")], forged
            assert os.listdir(outside) == ["file"]


def _with_each_text_replaced(value: Any, text: str) -> Iterator[Any]:
    """Yield copies of a JSON value, in each of which one string is replaced."""
    if isinstance(value, str):
        yield text
    for key, item in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        for changed in _with_each_text_replaced(item, text):
            copy = dict(value) if isinstance(value, dict) else list(value)
            copy[key] = changed
            yield copy
