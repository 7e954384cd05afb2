"""One conformance suite over everything registered, and what names and options mean."""

from __future__ import annotations

import inspect
import itertools
import json
import math
import threading
from importlib import metadata

import numpy as np
import open_clip
import pytest
import torch
import torch.nn.functional as F
from conftest import TINY, TINY_OPTIONS, make_tiny
from torch import Tensor

from tta_panda import BAT, CLIP, DMN, IM, SAR, TPS, TPT, DeYO, Panda, Tent, Zero, ZeroShotClassifier
from tta_panda.errors import InvalidInputError, UnknownNameError
from tta_panda.methods import (
    METHODS,
    MethodName,
    create_method,
    list_methods,
    parse_method,
    register_method,
    register_targets,
    registered_targets,
)
from tta_panda.methods.base import FrozenMethod, Method
from tta_panda.methods.factory import build_method, debias_options, default_options, parse_setting, resolve_options
from tta_panda.methods.features import Encoded
from tta_panda.methods.presets import get_preset
from tta_panda.methods.state import load_method
from tta_panda.methods.trained import TrainedMethod
from tta_panda.models.openclip import OpenClipModel
from tta_panda.panda import Centering, Debias, Level, apply_plan, sample_plan
from tta_panda.registry import Registry

WAYS = (None, Panda())
OTHER_WAYS = (Panda(beta=0.5), Centering(half_life=20.0), Level(gate=Panda()))
PAIRS = [*itertools.product(METHODS.names(), WAYS), *itertools.product(("clip", "tent"), OTHER_WAYS)]
EVERY = [pytest.param(name, way, id=f"{name}-{way}") for name, way in PAIRS]
"""Every method plain and with Panda, and one of each kind with other ways to debias."""
every_method = pytest.mark.parametrize(("name", "debias"), EVERY)


def make(name: str, debias: Debias | None, classifier: ZeroShotClassifier, **more) -> Method:
    return METHODS.get(name)(classifier, debias=debias, **TINY_OPTIONS.get(name, {}) | more)


def stream(images: Tensor) -> list[Tensor]:
    return [images[:12], images[12:24], images[24:29]]  # the last one is short


def parameters_of(method: Method) -> dict[str, Tensor]:
    return {k: p.detach().clone() for k, p in method.adapted.items()} if isinstance(method, TrainedMethod) else {}


def all_equal(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(value, second[key]) for key, value in first.items())


@every_method
def test_methods_adapt_reset_and_leave_everything_else_alone(name, debias, tiny_classifier, images):
    untouched, text = images.clone(), tiny_classifier.class_embeddings.clone()
    weights = {key: value.clone() for key, value in tiny_classifier.model.state_dict().items()}
    method = make(name, debias, tiny_classifier)
    initial = parameters_of(method)
    first = [method.adapt(batch) for batch in stream(images)]
    for batch, logits in zip(stream(images), first, strict=True):
        assert logits.shape == (len(batch), 4) and logits.dtype == torch.float32 and not logits.requires_grad
    after = parameters_of(method)
    assert not after or not all_equal(initial, after)
    assert torch.equal(images, untouched) and torch.equal(tiny_classifier.class_embeddings, text)
    assert all_equal(tiny_classifier.model.state_dict(), weights)
    assert not any(p.requires_grad for p in tiny_classifier.model.parameters())
    method.reset()
    assert all_equal(parameters_of(method), initial)
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():  # of the caller: without effect
        again = [method.adapt(batch) for batch in stream(images)]
    assert all(map(torch.equal, first, again)) and all_equal(parameters_of(method), after)


@every_method
def test_the_callers_inference_mode_does_not_matter(name, debias, tiny_classifier, images):
    method = make(name, debias, tiny_classifier)
    batches = images[:10].split(6)
    expected = [method.adapt(batch) for batch in batches]
    with torch.inference_mode():
        made_there = make(name, debias, ZeroShotClassifier(tiny_classifier.model, tiny_classifier.class_names))
        got = [made_there.adapt(batch.clone()) for batch in batches]
    assert all(map(torch.equal, expected, got))


