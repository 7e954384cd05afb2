"""Where models run and in which precision, and what devices that lack operations get instead."""

from __future__ import annotations

import copy
from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from tta_panda import Panda, Tent, ZeroShotClassifier, load_model
from tta_panda.errors import InvalidInputError, UnknownNameError
from tta_panda.models import devices
from tta_panda.models.devices import check_precision, full_precision, resolve_device
from tta_panda.models.prepare import fit_images, prepare_images

TINY_NAMES = ["heart", "star", "anchor", "cloud"]


def test_auto_takes_what_is_there(monkeypatch):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_device("auto") == "cpu"
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert resolve_device("auto") == "mps"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert resolve_device("auto") == "cuda"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_a_sentence():
    with pytest.raises(InvalidInputError, match=r"The device 'cuda' cannot be used here: .*\. Use auto \(which is cpu"):
        load_model("mini", device="cuda")
    with pytest.raises(UnknownNameError, match="'bf16'"):
        load_model("mini", precision="bf-16")


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_is_for_the_encoders_only(precision, images):
    model, exact = load_model("mini", precision=precision), load_model("mini")
    classifier = ZeroShotClassifier(model, TINY_NAMES)
    prepared = model.prepare(images[:4])
    with torch.no_grad(), model.autocast():
        assert model.clip.encode_image(model.pixels(prepared)).dtype != torch.float32  # it does compute in half
    features, expected = model.encode_image(prepared), exact.encode_image(prepared)
    assert features.dtype == classifier.class_embeddings.dtype == torch.float32
    assert 0 < (features - expected).norm() / expected.norm() < 0.05
    method = Tent(classifier, debias=Panda(beta=0.5))
    initial = {name: parameter.detach().clone() for name, parameter in method.adapted.items()}
    logits = method.adapt(images[:4])
    assert logits.dtype == torch.float32
    assert all(p.dtype == torch.float32 and p.requires_grad for p in method.adapted.values())
    assert any((p != initial[name]).any() for name, p in method.adapted.items())
    reference = Tent(ZeroShotClassifier(exact, TINY_NAMES), debias=Panda(beta=0.5)).adapt(images[:4])
    assert (logits.softmax(dim=1) - reference.softmax(dim=1)).abs().max() < 0.1


class Casts(TorchDispatchMode):
    """Counts casts to half precision: of weights and biases of layers that compute in it, and others."""

    def __init__(self, model):
        super().__init__()
        layers = (nn.Linear, nn.Conv2d, nn.MultiheadAttention)
        owners = [module for module in model.modules() if isinstance(module, layers)]
        self.weights = {p.data_ptr() for module in owners for p in module.parameters(recurse=False)}
        self.counts = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function is torch.ops.aten._to_copy.default and kwargs.get("dtype") == torch.bfloat16:
            self.counts[args[0].data_ptr() in self.weights] += 1
        return function(*args, **kwargs or {})


def test_frozen_weights_are_cast_once(mini, images):
    model = copy.deepcopy(mini)
    model.precision = "bf16"
    prepared = model.prepare(images[:4])
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        expected = model.clip.encode_image(model.pixels(prepared), normalize=False).float()
    method = Tent(ZeroShotClassifier(model, TINY_NAMES))
    assert torch.equal(model.encode_image(prepared), expected)
    method.adapt(images[:4])
    with Casts(method.model) as casts:
        model.encode_image(prepared)
        method.adapt(images[:4])
    assert casts.counts[False] and not casts.counts[True]
    with torch.no_grad():
        model.clip.visual.conv1.weight.mul_(2)  # no cast is used for other values
    assert not torch.allclose(model.encode_image(prepared), expected, atol=0.1)


def test_the_callers_autocast_does_not_reach_features(tiny, images):
    prepared = tiny.prepare(images[:4])
    with torch.no_grad():
        expected = tiny.encode_image(prepared)
        text = ZeroShotClassifier(tiny, TINY_NAMES).class_embeddings
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert torch.equal(tiny.encode_image(prepared), expected)
            assert torch.equal(ZeroShotClassifier(tiny, TINY_NAMES).class_embeddings, text)


