"""Other libraries compute the same embeddings, for methods that do not train."""

from __future__ import annotations

import importlib.util
import json
import sys

import pytest
import torch
import torch.nn.functional as F
from typer.testing import CliRunner

from tta_panda import load_model, make_classifier
from tta_panda.cli import app
from tta_panda.errors import InvalidInputError, MissingExtraError, UnknownNameError, UnsupportedModelError
from tta_panda.methods import create_method
from tta_panda.models import ImageModel
from tta_panda.models.devices import check_backend

installed = pytest.mark.skipif(importlib.util.find_spec("openvino") is None, reason="openvino is not installed")


def test_what_cannot_be_used_is_refused_in_words(monkeypatch):
    check_backend("torch", "cuda", "bf16")
    with pytest.raises(UnknownNameError, match="Did you mean 'openvino'"):
        load_model("mini", backend="openvin")
    for device, precision in (("cuda", "fp32"), ("cpu", "bf16")):
        with pytest.raises(InvalidInputError, match=f"in fp32; got {device} and {precision}"):
            check_backend("openvino", device, precision)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r'pip install "tta-panda\[openvino\]"'):
        check_backend("openvino")


@pytest.fixture(scope="module")
def model() -> ImageModel:
    return load_model("mini", backend="openvino")


@installed
def test_embeddings_are_those_of_torch(mini, model):
    images = mini.prepare(torch.rand(5, 3, 40, 40))
    for count in (5, 1):
        expected, found = mini.encode_image(images[:count]), model.encode_image(images[:count])
        assert found.dtype == torch.float32 and F.cosine_similarity(expected, found).min() > 0.9999
    with pytest.raises(InvalidInputError, match=r"Call model\.prepare"):
        model.encode_image(images[..., 1:])


@installed
def test_methods_that_train_say_what_they_need(model):
    classifier = make_classifier(model, ["cat", "dog"])
    assert create_method("dmn+panda", classifier).adapt(torch.rand(4, 3, 32, 32)).shape == (4, 2)
    with pytest.raises(UnsupportedModelError, match="openvino, which does not support training"):
        create_method("tent", classifier)


@installed
def test_the_backend_is_part_of_a_record(tmp_path, undrawn):
    arguments = ["bench", "--method", "clip,tent", "--corruption", "fog", "--limit", "20", "--output", str(tmp_path)]
    result = CliRunner().invoke(app, [*arguments, "--backend", "openvino", "--json"])
    document = json.loads(result.stdout)
    assert [(row["method"], row["backend"]) for row in document["rows"]] == [
        ("clip", "openvino"),
        ("clip+panda", "openvino"),
    ]
    assert "does not support training" in document["missing"][0]["reason"]


@installed
def test_nothing_is_reported_to_anybody(model):
    from openvino.tools.ovc import telemetry_utils

    assert sys.modules["openvino_telemetry"] is None and "telemetry_stub" in str(telemetry_utils.tm)
