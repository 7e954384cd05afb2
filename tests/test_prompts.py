"""Prompts from files: templates, descriptions of classes, contexts of CoOp; and cached text embeddings."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn
from typer.testing import CliRunner

from tta_panda import ZeroShotClassifier, load_data, load_model
from tta_panda.cli import app
from tta_panda.errors import DataError, InvalidInputError, ModelLoadError
from tta_panda.models import make_classifier
from tta_panda.models.base import PromptableModel, VisionLanguageModel
from tta_panda.models.feature_cache import FeatureCache
from tta_panda.models.prompts import Context, find_templates

NAMES = ["heart", "chess_knight", "anchor"]
DESCRIPTIONS = {
    "heart": ["a heart has two curves", "a red heart"],
    "chess knight": ["a horse's head"],
    "anchor": ["iron", "a ship's anchor", "a heavy hook"],
}


@pytest.fixture(scope="module")
def mini() -> Any:
    return load_model("mini")


def unit_mean(model: VisionLanguageModel, texts: list[str]) -> Tensor:
    with torch.no_grad():
        each = F.normalize(torch.cat([model.encode_text([text]) for text in texts]), dim=1)
    return F.normalize(each.mean(dim=0), dim=0)


def test_descriptions_of_classes_are_averaged(mini: Any, tmp_path: Path) -> None:
    file = tmp_path / "cupl.json"
    file.write_text(json.dumps(DESCRIPTIONS))
    classifier = make_classifier(mini, NAMES, str(file))
    expected = torch.stack([unit_mean(mini, DESCRIPTIONS[name]) for name in ("heart", "chess knight", "anchor")])
    torch.testing.assert_close(classifier.class_embeddings, expected, atol=1e-5, rtol=1e-4)
    with pytest.raises(InvalidInputError, match="1 of 2 classes have no descriptions: gear"):
        make_classifier(mini, ["heart", "gear"], str(file))


def test_templates_are_read_line_by_line(mini: Any, tmp_path: Path) -> None:
    file = tmp_path / "zeroshot_classification_templates.txt"
    file.write_text("a photo of a {c}.\n\nart of a {}\n")
    classifier = make_classifier(mini, NAMES, str(file))
    expected = ZeroShotClassifier(mini, NAMES, ["a photo of a {}.", "art of a {}"])
    assert torch.equal(classifier.class_embeddings, expected.class_embeddings)
    assert classifier.digest == expected.digest


def contextual(model: Any, vectors: Tensor) -> Tensor:
    """The text features of "[v1] ... [vn] name.", from the definition."""
    assert isinstance(model, PromptableModel)
    n = vectors.shape[-2]
    features = []
    for k, name in enumerate(("heart", "chess knight", "anchor")):
        tokens = model.tokenize([" ".join(["X"] * n) + f" {name}."])
        embedded = model.embed_tokens(tokens).clone()
        for place in range(n):
            embedded[0, 1 + place] = vectors[place] if vectors.ndim == 2 else vectors[k, place]
        features.append(model.encode_embedded(embedded, tokens)[0])
    return F.normalize(torch.stack(features), dim=1)


@pytest.mark.parametrize("shape", [(4,), (3, 4)])
@pytest.mark.parametrize("kind", ["safetensors", "checkpoint"])
def test_contexts_of_coop(mini: Any, shape: tuple[int, ...], kind: str, tmp_path: Path) -> None:
    width = mini.embed_tokens(mini.tokenize(["a"])).shape[-1]
    vectors = torch.randn(*shape, width, generator=torch.Generator().manual_seed(0)) / 10
    file = tmp_path / ("ctx.safetensors" if kind == "safetensors" else "model.pth.tar-50")
    if kind == "safetensors":
        save_file({"ctx": vectors}, file)
    else:
        optimizer = torch.optim.SGD([parameter := nn.Parameter(torch.ones(2))], lr=0.1, momentum=0.9)
        parameter.sum().backward()
        optimizer.step()
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 50)
        state = {"ctx": vectors, "token_prefix": torch.zeros(3, 1, width), "token_suffix": torch.zeros(3, 5, width)}
        content = {
            "state_dict": state,
            "epoch": 50,
            "optimizer": optimizer.state_dict(),
            "scheduler": {"successor": scheduler},
        }
        torch.save(content, file)
        assert b"CosineAnnealingLR" in b"".join(
            zipfile.ZipFile(file).read(name) for name in zipfile.ZipFile(file).namelist()
        )
    classifier = make_classifier(mini, NAMES, str(file))
    with torch.no_grad():
        torch.testing.assert_close(classifier.class_embeddings, contextual(mini, vectors), atol=1e-5, rtol=1e-4)
    plain = make_classifier(mini, NAMES)
    assert classifier.digest != plain.digest
    if len(shape) == 2:
        with pytest.raises(InvalidInputError, match=r"A context must be \(n, W\), or \(2, n, W\)"):
            make_classifier(mini, NAMES[:2], str(file))
    for wrong, message in (
        (torch.zeros(4, 7), "input embeddings of 7 dimensions"),
        (torch.zeros(99, width), "no room"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            ZeroShotClassifier(mini, NAMES, Context(wrong))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", b"{", "is not a file of prompts"),
        ("a.json", b'{"cat": "furry"}', "does not map names to lists of texts"),
        ("a.json", b'{"cat": [1]}', "does not map names to lists of texts"),
        ("a.txt", b"\xff\xfe\xff", "is not a file of prompts"),
        ("a.txt", b"a photo\n", "A template must be a string with {}"),
        ("a.safetensors", b"", "cannot be read as weights"),
    ],
)
def test_files_that_hold_no_prompts_are_explained(
    mini: Any, name: str, content: bytes, message: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=r"There is no file of prompts"):
        find_templates(str(tmp_path / name))
    (tmp_path / name).write_bytes(content)
    with pytest.raises((DataError, ModelLoadError, InvalidInputError), match=message):
        make_classifier(mini, NAMES, str(tmp_path / name))


def test_weights_without_a_context_are_explained(tmp_path: Path) -> None:
    for content in (
        {"weight": torch.ones(2)},
        {"ctx": torch.full((4, 64), torch.nan)},
        {"ctx": torch.ones(4, 64).int()},
    ):
        save_file(content, tmp_path / "a.safetensors")
        with pytest.raises(DataError, match="has no tensor 'ctx' of finite floats"):
            find_templates(str(tmp_path / "a.safetensors"))


def test_text_embeddings_are_cached_by_model_prompts_and_names(mini: Any, tmp_path: Path, monkeypatch: Any) -> None:
    cache = FeatureCache(tmp_path, mini)
    first = make_classifier(mini, NAMES, "mint", cache).class_embeddings
    encoded: list[object] = []
    original = ZeroShotClassifier.encode_prompts
    monkeypatch.setattr(
        ZeroShotClassifier, "encode_prompts", lambda self, model: encoded.append(1) or original(self, model)
    )
    assert torch.equal(make_classifier(mini, NAMES, "mint", cache).class_embeddings, first) and not encoded
    make_classifier(mini, NAMES, "photo", cache)
    make_classifier(mini, NAMES[:2], "mint", cache)
    assert len(encoded) == 2


def test_bench_uses_prompts_from_files(tmp_path: Path) -> None:
    from tta_panda.data.glyphs import BENCHMARK_CLASSES

    (tmp_path / "here").mkdir()
    file = tmp_path / "here" / "cupl.json"
    file.write_text(json.dumps({name: [f"a {name}", f"one {name} on paper"] for name in BENCHMARK_CLASSES}))
    command = [
        "bench",
        "--method",
        "clip,bat",
        "--corruption",
        "fog",
        "--limit",
        "20",
        "--cache",
        str(tmp_path / "cache"),
    ]
    result = CliRunner().invoke(app, [*command, "--templates", str(file), "-o", str(tmp_path / "runs"), "--json"])
    assert result.exit_code == 0, result.output
    recorded = {row["templates"] for row in json.loads(result.stdout)["rows"]}
    assert (
        len(recorded) == 1 and recorded.pop().startswith("cupl.json ") and str(tmp_path / "here") not in result.stdout
    )
    unknown = CliRunner().invoke(app, ["bench", "--templates", "phto", "--limit", "10", "-o", str(tmp_path / "x")])
    assert "photo" in str(unknown.exception)


def test_predict_uses_prompts_from_files(tmp_path: Path) -> None:
    (tmp_path / "cupl.json").write_text(json.dumps({"heart": ["an anchor"], "anchor": ["a heart"]}))
    load_data("glyphs-c", limit=20)[6][0].save(tmp_path / "heart.png")  # of the class heart
    command = [
        "predict",
        str(tmp_path / "heart.png"),
        "--classes",
        "heart,anchor",
        "--model",
        "mini",
        "--method",
        "clip",
    ]
    for options, expected in (([], "heart"), (["--template", str(tmp_path / "cupl.json")], "anchor")):
        result = CliRunner().invoke(app, [*command, *options])
        assert result.exit_code == 0 and f",{expected}," in result.stdout, result.output
