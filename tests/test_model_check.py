"""The checker of models of one's own, and the example of one."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest
import torch
from torch import nn

from tta_panda import ZeroShotClassifier, check_model
from tta_panda.errors import InvalidInputError, UnsupportedModelError
from tta_panda.methods import METHODS
from tta_panda.methods.trained import TrainedMethod
from tta_panda.models.prepare import fit_images

TRAINED = [name for name in METHODS if issubclass(METHODS.get(name), TrainedMethod)]
EXAMPLE = Path(__file__).parents[1] / "examples" / "own_encoder.py"


@pytest.fixture
def example() -> nn.Module:
    """The model of examples/own_encoder.py, which docs/models.md shows."""
    made = runpy.run_path(str(EXAMPLE))["MyModel"]
    wrapper = re.search(r"^class MyModel.*?(?=^\S)", EXAMPLE.read_text(encoding="utf-8"), re.S | re.M)[0]
    assert len([line for line in wrapper.splitlines()[1:] if line.strip()]) <= 35
    torch.manual_seed(0)
    return made()


def test_methods_run_with_the_example(example, images):
    assert check_model(example) == []
    classifier = ZeroShotClassifier(example, ["cat", "dog", "bird"])
    for name, options in {"clip": {}, "tent": {}, "tpt": {"views": 2}, "bat": {}}.items():
        assert METHODS.get(name)(classifier, **options).adapt(images[:4]).shape == (4, 3), name


def test_everything_that_is_missing_is_said_at_once():
    class Bare:
        image_size = "large"

    with pytest.raises(InvalidInputError) as raised:
        check_model(Bare())
    message = str(raised.value)
    for part in ("nn.Module", "encode_image", "encode_text", "prepare", "name", "image_size is a str", "device"):
        assert part in message
    for part in ("image_encoder", "negative_patch_size", "logit_scale", "text_encoder"):
        assert part in message


def broken(model: nn.Module, **changes: object) -> nn.Module:
    """The model as a class of its own with other methods or attributes."""
    model.__class__ = type("Broken", (type(model),), changes)
    return model


def without_scaling(self, images):
    return fit_images(images.float(), self.image_size).clamp(0, 1)  # bytes are not divided by 255


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prepare": lambda self, images: images}, "prepare returned"),
        ({"encode_image": lambda self, images: torch.rand(len(images), 64)}, "not deterministic"),
        ({"encode_image": lambda self, images: self.image_encoder(images).detach()}, "no gradient"),
        ({"prepare": without_scaling}, "the same for uint8 images and for floats"),
        ({"encode_text": lambda self, texts: torch.zeros(len(texts), 3)}, r"expected \(2, 64\)"),
        ({"encode_text": lambda self, texts: torch.full((len(texts), 64), torch.nan)}, "NaN or infinite"),
        ({"encode_embedded": lambda self, embedded, tokens: embedded.mean(dim=1)}, "must equal encode_text"),
        ({"embed_tokens": None}, "embed tokens|prompt path"),
        ({"logit_scale": -2.0}, "logarithm"),
        ({"negative_patch_size": 65}, "1..image_size"),
    ],
)
def test_what_is_wrong_is_found_by_trying(changes, message, example):
    if "encode_embedded" in changes:  # encode_text has to keep working
        original = type(example).encode_embedded
        changes = changes | {"encode_text": lambda self, texts: _encode(self, original, texts)}
    with pytest.raises(InvalidInputError, match=message):
        check_model(broken(example, **changes))


def _encode(model, encode_embedded, texts):
    tokens = model.tokenize(texts)
    return encode_embedded(model, model.embed_tokens(tokens), tokens)


def test_training_mode_and_gradients_are_found(example):
    model = example.train().requires_grad_(True)
    with pytest.raises(InvalidInputError, match=r"(?s)training mode.*require gradients.*others in the batch"):
        check_model(model)


def test_networks_that_a_copy_would_share_are_found(example):
    model = example
    hidden = [model.image_encoder]
    with pytest.raises(InvalidInputError, match=r"has no effect|no gradient"):
        check_model(broken(model, encode_image=lambda self, images: hidden[0](images)))


def test_what_a_model_cannot_do_is_no_error(example):
    for call in ("tokenize", "embed_tokens", "encode_embedded"):
        delattr(type(example), call)
    model = broken(example, encode_text=lambda self, texts: torch.randn(len(texts), 64))
    model.text_encoder = None
    model.image_encoder = nn.Sequential(nn.Flatten(), nn.Linear(3 * 64 * 64, 64)).requires_grad_(False).eval()
    notes = check_model(model)
    assert {note.partition(":")[0] for note in notes} == {"tpt", *TRAINED}
    with pytest.raises(UnsupportedModelError, match="no normalisation layer"):
        METHODS.get("tent")(ZeroShotClassifier(model, ["a", "b"]))