def test_full_precision_ends_autocast_for_a_while():
    a = torch.rand(4, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (a @ a).dtype == torch.bfloat16
        for device in ("cpu", "cuda", "mps"):  # a tensor on the CPU is meant, too, where the model is elsewhere
            with full_precision(torch.device(device)):
                assert (a @ a).dtype == torch.float32
        assert (a @ a).dtype == torch.bfloat16


# --- as on a Mac ------------------------------------------------------------------------------------------------------


@pytest.fixture
def without_mps_autocast(monkeypatch):
    """Versions of torch that refuse every `torch.autocast` on MPS, even a disabled one."""
    original = torch.autocast.__init__

    def refuse(self, device_type, *arguments, **options):
        if device_type == "mps":
            raise RuntimeError("User specified an unsupported autocast device_type 'mps'")
        original(self, device_type, *arguments, **options)

    monkeypatch.setattr(torch.autocast, "__init__", refuse)
    monkeypatch.setattr(torch.amp, "is_autocast_available", lambda kind: kind != "mps")


def test_no_autocast_is_made_where_mps_has_none(without_mps_autocast, tiny, monkeypatch):
    with full_precision(torch.device("mps")):
        pass
    monkeypatch.setattr(type(tiny), "device", property(lambda _: torch.device("mps")))
    with tiny.autocast():
        pass
    check_precision("fp32", "mps")
    with pytest.raises(InvalidInputError, match=r"cannot compute in bf16 on mps\. Use fp32"):
        check_precision("bf16", "mps")


def test_precision_is_checked_for_the_device(monkeypatch):
    monkeypatch.setattr(devices, "AUTOCAST", {"fp32": None, "bf16": torch.bfloat16})
    monkeypatch.setattr(torch.amp, "is_autocast_available", lambda kind: False)
    with pytest.raises(InvalidInputError, match="on cpu"):
        load_model("mini", precision="bf16")
    assert load_model("mini").precision == "fp32"


class Elsewhere(torch.Tensor):
    """A tensor on a device that has no antialiased resizing."""

    @classmethod
    def __torch_function__(cls, function, types, arguments=(), options=None):
        if function is F.interpolate:
            raise NotImplementedError("The operator 'aten::_upsample_bicubic2d_aa.out' is not implemented for MPS")
        if function is torch.Tensor.cpu:
            return arguments[0].as_subclass(torch.Tensor)
        return super().__torch_function__(function, types, arguments, options or {})


@pytest.mark.parametrize("mode", ["bicubic", "bilinear"])
def test_resizing_falls_back_on_the_cpu(mode):
    from tta_panda.images import Framing

    images = torch.rand(2, 3, 40, 50, generator=torch.Generator().manual_seed(0))
    framing = Framing(32, interpolation=mode)
    with pytest.raises(NotImplementedError):
        F.interpolate(images.as_subclass(Elsewhere), (32, 32), mode=mode, antialias=True)
    found = fit_images(images.as_subclass(Elsewhere), framing)
    assert torch.equal(found.as_subclass(torch.Tensor), fit_images(images, framing))


def test_float64_images_are_float32_before_they_move(monkeypatch):
    moved = []
    original = torch.Tensor.to

    def to(self, *arguments, **options):
        moved.append(self.dtype)
        return original(self, *arguments, **options)

    monkeypatch.setattr(torch.Tensor, "to", to)
    images = torch.rand(1, 3, 32, 32, dtype=torch.float64)
    prepared = prepare_images(images, 32, torch.device("cpu"))
    assert moved == [torch.float32] and torch.equal(prepared, images.float())
    assert prepare_images((255 * images).byte(), 32, torch.device("cpu")).dtype == torch.float32
    assert moved == [torch.float32, torch.uint8]  # a quarter of the bytes