@pytest.mark.parametrize("name", [name for name in METHODS if issubclass(METHODS.get(name), TrainedMethod)])
def test_only_normalisation_layers_are_trained(name, tiny_classifier, images):
    method = make(name, Panda(), tiny_classifier)
    adapted = {id(p) for p in method.adapted.values()}
    before = {key: p.detach().clone() for key, p in method.model.named_parameters()}
    for batch in stream(images):
        method.adapt(batch)
    changed = {key for key, p in method.model.named_parameters() if not torch.equal(p, before[key])}
    assert changed <= {key for key, p in method.model.named_parameters() if id(p) in adapted}
    assert all(".ln_" in key for key in changed)
    image = 2 * (2 + 2 * 2)  # weight and bias of pre, post, and two in each of two blocks
    text = 2 * (1 + 2 * 2) if name == "bat" else 0
    assert len(method.adapted) == image + text
    assert 0 < sum(".visual." in key for key in changed) <= image
    assert sum(".visual." not in key for key in changed) <= text


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("name", METHODS.names())
def test_tiny_batches_finish(name, size, tiny_classifier, images):
    samplers = ("pool", "same_cell", "within_image") if name in ("clip", "tent", "deyo") else ("pool",)
    for sampler in samplers:
        panda = Panda(sampler=sampler)
        method = make(name, panda if size == 1 else Level(gate=panda), tiny_classifier)
        for start in range(0, 3 * size, size):
            assert method.adapt(images[start : start + size]).shape == (size, 4)


@pytest.mark.parametrize("name", METHODS.names())
def test_beta_zero_is_the_plain_method_exactly(name, tiny_classifier, images):
    nothing = [Panda(beta=0.0), Centering(beta=0.0), Level(gamma=0.0, gate=Panda())]
    plain, *off = (make(name, debias, tiny_classifier) for debias in (None, *nothing))
    for batch in stream(images)[1:]:
        expected = plain.adapt(batch)
        assert all(torch.equal(method.adapt(batch), expected) for method in off)
    assert all(method.passes == plain.passes for method in off)


@every_method
def test_a_saved_state_goes_on_bit_by_bit(name, debias, tiny_classifier, images, tmp_path):
    first, second, third = stream(images)
    method = make(name, debias, tiny_classifier)
    method.adapt(first)
    method.adapt(second)
    method.save(tmp_path / "state.safetensors")
    expected = method.adapt(third)
    classifier = ZeroShotClassifier(make_tiny(), tiny_classifier.class_names)
    other = load_method(tmp_path / "state.safetensors", classifier)
    assert (type(other), other.options, other.debias) == (type(method), method.options, method.debias)
    assert torch.equal(other.adapt(third), expected)
    assert all_equal(parameters_of(method), parameters_of(other))


@pytest.mark.parametrize("name", ["clip", "tent", "zero"])
def test_uint8_and_floats_and_other_sizes_are_taken(name, tiny_classifier, images):
    as_bytes = make(name, Panda(), tiny_classifier).adapt(images[:8])
    as_floats = make(name, Panda(), tiny_classifier).adapt(images[:8].float() / 255)
    torch.testing.assert_close(as_bytes, as_floats)
    larger = F.interpolate(images[:8].float() / 255, (48, 64), mode="nearest")
    assert make(name, Panda(), tiny_classifier).adapt(larger).shape == (8, 4)


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
def test_images_that_cannot_be_used_are_refused(wrong, message, tiny_classifier, images):
    with pytest.raises(InvalidInputError, match=message):
        Tent(tiny_classifier, debias=Panda()).adapt(wrong(images))


