"""What runs on the CPU runs on another device, with the same numbers."""

from __future__ import annotations

import copy
import itertools

import numpy as np
import pytest
import timm
import torch
from conftest import TINY_OPTIONS
from PIL import Image
from records import plan, run, without_time
from torch import Tensor, nn
from typer.testing import CliRunner

import tta_panda
from tta_panda import ZeroShotClassifier, check_model, evaluate, load_method, make_classifier, wrap_model
from tta_panda.cli import app
from tta_panda.cli.runs import default_workers
from tta_panda.evaluation.plan import Sources
from tta_panda.methods import DEBIASES, METHODS, MethodName, create_method
from tta_panda.methods.base import Method
from tta_panda.methods.factory import build_method, resolve_options
from tta_panda.models.devices import device_of_worker

NAMES = METHODS.names()
SHORT = {
    *(("clip", debias, "paper") for debias in DEBIASES),
    *((name, "panda", "paper") for name in ("bat", "deyo", "dmn", "sar", "tda", "tpt", "zero")),
    ("tent", "panda+level", "reference"),
}
"""Each way to debias, and methods that train either encoder, keep memories, tune prompts or use views."""
EVERY = [
    pytest.param(*case, marks=() if case in SHORT else pytest.mark.slow)
    for case in itertools.product(NAMES, ("", *DEBIASES), ("paper", "reference"))
]


def moved(model: nn.Module, device: str) -> nn.Module:
    return copy.deepcopy(model).to(device)


def on(device: str, classifier: ZeroShotClassifier) -> ZeroShotClassifier:
    return ZeroShotClassifier(moved(classifier.model, device), classifier.class_names)


def make(classifier: ZeroShotClassifier, name: str, debias: str = "", **more) -> Method:
    parsed = MethodName(name, debias)
    return build_method(parsed, classifier, resolve_options(parsed, TINY_OPTIONS.get(name, {}) | more), seed=0)


def assert_same(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("name", "debias", "protocol"), EVERY)
def test_methods_predict_as_on_the_cpu(name, debias, protocol, fake, tiny_classifier, images):
    expected = make(tiny_classifier, name, debias, protocol=protocol)
    method = make(on(fake, tiny_classifier), name, debias, protocol=protocol)
    for batch in (images[:8], images[8:16].to(fake), images[16:17]):
        logits = method.adapt(batch)
        assert str(logits.device) == fake
        assert_same(logits, expected.adapt(batch.cpu()))


@pytest.mark.parametrize(
    "name", ["dmn+panda", "rotta+running", *(pytest.param(n, marks=pytest.mark.slow) for n in NAMES)]
)
def test_a_state_goes_on_on_another_device(name, fake, tiny_classifier, images, tmp_path):
    method = make(on(fake, tiny_classifier), *name.split("+"))
    method.adapt(images[:8])
    method.save(tmp_path / "state.safetensors")
    expected = method.adapt(images[8:16]).cpu()
    for device in ("fake:1", "cpu"):
        loaded = load_method(tmp_path / "state.safetensors", on(device, tiny_classifier))
        assert_same(loaded.adapt(images[8:16]), expected)
    method.reset()
    fresh = make(tiny_classifier, *name.split("+"))
    assert_same(method.adapt(images[:8]), fresh.adapt(images[:8]))


@pytest.mark.parametrize("options", [{"guard": True}, {"micro_batch": 3}, {"predict_with": "after"}])
def test_options_of_trained_methods(options, fake, tiny_classifier, images, monkeypatch):
    monkeypatch.setattr("tta_panda.methods.trained.MAX_DRIFT", 1e-6)  # after the first batch, all restart
    expected = make(tiny_classifier, "tent", "panda", **options)
    method = make(on(fake, tiny_classifier), "tent", "panda", **options)
    for batch in images[:16].split(8):
        assert_same(method.adapt(batch), expected.adapt(batch))
    assert method.restarts == expected.restarts == options.get("guard", False)


def test_micro_batches_need_less_memory_and_frozen_weights_no_gradients(fake, tiny_classifier, images):
    import fake_device

    peaks = []
    for options in ({}, {"micro_batch": 4}):
        method = make(on(fake, tiny_classifier), "tent", "panda", **options)
        method.adapt(images[:4])
        with fake_device.watch() as log:
            method.adapt(images[:32])
        peaks.append(log.peak_memory)
        trained = {id(p) for p in method.adapted.values()}
        assert all(p.grad is None for p in method.model.parameters() if id(p) not in trained)
    assert peaks[1] < peaks[0] / 3


