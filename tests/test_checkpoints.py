"""Weights from files: every format, nothing in a file is ever run, and every key is accounted for."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import sys
import tracemalloc
import types
import zipfile
from pathlib import Path

import open_clip
import pytest
import torch
from conftest import TINY, make_tiny
from model_zoo import save_open_clip, save_transformers
from safetensors.torch import load_file, save_file
from torch import nn

from tta_panda import load_model
from tta_panda.errors import ModelLoadError, TtaPandaWarning
from tta_panda.models.checkpoints import read_state_dict, weights_hash, weights_only


@pytest.fixture
def architecture(tmp_path: Path) -> str:
    """A name that open_clip knows, without QuickGELU."""
    (tmp_path / "tiny-files.json").write_text(json.dumps(TINY | {"quick_gelu": False}))
    open_clip.add_model_config(tmp_path / "tiny-files.json")
    return "tiny-files"


@pytest.fixture
def weights(tiny) -> dict[str, torch.Tensor]:
    return {name: tensor.clone().contiguous() for name, tensor in tiny.clip.state_dict().items()}


class Malicious:
    """Runs a command when it is unpickled."""

    def __init__(self, mark: Path):
        self.mark = mark

    def __reduce__(self):
        return os.system, (f"touch {self.mark}",)


@pytest.mark.parametrize(
    ("wrap", "suffix"),
    [
        (lambda state: state, ".bin"),
        (lambda state: {"state_dict": state, "epoch": 3}, ".pt"),
        (lambda state: {"state_dict": {f"module.{name}": value for name, value in state.items()}}, ".pth"),
    ],
    ids=["plain", "of training", "of several devices"],
)
def test_torch_checkpoints_load(wrap, suffix, architecture, weights, tmp_path):
    torch.save(wrap(weights), tmp_path / f"weights{suffix}")
    model = load_model(f"{architecture}:{tmp_path / f'weights{suffix}'}")
    assert all(torch.equal(value, weights[name]) for name, value in model.clip.state_dict().items())


def test_checkpoints_of_old_versions_of_torch_load(architecture, weights, tmp_path):
    shared = torch.arange(6.0)
    state = {"transposed": shared.view(2, 3).T, "again": shared, "half": torch.ones(2).half(), "none": torch.empty(0)}
    for name, content in {"own": weights, "views": {"model": state}}.items():
        torch.save(content, tmp_path / f"{name}.pt", _use_new_zipfile_serialization=False)
    model = load_model(f"{architecture}:{tmp_path / 'own.pt'}")
    assert all(torch.equal(value, weights[name]) for name, value in model.clip.state_dict().items())
    found = read_state_dict(tmp_path / "views.pt")
    assert all(torch.equal(found[name], value) and found[name].dtype == value.dtype for name, value in state.items())


def test_safetensors_go_before_pickles_in_a_directory(tiny_checkpoint, weights):
    for name in ("open_clip_pytorch_model.bin", "model.safetensors", "._open_clip_model.safetensors"):
        (tiny_checkpoint / name).write_bytes(b"never opened")
    assert load_model(str(tiny_checkpoint)).logit_scale == pytest.approx(weights["logit_scale"].exp().item())
    (tiny_checkpoint / "open_clip_model.safetensors").unlink()
    torch.save(weights, tiny_checkpoint / "open_clip_pytorch_model.bin")  # before the weights of transformers beside it
    assert load_model(str(tiny_checkpoint)).image_size == 32
    for name in ("open_clip_pytorch_model.bin", "model.safetensors"):
        (tiny_checkpoint / name).unlink()
    with pytest.raises(ModelLoadError, match=r"needs open_clip_config\.json and weights"):
        load_model(str(tiny_checkpoint))


@pytest.mark.parametrize(
    ("suffix", "writer"),
    [(".pt", "torch"), (".pth", "pickle"), (".bin", "torch"), (".safetensors", "pickle"), (".ckpt", "pickle")],
)
def test_a_malicious_pickle_is_not_run(suffix, writer, architecture, tmp_path):
    mark, file = tmp_path / "executed", tmp_path / f"weights{suffix}"
    content = {"state_dict": {"logit_scale": torch.zeros(())}, "extra": Malicious(mark)}
    if writer == "torch":
        torch.save(content, file)
    else:
        file.write_bytes(pickle.dumps({"logit_scale": Malicious(mark)}))
    with pytest.raises(ModelLoadError, match=r"was not run|cannot be read as weights") as raised:
        load_model(f"{architecture}:{file}")
    assert not mark.exists()
    assert "weights_only" not in str(raised.value) and "add_safe_globals" not in str(raised.value)


def test_a_malicious_pickle_in_a_directory_is_not_run(tiny_checkpoint, tmp_path):
    (tiny_checkpoint / "open_clip_model.safetensors").unlink()
    torch.save({"extra": Malicious(tmp_path / "executed")}, tiny_checkpoint / "open_clip_pytorch_model.bin")
    with pytest.raises(ModelLoadError, match="was not run"):
        load_model(str(tiny_checkpoint))
    assert not (tmp_path / "executed").exists()


def test_a_malicious_pickle_of_transformers_is_not_run(tmp_path):
    pytest.importorskip("transformers")
    directory = save_transformers("chinese_clip", tmp_path)
    (directory / "model.safetensors").unlink()
    torch.save({"logit_scale": Malicious(tmp_path / "executed")}, directory / "pytorch_model.bin")
    with pytest.raises(ModelLoadError, match=r"asks for \w+\.system, and was not run\.") as raised:
        load_model(str(directory))
    assert not (tmp_path / "executed").exists()
    assert "weights_only" not in str(raised.value)


def test_code_in_a_directory_of_transformers_is_neither_run_nor_asked_about(tmp_path, monkeypatch):
    pytest.importorskip("transformers")
    directory = save_transformers("chinese_clip", tmp_path)
    mark = tmp_path / "executed"
    (directory / "code.py").write_text(f"open({str(mark)!r}, 'w').close()")
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asked whether to run the code"))
    mapped = {
        "config.json": {"AutoConfig": "code.Config", "AutoModel": "code.Model"},
        "tokenizer_config.json": {"AutoTokenizer": ["code.Tokenizer", None]},
        "preprocessor_config.json": {"AutoImageProcessor": "code.Processor"},
    }
    for name, classes in mapped.items():
        content = json.loads((directory / name).read_text())
        (directory / name).write_text(json.dumps({**content, "auto_map": classes}))
    assert load_model(str(directory)).image_size == 32  # by the classes of the library itself
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**config, "model_type": "of-my-own"}))
    with pytest.raises(ModelLoadError, match="Cannot load"):
        load_model(str(directory))
    assert not mark.exists()


@pytest.mark.parametrize("options", [{}, {"tokenizer_kwargs": {"trust_remote_code": True}}], ids=["plain", "asking"])
def test_code_in_a_directory_of_open_clip_is_neither_run_nor_asked_about(options, tmp_path, monkeypatch):
    pytest.importorskip("transformers")
    directory = save_open_clip("hf-text", tmp_path)
    mark = tmp_path / "executed"
    (directory / "code.py").write_text(f"open({str(mark)!r}, 'w').close()")
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asked whether to run the code"))
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    config, tokenizer = directory / "open_clip_config.json", directory / "tokenizer_config.json"
    content = json.loads(config.read_text())
    content["model_cfg"]["text_cfg"] |= options
    config.write_text(json.dumps(content))
    mapped = {"auto_map": {"AutoTokenizer": ["code.Tokenizer", None]}, "tokenizer_class": "Tokenizer"}
    tokenizer.write_text(json.dumps(json.loads(tokenizer.read_text()) | mapped))
    with contextlib.suppress(ModelLoadError):
        load_model(str(directory))
    encoder = directory / "config.json"
    mapped = {"auto_map": {"AutoConfig": "code.Config", "AutoModel": "code.Model"}, "model_type": "of-my-own"}
    encoder.write_text(json.dumps(json.loads(encoder.read_text()) | mapped))
    with pytest.raises(ModelLoadError, match="Cannot load"):
        load_model(str(directory))
    assert not mark.exists()


def test_libraries_read_weights_only_whatever_they_ask_torch_for(tmp_path, monkeypatch):
    torch.save({"weight": Malicious(tmp_path / "executed")}, tmp_path / "weights.bin")
    before = {"TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1", "TORCH_FORCE_WEIGHTS_ONLY_LOAD": "0"}
    for name, value in before.items():
        monkeypatch.setenv(name, value)
    with weights_only(), pytest.raises(pickle.UnpicklingError):
        torch.load(tmp_path / "weights.bin", weights_only=False)
    assert not (tmp_path / "executed").exists()
    assert {name: os.environ[name] for name in before} == before
    monkeypatch.setattr("tta_panda.models.linear.check_hub", lambda *_: None)
    monkeypatch.setattr("timm.create_model", lambda *_, **__: torch.load(tmp_path / "weights.bin", weights_only=False))
    with pytest.raises(ModelLoadError, match="was not run"):
        load_model("timm:resnet10t")
    assert not (tmp_path / "executed").exists()


def test_archives_that_would_grow_are_refused(weights, architecture, tmp_path):
    """A kilobyte of deflated zeros is a megabyte; torch compresses nothing."""
    torch.save(weights, tmp_path / "plain.pt")
    with (
        zipfile.ZipFile(tmp_path / "plain.pt") as real,
        zipfile.ZipFile(tmp_path / "bomb.pt", "w", zipfile.ZIP_DEFLATED) as copy,
    ):
        for name in real.namelist():
            copy.writestr(name, bytes(len(real.read(name))))
    with pytest.raises(ModelLoadError, match=r"cannot be read as weights: .* bytes would become"):
        load_model(f"{architecture}:{tmp_path / 'bomb.pt'}")


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_a_pickle_takes_no_more_memory_than_it_has(archive, tmp_path):
    """Its place in the memo, number 2**24, would take a quarter of a gigabyte; there are 2**32."""
    forged = tmp_path / "forged.pt"
    with zipfile.ZipFile(archive) as real, zipfile.ZipFile(forged, "w") as copy:
        for name in real.namelist():
            copy.writestr(name, b"\x80\x02Nr\x00\x00\x00\x01." if name.endswith("/data.pkl") else real.read(name))
    tracemalloc.start()
    with pytest.raises(ModelLoadError, match="not a dictionary of weights"):
        read_state_dict(forged)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**24


@pytest.mark.parametrize("archived", [False, True], ids=["plain", "in an archive"])
def test_a_pickle_cannot_ask_for_memory(archived, tmp_path):
    pickled = b"\x80\x02cbuiltins\nbytearray\n\x8a\x05" + (6 * 10**9).to_bytes(5, "little") + b"\x85R."
    file = tmp_path / "weights.pt"
    if archived:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("archive/data.pkl", pickled)
            archive.writestr("archive/version", "3\n")
    else:
        torch.save({}, file, _use_new_zipfile_serialization=False)
        file.write_bytes(file.read_bytes().replace(b"\x80\x02}q\x00.", pickled))
    with pytest.raises(ModelLoadError, match=r"asks for builtins\.bytearray"):
        read_state_dict(file)


NESTED = b")" + 20 * b"2\x86"
"""A tuple of twice the same tuple, twenty levels deep: its hash has a million parts."""


@pytest.mark.parametrize(
    ("pickled", "message"),
    [
        (b"cbuiltins\nset\n](" + NESTED + b"e\x85R.", "a key of several parts"),
        (b"ccollections\nOrderedDict\n](" + NESTED + b"K\x01ta\x85R.", "a key of several parts"),
        (b"}(" + NESTED + b"K\x01u.", "a key of several parts"),
        (b"(Nctorch\nFloatStorage\n" + NESTED + b"NK\x01tQ.", "a key of several parts"),
        (b"c__torch__\nM\nN}X\x0c\x00\x00\x00__setstate__cbuiltins\nset\ns\x86b.", "a change of a class"),
    ],
    ids=["a set", "a dictionary", "an item", "a storage", "an attribute of a class"],
)
def test_a_pickle_neither_takes_forever_nor_changes_the_next(pickled, message, tmp_path):
    with zipfile.ZipFile(tmp_path / "weights.pt", "w") as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02" + pickled)
    with pytest.raises(ModelLoadError, match=message):
        read_state_dict(tmp_path / "weights.pt")


def _with_forged_sizes(content: bytes) -> bytes:
    """Declare a size of four bytes for the first tensor in the directory of a zip file."""
    entry = content.index(b"/data/0", content.index(b"PK\x01\x02"))
    entry = content.rindex(b"PK\x01\x02", 0, entry)
    return content[: entry + 24] + (4).to_bytes(4, "little") + content[entry + 28 :]


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_archives_are_unpacked_as_far_as_they_declare(method, tmp_path):
    """The directory declares four bytes, and there are 64 megabytes."""
    torch.save({"weight": torch.zeros(1)}, tmp_path / "plain.pt")
    with zipfile.ZipFile(tmp_path / "plain.pt") as real, zipfile.ZipFile(tmp_path / "bomb.pt", "w") as copy:
        for name in real.namelist():
            is_tensor = name.endswith("/data/0")
            copy.writestr(name, bytes(2**26) if is_tensor else real.read(name), method if is_tensor else None)
    forged = tmp_path / "forged.pt"
    forged.write_bytes(_with_forged_sizes((tmp_path / "bomb.pt").read_bytes()))
    tracemalloc.start()
    with pytest.raises(ModelLoadError, match="cannot be read as weights"):
        read_state_dict(forged)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**24


def test_a_second_directory_in_an_archive_does_not_count(tmp_path):
    """A directory of another content, in a member or in the comment: readers that look for the first one see that."""
    for name in ("first", "second"):
        torch.save({name: torch.zeros(2)}, tmp_path / f"{name}.pt")
    first, second = ((tmp_path / f"{name}.pt").read_bytes() for name in ("first", "second"))
    with zipfile.ZipFile(tmp_path / "second.pt", "a") as archive:
        archive.writestr("second/hidden", first)
    assert read_state_dict(tmp_path / "second.pt").keys() == {"second"}
    directory = second.index(b"PK\x01\x02")
    both = second[:directory] + first[first.index(b"PK\x01\x02") :] + second[directory:]
    (tmp_path / "both.pt").write_bytes(both)
    with contextlib.suppress(ModelLoadError):
        assert read_state_dict(tmp_path / "both.pt").keys() == {"second"}


def test_tensors_take_no_more_memory_than_their_file(tmp_path):
    """The first is one record under 6,000 names, the second one number as a large matrix."""
    record = torch.zeros(1000)
    torch.save({str(place): record for place in range(6000)}, tmp_path / "repeated.pt")
    torch.save({"weight": torch.zeros(1).expand(10**6, 10**6)}, tmp_path / "expanded.pt")
    for name in ("repeated", "expanded"):
        with pytest.raises(ModelLoadError, match="bytes describe tensors of"):
            read_state_dict(tmp_path / f"{name}.pt")
    torch.save({"weight": record}, tmp_path / "cut.pt", _use_new_zipfile_serialization=False)
    content = (tmp_path / "cut.pt").read_bytes()
    for size, message in ((len(content) - 4, "truncated"), (1000, "larger than the file")):
        (tmp_path / "cut.pt").write_bytes(content[:size])
        with pytest.raises(ModelLoadError, match=message):
            read_state_dict(tmp_path / "cut.pt")


@pytest.mark.parametrize("cyclic", [False, True], ids=["a module in two places, thirty levels deep", "a cycle"])
def test_modules_that_contain_each_other_are_refused(cyclic, tmp_path, monkeypatch):
    program = types.ModuleType("__torch__")
    program.Module = type("Module", (), {"__module__": "__torch__"})
    monkeypatch.setitem(sys.modules, "__torch__", program)
    root = program.Module()
    root.one = root
    for _ in range(0 if cyclic else 30):
        outer = program.Module()
        outer.one = outer.two = root
        root = outer
    with zipfile.ZipFile(tmp_path / "weights.pt", "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(root, 2))
    with pytest.raises(ModelLoadError, match="its modules contain each other"):
        read_state_dict(tmp_path / "weights.pt")


def test_what_is_checked_is_what_is_read(tmp_path, monkeypatch):
    """Two archives in one file: readers differ in which they see, so one reader does both."""
    for name in ("first", "second"):
        torch.save({name: torch.zeros(2)}, tmp_path / f"{name}.pt")
    both = tmp_path / "both.pt"
    both.write_bytes(b"".join((tmp_path / f"{name}.pt").read_bytes() for name in ("first", "second")))
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("another reader"))
    assert read_state_dict(both).keys() == {"second"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"text_cfg": {"context_length": 10**5}}, r"a network of [\d,]{12,} parameters"),
        ({"vision_cfg": {"width": 8192}}, r"a network of [\d,]{12,} parameters"),
        ({"text_cfg": {"layers": 10**9}}, "a network of 1,000,000,000 layers"),
        ({"vision_cfg": {"image_size": 10**6}}, r"a network of [\d,]{12,} parameters"),
    ],
    ids=["context", "width", "layers", "image size"],
)
def test_a_configuration_takes_no_more_memory_than_its_weights(changes, message, tiny_checkpoint):
    file = tiny_checkpoint / "open_clip_config.json"
    config = json.loads(file.read_text())
    for part, change in changes.items():
        config["model_cfg"][part] |= change
    file.write_text(json.dumps(config))
    with pytest.raises(ModelLoadError, match=message):
        load_model(str(tiny_checkpoint))


@pytest.mark.parametrize(
    ("tower", "changes", "message"),
    [
        ("text_config", {"vocab_size": 10**10}, r"a network of [\d,]{12,} parameters"),
        ("vision_config", {"hidden_size": 8192}, r"a network of [\d,]{11,} parameters"),
        ("vision_config", {"num_hidden_layers": 10**9}, "a network of 1,000,000,000 layers"),
    ],
)
def test_a_configuration_of_transformers_takes_no_more_memory(tower, changes, message, tmp_path):
    pytest.importorskip("transformers")
    directory = save_transformers("clip", tmp_path)
    config = json.loads((directory / "config.json").read_text())
    config[tower] |= changes
    (directory / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelLoadError, match=message):
        load_model(str(directory))


def test_weights_of_transformers_take_no_more_memory_than_their_file(tmp_path):
    pytest.importorskip("transformers")
    directory = save_transformers("chinese_clip", tmp_path)
    (directory / "model.safetensors").unlink()
    with pytest.raises(ModelLoadError, match=r"none of model\.safetensors"):
        load_model(str(directory))
    torch.save({"logit_scale": torch.zeros(1).expand(10**5, 10**5)}, directory / "pytorch_model.bin")
    with pytest.raises(ModelLoadError, match="bytes describe tensors of"):
        load_model(str(directory))


@pytest.mark.parametrize(
    "header",
    [
        {"a": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}},
        {"a": {"dtype": "F32", "shape": [2**62, 2**62], "data_offsets": [0, 4]}},
        {
            "a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
            "b": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
        },
        None,
    ],
    ids=["more than there is", "overflowing", "overlapping", "a header of terabytes"],
)
def test_forged_headers_are_refused(header, tmp_path):
    text = json.dumps(header).encode()
    length = 2**42 if header is None else len(text)
    (tmp_path / "weights.safetensors").write_bytes(length.to_bytes(8, "little") + text + bytes(4))
    with pytest.raises(ModelLoadError, match="cannot be read as weights"):
        read_state_dict(tmp_path / "weights.safetensors")


def test_keys_that_do_not_fit_are_named(architecture, weights, tmp_path):
    file = tmp_path / "weights.safetensors"
    missing, another = "visual.ln_post.bias", "visual.proj"
    broken = {name: value for name, value in weights.items() if name != missing}
    broken |= {"visual.head.weight": torch.zeros(2), another: torch.zeros(3, 3)}
    save_file(broken, file)
    with pytest.raises(ModelLoadError) as raised:
        load_model(f"{architecture}:{file}")
    message = str(raised.value)
    assert f"missing: {missing}" in message
    assert "unexpected: visual.head.weight" in message
    assert f"{another} (3, 3) instead of (32, 16)" in message
    save_file({"vision_model.post_layernorm.bias": torch.zeros(2)}, file)
    with pytest.raises(ModelLoadError, match=r"and \d+ more.*transformers:DIRECTORY"):
        load_model(f"{architecture}:{file}")


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"no weights at all", b"I5\n.", pickle.dumps({"a": 1}, 4)])
@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_broken_files_are_explained(content, architecture, tmp_path):
    for suffix in (".pt", ".safetensors"):
        (tmp_path / f"weights{suffix}").write_bytes(content)
        with pytest.raises(ModelLoadError, match=f"weights\\{suffix} cannot be read") as raised:
            load_model(f"{architecture}:{tmp_path / f'weights{suffix}'}")
        assert "weights_only" not in str(raised.value)  # what torch advises would run the file
    torch.save([1, 2], tmp_path / "list.pt")
    with pytest.raises(ModelLoadError, match="not a dictionary of weights"):
        load_model(f"{architecture}:{tmp_path / 'list.pt'}")


# --- OpenAI's own archives --------------------------------------------------------------------------------------------


class OpenAiClip(nn.Module):
    """As OpenAI published it: weights, and three numbers beside them, in a traced program."""

    def __init__(self, clip: nn.Module):
        super().__init__()
        for name, part in clip.named_children():
            self.add_module(name, part)
        for name, parameter in clip.named_parameters(recurse=False):
            self.register_parameter(name, parameter)
        for name, number in {"input_resolution": 32, "context_length": 77, "vocab_size": 49408}.items():
            self.register_buffer(name, torch.tensor(number))

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return self.visual(pixels) * self.logit_scale


@pytest.fixture(scope="module")
def archive(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("openai") / "ViT-B-32.pt"
    torch.jit.trace(OpenAiClip(make_tiny().clip), torch.zeros(1, 3, 32, 32)).save(path)
    return path


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_an_openai_archive_loads_without_running_its_program(archive, architecture, tiny, images, monkeypatch):
    monkeypatch.setattr(torch.jit, "load", lambda *_, **__: pytest.fail("ran the program"))
    with pytest.warns(TtaPandaWarning, match="OpenAI's weights, so it runs with QuickGELU"):
        model = load_model(f"{architecture}:{archive}")
    with torch.no_grad():  # tiny has QuickGELU, the architecture as named has not
        prepared = tiny.prepare(images[:2])
        torch.testing.assert_close(model.encode_image(prepared), tiny.encode_image(prepared))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensors_of_archives_are_those_of_torch(tmp_path):
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Sequential(nn.Linear(2, 2).half())).eval()
    network[0].weight = nn.Parameter(network[0].weight.detach().transpose(2, 3))  # strides of its own
    torch.jit.script(network).save(tmp_path / "network.pt")
    found, expected = read_state_dict(tmp_path / "network.pt"), network.state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], value) and found[name].dtype == value.dtype for name, value in expected.items())


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_a_malicious_archive_is_not_run(archive, architecture, tmp_path):
    mark, forged = tmp_path / "executed", tmp_path / "forged.pt"
    with zipfile.ZipFile(archive) as real, zipfile.ZipFile(forged, "w") as copy:
        for name in real.namelist():
            replace = name.endswith("/data.pkl")
            copy.writestr(name, pickle.dumps(Malicious(mark)) if replace else real.read(name))
    with pytest.raises(ModelLoadError, match=r"asks for posix.system, and was not run"):
        load_model(f"{architecture}:{forged}")
    assert not mark.exists()


# --- hashes -----------------------------------------------------------------------------------------------------------


def test_the_hash_is_of_the_weights_whatever_file_they_came_from(tiny_checkpoint, architecture, weights, tmp_path):
    torch.save(weights, tmp_path / "weights.pt")
    from_directory, from_file = (
        load_model(str(tiny_checkpoint)),
        load_model(f"{architecture}:{tmp_path / 'weights.pt'}"),
    )
    assert weights_hash(from_directory) == weights_hash(from_file)
    assert (
        load_file(tiny_checkpoint / "open_clip_model.safetensors").keys()
        == read_state_dict(tmp_path / "weights.pt").keys()
    )
    with torch.no_grad():
        from_file.clip.logit_scale += 1e-6
    assert weights_hash(from_directory) != weights_hash(from_file)
    half = nn.Linear(2, 2).bfloat16()
    assert weights_hash(half) == weights_hash(half)
