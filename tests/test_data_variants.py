"""Variants of ImageNet and CIFAR-10, each in a small copy of its layout: loaded, checked and run."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from data_files import random_images, write_image
from typer.testing import CliRunner

from tta_panda import load_data
from tta_panda.cli import app
from tta_panda.data import check_data
from tta_panda.data.dataset import ImageFiles
from tta_panda.data.source import published_classes
from tta_panda.errors import DataError

pytestmark = pytest.mark.usefixtures("undrawn")
IMAGENET = published_classes("imagenet")


def write_folders(root: Path, names: list[str]) -> None:
    content = write_image(root / names[0] / "a.png", 8, 8).read_bytes()
    for name in names[1:]:
        (root / name).mkdir()
        (root / name / "a.png").write_bytes(content)


FEW = dict(list(IMAGENET.items())[:20])


def write_variant(name: str, root: Path) -> None:
    some = list(IMAGENET)[3::5]
    match name:
        case "imagenet-a":
            write_folders(root / "imagenet-adversarial" / "imagenet-a", some)
            (root / "imagenet-adversarial" / "imagenet-a" / "README.txt").write_text("read me")
        case "imagenet-r":
            write_folders(root / "imagenet-r", some)
        case "imagenet-sketch":
            write_folders(root / "sketch", list(FEW))
        case "imagenet-v2":
            write_folders(root / "imagenetv2-matched-frequency-format-val", [str(number) for number in range(20)])
        case "cifar10.1":
            np.save(root / "cifar10.1_v6_data.npy", random_images(20))
            np.save(root / "cifar10.1_v6_labels.npy", np.arange(20, dtype=np.int32) % 10)


@pytest.mark.parametrize(
    ("name", "images", "third", "detail"),
    [
        ("imagenet-a", 200, IMAGENET[sorted(IMAGENET)[13]], "200 of 7,500 images"),
        ("imagenet-r", 200, IMAGENET[sorted(IMAGENET)[13]], "200 of 30,000 images"),
        ("imagenet-sketch", 20, "great white shark", "20 of 50,889 images"),
        ("imagenet-v2", 20, "great white shark", "20 of 10,000 images"),
        ("cifar10.1", 20, "bird", "(20, 32, 32, 3), expected (2000, 32, 32, 3)"),
    ],
)
@pytest.mark.filterwarnings("ignore::tta_panda.errors.TtaPandaWarning")
def test_variants_are_loaded_checked_and_run(
    name: str, images: int, third: str, detail: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if images == 20:
        monkeypatch.setattr("tta_panda.data.folders.published_classes", lambda _name: FEW)
    write_variant(name, tmp_path)
    dataset = load_data(name, root=tmp_path)
    assert len(dataset) == images
    assert dataset.class_names[dataset.labels[2]] == third
    if isinstance(dataset, ImageFiles) and name == "imagenet-v2":
        assert [path.parent.name for path in dataset.paths] == [str(label) for label in dataset.labels]
    [first, *_] = [finding for finding in check_data(tmp_path) if finding.data == name]
    assert first.detail == detail
    with pytest.raises(DataError, match=rf"{name} holds clean images only, not fog: add --corruption clean\."):
        load_data(name, "fog", root=tmp_path)
    command = ["bench", "--method", "clip", "--data", name, "--data-root", str(tmp_path), "--limit", "8"]
    result = CliRunner().invoke(app, [*command, "-o", str(tmp_path / "runs"), "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["rows"][0]["samples"] == 8


def test_folders_that_do_not_fit_are_explained(tmp_path: Path) -> None:
    write_folders(tmp_path / "imagenet-a", list(IMAGENET)[:199])
    with pytest.raises(DataError, match=r"should hold the 200 class folders of imagenet-a .* 1 missing\."):
        load_data("imagenet-a", root=tmp_path)
    [finding] = check_data(tmp_path)
    assert finding.status == "damaged" and "1 missing." in finding.detail
    for name in list(IMAGENET)[199:201]:
        (tmp_path / "imagenet-a" / name).mkdir()
    [finding] = check_data(tmp_path)
    assert finding.status == "damaged" and "1 too many." in finding.detail
    with pytest.raises(DataError, match="1 too many"):
        load_data("imagenet-a", root=tmp_path)
    write_folders(tmp_path / "imagenet-v2", ["cat", "1"])
    with pytest.raises(DataError, match="1 unknown: cat"):
        load_data("imagenet-v2", root=tmp_path)
    with pytest.raises(DataError, match=r"No clean images of cifar10 .*cifar10\.1_v6_data\.npy"):
        load_data("cifar10.1", root=tmp_path)
    write_variant("cifar10.1", tmp_path)
    np.save(tmp_path / "cifar10.1_v6_labels.npy", np.full(20, 10))
    found = next(finding for finding in check_data(tmp_path) if finding.data == "cifar10.1")
    assert found.status == "damaged" and "Labels must lie in 0..9 for 10 classes, found 10" in found.detail


SPLIT = {
    "train": [["Abyssinian_2.jpg", 0, "abyssinian"], ["pug_7.png", 2, "pug"]],
    "test": [["pug_1.png", 2, "pug"], ["Abyssinian_1.png", 0, "abyssinian"], ["bull_1.png", 1, "american_bulldog"]],
}


def test_splits_of_coop_are_loaded_checked_and_run(tmp_path: Path) -> None:
    for name in ("pug_1", "Abyssinian_1", "bull_1"):
        write_image(tmp_path / "images" / f"{name}.png", 20, 30)
    (tmp_path / "split_zhou_OxfordPets.json").write_text(json.dumps(SPLIT))
    dataset = load_data("coop", root=tmp_path)
    assert dataset.class_names == ("abyssinian", "american_bulldog", "pug")
    assert dataset.labels.tolist() == [2, 0, 1]
    assert isinstance(dataset, ImageFiles) and dataset.paths[1].name == "Abyssinian_1.png"
    assert [finding[1:] for finding in check_data(tmp_path)] == [("clean", "ok", "3 images of 3 classes")]
    command = ["bench", "--method", "clip", "--data", "coop", "--data-root", str(tmp_path)]
    result = CliRunner().invoke(app, [*command, "-o", str(tmp_path / "runs"), "--json"])
    assert result.exit_code == 0, result.output
    row = json.loads(result.stdout)["rows"][0]
    assert row["samples"] == 3 and len(row["fingerprint"]) == 12
    (tmp_path / "images" / "pug_1.png").unlink()
    with pytest.raises(DataError, match=r"1 of the 3 images of split_zhou_OxfordPets\.json are not in"):
        load_data("coop", root=tmp_path)
    [finding] = check_data(tmp_path)
    assert finding.status == "damaged" and "1 of the 3 images" in finding.detail


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is not a split of CoOp"),
        ("[" * 100_000, "is not a split of CoOp"),
        ("{}", "is not a split of CoOp"),
        ('{"test": []}', "names no test images"),
        ('{"test": [["a.png", 1, "cat"]]}', "labels are missing"),
        ('{"test": [["a.png", 0, "cat"], ["b.png", 0, "dog"]]}', "a label has several class names"),
        ('{"test": [["a.png", 0.5, "cat"]]}', "found the row"),
        ('{"test": [["a.png", 1e400, "cat"]]}', "found the row"),
        (json.dumps({"test": [["a" * 300, 0, "cat"]]}), "1 of the 1 images"),
        ('{"test": [["../a.png", 0, "cat"]]}', "leads out of the folder"),
        ('{"test": [["/a.png", 0, "cat"]]}', "leads out of the folder"),
    ],
)
def test_splits_that_are_none_are_explained(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(DataError, match="Expected one split_zhou"):
        load_data("coop", root=tmp_path)
    (tmp_path / "split_zhou_Pets.json").write_text(content)
    with pytest.raises(DataError, match=message):
        load_data("coop", root=tmp_path)