@pytest.mark.parametrize("name", METHODS.names())
def test_images_are_checked_and_prepared_once(name, tiny_classifier, images, monkeypatch):
    """Encoders get nothing but what `prepare` gave, or negatives and views of that size."""
    method = make(name, Panda(), tiny_classifier)
    prepare, encode = OpenClipModel.prepare, OpenClipModel.encode_image
    prepared = []

    def encode_prepared(model, batch):
        assert batch.dtype == torch.float32 and batch.shape[1:] == (3, 32, 32)
        with monkeypatch.context() as inside:
            inside.setattr(OpenClipModel, "prepare", prepare)
            return encode(model, batch)

    monkeypatch.setattr(
        OpenClipModel, "prepare", lambda model, batch: (prepared.append(batch), prepare(model, batch))[1]
    )
    monkeypatch.setattr(OpenClipModel, "encode_image", encode_prepared)
    method.adapt(images[:6])
    assert len(prepared) == 1


def test_image_smaller_than_a_patch_is_refused_in_words(tiny_classifier, images):
    with pytest.raises(InvalidInputError, match="32x32 px are smaller than one patch of 64x64"):
        CLIP(tiny_classifier, debias=Panda(beta=0.5, patch_size=64)).adapt(images)


def test_frozen_methods_give_the_same_from_an_encoded_batch(tiny_classifier, images):
    direct, leader, follower = (CLIP(tiny_classifier, debias=Panda(beta=beta)) for beta in (0.5, 0.2, 0.5))
    for batch in stream(images):
        encoded = leader.features.encode(leader.features.prepare(batch))
        assert isinstance(follower, FrozenMethod)
        torch.testing.assert_close(follower.adapt_encoded(encoded), direct.adapt(batch))


def test_features_encoded_by_the_caller_are_debiased(tiny_classifier):
    features, offset = F.normalize(torch.randn(5, 16), dim=1), F.normalize(torch.randn(1, 16), dim=1)
    got = CLIP(tiny_classifier, debias=Panda(beta=0.5)).adapt_encoded(Encoded(features, offset))
    torch.testing.assert_close(got, tiny_classifier.logits(features - 0.5 * offset))


def other_tiny_classifier(width: int = 16, layers: int = 2) -> ZeroShotClassifier:
    torch.manual_seed(0)
    vision = {**TINY["vision_cfg"], "layers": layers}
    clip = open_clip.CLIP(**{**TINY, "embed_dim": width, "vision_cfg": vision})
    open_clip.set_model_preprocess_cfg(clip, {"size": 32, "mean": (0.5,) * 3, "std": (0.5,) * 3})
    tokenizer = open_clip.SimpleTokenizer(context_length=77)
    return ZeroShotClassifier(OpenClipModel(clip, tokenizer, name="tiny"), ["heart", "star", "anchor", "cloud"])


def test_a_state_that_does_not_fit_is_refused_with_the_reason(tiny_classifier, images):
    fewer = ZeroShotClassifier(make_tiny(), ["heart", "star", "anchor"])
    plain, auto, fixed = (Tent(tiny_classifier, debias=panda) for panda in (None, Panda(), Panda(beta=0.5)))
    cases = [
        (CLIP(tiny_classifier), plain, "fit this Tent: method is CLIP in the state, Tent here"),
        (plain, CLIP(tiny_classifier), "fit this CLIP: method is Tent in the state, CLIP here"),
        (plain, auto, r"debias is None in the state, Panda\(beta='auto', sampler='pool'\) here"),
        (auto, plain, r"debias is Panda\(beta='auto', sampler='pool'\) in the state, None here"),
        (auto, fixed, r"debias is Panda\(beta='auto', sampler='pool'\) in the state, Panda\(beta=0.5, .*\) here"),
        (fixed, auto, r"debias is Panda\(beta=0.5, .* in the state, Panda\(beta='auto', .* here"),
        (Tent(tiny_classifier, lr=0.1), plain, "fit this Tent: lr is 0.1 in the state, 0.001 here. Create the method"),
        (Tent(tiny_classifier, skip_last_blocks=1), plain, "skip_last_blocks is 1 in the state, 0 here"),
        (Tent(fewer), plain, r"class_names is \['heart', 'star', 'anchor'\] in the state, .*'cloud'\] here"),
        (DMN(tiny_classifier), DMN(other_tiny_classifier(width=8)), "embedding_size is 16 in the state, 8 here"),
        (plain, Tent(other_tiny_classifier(layers=1)), r"image.*\.ln_1\.weight is \[32\] in the state, None here"),
        (plain, Tent(ZeroShotClassifier(make_tiny(1), tiny_classifier.class_names)), "model is [0-9a-f]+ in the state"),
        (plain, Tent(ZeroShotClassifier(make_tiny(), tiny_classifier.class_names, "{}")), "model is [0-9a-f]+ in the"),
    ]
    for saved, method, reason in cases:
        method.reset()
        before = method.adapt(images[:8])
        method.reset()
        with pytest.raises(InvalidInputError, match=reason):
            method.load_state_dict(saved.state_dict())
        assert torch.equal(method.adapt(images[:8]), before)  # nothing was loaded
    with pytest.raises(InvalidInputError, match="not what a method's state_dict"):
        plain.load_state_dict({"state": {}})


