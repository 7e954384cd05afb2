"""Fixtures: the embedded model, a tiny random one in the shape of the paper's, and small batches of symbols.

What is slow to import is imported where it is used: the process that hands out tests to others needs none of it.
"""

from __future__ import annotations

import copy
import functools
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import open_clip
    from torch import Tensor

    from tta_panda import ZeroShotClassifier
    from tta_panda.models.openclip import OpenClipModel

TINY = {
    "embed_dim": 16,
    "quick_gelu": True,
    "vision_cfg": {"image_size": 32, "patch_size": 8, "width": 32, "head_width": 16, "layers": 2},
    "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 2},
}

_VIEWS = {"views": 4, "keep": 0.5}
TINY_OPTIONS = {
    "eta": {"margin": 1.0, "d_margin": 1.0},
    "sar": {"margin": 1.0, "skip_last_blocks": 0},
    "deyo": {"filter_margin": 2.0, "plpd_threshold": 0.0},
    "tpt": _VIEWS,
    "tps": _VIEWS,
    "zero": _VIEWS,
    "vte": _VIEWS,
    "mta": {"views": 4},
    "dota": _VIEWS,
    "boostadapter": _VIEWS,
    "dpe": _VIEWS,
    "eata": {"margin": 1.0, "d_margin": 1.0, "fisher_images": 4},
    "memo": {"views": 2},
    "rotta": {"capacity": 8},
    "cliptta": {"steps": 2},
    "clipartt": {"steps": 2},
    "watt": {"rounds": 1, "steps": 1},
}
"""What suits the tiny model: it has two blocks, and is so unsure that filters would let nothing pass."""


# Some virtual machines offer AMX and end the process at its first instruction. Children inherit this.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """Small tensors lose time to more threads, and results are compared bit by bit."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def _ray_folder() -> Iterator[None]:
    """Ray keeps the logs of every cluster; those of tests go with the tests. Its sockets need a short path."""
    short = "/tmp" if os.name == "posix" else None
    with (
        tempfile.TemporaryDirectory(prefix="ray-", dir=short, ignore_cleanup_errors=True) as folder,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("RAY_TMPDIR", folder)
        yield


@pytest.fixture
def registered() -> Iterator[None]:
    """Undo registrations of methods."""
    from tta_panda import methods
    from tta_panda.methods import METHODS

    before = dict(METHODS._targets)
    yield
    METHODS._targets.clear()
    METHODS._targets.update(before)
    methods._registered.clear()


@pytest.fixture(scope="session")
def mini() -> OpenClipModel:
    from tta_panda import load_model

    return load_model("mini")


@pytest.fixture(scope="session")
def mini_classifier(mini: OpenClipModel) -> ZeroShotClassifier:
    from tta_panda import ZeroShotClassifier
    from tta_panda.data.glyphs import VALIDATION_CLASSES

    return ZeroShotClassifier(mini, VALIDATION_CLASSES)


def make_tiny(seed: int = 0) -> OpenClipModel:
    """A CLIP with random weights that are spread enough for its predictions to differ."""
    from tta_panda.models.openclip import OpenClipModel

    model = OpenClipModel(copy.deepcopy(_tiny_clip(seed)), _tokenizer(), name="tiny")
    model.negative_patch_size = 8
    return model


@functools.cache
def _tiny_clip(seed: int) -> open_clip.CLIP:
    """Copies take a tenth of the time of new weights."""
    import open_clip
    import torch

    torch.manual_seed(seed)
    clip = open_clip.CLIP(**TINY)
    open_clip.set_model_preprocess_cfg(
        clip, {"size": 32, "mean": open_clip.OPENAI_DATASET_MEAN, "std": open_clip.OPENAI_DATASET_STD}
    )
    return clip


@functools.cache
def _tokenizer() -> open_clip.SimpleTokenizer:
    """It takes longer to make than the model."""
    import open_clip

    return open_clip.SimpleTokenizer(context_length=77)


@pytest.fixture
def tiny() -> OpenClipModel:
    return make_tiny()


@pytest.fixture
def tiny_classifier(tiny: OpenClipModel) -> ZeroShotClassifier:
    from tta_panda import ZeroShotClassifier

    return ZeroShotClassifier(tiny, ["heart", "star", "anchor", "cloud"])


@pytest.fixture(scope="session")
def images() -> Tensor:
    """Forty clean symbols (40, 3, 32, 32), uint8."""
    import torch

    from tta_panda.data.glyphs import VALIDATION_CLASSES, draw_glyphs

    dataset = draw_glyphs(VALIDATION_CLASSES, 4, seed=99)
    return torch.from_numpy(dataset.images.copy()).permute(0, 3, 1, 2)


@pytest.fixture(scope="session")
def foggy() -> Tensor:
    import torch

    from tta_panda import load_data

    dataset = load_data("glyphs-val-c", "fog", limit=60)
    return torch.from_numpy(dataset.images.copy()).permute(0, 3, 1, 2)


@pytest.fixture
def tiny_checkpoint(tiny: OpenClipModel, tmp_path: Path) -> Path:
    """The tiny model as a directory that open_clip would save: configuration and weights."""
    from safetensors.torch import save_file

    directory = tmp_path / "tiny-clip"
    directory.mkdir()
    config = {"model_cfg": TINY, "preprocess_cfg": {"mean": [0.5, 0.5, 0.5], "std": [0.25, 0.25, 0.25]}}
    (directory / "open_clip_config.json").write_text(json.dumps(config))
    weights = {name: tensor.contiguous() for name, tensor in tiny.clip.state_dict().items()}
    save_file(weights, directory / "open_clip_model.safetensors")
    return directory


@pytest.fixture(scope="session")
def fake() -> str:
    """A device that is not the CPU, for tests in tests/device, which have a process of their own."""
    import fake_device

    if reason := fake_device.missing():
        pytest.skip(reason)
    fake_device.load()
    return "fake:0"


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages and exports without drawings, which would take most of the time of a command."""
    monkeypatch.setattr("tta_panda.reporting.page.draw", lambda _figure: [])


@pytest.fixture(scope="module")
def browser():
    """Chromium with a camera that is none; what needs it is skipped where there is no browser."""
    playwright = pytest.importorskip("playwright.sync_api", reason="tests in a browser need playwright")
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no Chromium here")
    fake_camera = ["--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"]
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox", *fake_camera])
        yield browser
        browser.close()
