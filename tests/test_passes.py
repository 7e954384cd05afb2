"""What methods send through the encoders, as they count it themselves and as the encoder sees it."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from conftest import TINY_OPTIONS, make_tiny

from tta_panda import CLIP, DMN, SAR, TPS, TPT, DeYO, Panda, Tent, Zero, ZeroShotClassifier
from tta_panda.data import load_data
from tta_panda.data.stream import Stream
from tta_panda.evaluation.loop import run_stream
from tta_panda.methods import METHODS, MethodName, create_method, parse_method
from tta_panda.methods.base import BatchSize, EncoderPasses
from tta_panda.methods.factory import default_options, expected_passes, resolve_options
from tta_panda.methods.sharing import SharedFeatures

B, M, K, V = 20, 2, 4, 4

VIEWS = {"views": V, "keep": 0.25}
OPTIONS = TINY_OPTIONS | {"tpt": VIEWS, "zero": VIEWS, "tps": VIEWS, "vte": VIEWS, "mta": {"views": V}}
OPTIONS |= dict.fromkeys(("dota", "boostadapter", "dpe"), VIEWS)
OPTIONS |= {"rotta": {"capacity": 1}, "cliptta": {"steps": 2, "slots": 1}}  # memories that are full after a batch

CASES = [
    *((name, {}) for name in METHODS),
    *((f"{name}+panda", {"protocol": protocol}) for name in METHODS for protocol in ("paper", "reference")),
    ("clip+level", {}),
    ("tent+panda+level", {}),
    ("tent+panda", {"predict_with": "after"}),
    ("mint+panda", {"guard": True}),
    ("deyo", {"destroy": "none"}),
    ("tpt", {"steps": 2}),
]


@pytest.fixture
def encoded(monkeypatch) -> Counter:
    """Images that really enter the image encoder, by whether a graph is recorded."""
    seen: Counter = Counter()
    model = make_tiny()
    original = type(model).encode_image

    def counted(self, images):
        features = original(self, images)
        seen["images_with_gradient" if features.requires_grad else "images"] += len(images)
        seen["calls"] += 1
        return features

    monkeypatch.setattr(type(model), "encode_image", counted)
    return seen


def make(name: str, classifier: ZeroShotClassifier, **more):
    parsed = parse_method(name)
    settings = OPTIONS.get(parsed.base, {}) | ({"beta": 0.5} if parsed.debias == "panda" else {})
    return create_method(name, classifier, **settings, **more)


@pytest.mark.parametrize(("name", "options"), CASES, ids=str)
def test_declared_passes_are_those_of_a_batch(name, options, tiny_classifier, images, encoded):
    method = make(name, tiny_classifier, **options)
    method.adapt(images[:B])
    parsed = parse_method(name)
    used = resolve_options(parsed, {"beta": 0.5} if parsed.debias == "panda" else {}) | method.options
    declared = expected_passes(parsed, used, B, K)
    if parsed.base in ("roid", "cliptta"):  # some images are never diverse; of one class there is none in memory
        assert B < method.passes.images_with_gradient < declared.images_with_gradient
        declared.images_with_gradient = method.passes.images_with_gradient
    if parsed.base == "clipartt":  # captions repeat
        assert 1 < method.passes.texts < declared.texts
        declared.texts = method.passes.texts
    assert method.passes == declared
    assert (encoded["images"], encoded["images_with_gradient"]) == (declared.images, declared.images_with_gradient)
    method.reset()
    assert method.passes == EncoderPasses()


def test_passes_in_numbers():
    """Of one batch, if all images are kept: images, images with gradient, texts, texts with gradient."""
    size = BatchSize(B, M, K, templates=3)
    for name, expected in {
        "clip": (B + M, 0, 0, 0),
        "tent": (0, B + M, 0, 0),
        "sar": (0, 2 * (B + M), 0, 0),
        "deyo": (B, B + M, 0, 0),
        "tpt": (64 * B + M, 0, B * K, B * K),
        "bat": (0, B + M, 0, 3 * K),
        "mint": (B + M, B + M, 0, 0),
        "clipartt": (B + M, 10 * (B + M), 10 * B, 0),
        "watt": (B + M, 80 * (B + M), 0, 0),
    }.items():
        assert METHODS.get(name).expected_passes(size, default_options(MethodName(name))) == EncoderPasses(1, *expected)


def test_tent_with_panda_is_one_forward_and_one_backward(tiny_classifier, images, encoded, monkeypatch):
    backwards = []
    original = torch.Tensor.backward
    monkeypatch.setattr(torch.Tensor, "backward", lambda loss: (backwards.append(loss), original(loss)))
    Tent(tiny_classifier, debias=Panda(beta=0.5)).adapt(images[:B])
    assert encoded["calls"] == len(backwards) == 1


def test_the_second_pass_of_sar_is_of_kept_images_and_negatives(tiny_classifier, images, encoded):
    method = SAR(tiny_classifier, margin=0.985, skip_last_blocks=0, debias=Panda(beta=0.6))
    logits = method.adapt(images[:B])
    margin = 0.985 * torch.tensor(4.0).log()
    kept = int((torch.distributions.Categorical(logits=logits).entropy() < margin).sum())
    assert 0 < kept < B
    assert encoded["images_with_gradient"] == B + M + kept + M


def test_images_kept_by_deyo_alone_are_destroyed(tiny_classifier, images, encoded):
    method = DeYO(tiny_classifier, filter_margin=1.37)
    logits = method.adapt(images[:B])
    kept = int((torch.distributions.Categorical(logits=logits).entropy() < 1.37).sum())
    assert 0 < kept < B
    assert encoded["images"] == kept


@pytest.mark.parametrize("name", [f"{n}+panda" for n in ("clip", "dmn", "zero", "tps", "tpt", "tda", "oga", "stata")])
def test_frozen_methods_record_no_graph_of_images(name, tiny_classifier, images, encoded):
    for parameter in tiny_classifier.model.parameters():
        parameter.requires_grad_(True)  # even where the caller's model could be trained
    make(name, tiny_classifier).adapt(images[:B])
    assert encoded["images_with_gradient"] == 0


def test_shared_passes_are_counted_as_if_alone(mini_classifier):
    stream = Stream(load_data("glyphs-val-c", "fog", limit=20), 10, seed=0)
    debias = Panda(beta=0.5)
    methods = [
        CLIP(mini_classifier),
        DMN(mini_classifier, debias=debias),
        *(make_of(mini_classifier, debias=debias, **VIEWS) for make_of in (Zero, TPS, TPT)),
    ]
    together = [evaluation.passes for evaluation in run_stream(methods, stream)]
    alone = [run_stream([method], stream)[0].passes for method in methods]
    assert together == alone
    assert together[0] == EncoderPasses(2, 20, 0, 0, 0)
    assert together[1] == EncoderPasses(2, 22, 0, 0, 0)


def test_shared_views_have_the_seed_of_the_method_that_asks_for_them(mini_classifier, images):
    first, viewing, alone = CLIP(mini_classifier, seed=1), *(Zero(mini_classifier, seed=2, views=4) for _ in range(2))
    shared = SharedFeatures([first.features, viewing.features]).encode(images[:4])
    encoded, _ = shared.part_for(viewing.features)
    expected = alone.features.encode(alone.features.prepare(images[:4]))
    torch.testing.assert_close(encoded.views, expected.views, atol=1e-5, rtol=1e-4)