def test_a_state_can_be_loaded_again_and_again(tiny_classifier, images):
    """Loading copies: what the method does next must not reach into the state that it was given."""
    method = DMN(tiny_classifier)
    method.adapt(images[:16])
    state = method.state_dict()
    logits = [[method.load_state_dict(state), method.adapt(images[16:32])][1] for _ in range(2)]
    assert torch.equal(*logits)


def test_two_methods_on_one_model_do_not_disturb_each_other(tiny_classifier, images):
    alone = Tent(tiny_classifier, lr=0.01).adapt(images[:16])
    first, second = Tent(tiny_classifier, lr=0.01), Tent(tiny_classifier, lr=0.05)
    second.adapt(images)
    assert torch.equal(first.adapt(images[:16]), alone)


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
    assert parse_method("Tent+Panda") == MethodName("tent", "panda")
    assert str(MethodName("clip", "panda+level")) == "clip+panda+level"
    assert parse_method("cbc") == MethodName("clip", "center")
    for wrong, hint in (
        ("tnet", "'tent'"),
        ("tent+pand", "'tent+panda'"),
        ("tent+", "'tent'"),
        ("clip+levle", "'clip+level'"),
        ("clip+level+panda", "'clip+panda+level'"),
    ):
        with pytest.raises(UnknownNameError, match=hint.replace("+", r"\+")):
            parse_method(wrong)


def test_options_have_defaults_types_and_suggestions(tiny_classifier):
    name = MethodName("tent", "panda")
    options = resolve_options(
        name, dict(map(parse_setting, ["beta=0.4", "lr=2e-4", "predict_with=after", "average=false"]))
    )
    assert (options["beta"], options["lr"], options["predict_with"], options["average"]) == (0.4, 2e-4, "after", False)
    assert options["ratio"] == 0.1
    method = build_method(name, tiny_classifier, options, seed=3)
    assert isinstance(method, Tent)
    assert method.predict_with == "after"
    assert method.debias.average is False
    with pytest.raises(UnknownNameError, match="'beta'"):
        resolve_options(name, {"betta": 1})
    with pytest.raises(InvalidInputError, match="lr must be a number >= 0, got 'fast'"):
        resolve_options(name, {"lr": "fast"})
    with pytest.raises(InvalidInputError, match="predict_with must be 'before' or 'after' or None, got 'never'"):
        resolve_options(name, {"predict_with": "never"})
    with pytest.raises(InvalidInputError, match="name=value"):
        parse_setting("beta")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0.4", 0.4),
        ("0.1,0.2, 1", [0.1, 0.2, 1]),
        ("auto", "auto"),
        ('["auto", 0.5]', ["auto", 0.5]),
        ("a photo, of a", "a photo, of a"),
        ("", ""),
    ],
)
def test_settings_are_values_or_lists_of_values(text, value):
    assert parse_setting(f"option={text}") == ("option", value)


@pytest.mark.parametrize("name", METHODS.names())
def test_every_option_is_read_off_the_classes_and_can_be_recorded(name, tiny_classifier):
    options = resolve_options(MethodName(name, "panda"), {}, preset=get_preset("mini"))
    assert json.loads(json.dumps(options)) == options
    method = build_method(MethodName(name, "panda"), tiny_classifier, options, seed=1)
    panda = debias_options("panda")
    assert method.options == {key: value for key, value in options.items() if key not in panda}
    assert all(f"{key}={value!r}" in repr(method) for key, value in method.options.items())
    assert repr(method).startswith(f"{type(method).__name__}(") and repr(method).endswith("seed=1)")


