"""Encoder passes on disk: the same records without encoding, and never those of another model or other pixels."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import safetensors.torch
import torch
from conftest import make_tiny
from records import plan, run, without_time
from torch import Tensor, nn
from typer.testing import CliRunner

from tta_panda import CLIP, DMN, Panda, Zero, ZeroShotClassifier
from tta_panda.cli import app
from tta_panda.errors import InvalidInputError, StoreError
from tta_panda.evaluation.loop import evaluate, run_stream
from tta_panda.methods import METHODS
from tta_panda.methods.trained import TrainedMethod
from tta_panda.models.feature_cache import FeatureCache, Pass
from tta_panda.models.openclip import OpenClipModel

FROZEN = [name for name in METHODS if not issubclass(METHODS.get(name), TrainedMethod)]
NAMES = ["heart", "star", "anchor", "cloud"]
LABELS = torch.arange(20) % 4


def entries(folder: Path) -> list[Path]:
    return sorted(folder.glob("*/*.safetensors"))


@pytest.fixture
def encoded(monkeypatch) -> list[int]:
    """The sizes of all passes over images that are really made."""
    sizes: list[int] = []
    original = OpenClipModel.encode_image

    def counted(self, images: Tensor) -> Tensor:
        sizes.append(len(images))
        return original(self, images)

    monkeypatch.setattr(OpenClipModel, "encode_image", counted)
    return sizes


def test_a_second_sweep_encodes_nothing_and_gives_the_same_records(tmp_path, encoded):
    names = [*FROZEN, *(f"{base}+panda" for base in FROZEN), "clip+panda+level"]
    small = {"limit": 15, "batch_size": 10}
    sweep = plan(names, settings={"views": 3, "keep": 0.7}, **small)
    sweep += plan(["clip+panda"], settings={"beta": 0.3}, **small)
    plain = run(sweep, tmp_path / "plain")
    made = len(encoded)
    first = run(sweep, tmp_path / "first", cache=tmp_path / "cache")
    assert len(encoded) == 2 * made and len(entries(tmp_path / "cache")) > 0
    second = run(sweep, tmp_path / "second", cache=tmp_path / "cache")
    assert len(encoded) == 2 * made
    assert [*map(without_time, plain)] == [*map(without_time, first)] == [*map(without_time, second)]
    assert len(second) == len(sweep) == 2 * len(FROZEN) + 2


def test_another_order_of_domains_shares_the_images(tmp_path, encoded):
    """A batch of a stream that joins domains is one of the domain alone, but its negatives may depend on the past."""
    corruptions = {"corruptions": ["fog", "snow"], "limit": 40}
    run(plan(["clip+panda"], **corruptions), tmp_path / "alone", cache=tmp_path / "cache")
    encoded.clear()
    run(plan(["clip+panda"], order="continual", **corruptions), tmp_path / "joined", cache=tmp_path / "cache")
    assert encoded == [2, 2]  # the negatives of the second domain


def streams(model: OpenClipModel, images: Tensor, folder: Path, encoded: list[int], **panda) -> list[int]:
    """The passes that are made for CLIP and Zero with Panda on two batches."""
    classifier = ZeroShotClassifier(model, NAMES)
    seed = panda.pop("seed", 0)
    debias = Panda(beta=0.5, **panda)
    methods = [CLIP(classifier, debias=debias, seed=seed), Zero(classifier, views=2, debias=debias, seed=seed)]
    encoded.clear()
    run_stream(methods, [(images[:20], LABELS), (images[20:], LABELS)], cache=FeatureCache(folder, model))
    return list(encoded)


IMAGES, NEGATIVES, VIEWS = 20, 2, 20


def test_what_differs_is_encoded_again(tmp_path, images, encoded):
    model = make_tiny()
    every = [IMAGES, NEGATIVES, VIEWS] * 2
    assert streams(model, images, tmp_path, encoded) == every
    assert streams(make_tiny(), images, tmp_path, encoded) == []
    assert streams(model, images, tmp_path, encoded, patch_size=16) == [NEGATIVES] * 2
    assert streams(model, images, tmp_path, encoded, ratio=0.2) == [2 * NEGATIVES] * 2
    assert streams(model, images, tmp_path, encoded, sampler="same_cell") == [NEGATIVES] * 2
    assert streams(model, images, tmp_path, encoded, pool=0) == [NEGATIVES] * 2
    assert streams(model, images, tmp_path, encoded, seed=1) == [NEGATIVES, VIEWS] * 2
    assert streams(model, images.flip(0), tmp_path, encoded) == every
    pixels = images.clone()
    pixels[25, 0, 0, 0] ^= 1
    assert streams(model, pixels, tmp_path, encoded) == every[3:]  # the first batch is as it was
    pixels = images.clone()
    pixels[5, 0, 0, 0] ^= 1
    assert streams(model, pixels, tmp_path, encoded) == [*every[:3], NEGATIVES, VIEWS]  # the future of a change


def shifted(model: OpenClipModel) -> None:
    next(model.clip.visual.parameters()).data.flatten()[0] += 1e-3


def another_activation(model: OpenClipModel) -> None:
    model.clip.visual.transformer.resblocks[1].mlp.gelu = nn.GELU()


def another_mean(model: OpenClipModel) -> None:
    model.mean += 0.01


def another_precision(model: OpenClipModel) -> None:
    model.precision = "bf16"


def another_framing(model: OpenClipModel) -> None:
    model.framing = model.framing._replace(interpolation="bilinear")


@pytest.mark.parametrize("change", [shifted, another_activation, another_mean, another_precision, another_framing])
def test_another_model_is_never_served_these_features(change, tmp_path, images, encoded):
    every = streams(make_tiny(), images, tmp_path, encoded)
    model = make_tiny()
    change(model)
    assert streams(model, images, tmp_path, encoded) == every


def test_the_number_of_threads_is_part_of_the_name(tmp_path):
    cache = FeatureCache(tmp_path, make_tiny())
    cache.save("key", Pass(torch.zeros(1, 2), 1.0))
    torch.set_num_threads(2)
    try:
        assert cache.load("key") is None
    finally:
        torch.set_num_threads(1)
    assert cache.load("key") is not None


def damage_end(content: bytes) -> bytes:
    return content[:-1] + bytes([content[-1] ^ 1])


@pytest.mark.parametrize(
    "damage",
    [lambda content: content[: len(content) // 2], lambda _: b"", damage_end, lambda content: content[:40] + b"{" * 40],
    ids=["truncated", "empty", "one bit", "header"],
)
def test_a_damaged_entry_is_made_again(damage, tmp_path, images, encoded, caplog):
    """Also within a stream: what is drawn for a batch depends on those before it."""
    model = make_tiny()
    every = streams(model, images, tmp_path, encoded)
    whole = {path: path.read_bytes() for path in entries(tmp_path)}
    for path, content in whole.items():
        path.write_bytes(damage(content))
        assert len(streams(model, images, tmp_path, encoded)) == 1
        again = safetensors.torch.load(path.read_bytes())["features"]
        assert torch.equal(again, safetensors.torch.load(content)["features"])
        assert "damaged" in caplog.text and path.name in caplog.text
        caplog.clear()
    assert len(whole) == len(every)
    assert streams(model, images, tmp_path, encoded) == []
    first, second, *_ = whole
    first.write_bytes(whole[second])  # a copy under another name
    assert len(streams(model, images, tmp_path, encoded)) == 1


def test_features_come_back_to_the_bit_and_leave_no_parts(tmp_path):
    cache = FeatureCache(tmp_path, make_tiny())
    for dtype in (torch.float32, torch.bfloat16):
        features = torch.randn(5, 3).to(dtype)
        cache.save("key", Pass(features, 1.25))
        found = cache.load("key")
        assert found is not None and torch.equal(found.features, features) and found.features.dtype == dtype
        assert found.seconds == 1.25
    assert cache.load("another key") is None
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == entries(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="Cannot keep features"):
        FeatureCache(tmp_path / "file", make_tiny())


def test_seconds_are_those_of_the_passes_when_they_were_made(tmp_path, images, monkeypatch):
    model = make_tiny()
    cache = FeatureCache(tmp_path, model)
    methods = [DMN(ZeroShotClassifier(model, NAMES), debias=Panda(beta=0.5))]
    run_stream(methods, [(images[:20], LABELS)], cache=cache)
    load = FeatureCache.load
    monkeypatch.setattr(FeatureCache, "load", lambda *given: load(*given)._replace(seconds=3600.0))
    [evaluation] = run_stream(methods, [(images[:20], LABELS)], cache=cache)
    assert 2 * 3600 <= evaluation.seconds < 3 * 3600  # images and negatives


@pytest.mark.slow
def test_the_command_line_says_how_much_is_kept(tmp_path, encoded):
    def command(output: str, method: str) -> str:
        options = ["--corruption", "fog", "--limit", 30, "-o", tmp_path / output, "--cache", tmp_path / "cache"]
        result = CliRunner().invoke(app, ["bench", "--method", method, *map(str, options)], catch_exceptions=False)
        assert result.exit_code == 0
        return result.stderr

    assert "kB of features" in command("first", "clip,clip+panda")
    encoded.clear()
    command("second", "clip+panda,dmn,tda+panda")
    assert encoded == []
    command("third", "tent")  # trains the encoder, so it needs its own passes
    assert sum(encoded) == 30 + 33


def test_who_reads_while_others_write_the_same_entry_never_sees_half_of_it(tmp_path, caplog):
    cache, features = FeatureCache(tmp_path, make_tiny()), torch.randn(200, 300)
    cache.save("key", Pass(features, 1.0))

    def work(turn: int) -> bool:
        if turn % 3 == 0:
            cache.save("key", Pass(features, 1.0))
        found = cache.load("key")
        return found is not None and torch.equal(found.features, features)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(60)))
    assert not caplog.text


def test_evaluate_takes_a_cache(tmp_path, images, encoded):
    classifier = ZeroShotClassifier(make_tiny(), NAMES)
    first = evaluate(CLIP(classifier, debias=Panda(beta=0.2)), [(images[:20], LABELS)], cache=tmp_path)
    assert encoded == [IMAGES, NEGATIVES]
    again = evaluate(CLIP(classifier, debias=Panda(beta=0.2)), [(images[:20], LABELS)], cache=tmp_path)
    evaluate(DMN(classifier, debias=Panda(beta=0.4)), [(images[:20], LABELS)], cache=tmp_path)
    assert encoded == [IMAGES, NEGATIVES]
    assert again.nll == first.nll and again.passes == first.passes
    with pytest.raises(InvalidInputError, match="must be reset first"):
        evaluate(CLIP(classifier), [(images[:20], LABELS)], cache=tmp_path, reset=False)


def test_timed_runs_do_without(tmp_path, encoded):
    sweep = plan(["clip+panda"], limit=20)
    run(sweep, tmp_path / "first", cache=tmp_path / "cache")
    encoded.clear()
    run(sweep, tmp_path / "second", cache=tmp_path / "cache", timed=True)
    assert encoded and set(encoded) == {22}
