"""Bad numbers: whatever is fed in, every method gives finite logits or says what is wrong, and no weight goes bad."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Sequence

import open_clip
import pytest
import torch
from conftest import TINY, make_tiny
from test_methods import make, parameters_of
from torch import Tensor

from tta_panda import Panda, Stream, Tent, ZeroShotClassifier, evaluate
from tta_panda.data.dataset import ImageDataset
from tta_panda.errors import InvalidInputError
from tta_panda.methods import METHODS, tent
from tta_panda.methods.base import Method
from tta_panda.methods.trained import TrainedMethod
from tta_panda.methods.views import EpisodicMethod
from tta_panda.models.devices import Precision
from tta_panda.models.openclip import OpenClipModel

NAMES = ["heart", "star", "anchor", "cloud"]
TRAINED = [name for name in METHODS if issubclass(METHODS.get(name), TrainedMethod)]
EPISODIC = [name for name in METHODS if issubclass(METHODS.get(name), EpisodicMethod)]


def make_classifier(classes: int = 4, scale: float | None = None, precision: Precision = "fp32") -> ZeroShotClassifier:
    model = make_tiny()
    model.precision = precision
    classifier = ZeroShotClassifier(model, NAMES[:classes])
    classifier.logit_scale = classifier.logit_scale if scale is None else scale
    return classifier


@functools.cache
def make_narrow(classes: int) -> ZeroShotClassifier:
    """So many classes that the text encoder must be even smaller than the tiny one."""
    torch.manual_seed(0)
    clip = open_clip.CLIP(
        **{**TINY, "text_cfg": {"context_length": 12, "vocab_size": 49408, "width": 8, "heads": 1, "layers": 1}}
    )
    open_clip.set_model_preprocess_cfg(clip, {"size": 32, "mean": (0.5,) * 3, "std": (0.5,) * 3})
    model = OpenClipModel(clip, open_clip.SimpleTokenizer(context_length=12), name="narrow")
    return ZeroShotClassifier(model, [f"c{number}" for number in range(classes)])


# --- what is fed in ---------------------------------------------------------------------------------------------------


def constant(images: Tensor, level: int) -> Tensor:
    return torch.full_like(images, level)


PICTURES: dict[str, Callable[[Tensor], Tensor]] = {
    "black": lambda images: constant(images, 0),
    "white": lambda images: constant(images, 255),
    "grey": lambda images: constant(images, 127),
    "one colour each": lambda images: images[:, :, :1, :1].expand_as(images),
    "one picture": lambda images: images[:1].expand_as(images),
    "one black picture": lambda images: constant(images[:1], 0),
    "one line": lambda images: constant(images, 0).index_fill(3, torch.tensor([5]), 255),
}


every_name = pytest.mark.parametrize("name", METHODS.names())


@every_name
def test_pictures_without_content(name, tiny_classifier, images):
    method = make(name, Panda(), tiny_classifier)
    for kind in ("symbols", *PICTURES, "symbols"):  # what is not finite is an error
        method.adapt(PICTURES[kind](images[:4]) if kind in PICTURES else images[4:8])
    assert method.skipped_steps == 0


@pytest.mark.parametrize("name", ["clip", "tent", "zero"])
def test_pixels_that_are_no_numbers_are_refused_and_leave_no_trace(name, tiny_classifier, images):
    method, undisturbed = (make(name, Panda(), tiny_classifier) for _ in range(2))
    for batch in images[:8].split(4):
        for value in (math.nan, -math.inf):
            broken = batch.float() / 255
            broken[2, 1, 3, 3] = value
            with pytest.raises(InvalidInputError, match=r"NaN or infinite values in image\(s\) \[2\] of the batch"):
                method.adapt(broken)
        assert torch.equal(method.adapt(batch), undisturbed.adapt(batch))


CLASSIFIERS: dict[str, Callable[[], ZeroShotClassifier]] = {
    "two classes": lambda: make_classifier(2),
    "scale 1": lambda: make_classifier(scale=1.0),
    "scale 1000": lambda: make_classifier(scale=1000.0),
    "bf16": lambda: make_classifier(precision="bf16"),
    "fp16": lambda: make_classifier(precision="fp16"),
}


@every_name
@pytest.mark.parametrize("kind", CLASSIFIERS)
def test_classifiers_at_their_limits(kind, name, images):
    assert_shapes(make(name, Panda(), CLASSIFIERS[kind]()), images[:6].split(3))


@pytest.mark.parametrize("name", ["tent", "dmn", "zero", "tps", "tda", "stata"])
def test_ten_thousand_classes(name, images):
    assert_shapes(make(name, Panda(), make_narrow(10_000)), images[:2].split(1))


def assert_shapes(method: Method, stream: Sequence[Tensor]) -> None:
    for batch in stream:
        logits = method.adapt(batch)
        assert logits.shape == (len(batch), len(method.classifier.class_names)) and logits.dtype == torch.float32


def test_one_class_is_no_choice(tiny):
    with pytest.raises(InvalidInputError, match=r"at least two class names, got \['heart'\]"):
        ZeroShotClassifier(tiny, ["heart"])


@pytest.mark.parametrize("name", ["clip", "tent"])
def test_a_batch_that_is_larger_than_the_stream(name, tiny_classifier, images):
    data = ImageDataset(images[:5].permute(0, 2, 3, 1).numpy(), torch.arange(5).numpy() % 4, tuple(NAMES))
    result = evaluate(make(name, Panda(), tiny_classifier), Stream(data, batch_size=1000, seed=0))
    assert result.samples == 5 and math.isfinite(result.nll) and result.skipped_steps == 0


# --- what comes out of a backward pass --------------------------------------------------------------------------------


@contextlib.contextmanager
def poisoned(method: TrainedMethod, value: float, backward: int) -> Iterator[None]:
    """Add a value to a gradient in the backward pass of this number, from 1."""
    parameter, passes = next(iter(method.adapted.values())), iter(range(1, 100))
    handle = parameter.register_hook(lambda gradient: gradient + value if next(passes) == backward else gradient)
    try:
        yield
    finally:
        handle.remove()


SEVERAL_STEPS = {"mint", "memo", "ramen", "subtta", "clipartt", "watt", "cliptta"}
"""Methods that begin every batch with the first weights, or take more than one step per batch."""
BACKWARD = [(name, 1) for name in TRAINED] + [("sar", 2)]


@pytest.mark.parametrize(("name", "backward"), BACKWARD)
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_gradient_that_is_no_number_never_reaches_the_weights(value, name, backward, tiny_classifier, images):
    method = make(name, Panda(beta=0.5), tiny_classifier)
    method.adapt(images[:8])
    before = parameters_of(method)
    with poisoned(method, value, backward):
        method.adapt(images[8:16])
    assert method.skipped_steps == 1
    if name not in SEVERAL_STEPS:
        assert all(torch.equal(parameter, before[key]) for key, parameter in parameters_of(method).items())
    assert _is_finite(method.state_dict())
    method.adapt(images[16:24])
    assert method.skipped_steps == 1
    assert any(not torch.equal(parameter, before[key]) for key, parameter in parameters_of(method).items())
    method.reset()
    assert method.skipped_steps == 0


def _is_finite(state: object) -> bool:
    if isinstance(state, dict):
        return all(map(_is_finite, state.values()))
    return not (isinstance(state, Tensor) and state.is_floating_point()) or bool(state.isfinite().all())


def test_a_loss_that_is_no_number_never_reaches_the_weights(tiny_classifier, images, monkeypatch):
    method = Tent(tiny_classifier)
    before = parameters_of(method)
    original = tent.entropy
    monkeypatch.setattr(tent, "entropy", lambda logits: original(logits) + math.inf)  # with a slope of zero
    method.adapt(images[:8])
    assert method.skipped_steps == 1
    assert all(torch.equal(parameter, before[key]) for key, parameter in parameters_of(method).items())


@pytest.mark.parametrize("name", EPISODIC)
@pytest.mark.parametrize("debias", [None, Panda(beta=0.5)], ids=str)
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_an_image_whose_gradient_is_no_number_is_not_tuned(value, debias, name, tiny_classifier, images, monkeypatch):
    method, tuned, untuned = (make(name, debias, tiny_classifier, lr=lr, steps=2) for lr in (0.1, 0.1, 0.0))
    original = method.logits

    def logits(features: Tensor, context: Tensor) -> Tensor:
        if context.requires_grad:
            broken = torch.zeros_like(context)
            broken[1] = value
            context.register_hook(lambda gradient: gradient + broken)
        return original(features, context)

    monkeypatch.setattr(method, "logits", logits)
    got, expected, plain = (each.adapt(images[:3]) for each in (method, tuned, untuned))
    assert torch.equal(got[[0, 2]], expected[[0, 2]]) and not torch.equal(got[0], plain[0])
    assert torch.equal(got[1], plain[1])
    assert method.skipped_steps == 2 and tuned.skipped_steps == 0


def test_skipped_steps_are_in_the_result(tiny_classifier, images):
    method = Tent(tiny_classifier)
    stream = [(batch, torch.zeros(len(batch), dtype=torch.long)) for batch in images.split(10)]
    with poisoned(method, math.nan, 3):
        assert evaluate(method, stream).skipped_steps == 1
    assert evaluate(method, stream).skipped_steps == 0
