"""Loading and wrapping models, with real code on small weights."""

from __future__ import annotations

import json
import warnings

import huggingface_hub
import numpy as np
import open_clip
import pytest
import torch
from conftest import TINY
from PIL import Image
from torch import nn

from tta_panda import ZeroShotClassifier, load_model, make_classifier
from tta_panda.data.glyphs import VALIDATION_CLASSES
from tta_panda.errors import InvalidInputError, ModelLoadError, TtaPandaWarning, UnknownNameError
from tta_panda.methods.adaptation import adaptable_copy
from tta_panda.models import VisionLanguageModel, base
from tta_panda.models.names import SOURCES, ModelName
from tta_panda.models.openclip import tag_uses_quick_gelu
from tta_panda.models.prepare import fit_images


def test_mini_is_small_and_reads_symbols(mini, mini_classifier):
    from tta_panda import load_data

    assert (SOURCES["mini"].directory / "mini.safetensors").stat().st_size < 12e6
    assert isinstance(mini, VisionLanguageModel)
    assert mini.image_size == 32
    assert any(isinstance(layer, nn.LayerNorm) for layer in mini.image_encoder.modules())
    dataset = load_data("glyphs-val-c", limit=200)
    images = torch.from_numpy(dataset.images.copy()).permute(0, 3, 1, 2)
    with torch.no_grad():
        features = torch.nn.functional.normalize(mini.encode_image(mini.prepare(images)), dim=1)
    accuracy = (mini_classifier.logits(features).argmax(1).numpy() == dataset.labels).mean()
    assert accuracy > 0.9


def test_features_equal_open_clips_own(tiny, images):
    transform = open_clip.image_transform(
        32, is_train=False, mean=open_clip.OPENAI_DATASET_MEAN, std=open_clip.OPENAI_DATASET_STD
    )
    pictures = [Image.fromarray(image.permute(1, 2, 0).numpy()) for image in images[:4]]
    with torch.no_grad():
        theirs = tiny.clip.encode_image(torch.stack([transform(picture) for picture in pictures]))
        torch.testing.assert_close(tiny.encode_image(tiny.prepare(images[:4])), theirs)
        tokens = open_clip.tokenize(["a photo of a cat."])
        torch.testing.assert_close(tiny.encode_text(["a photo of a cat."]), tiny.clip.encode_text(tokens))


def test_only_prepared_images_are_encoded(tiny, images):
    prepared = tiny.prepare(images[:2])
    assert prepared.dtype == torch.float32 and prepared.shape == (2, 3, 32, 32)
    assert torch.equal(tiny.prepare(prepared), prepared)
    with torch.no_grad():
        tiny.encode_image(prepared * 3 - 1)  # negatives and views may leave [0, 1], and nobody looks
    wrong = [images[:2], prepared.half(), prepared.double(), prepared[0], prepared[..., 1:], prepared[0, 0, 0, 0], None]
    for batch in wrong:
        with pytest.raises(InvalidInputError, match=r"got .*\. Call model\.prepare\(images\) first"):
            tiny.encode_image(batch)


def test_the_centre_of_oblong_images_is_kept():
    image = torch.zeros(1, 3, 32, 96)
    image[:, 0, :, 32:64] = 1
    assert torch.equal(fit_images(image, 32), image[..., 32:64])


def test_prompts_use_words_and_templates(tiny):
    plain = ZeroShotClassifier(tiny, ["sea_lion", "cat"])
    assert plain.class_names == ("sea lion", "cat")
    torch.testing.assert_close(plain.class_embeddings.norm(dim=1), torch.ones(2))
    templates = ["a photo of a {}.", "art of a {}."]
    several = ZeroShotClassifier(tiny, ["sea_lion", "cat"], templates)
    with torch.no_grad():
        each = [
            torch.nn.functional.normalize(tiny.encode_text([t.format(c) for c in several.class_names]), dim=1)
            for t in templates
        ]
    expected = torch.nn.functional.normalize(sum(each) / 2, dim=1)
    torch.testing.assert_close(several.class_embeddings, expected)


