"""Loading and wrapping models, with real code on small weights."""

from __future__ import annotations

import json
import warnings

import open_clip
import pytest
import torch
from conftest import TINY
from PIL import Image
from torch import nn

from tta_panda import ZeroShotClassifier, load_model
from tta_panda.data.glyphs.symbols import VALIDATION_CLASSES
from tta_panda.errors import InvalidInputError, ModelLoadError, TtaPandaWarning, UnknownNameError
from tta_panda.methods.adaptation import adaptable_copy
from tta_panda.models import VisionLanguageModel, weights_digest
from tta_panda.models.images import fit_images
from tta_panda.models.mini import WEIGHTS, register_architecture
from tta_panda.models.names import ModelName
from tta_panda.models.quickgelu import tag_uses_quick_gelu


def test_mini_is_small_and_reads_symbols(mini, mini_classifier):
    from tta_panda import load_data

    assert WEIGHTS.stat().st_size < 12e6
    assert isinstance(mini, VisionLanguageModel)
    assert mini.image_size == 32
    assert any(isinstance(layer, nn.LayerNorm) for layer in mini.image_encoder.modules())
    dataset = load_data("glyphs-val-c", limit=200)
    images = torch.from_numpy(dataset.images.copy()).permute(0, 3, 1, 2)
    with torch.no_grad():
        features = torch.nn.functional.normalize(mini.encode_image(images), dim=1)
    accuracy = (mini_classifier.logits(features).argmax(1).numpy() == dataset.labels).mean()
    assert accuracy > 0.9


def test_features_equal_open_clips_own(tiny, images):
    transform = open_clip.image_transform(
        32, is_train=False, mean=open_clip.OPENAI_DATASET_MEAN, std=open_clip.OPENAI_DATASET_STD
    )
    pictures = [Image.fromarray(image.permute(1, 2, 0).numpy()) for image in images[:4]]
    with torch.no_grad():
        theirs = tiny.clip.encode_image(torch.stack([transform(picture) for picture in pictures]))
        torch.testing.assert_close(tiny.encode_image(images[:4]), theirs)
        tokens = open_clip.tokenize(["a photo of a cat."])
        torch.testing.assert_close(tiny.encode_text(["a photo of a cat."]), tiny.clip.encode_text(tokens))


def test_the_centre_of_oblong_images_is_kept():
    image = torch.zeros(1, 3, 32, 96)
    image[:, 0, :, 32:64] = 1
    assert torch.equal(fit_images(image, 32), image[..., 32:64])


def test_prompts_use_words_and_templates(tiny):
    plain = ZeroShotClassifier(tiny, ["sea_lion", "cat"])
    assert plain.class_names == ("sea lion", "cat")
    torch.testing.assert_close(plain.text_features.norm(dim=1), torch.ones(2))
    several = ZeroShotClassifier(tiny, ["sea_lion", "cat"], templates=["a photo of a {}.", "art of a {}."])
    with torch.no_grad():
        each = [
            torch.nn.functional.normalize(tiny.encode_text([t.format(c) for c in several.class_names]), dim=1)
            for t in several.templates
        ]
    expected = torch.nn.functional.normalize(sum(each) / 2, dim=1)
    torch.testing.assert_close(several.text_features, expected)


@pytest.mark.parametrize(
    ("names", "message"), [("cat", "list"), (["cat"], "two"), (["cat", ""], "empty"), (["a_b", "a b"], "a b")]
)
def test_class_names_are_checked(tiny, names, message):
    with pytest.raises(InvalidInputError, match=message):
        ZeroShotClassifier(tiny, names)


def test_a_template_needs_a_place_for_the_name(tiny):
    with pytest.raises(InvalidInputError, match=r"\{\}"):
        ZeroShotClassifier(tiny, ["a", "b"], templates=["a photo"])


def test_a_directory_loads_with_its_own_preprocessing(tiny_checkpoint, tiny, images):
    model = load_model(str(tiny_checkpoint))
    assert model.image_size == 32
    torch.testing.assert_close(model.mean.flatten(), torch.tensor([0.5, 0.5, 0.5]))
    with torch.no_grad():
        normalised = (images[:2].float() / 255 - 0.5) / 0.25
        torch.testing.assert_close(model.encode_image(images[:2]), tiny.clip.encode_image(normalised))


def test_a_checkpoint_file_loads_into_a_named_architecture(tiny_checkpoint, tiny, tmp_path, images):
    (tmp_path / "tiny-test.json").write_text(json.dumps(TINY))
    open_clip.add_model_config(tmp_path / "tiny-test.json")
    weights = tiny_checkpoint / "open_clip_model.safetensors"
    for model in (load_model(f"tiny-test:{weights}"), load_model("tiny-test", pretrained=str(weights))):
        with torch.no_grad():
            torch.testing.assert_close(model.encode_image(images[:2]), tiny.encode_image(images[:2]))
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

    monkeypatch.setattr(open_clip, "download_pretrained", unreachable)
    with (
        pytest.warns(TtaPandaWarning),
        pytest.raises(
            ModelLoadError, match=r"(?s)no route to the hub\n.*open_clip_model.safetensors.*--model ViT-B-16-quickgelu:"
        ),
    ):
        load_model("ViT-B-16:openai")


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("ViT-B-23", UnknownNameError, "ViT-B-32"),
        ("ViT-B-32:opnai", UnknownNameError, "'openai'"),
        ("ViT-B-32", ModelLoadError, "Which weights"),
        ("mini:openai", InvalidInputError, "own weights"),
        ("weights/clip.safetensors", ModelLoadError, "ViT-B-32-quickgelu:weights/clip.safetensors"),
    ],
)
def test_names_that_do_not_load_are_explained(name, error, message):
    with pytest.raises(error, match=message):
        load_model(name)


def test_a_directory_without_configuration_is_explained(tmp_path):
    (tmp_path / "weights.safetensors").touch()
    with pytest.raises(ModelLoadError, match=r"open_clip_config.json.*weights.safetensors"):
        load_model(str(tmp_path))


def test_random_weights_repeat_and_leave_the_global_generator_alone():
    register_architecture()
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    load_model("mini")
    first, second = (load_model("tta-panda-mini:random") for _ in range(2))
    assert torch.equal(torch.rand(3), expected)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


def test_weights_named_twice_are_refused():
    with pytest.raises(InvalidInputError, match="twice"):
        load_model("ViT-B-32:openai", pretrained="openai")


def test_the_digest_of_weights_follows_the_files(tiny_checkpoint):
    assert weights_digest("ViT-B-32:openai") is None
    assert weights_digest("mini") == weights_digest("mini")
    weights = tiny_checkpoint / "open_clip_model.safetensors"
    before = weights_digest(str(tiny_checkpoint)), weights_digest(f"tiny:{weights}")
    weights.write_bytes(weights.read_bytes() + b" ")
    after = weights_digest(str(tiny_checkpoint)), weights_digest(f"tiny:{weights}")
    assert len({*before, *after}) == 4


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
    from tta_panda.data.glyphs.symbols import BENCHMARK_CLASSES, symbols

    assert not set(VALIDATION_CLASSES) & set(BENCHMARK_CLASSES)
    assert set(VALIDATION_CLASSES) | set(BENCHMARK_CLASSES) <= set(symbols())
    assert len(symbols()) > 300