@pytest.mark.parametrize("statistics", ["batch", "running"])
def test_linear_heads_with_batch_norm(statistics, fake, images):
    """On a GPU, the backward pass of BatchNorm needs a mean in channels last."""
    torch.manual_seed(0)
    model = wrap_model(timm.create_model("test_resnet", num_classes=4).eval())
    assert model.memory_format == torch.channels_last
    names = ["heart", "star", "anchor", "cloud"]
    for name in ("tent+panda", "tda+panda"):
        options = {"norm_statistics": statistics} if name == "tent+panda" else {}
        expected, method = (
            create_method(name, make_classifier(each, names), **options) for each in (model, moved(model, fake))
        )
        for batch in images[:12].split(6):
            assert_same(method.adapt(batch), expected.adapt(batch))


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_is_for_the_encoders_only(precision, fake, tiny_classifier, images):
    model = moved(tiny_classifier.model, fake)
    model.precision = precision
    method = create_method("tent+panda+level", ZeroShotClassifier(model, tiny_classifier.class_names))
    with torch.no_grad(), model.autocast():
        assert model.clip.encode_image(model.pixels(model.prepare(images[:2]))).dtype != torch.float32
    encoded = method.encode(method.features.prepare(images[:8]))
    assert {part.dtype for part in (encoded.features, encoded.offset, encoded.bias)} == {torch.float32}
    expected = create_method("tent+panda+level", tiny_classifier)
    for batch in images[:16].split(8):
        difference = method.adapt(batch).softmax(1).cpu() - expected.adapt(batch).softmax(1)
        assert 0 < difference.abs().max() < 0.1
    assert all(p.dtype == torch.float32 and p.isfinite().all() for p in method.adapted.values())


def test_a_default_device_changes_nothing(fake, tiny_classifier, images):
    """Plans are drawn by generators of the CPU, which a factory on a GPU refuses."""
    with torch.device(fake):
        for name in ("tent+panda", "tpt+panda", "zero", "deyo+panda", "clip+panda+level"):
            parsed = MethodName.of(name)
            method = make(on(fake, tiny_classifier), *parsed)
            assert_same(method.adapt(images[:8]), make(tiny_classifier, *parsed).adapt(images[:8]))


def test_pictures_of_several_devices_and_sizes(fake, tiny_classifier, images):
    import fake_device

    method = make(on(fake, tiny_classifier), "clip")
    expected = make(tiny_classifier, "clip")
    mixed = [images[0], images[1].to(fake), images[2].to("fake:1")]
    assert_same(method.adapt(mixed), expected.adapt(images[:3]))
    sizes = [images[0], images[1, :, 4:], images[2, :, :, 4:]]
    with fake_device.watch() as log:
        logits = method.adapt([picture.to(fake) for picture in sizes])
    assert_same(logits, expected.adapt(sizes))
    assert sum(times for (wait, _), times in log.waits.items() if wait == "copy to host") == 1  # the range of values


def test_a_device_without_an_index_is_the_current_one(fake, tiny):
    model = moved(tiny, fake)
    model.__class__ = type("Model", (type(model),), {"device": property(lambda _: torch.device("fake"))})
    assert check_model(model) == []


def test_the_clock_waits_for_the_device(fake):
    import fake_device

    with fake_device.watch() as log:
        tta_panda.models.devices.clock(torch.device(fake))
    assert {wait for wait, _ in log.waits} == {"synchronize"}


def test_a_wrapped_network_stays_on_its_device(fake, tiny, images):
    model = wrap_model(moved(tiny.clip, fake), tiny.tokenizer)
    assert str(model.device) == fake and check_model(model) == []
    wrapped = wrap_model(copy.deepcopy(tiny.clip), tiny.tokenizer)
    assert_same(model.encode_image(model.prepare(images[:4])), wrapped.encode_image(wrapped.prepare(images[:4])))


