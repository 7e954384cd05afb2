"""Models that functions of the user's make, by name, in Python and on the command line."""

from __future__ import annotations

import json
import sys
import textwrap

import pytest
import torch

from tta_panda import check_model, load_model, make_classifier
from tta_panda.cli import main
from tta_panda.errors import InvalidInputError, ModelLoadError, UnknownNameError
from tta_panda.models import recorded_name, weights_digest
from tta_panda.models.linear import LinearHeadModel

SOURCE = """
    import sys
    import timm
    import torch
    from torch import nn
    from tta_panda.models.prepare import prepare_images

    class Mine(nn.Module):
        name, image_size, negative_patch_size, logit_scale, text_encoder = "mine", 32, 8, 20.0, None

        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.image_encoder = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 8), nn.LayerNorm(8))
            self.words = nn.Embedding(256, 8)

        @property
        def device(self):
            return self.words.weight.device

        def prepare(self, images):
            return prepare_images(images, self.image_size, self.device)

        def encode_image(self, prepared):
            return self.image_encoder(prepared)

        def encode_text(self, texts):
            return torch.stack([self.words(torch.tensor(list(text.encode()))).sum(dim=0) for text in texts])

    def make():
        return Mine()

    def network():
        torch.manual_seed(0)
        return timm.create_model("test_resnet", num_classes=4)

    def pair():
        return network(), None

    here = Mine()
    number = 3

    def nothing():
        return None

    def broken():
        raise KeyError("no such weights")

    def foreign():
        return nn.Linear(2, 2)
"""


@pytest.fixture
def module(tmp_path, monkeypatch) -> str:
    """A module in the current folder, under a name that no other test has imported."""
    name = f"own_model_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(textwrap.dedent(SOURCE))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])  # as an installed command has it
    yield name
    sys.modules.pop(name, None)


@pytest.mark.parametrize("function", ["make", "Mine", "here"])
def test_a_function_a_class_or_an_object_gives_the_model(function, module, images):
    path = list(sys.path)
    model = load_model(f"{module}:{function}")
    assert sys.path == path
    assert not model.training and not any(parameter.requires_grad for parameter in model.parameters())
    assert [note.partition(":")[0] for note in check_model(model)] == ["tpt", "bat"]
    assert make_classifier(model, ["cat", "dog"]).class_names == ("cat", "dog")


@pytest.mark.parametrize("function", ["network", "pair"])
def test_networks_are_wrapped(function, module):
    model = load_model(f"{module}:{function}", precision="bf16")
    assert isinstance(model, LinearHeadModel)
    assert (model.name, model.precision) == (f"{module}:{function}", "bf16")


def test_a_package_is_found_by_its_dotted_name(module, tmp_path):
    (tmp_path / "own_package").mkdir()
    (tmp_path / "own_package" / "models.py").write_text(f"from {module} import make")
    assert load_model("own_package.models:make").name == "mine"
    for name in ("own_package.models", "own_package"):
        sys.modules.pop(name, None)


def test_records_know_the_name_and_the_weights(module, tmp_path):
    name = f"{module}:make"
    assert recorded_name(name) == name
    before = weights_digest(name)
    assert weights_digest(name) == before and len(before) == 12
    sys.modules.pop(module)
    file = tmp_path / f"{module}.py"
    file.write_text(file.read_text().replace("torch.manual_seed(0)", "torch.manual_seed(10)"))
    assert weights_digest(name) != before


@pytest.mark.parametrize(
    ("function", "error", "reason"),
    [
        ("absent", ModelLoadError, "Cannot load .*has no attribute 'absent'"),
        ("broken", ModelLoadError, "Cannot load .*no such weights"),
        ("number", ModelLoadError, "Cannot load .*'int' object is not callable"),
        ("nothing", ModelLoadError, r"returned NoneType; expected a model.*\(network, tokenizer\)"),
        ("foreign", InvalidInputError, "wrap_model takes networks of open_clip, transformers or timm, got Linear"),
    ],
)
def test_what_does_not_load_is_explained(function, error, reason, module):
    with pytest.raises(error, match=reason):
        load_model(f"{module}:{function}")


def test_a_model_decides_its_own_precision(module):
    with pytest.raises(InvalidInputError, match="use it with precision fp32"):
        load_model(f"{module}:make", precision="bf16")


def test_a_module_that_is_not_there_is_taken_for_an_architecture(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnknownNameError, match="convnext_base"):
        load_model("convnext_bas:laion400m")


def test_the_command_line_runs_it(module, tmp_path, monkeypatch, capsys):
    command = (
        f"bench --method clip+panda --model {module}:make --data glyphs-val-c --corruption clean --limit 20 --json"
    )
    monkeypatch.setattr(sys, "argv", ["tta-panda", *command.split(), "-o", str(tmp_path / "runs")])
    torch.manual_seed(0)
    with pytest.raises(SystemExit) as ended:
        main()
    printed = capsys.readouterr()
    assert not ended.value.code, printed.err
    for row in json.loads(printed.out)["rows"]:
        assert (row["model"], row["samples"]) == (f"{module}:make", 20) and len(row["weights_hash"]) == 16