def test_help_shows_constructors():
    for cls in (CLIP, Tent, TPS):
        assert next(iter(inspect.signature(cls).parameters)) == "classifier"


def test_a_derived_default_overrides_that_of_the_base():
    trained = ["skip_last_blocks", "norm_statistics", "guard", "micro_batch"]
    assert list(default_options(MethodName("tent"))) == ["predict_with", "protocol", "lr", *trained]
    assert default_options(MethodName("eta"))["lr"] == 2.5e-4
    assert default_options(MethodName("sar"))["skip_last_blocks"] is None
    assert default_options(MethodName("tps")) == {
        "lr": 5e-3,
        "steps": 1,
        "views": 64,
        "keep": 0.1,
        "augmentation": "augmix",
        "protocol": "paper",
    }


def test_arguments_that_cannot_be_used_are_refused_in_words(tiny, tiny_classifier):
    for wrong, message in (
        (lambda: Tent(tiny), r"adapt a classifier, got OpenClipModel.*make_classifier\(model, class_names\)"),
        (lambda: TPT(tiny), "adapt a classifier"),
        (lambda: BAT(tiny), "adapt a classifier"),
        (lambda: create_method("tent", tiny), "adapt a classifier"),
        (lambda: Tent(tiny_classifier, debias=0.4), r"debias=Panda\(beta=0.4\)"),
        (lambda: Tent(tiny_classifier, lr=None), "lr must be a number >= 0, got None"),
        (lambda: Tent(tiny_classifier, lr="x"), "lr must be a number >= 0, got 'x'"),
        (lambda: Tent(tiny_classifier, lr=-1), "lr must be a number >= 0"),
        (lambda: Tent(tiny_classifier, lr=math.nan), "lr must be"),
        (lambda: Tent(tiny_classifier, predict_with="later"), "'before' or 'after'"),
        (lambda: Tent(tiny_classifier, protocol="papr"), "'paper' or 'reference'"),
        (lambda: SAR(tiny), "adapt a classifier"),
        (lambda: SAR(tiny_classifier, skip_last_blocks=2), r"2 block\(s\). Pass skip_last_blocks=1 or less"),
        (lambda: SAR(tiny_classifier, optimizer="sdg"), "'adam' or 'sgd'"),
        (lambda: DeYO(tiny_classifier, grid=99), "grid must be at most 32"),
        (lambda: Zero(tiny_classifier, keep=1.5), "keep must be a number from 0 to 1"),
        (lambda: Zero(tiny_classifier, augmentation="crop"), "'augmix' or 'crops'"),
        (lambda: TPS(tiny_classifier, views=0), "views must be"),
        (lambda: TPS(tiny_classifier, steps=0), "steps must be"),
        (lambda: DMN(tiny_classifier, slots=0), "slots must be"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            wrong()
    with pytest.raises(UnknownNameError, match="option of Tent 'learning_rate'"):
        Tent(tiny_classifier, learning_rate=1e-3)


def test_equal_options_are_the_same_however_they_are_written(tiny_classifier):
    first, second = (
        resolve_options(MethodName("tent", "panda"), {"beta": beta, "lr": lr}) for beta, lr in ((1, 0), (1.0, 0.0))
    )
    assert json.dumps(first) == json.dumps(second) and '"beta": 1.0' in json.dumps(first)
    method = Tent(tiny_classifier, lr=1, debias=Panda(beta=1))
    assert json.dumps(method.options) == json.dumps(Tent(tiny_classifier, lr=1.0).options)
    assert repr(method.debias) == "Panda(beta=1.0, sampler='pool')"


def test_a_method_has_the_options_of_its_bases(tiny_classifier):
    assert default_options(MethodName("im")).keys() == default_options(MethodName("tent")).keys() | {"diversity"}
    assert IM(tiny_classifier, predict_with="after").options["predict_with"] == "after"


# --- beta -----------------------------------------------------------------------------------------------------------


def test_beta_can_be_read_and_set(tiny_classifier, images):
    assert CLIP(tiny_classifier).beta is None
    with pytest.raises(InvalidInputError, match=r"debias=Panda\(beta=0.4\)"):
        CLIP(tiny_classifier).beta = 0.4
    method = CLIP(tiny_classifier, debias=Panda())
    assert method.beta is None  # none was chosen yet
    method.adapt(images[:16])
    assert 0 <= method.beta <= 1
    for beta in (0.7, 0.0, 0.3):
        method.beta = beta
        method.reset()
        assert method.beta == beta
        assert torch.equal(method.adapt(images[:16]), CLIP(tiny_classifier, debias=Panda(beta=beta)).adapt(images[:16]))
    method.beta = "auto"
    method.reset()
    assert torch.equal(method.adapt(images[:16]), CLIP(tiny_classifier, debias=Panda()).adapt(images[:16]))
    with pytest.raises(InvalidInputError, match="beta must be"):
        method.beta = -1


def test_beta_is_set_between_batches(tiny_classifier, images):
    method = CLIP(tiny_classifier, debias=Panda())
    setting = threading.Thread(target=setattr, args=(method, "beta", 0.5))
    with method._lock:  # as while a batch is at work
        setting.start()
        setting.join(0.2)
        assert setting.is_alive() and method.debias.beta == "auto"
    setting.join()
    assert method.beta == method.debias.beta == 0.5


@pytest.mark.parametrize("protocol", ["paper", "reference"])
@pytest.mark.parametrize("name", METHODS.names())
def test_auto_sees_every_batch_once(name, protocol, tiny_classifier, images):
    method = make(name, Panda(), tiny_classifier, protocol=protocol)
    expected = 0.0
    for batch in stream(images):
        method.adapt(batch)
        expected = expected * 0.5 ** (len(batch) / 200) + len(batch)
    assert method.features.debiaser.auto.offset.weight == pytest.approx(expected)


def test_methods_that_share_an_encoded_batch_have_a_beta_each(tiny_classifier, images):
    methods = [CLIP(tiny_classifier, debias=Panda(beta=beta)) for beta in (0.2, 0.9, "auto")]
    encoded = methods[0].features.encode(methods[0].features.prepare(images[:16]))
    for method in methods:
        expected = CLIP(tiny_classifier, debias=method.debias).adapt(images[:16])
        torch.testing.assert_close(method.adapt_encoded(encoded), expected)


def test_the_protocol_says_how_negatives_are_drawn(tiny_classifier):
    for protocol, sampler in (("paper", "pool"), ("reference", "same_cell")):
        assert CLIP(tiny_classifier, debias=Panda(), protocol=protocol).debias.sampler == sampler
        assert resolve_options(MethodName("clip", "panda"), {"protocol": protocol})["sampler"] == sampler
        chosen = Panda(sampler="within_image")
        assert CLIP(tiny_classifier, debias=chosen, protocol=protocol).debias.sampler == "within_image"


# --- methods of one's own -------------------------------------------------------------------------------------------


class Mine(TrainedMethod):
    """As a user would write one: its own options, and nothing about Panda, seeds or state."""

    lr: float = 0.01
    power: int = 2

    def _adapt(self, batch):
        logits = self.classify(self.encode(batch))
        self.step(-logits.softmax(dim=1).pow(self.power).sum(dim=1).mean())
        return logits


def test_a_method_of_ones_own_works_by_name(registered, tiny_classifier, images):
    register_method("mine", Mine)
    assert {"mine", "mine+panda", "mine+panda+level"} <= set(list_methods("mine*"))
    assert default_options(MethodName("mine")) == {
        "lr": 0.01,
        "power": 2,
        "skip_last_blocks": 0,
        "norm_statistics": None,
        "guard": False,
        "micro_batch": None,
        "protocol": "paper",
    }
    method = create_method("mine+panda", tiny_classifier, beta=0.5, power=3, preset="cifar10-c", patch_size=8)
    assert method.options["power"] == 3
    before = method.adapt(images[:16])
    assert not torch.equal(method.adapt(images[:16]), before)
    assert method.weights.optimizer.param_groups[0]["lr"] == 0.01
    method.load_state_dict(method.state_dict())
    with pytest.raises(InvalidInputError, match=r"power must be a whole number, got 2.5"):
        create_method("mine", tiny_classifier, power=2.5)


def test_registrations_reach_other_processes_by_their_module(registered):
    register_method("mine", Mine)
    register_method("later", "package.that.is.absent:Mine")
    assert registered_targets(["mine", "later", "tent"]) == {
        "mine": f"{__name__}:Mine",
        "later": "package.that.is.absent:Mine",
    }
    register_method("mine", f"{__name__}:Mine")  # as a worker does, whether it knows the method or not
    with pytest.raises(InvalidInputError, match=r"'later' cannot be imported from 'package.that.is.absent:Mine'"):
        METHODS.get("later")

    class Local(Mine):
        pass

    register_method("local", Local)
    assert METHODS.get("local") is Local
    with pytest.raises(InvalidInputError, match="'local' was defined in a script"):
        register_targets(registered_targets(["local"]))  # as a worker does
    assert registered_targets(["tent"]) == {}  # a method that is not used does not stand in the way


def test_what_cannot_be_registered_says_why(registered, tiny_classifier):
    class Required(Mine):
        rate: float

    class Shared(TrainedMethod):
        ratio: float = 1.0

    with pytest.raises(InvalidInputError, match="Closed defines __init__"):

        class Closed(Mine):
            def __init__(self, classifier):
                super().__init__(classifier)

    for name, method, message in (
        ("mine", Required, "option rate of Required has no default"),
        ("mine", Shared, "the same names as options of the debiasing: ratio"),
        ("mine", dict, "derived from tta_panda.FrozenMethod or tta_panda.TrainedMethod"),
        ("tent", Mine, "registered already"),
        ("Mine", Mine, "lower case"),
        ("mine+panda", Mine, r"without '\+'"),
        ("", Mine, "not a name"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            register_method(name, method)
    assert Required(tiny_classifier, rate=2.0).options["rate"] == 2.0  # it can be used all the same, without a name


def test_installed_packages_add_methods_by_entry_points(monkeypatch):
    point = metadata.EntryPoint("mine", f"{__name__}:Mine", "tta_panda.methods")
    double = metadata.EntryPoint("tent", f"{__name__}:Mine", "tta_panda.methods")
    monkeypatch.setattr(metadata, "entry_points", lambda group: [point, double])
    registry = Registry("method", {"tent": "tta_panda.methods.tent:Tent"}, entry_points="tta_panda.methods")
    assert list(registry) == ["tent", "mine"]
    assert registry.get("mine") is Mine
    assert registry.get("tent") is Tent
    with pytest.raises(UnknownNameError, match="'mine'"):
        registry.get("mien")


def test_methods_are_created_by_name_with_the_models_preset(tiny_classifier, monkeypatch):
    assert create_method("sar", tiny_classifier, skip_last_blocks=0).options["optimizer"] == "sgd"
    assert create_method("tent+panda", tiny_classifier, preset="cifar10-c", beta="auto", patch_size=8).lr == 2e-4
    monkeypatch.setattr(tiny_classifier.model, "preset", "mini", raising=False)
    method = create_method("sar+panda", tiny_classifier, protocol="reference", seed=4, rho=0.1)
    assert (method.options["optimizer"], method.rho, method.features.seed) == ("adam", 0.1, 4)
    assert method.debias == Panda(sampler="same_cell")
    assert list_methods("*+panda") == [f"{name}+panda" for name in METHODS]
    assert len(list_methods()) == 6 * len(list(METHODS))


def test_an_unknown_attribute_is_refused(tiny_classifier):
    method = CLIP(tiny_classifier, debias=Panda(beta=0.5))
    with pytest.raises(UnknownNameError, match="Did you mean 'beta'"):
        method.betaa = 3
    method.beta = 0.3
    assert method.beta == 0.3
