"""How models are written, where they run, and what is listed."""

from __future__ import annotations

import json
import sys

import huggingface_hub
import open_clip
import pytest
import torch
from open_clip import pretrained

from tta_panda import CLIP, Panda, Tent, ZeroShotClassifier, load_model
from tta_panda.errors import InvalidInputError, MissingExtraError, ModelLoadError, UnknownNameError
from tta_panda.models import catalogue, weights_digest
from tta_panda.models.adapter import square_side
from tta_panda.models.devices import resolve_device
from tta_panda.models.names import ModelName, parse_model_name

TINY_NAMES = ["heart", "star", "anchor", "cloud"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("mini", ("mini", "mini", "")),
        ("ViT-B-32:openai", ("open_clip", "ViT-B-32", "openai")),
        ("ViT-B-32:a:b/c.pt", ("open_clip", "ViT-B-32", "a:b/c.pt")),
        ("hf-hub:org/name", ("open_clip", "hf-hub:org/name", "")),
        ("hf-hub:org/ViT:B", ("open_clip", "hf-hub:org/ViT:B", "")),
        ("transformers:openai/clip-vit-base-patch32", ("transformers", "openai/clip-vit-base-patch32", "")),
        ("transformers:some:where", ("transformers", "some:where", "")),
        ("timm:resnet50.a1_in1k", ("timm", "resnet50.a1_in1k", "")),
        ("timm:resnet18:random", ("timm", "resnet18", "random")),
        ("timm:hf-hub:timm/resnet18:x.pt", ("timm", "hf-hub:timm/resnet18", "x.pt")),
    ],
)
def test_names_are_taken_apart_and_put_together(text, expected):
    assert parse_model_name(text) == ModelName(*expected)
    assert str(parse_model_name(text)) == text


def test_weights_may_be_given_apart_but_not_twice(tmp_path):
    assert parse_model_name("ViT-B-32", "openai") == parse_model_name("ViT-B-32:openai")
    assert parse_model_name("timm:resnet18", "random") == parse_model_name("timm:resnet18:random")
    for name in ("ViT-B-32:openai", "hf-hub:org/name", "transformers:org/name", str(tmp_path)):
        with pytest.raises(InvalidInputError, match=r"twice|own weights"):
            parse_model_name(name, "openai")


def test_a_directory_says_which_library_it_is_for(tmp_path):
    assert parse_model_name(str(tmp_path)).library == "open_clip"
    (tmp_path / "config.json").touch()
    assert parse_model_name(str(tmp_path)).library == "transformers"
    assert parse_model_name(f"transformers:{tmp_path}").directory == tmp_path
    assert weights_digest(f"transformers:{tmp_path}") == weights_digest(str(tmp_path)) is not None
    (tmp_path / "open_clip_config.json").touch()
    assert parse_model_name(str(tmp_path)).library == "open_clip"
    odd = tmp_path / "with:colon"
    odd.mkdir()
    assert parse_model_name(str(odd)).source == str(odd)


def test_a_hub_repository_loads(tiny_checkpoint, tiny, images, monkeypatch):
    """As if the hub had been reached: its files are those of a directory."""

    def fetched(repo_id, filename, **_):
        assert repo_id == "org/tiny:clip"
        if not (tiny_checkpoint / filename).is_file():
            raise FileNotFoundError(filename)
        return str(tiny_checkpoint / filename)

    monkeypatch.setattr(pretrained, "hf_hub_download", fetched)
    model = load_model("hf-hub:org/tiny:clip")
    assert model.name == "hf-hub:org/tiny:clip"
    normalised = (images[:2].float() / 255 - 0.5) / 0.25
    with torch.no_grad():
        torch.testing.assert_close(model.encode_image(images[:2]), tiny.clip.encode_image(normalised))


def test_what_cannot_be_fetched_names_the_files_to_bring(monkeypatch):
    def unreachable(*_, **__):
        raise OSError("no route to the hub")

    monkeypatch.setattr(pretrained, "hf_hub_download", unreachable)
    with pytest.raises(ModelLoadError, match=r"(?s)no route.*open_clip_config.json.*--model DIRECTORY"):
        load_model("hf-hub:org/name")


def test_without_the_extra_the_command_to_type_is_said(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    command = r"pip install 'tta-panda\[transformers\]'"
    with pytest.raises(MissingExtraError, match=command):
        load_model("transformers:org/name")
    with pytest.raises(MissingExtraError, match=command):
        load_model("xlm-roberta-base-ViT-B-32:random")


def test_transformers_that_do_not_load_are_explained(tmp_path):
    transformers = pytest.importorskip("transformers")
    transformers.BertConfig(hidden_size=8, num_attention_heads=2).save_pretrained(tmp_path)
    with pytest.raises(ModelLoadError, match=r"type 'bert'; supported are clip, siglip, siglip2, chinese_clip"):
        load_model(str(tmp_path))
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelLoadError, match=r"preprocessor_config\.json"):
        load_model(str(tmp_path))