def test_records_are_those_of_the_cpu(fake, tmp_path):
    """With shared passes, and from a cache of features."""
    configs = plan(["clip", "clip+panda", "tda+level", "tent+panda"], limit=40)
    expected = run(configs, tmp_path / "cpu")
    found = run(configs, tmp_path / "fake", device=fake, cache=tmp_path / "features")
    again = run(configs, tmp_path / "again", device=fake, cache=tmp_path / "features")
    for record, other, cached in zip(expected, found, again, strict=True):
        assert other.accuracy == record.accuracy and other.environment["device"] == fake
        np.testing.assert_allclose(other.mean_probabilities, record.mean_probabilities, atol=1e-5)
        assert without_time(cached) == without_time(other)


def test_evaluate_and_predict(fake, tiny_classifier, images):
    classifier, labels = on(fake, tiny_classifier), torch.arange(16) % 4
    found, expected = (
        evaluate(make(each, "tent", "panda"), list(zip(images[:16].split(8), labels.split(8), strict=True)))
        for each in (classifier, tiny_classifier)
    )
    assert (found.accuracy, found.bias) == pytest.approx((expected.accuracy, expected.bias), abs=1e-5)
    pictures = [Image.fromarray(image.permute(1, 2, 0).numpy()) for image in images[:8]]
    mine, theirs = (
        tta_panda.predict(pictures, method=make(each, "clip", "panda")) for each in (classifier, tiny_classifier)
    )
    assert [row.predicted for row in mine] == [row.predicted for row in theirs]


def test_the_command_line(fake, images, tmp_path, undrawn, monkeypatch):
    monkeypatch.setattr("tta_panda.progress.SECONDS_BETWEEN_LINES", 0.0)
    for number, image in enumerate(images[:6]):
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(tmp_path / f"{number}.png")
    bench = ["bench", "--method", "clip", "--corruption", "fog", "--limit", "20", "--output", str(tmp_path / "runs")]
    predict = ["predict", str(tmp_path), "--model", "mini", "--classes", "heart,star", "-o", str(tmp_path / "rows.csv")]
    for command in (bench, predict):
        result = CliRunner().invoke(app, [*command, "--device", fake])
        assert result.exit_code == 0, result.output
        assert command is predict or " on fake:0: " in result.stderr


@pytest.fixture
def fake_in_workers(fake, tmp_path, monkeypatch) -> None:
    """Torch loads the device in every new process, as it does with the backends of installed packages."""
    package = tmp_path / "packages" / "fake_device-0.dist-info"
    package.mkdir(parents=True)
    (package / "entry_points.txt").write_text("[torch.backends]\nfake = fake_device:load\n")
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: fake-device\nVersion: 0\n")
    monkeypatch.syspath_prepend(str(package.parent))


def test_workers_take_turns_among_devices(fake, tmp_path, monkeypatch):
    assert [device_of_worker("fake", number) for number in range(3)] == ["fake:0", "fake:1", "fake:0"]
    assert [device_of_worker(device, 1) for device in ("fake:0", "cpu")] == ["fake:0", "cpu"]
    monkeypatch.setattr("tta_panda.executors._number", 1)
    [record] = run(plan(["clip"], limit=20), tmp_path, device="fake")
    assert record.environment["device"] == "fake:1"


@pytest.mark.slow
def test_a_device_in_other_processes(fake_in_workers, tmp_path):
    configs = plan(["tent"], corruptions=["fog", "snow", "frost"], limit=20)
    expected, found = run(configs, tmp_path / "a"), run(configs, tmp_path / "b", device="fake", workers=2)
    assert {record.environment["device"] for record in found} <= {"fake:0", "fake:1"}
    assert [record.accuracy for record in found] == [record.accuracy for record in expected]


@pytest.mark.slow
def test_a_device_on_ray(fake_in_workers, tmp_path):
    pytest.importorskip("ray")
    from tta_panda.ray_executor import RayExecutor

    configs = plan(["clip"], limit=20)
    [record] = run(configs, tmp_path / "ray", device="fake:1", executor=RayExecutor(workers=1))
    assert record.environment["device"] == "fake:1"


def test_there_is_a_worker_for_each_device(fake):
    configs = plan(["clip"], limit=20)
    workers = [default_workers(configs, Sources("mini"), device) for device in ("fake", "fake:1", "cpu")]
    assert workers == [2, 1, 1]