@pytest.mark.parametrize(
    ("embeddings", "directions"),
    [
        (torch.eye(10), 9.0),  # all as far apart as can be
        (torch.eye(3).repeat_interleave(20, dim=0), 2.0),  # sixty classes of three kinds
        (torch.tensor([[1.0, 0.0], [0.6, 0.8]]), 1.0),
        (torch.ones(5, 4), 1.0),  # not at all
    ],
)
def test_directions_count_how_classes_differ(embeddings, directions):
    assert base.count_directions(embeddings) == pytest.approx(directions)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("cat", "list"),
        (None, "list of names, got None"),
        (["cat"], "two"),
        (["cat", ""], "empty"),
        (["a_b", "a b"], "a b"),
        ({"cat", "dog"}, r"no order; write sorted\(class_names\)"),
        (["cat", None], "must be strings, got None"),
        (["cat", b"dog"], "must be strings, got b'dog'"),
        (["Cat", "dog", "cat"], "'Cat' and 'cat' are the same to tiny, which ignores case"),
    ],
)
def test_class_names_are_checked(tiny, names, message):
    with pytest.raises(InvalidInputError, match=message):
        ZeroShotClassifier(tiny, names)


def test_class_names_may_come_one_by_one_and_differ_in_case_where_the_model_sees_it(tiny, monkeypatch):
    names = ["cat", "dog"]
    for given in ((name for name in names), dict.fromkeys(names), np.array(names)):
        assert make_classifier(tiny, given).class_names == ("cat", "dog")
    rows = iter(torch.eye(16))
    monkeypatch.setattr(tiny, "encode_embedded", lambda embedded, tokens: torch.stack([next(rows) for _ in tokens]))
    assert ZeroShotClassifier(tiny, ["a", "A"]).class_names == ("a", "A")


def test_templates_may_be_functions_and_name_the_class_twice(tiny):
    expected = ZeroShotClassifier(tiny, ["cat", "dog"], [lambda name: f"a {name}, yes, a {name}."]).class_embeddings
    for templates in ("a {}, yes, a {}.", ["a {}, yes, a {}."], lambda name: f"a {name}, yes, a {name}."):
        assert torch.equal(ZeroShotClassifier(tiny, ["cat", "dog"], templates).class_embeddings, expected)
    braces = ZeroShotClassifier(tiny, ["{0}", "{cat}"], "a {}.").class_embeddings  # names are not formats themselves
    with torch.no_grad():
        torch.testing.assert_close(braces, torch.nn.functional.normalize(tiny.encode_text(["a {0}.", "a {cat}."])))


@pytest.mark.parametrize("templates", ["a photo", ["a {}.", "a photo"], [], [None], [len], "a photo of a {0}."])
def test_templates_that_make_no_prompt_are_refused(tiny, templates):
    with pytest.raises(InvalidInputError, match=r"A template must be a string with \{\}|into a string, got 1"):
        ZeroShotClassifier(tiny, ["a", "b"], templates=templates)


def test_prompts_are_tokenised_once(tiny, images, monkeypatch):
    classifier = ZeroShotClassifier(tiny, ["heart", "star", "anchor"], ["a {}.", "the {}."])
    monkeypatch.setattr(type(tiny), "tokenize", lambda *_: pytest.fail("tokenised again"))
    twin, adapted = adaptable_copy(tiny, text=True)
    torch.testing.assert_close(classifier.encode_prompts(twin).detach(), classifier.class_embeddings)
    text = classifier.encode_prompts(twin)
    text.square().sum().backward()
    with torch.no_grad():
        for parameter in adapted.values():
            parameter.add_(0.5)
        changed = classifier.encode_prompts(twin)
    assert not torch.allclose(changed, classifier.class_embeddings)