def test_transformers_weights_that_do_not_fit_are_named(tmp_path):
    pytest.importorskip("transformers")
    from model_zoo import save_transformers
    from safetensors.torch import load_file, save_file

    directory = save_transformers("chinese_clip", tmp_path)
    weights = load_file(directory / "model.safetensors")
    del weights["visual_projection.weight"]
    save_file({**weights, "extra.weight": torch.zeros(2)}, directory / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelLoadError, match=r"missing: visual_projection.weight; not known to it: extra.weight"):
        load_model(str(directory))


def test_inputs_that_are_not_square_are_refused(tiny_checkpoint):
    assert square_side([64, 64], "model") == square_side(64, "model") == 64
    config = json.loads((tiny_checkpoint / "open_clip_config.json").read_text())
    config["model_cfg"]["vision_cfg"]["image_size"] = [32, 48]
    (tiny_checkpoint / "open_clip_config.json").write_text(json.dumps(config))
    with pytest.raises(ModelLoadError, match="32x48 px, but only square"):
        load_model(str(tiny_checkpoint))
    config["model_cfg"]["vision_cfg"]["image_size"] = 32
    config["preprocess_cfg"]["resize_mode"] = "longest"
    (tiny_checkpoint / "open_clip_config.json").write_text(json.dumps(config))
    with pytest.raises(ModelLoadError, match="resize_mode='longest'"):
        load_model(str(tiny_checkpoint))


# --- devices and precision --------------------------------------------------------------------------------------------


def test_auto_takes_what_is_there(monkeypatch):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_device("auto") == "cpu"
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert resolve_device("auto") == "mps"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert resolve_device("auto") == "cuda"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_a_sentence():
    with pytest.raises(InvalidInputError, match=r"The device 'cuda' cannot be used here: .*\. Use auto \(which is cpu"):
        load_model("mini", device="cuda")
    with pytest.raises(UnknownNameError, match="'bf16'"):
        load_model("mini", precision="bf-16")


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_is_for_the_encoders_only(precision, images):
    model, exact = load_model("mini", precision=precision), load_model("mini")
    classifier = ZeroShotClassifier(model, TINY_NAMES)
    with torch.no_grad(), model.autocast():
        assert model.clip.encode_image(model.pixels(images[:2])).dtype != torch.float32  # it does compute in half
    features, expected = model.encode_image(images[:8]), exact.encode_image(images[:8])
    assert features.dtype == classifier.text_features.dtype == torch.float32
    assert 0 < (features - expected).norm() / expected.norm() < 0.05
    for debias in (None, Panda(beta=0.5)):
        method = Tent(classifier, debias=debias)
        logits = method.adapt(images[:8])
        assert logits.dtype == torch.float32 and logits.isfinite().all()
        assert all(p.dtype == torch.float32 and p.requires_grad for p in method.adapted.values())
        assert any((p != method._initial[name]).any() for name, p in method.adapted.items())
        reference = Tent(ZeroShotClassifier(exact, TINY_NAMES), debias=debias).adapt(images[:8])
        assert (logits.softmax(dim=1) - reference.softmax(dim=1)).abs().max() < 0.1
    tpt = CLIP(classifier).adapt(images[:2])
    assert tpt.dtype == torch.float32


# --- what is listed ---------------------------------------------------------------------------------------------------


def test_listed_sizes_are_those_of_the_architectures():
    listed = {listing.name: listing for listing in catalogue.list_models()}
    assert {"mini", "ViT-B-32", "RN50", "convnext_base"} <= listed.keys()
    assert "tta-panda-mini" not in listed
    assert set(open_clip.list_models()) - {"tta-panda-mini"} >= listed.keys() - {"mini"}
    assert (listed["ViT-B-32"].parameters, listed["ViT-B-32"].image_size) == (151277313, 224)
    assert listed["mini"].parameters == sum(p.numel() for p in load_model("mini").clip.parameters())
    assert catalogue.measure("ViT-S-32-alt") == catalogue._sizes()["ViT-S-32-alt"]
    assert catalogue.measure("xlm-roberta-base-ViT-B-32") == (None, 224)


def test_weights_on_this_machine_are_found(tmp_path, monkeypatch):
    published = {"hf_hub": "org/name/", "url": "https://somewhere/ViT.pt"}
    cache = tmp_path / "hub"
    found = lambda repo, name: huggingface_hub.try_to_load_from_cache(repo, name, cache_dir=cache)  # noqa: E731
    monkeypatch.setattr(catalogue, "_cached", found)
    assert catalogue.weights_here(published) is None
    snapshot = cache / "models--org--name" / "snapshots" / "1234"
    snapshot.mkdir(parents=True)
    (cache / "models--org--name" / "refs").mkdir()
    (cache / "models--org--name" / "refs" / "main").write_text("1234")
    (snapshot / "open_clip_model.safetensors").touch()
    assert catalogue.weights_here(published) == snapshot / "open_clip_model.safetensors"
    monkeypatch.setattr(catalogue, "CLIP_CACHE", tmp_path)
    assert catalogue.weights_here({"url": "https://somewhere/ViT.pt"}) is None
    (tmp_path / "ViT.pt").touch()
    assert catalogue.weights_here({"url": "https://somewhere/ViT.pt"}) == tmp_path / "ViT.pt"
