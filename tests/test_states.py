"""States of methods in files: exact, complete, and refused with a reason where they are damaged or do not fit."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from conftest import make_tiny
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from safetensors import safe_open
from safetensors.torch import save_file

from tta_panda import CLIP, ETA, FrozenMethod, Panda, Tent, ZeroShotClassifier
from tta_panda.errors import InvalidInputError, StoreError
from tta_panda.methods.state import _FORMAT, _digest, load_method, read_state, write_state

PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
TENSORS = arrays.arrays(
    st.sampled_from([np.uint8, np.int64, np.float32, np.float64, np.bool_]), arrays.array_shapes(min_dims=0, min_side=0)
).map(torch.from_numpy)
NESTED = st.recursive(
    PLAIN | TENSORS,
    lambda inner: st.lists(PLAIN, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def same(a: object, b: object) -> bool:
    """Equal to the last bit, and of the same types."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and a.numpy().tobytes() == b.numpy().tobytes()
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b or (a != a and b != b)


@pytest.fixture(scope="module")
def method() -> Tent:
    classifier = ZeroShotClassifier(make_tiny(), ["heart", "star", "anchor"])
    return Tent(classifier, lr=0.01, debias=Panda(beta="auto", ratio=0.5), seed=7)


@pytest.fixture
def saved(method, images, tmp_path):
    method.reset()
    method.adapt(images[:8])
    path = tmp_path / "state.safetensors"
    method.save(path)
    return path


@given(facts=st.dictionaries(st.text(), NESTED, max_size=3))
@settings(max_examples=20, deadline=None)
def test_whatever_a_state_may_hold_comes_back_exactly(method, facts, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "any.state"
    expected = method.state_dict()
    write_state(path, method, facts)
    state, read = read_state(path)
    assert same(read, facts) and same(state, expected)


def test_the_file_names_its_tensors_and_holds_json(method, saved):
    with safe_open(saved, "pt") as file:
        names, metadata = set(file.keys()), file.metadata()
    weights = ["state", "state", "weights", "optimizer"]
    paths = [json.loads(name) for name in names]
    assert ["state", "state", "features", "debiaser", "generator"] in paths
    assert [*weights, next(iter(method.adapted)), "exp_avg"] in paths
    assert json.loads(metadata["content"])


def test_a_loaded_method_is_the_saved_one_also_after_a_reset(method, saved, images):
    expected = method.adapt(images[8:16])
    method.reset()
    afresh = method.adapt(images[:8])
    loaded = load_method(saved, ZeroShotClassifier(make_tiny(), method.classifier.class_names))
    assert repr(loaded) == repr(method)
    assert torch.equal(loaded.adapt(images[8:16]), expected)
    loaded.reset()
    assert torch.equal(loaded.adapt(images[:8]), afresh)


def test_another_model_of_the_same_architecture_is_refused(method, saved):
    with pytest.raises(InvalidInputError, match=r"model is .* in the state, .* here"):
        load_method(saved, ZeroShotClassifier(make_tiny(seed=1), method.classifier.class_names))
    with pytest.raises(InvalidInputError, match="class_names is"):
        load_method(saved, ZeroShotClassifier(make_tiny(), ["heart", "star", "cloud"]))


def test_damaged_foreign_and_missing_files_are_refused(method, saved, tmp_path):
    whole, broken = saved.read_bytes(), tmp_path / "broken"
    flipped = bytearray(whole)
    flipped[-5] ^= 1
    edited = whole.replace(b'lr\\": 0.01', b'lr\\": 0.02', 1)
    assert edited != whole
    for content, reason in {
        b"": "not a saved method state",
        whole[:-1]: "not a saved method state",
        whole[:100]: "not a saved method state",
        b"PK" + whole: "not a saved method state",
        bytes(flipped): "damaged",
        edited: "damaged",
    }.items():
        broken.write_bytes(content)
        with pytest.raises(StoreError, match=reason):
            load_method(broken, method.classifier)
    save_file({"weight": torch.zeros(2)}, broken)
    with pytest.raises(StoreError, match="not a saved method state"):
        read_state(broken)
    save_file({"weight": torch.zeros(2)}, broken, metadata={"format": "pt"})
    with pytest.raises(StoreError, match="'pt'; expected 'tta-panda state"):
        read_state(broken)
    for forged in (
        "[" * 100_000,
        '{"dict": []}',
        '{"tensor": "absent"}',
        "7",
        '{"tuple": 5}',
        '{"a": 1, "b": 2}',
        "no JSON",
    ):
        facts = {"format": _FORMAT, "content": forged, "digest": _digest(forged, {})}
        save_file({}, broken, metadata=facts)
        with pytest.raises(StoreError, match="not a saved method state"):
            load_method(broken, method.classifier)
    with pytest.raises(StoreError, match="No such file"):
        read_state(tmp_path / "absent")


def test_a_state_that_cannot_be_written_leaves_the_old_file(method, saved):
    before = saved.read_bytes()
    with pytest.raises(InvalidInputError, match="of type object"):
        write_state(saved, method, {"when": object()})
    assert saved.read_bytes() == before
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]


def test_methods_that_are_not_registered_load_into_an_object(tiny_classifier, images, tmp_path):
    class Mine(FrozenMethod):
        def _adapt(self, encoded):
            return self.classifier.logits(encoded.debiased)

    mine = Mine(tiny_classifier, debias=Panda())
    mine.adapt(images[:8])
    write_state(tmp_path / "mine", mine, {"images": 8})
    with pytest.raises(StoreError, match="state of Mine, which was not registered"):
        load_method(tmp_path / "mine", tiny_classifier)
    state, facts = read_state(tmp_path / "mine")
    other = Mine(tiny_classifier, debias=Panda())
    other.load_state_dict(state)
    assert facts == {"images": 8}
    assert torch.equal(other.adapt(images[8:16]), mine.adapt(images[8:16]))


def test_the_hash_of_a_model_is_made_once(tiny_classifier, monkeypatch):
    calls = []
    monkeypatch.setattr("tta_panda.models.base.weights_hash", lambda _: calls.append(1) or "0")
    first, second = ETA(tiny_classifier), CLIP(tiny_classifier)
    for _ in range(3):
        first.load_state_dict(first.state_dict())
        second.state_dict()
    assert len(calls) == 1