def test_many_prompts_are_encoded_batch_by_batch(tiny, monkeypatch):
    names = ["heart", "a rather long name of a thing", "star"]
    whole = ZeroShotClassifier(tiny, names).class_embeddings
    monkeypatch.setattr(base, "PROMPTS_PER_PASS", 2)
    torch.testing.assert_close(ZeroShotClassifier(tiny, names).class_embeddings, whole)


def test_models_and_classifiers_print_in_one_line(tiny, tiny_classifier):
    assert repr(tiny) == "OpenClipModel('tiny', image_size=32, device='cpu', precision='fp32')"
    assert repr(tiny_classifier) == "ZeroShotClassifier('tiny', classes=4, image_size=32, device='cpu')"


def test_a_directory_loads_with_its_own_preprocessing(tiny_checkpoint, tiny, images):
    model = load_model(str(tiny_checkpoint))
    assert model.image_size == 32
    torch.testing.assert_close(model.mean.flatten(), torch.tensor([0.5, 0.5, 0.5]))
    with torch.no_grad():
        normalised = (images[:2].float() / 255 - 0.5) / 0.25
        prepared = model.prepare(images[:2])
        torch.testing.assert_close(model.encode_image(prepared), tiny.clip.encode_image(normalised))


def test_a_checkpoint_file_loads_into_a_named_architecture(tiny_checkpoint, tiny, tmp_path, images):
    (tmp_path / "tiny-test.json").write_text(json.dumps(TINY))
    open_clip.add_model_config(tmp_path / "tiny-test.json")
    weights = tiny_checkpoint / "open_clip_model.safetensors"
    prepared = tiny.prepare(images[:2])
    torch.testing.assert_close(load_model(f"tiny-test:{weights}").encode_image(prepared), tiny.encode_image(prepared))
    with pytest.raises(ModelLoadError, match="no checkpoint file"):
        load_model("tiny-test:absent/weights.safetensors")
    (tmp_path / "broken.safetensors").write_bytes(b"no weights")
    with pytest.raises(ModelLoadError, match=r"broken\.safetensors cannot be read as weights"):
        load_model(f"tiny-test:{tmp_path / 'broken.safetensors'}")


def activations(model) -> set[str]:
    names = {type(layer).__name__ for layer in model.modules()}
    return names & {"QuickGELU", "GELU"}


@pytest.fixture
def published(tiny_checkpoint, tmp_path, monkeypatch):
    """Architectures with and without QuickGELU, and weights that were published for both under the tag `openai`."""
    weights = {"file": str(tiny_checkpoint / "open_clip_model.safetensors"), "quick_gelu": True}
    for name in ("tiny-both", "tiny-both-quickgelu"):
        (tmp_path / f"{name}.json").write_text(json.dumps(TINY | {"quick_gelu": name.endswith("quickgelu")}))
        open_clip.add_model_config(tmp_path / f"{name}.json")
        monkeypatch.setitem(open_clip.pretrained._PRETRAINED, name, {"openai": weights})


def test_openai_weights_run_with_quick_gelu_whatever_the_architecture_is_called(published):
    with pytest.warns(TtaPandaWarning, match="'openai' of tiny-both run with QuickGELU"):
        assert activations(load_model("tiny-both:openai").clip) == {"QuickGELU"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert activations(load_model("tiny-both-quickgelu:openai").clip) == {"QuickGELU"}


def test_published_openai_tags_are_known_to_need_quick_gelu():
    architectures = [name for name, tag in open_clip.list_pretrained() if tag == "openai"]
    assert "ViT-B-32" in architectures and "RN50-quickgelu" in architectures
    for name in architectures:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TtaPandaWarning)
            assert tag_uses_quick_gelu(ModelName("open_clip", name, "openai"))


def test_weights_trained_without_quick_gelu_are_refused_with_it(monkeypatch):
    assert not tag_uses_quick_gelu(ModelName("open_clip", "ViT-B-32", "laion2b_s34b_b79k"))
    published = open_clip.get_pretrained_cfg("ViT-B-32", "laion2b_s34b_b79k")
    monkeypatch.setattr(open_clip, "get_pretrained_cfg", lambda *_: published)
    with pytest.raises(ModelLoadError, match="use ViT-B-32:laion2b_s34b_b79k instead"):
        load_model("ViT-B-32-quickgelu:laion2b_s34b_b79k")


