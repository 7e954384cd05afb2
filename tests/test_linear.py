"""Classifiers with a linear head: their own logits, the offset in their feature space, methods that need no text."""

from __future__ import annotations

from typing import get_type_hints

import pytest
import timm
import torch
from safetensors.torch import save_file

from tta_panda import CLIP, Panda, ZeroShotClassifier, check_model, load_model, make_classifier, wrap_model
from tta_panda.errors import InvalidInputError, ModelLoadError, TtaPandaWarning, UnsupportedModelError
from tta_panda.methods import METHODS, MethodName
from tta_panda.methods.factory import default_options
from tta_panda.models import VisionLanguageModel
from tta_panda.models.linear import LinearClassifier, LinearHeadModel
from tta_panda.panda import apply_plan, sample_plan

NAMES = ["heart", "star", "anchor", "cloud"]
NEED_TEXT = ["tpt", "bat", "clipartt", "watt"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A network for four classes, as a user would have trained it."""
    torch.manual_seed(0)
    network = timm.create_model("test_resnet", num_classes=4)
    torch.nn.init.normal_(network.get_classifier().bias)
    path = tmp_path_factory.mktemp("timm") / "weights.safetensors"
    save_file(network.state_dict(), path)
    return path


@pytest.fixture(scope="module")
def model(checkpoint) -> LinearHeadModel:
    return load_model(f"timm:test_resnet:{checkpoint}")


@pytest.fixture(scope="module")
def pictures() -> torch.Tensor:
    return torch.randint(256, (8, 3, 160, 160), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)


def test_without_panda_the_logits_are_the_networks_own(model, pictures):
    config = timm.data.resolve_model_data_config(model.network)
    mean, std = (torch.tensor(config[key]).view(3, 1, 1) for key in ("mean", "std"))
    with torch.no_grad():
        expected = model.network((pictures / 255 - mean) / std)
    torch.testing.assert_close(CLIP(make_classifier(model, NAMES)).adapt(pictures), expected, rtol=1e-5, atol=1e-5)
    assert model.image_size == config["input_size"][-1] == 160


def test_templates_make_no_difference_to_a_head(model):
    with pytest.warns(TtaPandaWarning, match="has no text encoder, so the templates 'mint'"):
        make_classifier(model, NAMES, "mint")


def test_the_offset_is_taken_from_the_features_and_the_bias_stays(model, pictures):
    x = model.prepare(pictures)
    negatives = apply_plan(x, sample_plan("pool", x, 32, 1, torch.Generator().manual_seed(0)))
    head = model.head
    with torch.no_grad():
        offset = model.encode_image(negatives).mean(dim=0)
        expected = (model.encode_image(x) - 0.4 * offset) @ head.weight.T + head.bias
    got = CLIP(make_classifier(model, NAMES), debias=Panda(beta=0.4)).adapt(pictures)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


def test_methods_that_need_no_text_run(model, pictures):
    classifier = make_classifier(model, NAMES)
    for name in METHODS:
        few = {"views": 2} if "views" in default_options(MethodName(name)) else {}
        if name in NEED_TEXT:
            with pytest.raises(UnsupportedModelError, match="has no text encoder"):
                METHODS.get(name)(classifier)
        else:
            logits = METHODS.get(name)(classifier, debias=Panda(beta="auto"), **few).adapt(pictures[:2])
            assert logits.shape == (2, 4)


def test_the_checker_says_which_methods_need_text(model):
    assert not isinstance(model, VisionLanguageModel)
    assert [note.partition(":")[0] for note in check_model(model)] == NEED_TEXT


def test_rows_are_found_by_name_or_by_order(model):
    random = load_model("timm:test_vit:random")
    some = LinearClassifier(random, ["goldfish", "tench", "great_white_shark"])
    assert torch.equal(some.class_embeddings, random.head.weight[[1, 0, 2]])
    assert LinearClassifier(random, [f"class {row}" for row in range(1000)]).class_embeddings.shape == (1000, 64)
    chosen = LinearClassifier(model, ["a", "b"], rows=[3, 1])
    assert torch.equal(chosen.bias, model.head.bias[[3, 1]])
    with pytest.raises(InvalidInputError, match="4 rows, but the data have 2 classes"):
        make_classifier(model, ["a", "b"])
    with pytest.raises(InvalidInputError, match="rows must list"):
        LinearClassifier(model, ["a", "b"], rows=[4, 0])
    with pytest.raises(InvalidInputError, match="neither a text encoder nor a linear head"):
        make_classifier(torch.nn.Linear(2, 2), NAMES)


def test_a_head_that_is_not_one_linear_layer_is_refused():
    with pytest.raises(ModelLoadError, match="does not end in one linear layer"):
        load_model("timm:deit_tiny_distilled_patch16_224:random")


def test_names_and_files_that_do_not_load_are_explained(checkpoint, tmp_path):
    for name, message in {
        "timm:test_resnt:random": "timm has no model",
        "timm:test_resnet:absent.pt": "no checkpoint file",
        f"timm:test_vit:{checkpoint}": "do not fit",
    }.items():
        with pytest.raises(ModelLoadError, match=message):
            load_model(name)


def test_random_weights_repeat():
    first, second = (load_model("timm:test_vit:random") for _ in range(2))
    assert torch.equal(first.head.weight, second.head.weight)


def test_text_features_of_a_zero_shot_classifier_are_unit_and_rows_of_a_head_are_not(model, tiny_classifier):
    assert isinstance(tiny_classifier, ZeroShotClassifier)
    raw = torch.randn(3, 16)
    torch.testing.assert_close(tiny_classifier.embed(raw).norm(dim=1), torch.ones(3))
    assert torch.equal(make_classifier(model, NAMES).embed(raw), raw)


def test_logits_from_raw_embeddings_are_those_of_embedded_ones(model, tiny_classifier):
    for classifier in (tiny_classifier, make_classifier(model, NAMES)):
        classes, dimensions = classifier.class_embeddings.shape
        features, raw = torch.randn(2, 5, dimensions), 3 * torch.randn(2, classes, dimensions)
        expected = classifier.logits(features, classifier.embed(raw))
        torch.testing.assert_close(classifier.logits_from_raw(features, raw), expected)


def test_annotations_hold_for_models_without_text():
    model = load_model("timm:test_resnet:random")
    for function in (load_model, wrap_model):
        assert isinstance(model, get_type_hints(function)["return"])
    with pytest.raises(InvalidInputError, match=r"no text encoder.*make_classifier"):
        ZeroShotClassifier(model, ["a", "b"])
