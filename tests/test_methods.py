"""One conformance suite over everything registered, and Tent against an independent reference."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import make_tiny
from torch import Tensor

from tta_panda import CLIP, Panda, Tent, ZeroShotClassifier
from tta_panda.errors import InvalidInputError, UnknownNameError
from tta_panda.methods import METHODS, MethodName, parse_method
from tta_panda.methods.base import FrozenMethod, Method, TrainedMethod
from tta_panda.methods.options import build_method, parse_setting, resolve_options
from tta_panda.panda import Encoded, apply_plan, sample_plan

BETAS = (None, 0.5, "auto")
EVERY = [pytest.param(name, beta, id=f"{name}-{beta}") for name, beta in itertools.product(METHODS.names(), BETAS)]
every_method = pytest.mark.parametrize(("name", "beta"), EVERY)


LENIENT = {"eta": {"margin": 1.0}, "sar": {"margin": 1.0}}
"""The tiny model is so unsure that the filters of some methods would let nothing pass."""


def make(name: str, beta, classifier: ZeroShotClassifier, **more) -> Method:
    options = LENIENT.get(name, {}) | more
    return METHODS.get(name)(classifier, debias=None if beta is None else Panda(beta=beta), **options)


def stream(images: Tensor) -> list[Tensor]:
    return [images[:16], images[16:32], images[32:37]]  # the last one is short


def parameters_of(method: Method) -> dict[str, Tensor]:
    return {k: p.detach().clone() for k, p in method.adapted.items()} if isinstance(method, TrainedMethod) else {}


@every_method
def test_logits_are_finite_float32_of_the_right_shape(name, beta, tiny_classifier, images):
    method = make(name, beta, tiny_classifier)
    for batch in stream(images):
        logits = method.adapt(batch)
        assert logits.shape == (len(batch), 4)
        assert logits.dtype == torch.float32
        assert logits.isfinite().all()
        assert not logits.requires_grad


@every_method
def test_reset_brings_back_the_beginning_bit_by_bit(name, beta, tiny_classifier, images):
    method = make(name, beta, tiny_classifier)
    initial = parameters_of(method)
    first = [method.adapt(batch) for batch in stream(images)]
    after = parameters_of(method)
    method.reset()
    assert all(torch.equal(value, initial[key]) for key, value in parameters_of(method).items())
    again = [method.adapt(batch) for batch in stream(images)]
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert all(torch.equal(value, after[key]) for key, value in parameters_of(method).items())


@every_method
def test_neither_inputs_nor_the_callers_model_change(name, beta, tiny_classifier, images):
    untouched = images.clone()
    weights = {key: value.clone() for key, value in tiny_classifier.model.state_dict().items()}
    text = tiny_classifier.text_features.clone()
    method = make(name, beta, tiny_classifier)
    for batch in stream(images):
        method.adapt(batch)
    assert torch.equal(images, untouched)
    assert torch.equal(tiny_classifier.text_features, text)
    assert all(torch.equal(value, weights[key]) for key, value in tiny_classifier.model.state_dict().items())
    assert not any(p.requires_grad for p in tiny_classifier.model.parameters())


@every_method
def test_only_normalisation_layers_of_the_image_encoder_are_trained(name, beta, tiny_classifier, images):
    method = make(name, beta, tiny_classifier)
    if not isinstance(method, TrainedMethod):
        pytest.skip("frozen")
    adapted = {id(p) for p in method.adapted.values()}
    before = {key: p.detach().clone() for key, p in method.model.named_parameters()}
    for batch in stream(images):
        method.adapt(batch)
    changed = {key for key, p in method.model.named_parameters() if not torch.equal(p, before[key])}
    assert changed
    assert changed <= {key for key, p in method.model.named_parameters() if id(p) in adapted}
    assert all(".ln_" in key for key in changed)
    image = 2 * (2 + 2 * 2)  # weight and bias of pre, post, and two in each of two blocks
    text = 2 * (1 + 2 * 2) if name == "bat" else 0
    assert len(method.adapted) == image + text
    assert sum(".visual." in key for key in changed) <= image
    assert sum(".visual." not in key for key in changed) <= text


@every_method
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_the_callers_gradient_mode_does_not_matter(name, beta, mode, tiny_classifier, images):
    method = make(name, beta, tiny_classifier)
    expected = [method.adapt(batch) for batch in stream(images)]
    with mode():
        classifier = ZeroShotClassifier(tiny_classifier.model, tiny_classifier.class_names)
        made_there = make(name, beta, classifier)
        got = [made_there.adapt(batch.clone()) for batch in stream(images)]
    assert all(torch.equal(a, b) for a, b in zip(expected, got, strict=True))


@every_method
@pytest.mark.parametrize("size", [1, 2])
def test_tiny_batches_finish(name, beta, size, tiny_classifier, images):
    for sampler in ("pool", "same_cell", "within_image"):
        debias = None if beta is None else Panda(beta=beta, sampler=sampler)
        method = METHODS.get(name)(tiny_classifier, debias=debias)
        for start in range(0, 4 * size, size):
            assert method.adapt(images[start : start + size]).isfinite().all()


@pytest.mark.parametrize("name", METHODS.names())
def test_beta_zero_is_the_plain_method_exactly(name, tiny_classifier, images):
    plain, off = make(name, None, tiny_classifier), make(name, 0.0, tiny_classifier)
    for batch in stream(images):
        assert torch.equal(plain.adapt(batch), off.adapt(batch))


@every_method
def test_a_saved_state_goes_on_bit_by_bit(name, beta, tiny_classifier, images, tmp_path):
    first, second, third = stream(images)
    method = make(name, beta, tiny_classifier)
    method.adapt(first)
    method.adapt(second)
    torch.save(method.state_dict(), tmp_path / "state.pt")
    expected = method.adapt(third)
    other = make(name, beta, ZeroShotClassifier(make_tiny(), tiny_classifier.class_names))
    other.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert torch.equal(other.adapt(third), expected)
    assert all(torch.equal(value, parameters_of(method)[key]) for key, value in parameters_of(other).items())


@every_method
def test_uint8_and_floats_and_other_sizes_are_taken(name, beta, tiny_classifier, images):
    as_bytes = make(name, beta, tiny_classifier).adapt(images[:8])
    as_floats = make(name, beta, tiny_classifier).adapt(images[:8].float() / 255)
    torch.testing.assert_close(as_bytes, as_floats)
    larger = F.interpolate(images[:8].float() / 255, (48, 64), mode="nearest")
    assert make(name, beta, tiny_classifier).adapt(larger).shape == (8, 4)


@every_method
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda x: x.numpy(), "torch.Tensor"),
        (lambda x: x[0], r"images\[None\]"),
        (lambda x: x.permute(0, 2, 3, 1), "permute"),
        (lambda x: x[:, :1], r"\(B, 3, H, W\)"),
        (lambda x: x[:0], "empty"),
        (lambda x: x.long(), "uint8"),
        (lambda x: x.float(), r"\[0, 1\]"),
        (lambda x: torch.full_like(x, torch.nan, dtype=torch.float), "NaN"),
    ],
    ids=["numpy", "no batch", "channels last", "grey", "empty", "int64", "0-255", "nan"],
)
def test_images_that_cannot_be_used_are_refused(name, beta, wrong, message, tiny_classifier, images):
    with pytest.raises(InvalidInputError, match=message):
        make(name, beta, tiny_classifier).adapt(wrong(images))


def test_image_smaller_than_a_patch_is_refused_in_words(tiny_classifier, images):
    with pytest.raises(InvalidInputError, match="32x32 px are smaller than one patch of 64x64"):
        CLIP(tiny_classifier, debias=Panda(beta=0.5, patch_size=64)).adapt(images)


def test_frozen_methods_give_the_same_from_an_encoded_batch(tiny_classifier, images):
    direct, leader, follower = (CLIP(tiny_classifier, debias=Panda(beta=beta)) for beta in (0.5, 0.2, 0.5))
    for batch in stream(images):
        encoded = leader.features.encode_frozen(batch)
        assert isinstance(follower, FrozenMethod)
        torch.testing.assert_close(follower.adapt_encoded(encoded), direct.adapt(batch))


def test_features_encoded_by_the_caller_are_debiased(tiny_classifier):
    features, offset = F.normalize(torch.randn(5, 16), dim=1), F.normalize(torch.randn(1, 16), dim=1)
    got = CLIP(tiny_classifier, debias=Panda(beta=0.5)).adapt_encoded(Encoded(features, offset))
    torch.testing.assert_close(got, tiny_classifier.logits(features - 0.5 * offset))


def test_the_state_of_another_method_is_refused(tiny_classifier):
    plain, panda, tent = CLIP(tiny_classifier), CLIP(tiny_classifier, debias=Panda()), Tent(tiny_classifier)
    for method, other in ((plain, tent), (tent, plain), (plain, panda), (panda, plain)):
        with pytest.raises(InvalidInputError, match="another method"):
            method.load_state_dict(other.state_dict())


def test_two_methods_on_one_model_do_not_disturb_each_other(tiny_classifier, images):
    alone = [Tent(tiny_classifier, lr=0.01).adapt(batch) for batch in stream(images)[:1]]
    first, second = Tent(tiny_classifier, lr=0.01), Tent(tiny_classifier, lr=0.05)
    second.adapt(images)
    assert torch.equal(first.adapt(images[:16]), alone[0])


# --- Tent against straight-line code -------------------------------------------------------------------------------


def reference_tent(classifier, batches, lr, beta, predict, seed=0):
    """Adam written out, gradients by autograd on a model of its own."""
    model = make_tiny()
    trained = [p for key, p in model.named_parameters() if ".visual." in key and ".ln_" in key]
    for parameter in trained:
        parameter.requires_grad_(True)
    means = [torch.zeros_like(p) for p in trained]
    squares = [torch.zeros_like(p) for p in trained]
    draws = torch.Generator().manual_seed(seed)
    outputs = []
    for step, batch in enumerate(batches, start=1):
        x = batch.float() / 255
        negatives = x[:0]
        if beta:
            negatives = apply_plan(x, sample_plan("pool", x, 8, -(-len(x) // 10), draws))

        def forward(x=x, negatives=negatives):
            v = model.encode_image(x)
            v = v / v.norm(dim=1, keepdim=True)
            if beta:
                n = model.encode_image(negatives)
                v = v - beta * (n / n.norm(dim=1, keepdim=True)).mean(0)
            return classifier.logit_scale * v @ classifier.text_features.T

        z = forward()
        p = z.softmax(1)
        loss = -(p * p.log()).sum(1).mean()
        gradients = torch.autograd.grad(loss, trained)
        with torch.no_grad():
            for i, (parameter, g) in enumerate(zip(trained, gradients, strict=True)):
                means[i] = 0.9 * means[i] + 0.1 * g
                squares[i] = 0.999 * squares[i] + 0.001 * g**2
                corrected = means[i] / (1 - 0.9**step)
                parameter -= lr * corrected / ((squares[i] / (1 - 0.999**step)).sqrt() + 1e-8)
        outputs.append(forward().detach() if predict == "after" else z.detach())
    return outputs


@pytest.mark.parametrize("beta", [0, 0.6])
@pytest.mark.parametrize("predict", ["before", "after"])
def test_tent_equals_an_independent_reference(beta, predict, tiny_classifier, images):
    method = Tent(tiny_classifier, lr=1e-2, predict=predict, debias=Panda(beta=beta))
    expected = reference_tent(tiny_classifier, stream(images), 1e-2, beta, predict)
    for batch, reference in zip(stream(images), expected, strict=True):
        torch.testing.assert_close(method.adapt(batch), reference, atol=1e-4, rtol=1e-4)


def test_clip_equals_numpy(tiny_classifier, images):
    x = images[:20].float() / 255
    draws = torch.Generator().manual_seed(0)
    negatives = apply_plan(x, sample_plan("pool", x, 8, 2, draws))
    with torch.no_grad():
        f = tiny_classifier.model.encode_image(x).numpy()
        n = tiny_classifier.model.encode_image(negatives).numpy()
        t = tiny_classifier.model.encode_text([f"a photo of a {c}." for c in tiny_classifier.class_names]).numpy()
    v, n, t = (a / np.linalg.norm(a, axis=1, keepdims=True) for a in (f, n, t))
    expected = tiny_classifier.logit_scale * (v - 0.4 * n.mean(0)) @ t.T
    got = CLIP(tiny_classifier, debias=Panda(beta=0.4)).adapt(images[:20])
    np.testing.assert_allclose(got, expected, atol=1e-4)


# --- names and options ----------------------------------------------------------------------------------------------


def test_names_are_parsed_and_suggested():
    assert parse_method("Tent+Panda") == MethodName("tent", True)
    assert str(MethodName("clip", True)) == "clip+panda"
    for wrong, hint in (("tnet", "'tent'"), ("tent+pand", "'tent+panda'"), ("tent+", "'tent'")):
        with pytest.raises(UnknownNameError, match=hint.replace("+", r"\+")):
            parse_method(wrong)


def test_options_have_defaults_types_and_suggestions(tiny_classifier):
    name = MethodName("tent", True)
    options = resolve_options(name, dict(map(parse_setting, ["beta=0.4", "lr=2e-4", "predict=after", "average=false"])))
    assert (options["beta"], options["lr"], options["predict"], options["average"]) == (0.4, 2e-4, "after", False)
    assert options["ratio"] == 0.1
    method = build_method(name, tiny_classifier, options, seed=3)
    assert isinstance(method, Tent)
    assert method.predict == "after"
    assert method.features.debiaser.panda.average is False
    with pytest.raises(UnknownNameError, match="'beta'"):
        resolve_options(name, {"betta": 1})
    with pytest.raises(InvalidInputError, match="lr cannot be 'fast'"):
        resolve_options(name, {"lr": "fast"})
    with pytest.raises(InvalidInputError, match="predict cannot be 'never'"):
        resolve_options(name, {"predict": "never"})
    with pytest.raises(InvalidInputError, match="name=value"):
        parse_setting("beta")


def test_constructors_refuse_what_they_cannot_use(tiny_classifier):
    with pytest.raises(InvalidInputError, match="before"):
        Tent(tiny_classifier, predict="later")
    with pytest.raises(InvalidInputError, match="lr"):
        Tent(tiny_classifier, lr=-1)