def test_a_file_for_an_architecture_that_exists_with_both_activations_is_warned_of(tiny_checkpoint, published):
    weights = tiny_checkpoint / "open_clip_model.safetensors"
    with pytest.warns(TtaPandaWarning, match="tiny-both-quickgelu:"):
        assert activations(load_model(f"tiny-both:{weights}").clip) == {"GELU"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert activations(load_model(f"tiny-both-quickgelu:{weights}").clip) == {"QuickGELU"}


def test_unfetchable_weights_say_which_file_to_put_where(monkeypatch):
    def unreachable(*_, **__):
        raise RuntimeError("no route to the hub\nand much more")

    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", unreachable)
    message = r"no route to the hub\. Without .* open_clip_model.safetensors of timm/.* --model ViT-B-16-quickgelu:"
    with pytest.warns(TtaPandaWarning), pytest.raises(ModelLoadError, match=message):
        load_model("ViT-B-16:openai")


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("ViT-B-23", UnknownNameError, "ViT-B-32"),
        ("ViT-B-32:opnai", UnknownNameError, "'openai'"),
        ("ViT-B-32", ModelLoadError, "weights are missing"),
        ("mini:openai", InvalidInputError, "own weights"),
        ("weights/clip.safetensors", ModelLoadError, "ViT-B-32-quickgelu:weights/clip.safetensors"),
        ("", InvalidInputError, "empty.*tta-panda ls models"),
        ("RN50", ModelLoadError, "RN50 is an architecture.* openai"),
        ("ViT-B/32:laion2b", ModelLoadError, "ViT-B/32 as ViT-B-32.*write ViT-B-32-quickgelu:openai$"),
        ("ViT-L/14@336px:openai", ModelLoadError, "write ViT-L-14-336-quickgelu:openai$"),
    ],
)
def test_names_that_do_not_load_are_explained(name, error, message):
    with pytest.raises(error, match=message):
        load_model(name)


def test_a_directory_without_configuration_is_explained(tmp_path):
    (tmp_path / "weights.safetensors").touch()
    with pytest.raises(ModelLoadError, match=r"open_clip_config.json.*weights.safetensors"):
        load_model(str(tmp_path))


def test_random_weights_repeat_and_leave_the_global_generator_alone(tmp_path):
    (tmp_path / "tiny-random.json").write_text(json.dumps(TINY))
    open_clip.add_model_config(tmp_path / "tiny-random.json")
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    load_model("mini")
    first, second = (load_model("tiny-random:random") for _ in range(2))
    assert torch.equal(torch.rand(3), expected)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


def test_an_adaptable_copy_shares_all_but_the_normalisation(tiny):
    twin, adapted = adaptable_copy(tiny)
    assert twin.tokenizer is tiny.tokenizer
    mine, theirs = dict(tiny.named_parameters()), dict(twin.named_parameters())
    separate = {key for key in mine if mine[key] is not theirs[key]}
    assert separate == {key.replace("image.", "clip.visual.", 1) for key in adapted}
    assert all(p.requires_grad for p in adapted.values())


def test_a_model_without_normalisation_cannot_be_trained(tiny):
    tiny.clip.visual = nn.Sequential(nn.Flatten(), nn.Linear(3, 3))
    with pytest.raises(InvalidInputError, match="no normalisation layer"):
        adaptable_copy(tiny)


def test_validation_symbols_are_not_benchmark_symbols():
    from tta_panda.data.glyphs import BENCHMARK_CLASSES, symbols

    assert not set(VALIDATION_CLASSES) & set(BENCHMARK_CLASSES)
    assert set(VALIDATION_CLASSES) | set(BENCHMARK_CLASSES) <= set(symbols())
    assert len(symbols()) > 300
