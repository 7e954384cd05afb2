"""Published layouts of data sets: a small copy of each is loaded, checked, and run by `bench`."""

from __future__ import annotations

import io
import json
import re
import tarfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from data_files import random_images, write_image
from PIL import Image
from test_predict import write
from typer.testing import CliRunner

from tta_panda import CLIP, Stream, evaluate, load_data, load_model, make_classifier, predict
from tta_panda.cli import app
from tta_panda.data import DATASETS, check_data
from tta_panda.data.dataset import ImageFiles
from tta_panda.data.source import published_classes
from tta_panda.errors import BrokenImageError, DataError, InvalidInputError, UnknownNameError
from tta_panda.prediction.reading import find_pictures

pytestmark = pytest.mark.usefixtures("undrawn")
WNIDS = list(published_classes("imagenet"))


def bench(data: str, tmp_path: Path, *options: str) -> list[dict[str, Any]]:
    command = ["bench", "--method", "clip", "--data", data, "-o", str(tmp_path / "runs"), "--json", *options]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    return [row for row in json.loads(result.stdout)["rows"] if row["method"] == "clip"]


def encoded(seed: int, size: int = 16) -> bytes:
    content = io.BytesIO()
    Image.fromarray(random_images(1, size, size, seed)[0]).save(content, "PNG")
    return content.getvalue()


def write_tree(root: Path, domains: tuple[str, ...], classes: tuple[str, ...] = ("Back_Pack", "bike")) -> None:
    for seed, (domain, name) in enumerate((domain, name) for domain in domains for name in classes):
        write_image(root / domain / name / "a.png", seed=seed)


TREES = {
    "pacs": "PACS",
    "vlcs": "VLCS",
    "officehome": "office_home",
    "terra": "terra_incognita",
    "domainnet": "domain_net",
    "visda": "VisDA-C",
}


@pytest.mark.parametrize("name", TREES)
def test_trees_of_domains(name: str, tmp_path: Path) -> None:
    domains = DATASETS.get(name).domains
    write_tree(tmp_path / TREES[name], domains)
    dataset = load_data(name, domains[-1], root=tmp_path)
    assert dataset.class_names == ("Back_Pack", "bike") and dataset.labels.tolist() == [0, 1]
    findings = [finding for finding in check_data(tmp_path) if finding.data == name]
    assert [finding.item for finding in findings] == list(domains)
    assert findings[0].status == "partial" and "2 images of 2 classes, expected" in findings[0].detail
    [row] = bench(name, tmp_path, "--data-root", str(tmp_path), "--corruption", domains[0])
    assert row["samples"] == 2 and row["corruption"] == domains[0]


def test_domains_take_the_place_of_corruptions(tmp_path: Path) -> None:
    domains = DATASETS.get("pacs").domains
    write_tree(tmp_path / "PACS", domains)
    root = ["--data-root", str(tmp_path)]
    rows = bench("pacs", tmp_path, *root)
    assert {row["corruption"] for row in rows} == set(domains)
    assert {row["severity"] for row in rows} == {0}
    joined = bench("pacs", tmp_path, *root, "--order", "continual", "--corruption", "sketch,photo")
    assert {(row["corruption"], row["samples"], row["order"]) for row in joined} == {
        ("sketch", 2, "continual"),
        ("photo", 2, "continual"),
    }
    command = ["bench", "--method", "clip,tent", "--data", "pacs", *root, "-o", str(tmp_path / "table")]
    table = CliRunner().invoke(app, command)
    assert table.exit_code == 0 and all(name in table.output.replace(" ", "_") for name in domains), table.output


def test_wrong_domains_are_explained(tmp_path: Path) -> None:
    write_tree(tmp_path / "PACS", ("photo", "sketch"))
    (tmp_path / "PACS" / "photo" / "bike" / "a.png").rename(tmp_path / "PACS" / "photo" / "a.png")
    (tmp_path / "PACS" / "photo" / "bike").rmdir()
    assert DATASETS.get("pacs").available(tmp_path) == ("photo", "sketch")
    with pytest.warns(match="outside the class folders"):
        dataset = load_data("pacs", "photo", root=tmp_path)
    assert dataset.class_names == ("Back_Pack", "bike") and len(dataset) == 1  # a domain may lack a class
    statuses = {finding.item: finding.status for finding in check_data(tmp_path)}
    assert statuses["photo"] == "partial" and statuses["cartoon"] == "missing"
    with pytest.raises(DataError, match=r"There is no .*cartoon.*found photo, sketch.*--corruption NAMES"):
        load_data("pacs", "cartoon", root=tmp_path)
    source = DATASETS.get("pacs")
    with pytest.raises(UnknownNameError, match="domain 'fog'"):
        source.expand(["fog"], tmp_path)
    result = CliRunner().invoke(
        app, ["bench", "--data", "pacs", "--data-root", str(tmp_path), "--order", "gradual", "-o", str(tmp_path / "r")]
    )
    assert isinstance(result.exception, InvalidInputError) and "gradual needs corruptions" in str(result.exception)


def test_your_own_domains(tmp_path: Path) -> None:
    root = tmp_path / "data"
    write_tree(root, ("day", "night"))
    (root / "classes.txt").write_text("Back_Pack\trucksack\nbike\tbicycle\n")
    assert load_data("domains", "night", root=root).class_names == ("rucksack", "bicycle")
    assert {row["corruption"] for row in bench("domains", tmp_path, "--data-root", str(root))} == {"day", "night"}
    assert [finding[1:3] for finding in check_data(root, "domains")] == [("day", "ok"), ("night", "ok")]
    (root / "classes.txt").write_text("bike\n")
    assert [finding.status for finding in check_data(root, "domains")] == ["damaged"] * 2


@pytest.mark.parametrize(
    ("name", "corruption", "folder"),
    [
        ("imagenet-c-bar", "sparkles", ""),
        ("imagenet-3dcc", "fog_3d", "ImageNet-3DCC"),
        ("tiny-imagenet-c", "fog", "Tiny-ImageNet-C"),
    ],
)
@pytest.mark.filterwarnings("ignore::tta_panda.errors.TtaPandaWarning")
def test_other_corruptions_of_imagenet(
    name: str, corruption: str, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wnids = WNIDS[::5]  # Tiny-ImageNet has 200 of the 1,000 classes
    if name != "tiny-imagenet-c":
        wnids = WNIDS[:20]
        monkeypatch.setattr("tta_panda.data.folders.published_classes", lambda _name: {wnid: wnid for wnid in wnids})
    place = tmp_path / folder / corruption / "3"
    content = write_image(place / wnids[0] / "a.png", 8, 8).read_bytes()
    for wnid in wnids[1:]:
        (place / wnid).mkdir()
        (place / wnid / "a.png").write_bytes(content)
    dataset = load_data(name, corruption, 3, root=tmp_path)
    assert len(dataset) == len(wnids) == len(dataset.class_names)
    found = [finding for finding in check_data(tmp_path) if finding.data == name and finding.item == corruption]
    assert [finding.status for finding in found] == ["partial"]
    root = ["--data-root", str(tmp_path)]
    [row] = bench(name, tmp_path, *root, "--corruption", corruption, "--severity", "3", "--limit", "8")
    assert row["samples"] == 8 and row["corruption"] == corruption
    if name != "tiny-imagenet-c":
        assert set(DATASETS.get(name).expand(["all"], tmp_path)) == set(DATASETS.get(name).domains) - {"clean"}
        with pytest.raises(UnknownNameError):
            DATASETS.get(name).expand(["fog"], tmp_path)
        with pytest.raises(DataError, match=r"found severities 3 of .*\. Unpack it there"):
            load_data(name, corruption, 4, root=tmp_path)


def test_cifar_10_2_and_c_bar(tmp_path: Path) -> None:
    images, labels = random_images(20), np.arange(20) % 10
    np.savez(tmp_path / "cifar102_test.npz", images=images, labels=labels, label_names=np.array(["a", {}], object))
    assert np.array_equal(load_data("cifar10.2", root=tmp_path).images_at(np.arange(20)), images)  # type: ignore[arg-type]
    assert bench("cifar10.2", tmp_path, "--data-root", str(tmp_path))[0]["samples"] == 20
    bar = tmp_path / "CIFAR-10-C-Bar"
    bar.mkdir()
    np.save(bar / "ripple.npy", np.tile(images, (5, 1, 1, 1)))
    np.save(bar / "labels.npy", np.tile(labels, 5))
    root = ["--data-root", str(tmp_path), "--corruption", "ripple"]
    [first] = bench("cifar10-c-bar", tmp_path, *root)
    np.save(bar / "ripple.npy", np.tile(images[::-1], (5, 1, 1, 1)))  # the authors' script sets no random seed
    [second] = bench("cifar10-c-bar", tmp_path, *root)
    assert first["samples"] == second["samples"] == 20 and first["fingerprint"] != second["fingerprint"]
    findings = {finding.item: finding for finding in check_data(tmp_path)}
    assert findings["cifar102_test.npz"].status == findings["ripple.npy"].status == "damaged"
    assert findings["lines.npy"].status == "missing"
    (tmp_path / "cifar102_test.npz").write_bytes(b"PK\x05\x06")
    with pytest.raises(DataError, match=r"not a readable \.npz file"):
        load_data("cifar10.2", root=tmp_path)
    with pytest.raises(DataError, match=r"No labels\.npy"):
        load_data("cifar10-c-bar", "ripple", root=tmp_path / "elsewhere")


def test_an_archive_of_arrays_takes_no_more_memory_than_it_has(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "cifar102_test.npz", images=np.zeros((20_000, 32, 32, 3), np.uint8), labels=[0])
    with pytest.raises(DataError, match=r"bytes would become 61,"):
        load_data("cifar10.2", root=tmp_path)


def test_variants_of_aircraft(tmp_path: Path) -> None:
    for seed, number in enumerate(("0034309", "0034958", "0037511")):
        write_image(tmp_path / "images" / f"{number}.jpg", seed=seed)
    (tmp_path / "variants.txt").write_text("707-320\nBoeing 717\n")
    (tmp_path / "images_variant_test.txt").write_text("0034309 707-320\n0034958 Boeing 717\n0037511 707-320\n")
    dataset = load_data("fgvc-aircraft", root=tmp_path)
    assert dataset.class_names == ("707-320", "Boeing 717") and dataset.labels.tolist() == [0, 1, 0]
    assert bench("fgvc-aircraft", tmp_path, "--data-root", str(tmp_path))[0]["samples"] == 3
    assert [finding[2:] for finding in check_data(tmp_path)] == [("ok", "3 images of 2 classes")]
    (tmp_path / "variants.txt").write_text("707-320\n")
    assert [finding.status for finding in check_data(tmp_path)] == ["damaged"]
    with pytest.raises(DataError, match=r"variants that are not in variants\.txt: Boeing 717"):
        load_data("fgvc-aircraft", root=tmp_path)
    (tmp_path / "variants.txt").unlink()
    with pytest.raises(DataError, match=r"Cannot read .*variants\.txt"):
        load_data("fgvc-aircraft", root=tmp_path)


def test_lists_of_paths_and_labels(tmp_path: Path) -> None:
    write_tree(tmp_path, ("real", "sketch"))
    for domain in ("real", "sketch"):
        (tmp_path / f"{domain}_list.txt").write_text(f"{domain}/Back_Pack/a.png 0\n{domain}/bike/a.png 1\n")
    dataset = load_data("domainnet-126", "sketch", root=tmp_path)
    assert isinstance(dataset, ImageFiles) and dataset.class_names == ("Back_Pack", "bike")
    assert [path.parent.parent.name for path in map(Path, dataset.paths)] == ["sketch", "sketch"]
    rows = bench(
        "domainnet-126", tmp_path, "--data-root", str(tmp_path), "--order", "continual", "--corruption", "real,sketch"
    )
    assert [row["samples"] for row in rows] == [2, 2]
    assert {row["corruption"] for row in bench("lists", tmp_path, "--data-root", str(tmp_path))} >= {"real", "sketch"}
    with pytest.raises(DataError, match="There is no list of clipart"):
        load_data("domainnet-126", "clipart", root=tmp_path)
    statuses = {finding.item: finding.status for finding in check_data(tmp_path)}
    assert statuses == {"clipart": "damaged", "painting": "damaged", "real": "ok", "sketch": "ok"}
    assert [finding[1:3] for finding in check_data(tmp_path, "lists")] == [("real", "ok"), ("sketch", "ok")]
    (tmp_path / "sketch_list.txt").unlink()
    assert len(load_data("lists", root=tmp_path)) == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("real/bike/a.png\n", "Line 1 of .* expected the path of an image and its label"),
        ("real/bike/a.png -1\n", "Line 1 of"),
        (f"real/bike/a.png {'9' * 5000}\n", "Line 1 of"),
        ("/real/bike/a.png 0\n", "leads out of the folder"),
        ("real/bike/a.png 0\nreal/bike/a.png 1\n", "have no names"),
        ("real/bike/a.png 1\n", "Some labels are missing"),
        ("../bike/a.png 0\n", "leads out of the folder"),
        ("real/bike/b.png 0\n", "1 of the 1 images"),
    ],
)
def test_lists_that_cannot_be_read_are_explained(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"Expected \*\.txt in"):
        load_data("lists", root=tmp_path)
    write_tree(tmp_path, ("real",))
    (tmp_path / "real.txt").write_text(text)
    with pytest.raises(DataError, match=message):
        load_data("lists", root=tmp_path)
    (tmp_path / "classes.txt").write_text("cat\ndog\n")
    (tmp_path / "real.txt").write_text("real/bike/a.png 2\n")
    with pytest.raises(DataError, match=r"has the label 2, but .* names only 2 classes"):
        load_data("lists", root=tmp_path)


def test_labels_are_part_of_the_fingerprint(tmp_path: Path) -> None:
    write_tree(tmp_path, ("real",))
    (tmp_path / "classes.txt").write_text("cat\ndog\n")
    found = set()
    for labels in ((0, 1), (1, 0), (0, 1)):
        lines = (f"real/{name}/a.png {label}\n" for name, label in zip(("Back_Pack", "bike"), labels, strict=True))
        (tmp_path / "real.txt").write_text("".join(lines))
        found.add(DATASETS.get("lists").fingerprint(tmp_path, "clean", 0))
    assert len(found) == 2 and None not in found


# WebDataset


def write_shard(path: Path, samples: dict[str, dict[str, bytes]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for key, parts in samples.items():
            for suffix, content in parts.items():
                member = tarfile.TarInfo(f"{key}.{suffix}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    return path


def write_shards(root: Path, shards: int = 3, each: int = 4, image: str = "png", label: str = "cls") -> Path:
    for shard in range(shards):
        numbers = range(shard * each, (shard + 1) * each)
        samples = {f"{number:05}": {image: encoded(number), label: str(number % 2).encode()} for number in numbers}
        write_shard(root / f"{shard:03}.tar", samples)
    (root / "classes.txt").write_text("cat\ndog\n")
    return root


def test_webdataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write_shards(tmp_path / "shards")
    name = f"wds:{root}/{{000..002}}.tar"
    dataset = load_data(name)
    assert isinstance(dataset, ImageFiles) and len(dataset) == 12 and dataset.class_names == ("cat", "dog")
    for index in (0, 5, 11):
        image, label = dataset[index]
        assert np.array_equal(np.asarray(image), random_images(1, 16, 16, index)[0]) and label == index % 2
    [row] = bench(name, tmp_path)
    assert row["samples"] == 12 and row["data"] == "wds:{000..002}.tar" and len(row["fingerprint"]) == 12
    assert str(tmp_path) not in json.dumps(row)
    (tmp_path / "elsewhere").mkdir()
    moved = root.rename(tmp_path / "elsewhere" / "shards")
    assert bench(f"wds:{moved}/{{000..002}}.tar", tmp_path / "b")[0]["fingerprint"] == row["fingerprint"]
    assert bench(f"wds:{moved}/{{000..001}}.tar", tmp_path)[0]["fingerprint"] != row["fingerprint"]
    assert check_data(tmp_path, f"wds:{moved}") == [("wds", "clean", "ok", "12 images of 2 classes")]
    classifier = make_classifier(load_model("mini"), dataset.class_names)
    result = evaluate(CLIP(classifier), Stream(load_data(f"wds:{moved}"), 5, fit=32))
    assert result.accuracy == row["accuracy"] and result.samples == 12
    opened: list[str] = []
    import tta_panda.data.shards as module

    original = module.open_regular
    monkeypatch.setattr(module, "open_regular", lambda path: opened.append(path.name) or original(path))  # type: ignore[func-returns-value]
    list(load_data(f"wds:{moved}"))
    assert opened == sorted(opened[:3]) + sorted(opened[3:])  # read twice, one shard after another


def test_shards_are_streamed(tmp_path: Path) -> None:
    content = io.BytesIO()
    Image.fromarray(random_images(1, 400, 400)[0]).save(content, "PPM")
    write_shard(tmp_path / "0.tar", {str(index): {"ppm": content.getvalue(), "cls": b"0"} for index in range(40)})
    (tmp_path / "classes.txt").write_text("cat\ndog\n")
    tracemalloc.start()
    seen = sum(len(labels) for _, labels in Stream(load_data(f"wds:{tmp_path}"), 2, fit=32))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert seen == 40 and peak < (tmp_path / "0.tar").stat().st_size / 4


def test_shards_of_ccc(tmp_path: Path) -> None:
    setting = "baseline_20_transition+speed_1000_seed_43"
    write_shards(tmp_path / setting, image="input.jpg", label="output.cls")
    dataset = load_data("ccc", setting, root=tmp_path)
    assert len(dataset.class_names) == 1000 and len(dataset) == 12
    rows = bench("ccc", tmp_path, "--data-root", str(tmp_path), "--order", "sequential", "--limit", "6")
    assert rows[0]["corruption"] == setting and rows[0]["samples"] == 6
    assert load_data("ccc", root=tmp_path / setting).labels.tolist() == dataset.labels.tolist()
    other = write_shards(tmp_path / setting.replace("43", "44"), image="input.jpg", label="output.cls")
    (other / "002.tar").write_bytes((other / "002.tar").read_bytes()[:3000])
    statuses = {finding.item: finding.status for finding in check_data(tmp_path, "ccc")}
    assert statuses == {setting: "ok", other.name: "damaged"}
    command = ["bench", "--method", "clip", "--data", "ccc", "--data-root", str(tmp_path), "-o", str(tmp_path / "b")]
    result = CliRunner().invoke(app, [*command, "--json"])  # only the damaged domain is lost
    found = json.loads(result.stdout)
    assert result.exit_code == 1 and {row["corruption"] for row in found["rows"]} == {setting}
    assert other.name in found["missing"][0]["what"] and "002.tar cannot be read" in found["missing"][0]["reason"]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda root: (root / "001.tar").unlink(), r"1 of 3 shards are not in .*: 001\.tar; found 000\.tar"),
        (lambda root: (root / "classes.txt").unlink(), "There are no class names for"),
        (lambda root: (root / "classes.txt").write_text("crane\ncrane\n"), r"classes\.txt names classes twice: crane"),
        (lambda root: (root / "001.tar").write_bytes((root / "001.tar").read_bytes()[:3000]), "001.tar cannot be read"),
        (lambda root: (root / "001.tar").write_bytes(b"no tar"), "001.tar cannot be read as a shard .*no tar file"),
        (lambda root: write_shard(root / "001.tar", {"1": {"png": encoded(0)}}), "1 of the 9 images have no label"),
        (
            lambda root: write_shard(root / "001.tar", {"1": {"png": b"", "cls": b"cat"}}),
            "holds b'cat'; expected the index",
        ),
        (
            lambda root: write_shard(root / "001.tar", {"1": {"png": b"", "cls": b"9"}}),
            r"in 0\.\.1 for 2 classes, found 9 for .*001\.tar/1\.png",
        ),
    ],
)
def test_damaged_shards_are_explained(damage: Callable[[Path], object], message: str, tmp_path: Path) -> None:
    damage(write_shards(tmp_path))
    with pytest.raises(DataError, match=message):
        load_data(f"wds:{tmp_path}/{{000..002}}.tar")
    command = ["data", "check", "--data", f"wds:{tmp_path}/{{000..002}}.tar", "--json"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 1 and re.search(message, json.loads(result.stdout)["rows"][0]["detail"])


@pytest.mark.parametrize(
    ("size", "kind", "message"),
    [
        (-512, tarfile.REGTYPE, "a member of negative size"),  # which is the same member again
        (2**60, tarfile.REGTYPE, "unexpected end of data"),
        (2**60, tarfile.XHDTYPE, "cannot be read as a shard"),
        (2**60, tarfile.GNUTYPE_LONGNAME, "cannot be read as a shard"),
    ],
)
def test_forged_shards_neither_take_memory_nor_forever(size: int, kind: bytes, message: str, tmp_path: Path) -> None:
    shard = write_shard(tmp_path / "0.tar", {"1": {"png": encoded(0), "cls": b"0"}})
    header = bytearray(tarfile.TarInfo("2.png").tobuf(tarfile.GNU_FORMAT))
    header[124:136] = ((256**12 if size < 0 else 2**95) + size).to_bytes(12, "big")
    header[156:157] = kind
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    with tarfile.open(shard) as tar:
        tar.getmembers()
        end = tar.offset
    shard.write_bytes(shard.read_bytes()[:end] + header + bytes(1024))
    with pytest.raises(DataError, match=message):
        load_data(f"wds:{tmp_path}")


def test_names_of_shards_on_disk_are_not_expanded(tmp_path: Path) -> None:
    write_shard(tmp_path / "{0..9999999999}.tar", {"1": {"png": encoded(0), "cls": b"0"}})
    (tmp_path / "classes.txt").write_text("cat\n")
    assert len(load_data(f"wds:{tmp_path}")) == 1
    with pytest.raises(DataError, match="names more than 1,000,000 shards"):
        load_data(f"wds:{tmp_path}/{{0..9999999999}}.tar")


def test_shards_without_images_are_explained(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="There are no shards of clean in"):
        load_data(f"wds:{tmp_path}")
    write_shard(tmp_path / "0.tar", {"1": {"txt": b"hello"}})
    with pytest.raises(DataError, match=r"There are no images in 0\.tar"):
        load_data(f"wds:{tmp_path}")
    with pytest.raises(DataError, match="There is no folder"):
        load_data(f"wds:{tmp_path}/absent")


def test_shards_are_predicted(tmp_path: Path) -> None:
    root = write_shards(tmp_path / "shards")
    command = ["predict", f"wds:{root}/{{000..001}}.tar", "--model", "mini", "--batch-size", "3"]
    whole = [*command, "-o", str(tmp_path / "whole.csv")]
    result = CliRunner().invoke(app, [*whole, "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["pictures"] == 8
    rows = (tmp_path / "whole.csv").read_text().splitlines()
    assert f"{root}/000.tar/00001.png" in rows[2] and ",dog," in rows[2] and len(rows) == 9
    pictures = find_pictures([f"wds:{root}/{{000..001}}.tar"])[0]
    for name, batches in (("resumed", 1), ("resumed", None), ("uninterrupted", None)):
        write(tmp_path / f"{name}.csv", pictures, batches=batches, resume=batches is None, batch_size=3)
    assert (tmp_path / "resumed.csv").read_bytes() == (tmp_path / "uninterrupted.csv").read_bytes()
    predictions = predict(f"wds:{root}", model="mini", progress=False)
    assert len(predictions) == 12 and predictions[4].label == "cat"
    for shard in root.glob("*.tar"):
        write_shard(shard, {f"{shard.stem}{number}": {"png": encoded(number)} for number in range(2)})
    with pytest.raises(DataError, match="6 of the 6 images have no label"):
        predict(f"wds:{root}", model="mini", progress=False)
    assert len(predict(f"wds:{root}", ["star", "heart"], model="mini", progress=False)) == 6


# Hugging Face


def write_parquet(folder: Path, **columns: Any) -> Path:
    datasets = pytest.importorskip("datasets")
    folder.mkdir(parents=True, exist_ok=True)
    table = datasets.Dataset.from_dict(columns)
    if isinstance(columns.get("image", [[]])[0], dict):
        table = table.cast_column("image", datasets.Image())
    table.to_parquet(str(folder / "test.parquet"))
    return folder


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    images = [{"bytes": encoded(seed), "path": None} for seed in range(6)]
    return {"image": images, "label": ["cat", "dog", "cat", "dog", "dog", "cat"]}


def test_folders_of_parquet(tmp_path: Path, rows: dict[str, Any]) -> None:
    folder = write_parquet(tmp_path / "pets", **rows)
    dataset = load_data(f"hf:{folder}")
    assert dataset.class_names == ("cat", "dog") and dataset.labels.tolist() == [0, 1, 0, 1, 1, 0]
    assert np.array_equal(np.asarray(dataset[4][0]), random_images(1, 16, 16, 4)[0])
    [row] = bench(f"hf:{folder}", tmp_path)
    assert row["samples"] == 6 and row["data"] == "hf:pets" and len(row["fingerprint"]) == 12
    assert check_data(tmp_path, f"hf:{folder}") == [("hf", "clean", "ok", "6 images of 2 classes")]
    predictions = predict(f"hf:{folder}", model="mini", progress=False)
    assert [prediction.label for prediction in predictions] == rows["label"]
    classifier = make_classifier(load_model("mini"), dataset.class_names)
    assert evaluate(CLIP(classifier), Stream(dataset, 4, fit=32)).accuracy == row["accuracy"]


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("label", [0, 1, 0, 1, 1, 0], "has no class names"),
        ("label", [0.5, 1, 0, 1, 1, 0], "expected whole numbers or class names"),
        ("label", None, "has the columns image; expected one of label"),
        ("image", None, "has the columns label; expected one of image"),
        ("image", [[0, 255]] * 6, "expected encoded images. Convert it"),
    ],
)
def test_wrong_columns_are_explained(
    column: str, values: Any, message: str, tmp_path: Path, rows: dict[str, Any]
) -> None:
    changed = {name: content for name, content in {**rows, column: values}.items() if content is not None}
    folder = write_parquet(tmp_path / "pets", **changed)
    with pytest.raises(DataError, match=message):
        load_data(f"hf:{folder}")


def test_unknown_data_sets_of_hugging_face_are_explained(tmp_path: Path, rows: dict[str, Any]) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"Cannot load .*empty with the package datasets"):
        load_data(f"hf:{tmp_path / 'empty'}")
    with pytest.raises(DataError, match="Name the data set"):
        load_data("hf")


def test_data_sets_of_hugging_face_read_no_files_elsewhere(tmp_path: Path, rows: dict[str, Any]) -> None:
    """Neither those that rows name, nor those that a README names; and no code."""
    secret = write_image(tmp_path / "secret.png")
    own = {"label": rows["label"][:1]}
    for image, message in (
        ({"bytes": None, "path": str(secret)}, "secret.png, outside of"),
        ({"bytes": None, "path": str(tmp_path / "pets" / ".." / "secret.png")}, "secret.png, outside of"),
    ):
        folder = write_parquet(tmp_path / "pets", image=[image], **own)
        with pytest.raises(BrokenImageError, match=message):
            load_data(f"hf:{folder}")[0]
    datasets = pytest.importorskip("datasets")
    sizes = datasets.Dataset.from_dict({"image": [{"bytes": 6 * 10**9, "path": ""}], **own})
    (tmp_path / "sizes").mkdir()
    sizes.to_parquet(str(tmp_path / "sizes" / "test.parquet"))
    with pytest.raises(BrokenImageError, match="holds no encoded image"):
        load_data(f"hf:{tmp_path / 'sizes'}")[0]
    elsewhere = write_parquet(tmp_path / "elsewhere", **rows) / "test.parquet"
    (tmp_path / "named").mkdir()
    (tmp_path / "named" / "named.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w')")
    for file in ("../elsewhere/*.parquet", elsewhere, f"file://{elsewhere}"):
        (tmp_path / "named" / "README.md").write_text(f"---\nconfigs:\n- config_name: a\n  data_files: {file}\n---\n")
        with pytest.raises(DataError, match=r"names data elsewhere|Cannot load"):
            load_data(f"hf:{tmp_path / 'named'}")
    assert not (tmp_path / "executed").exists()


def test_splits_without_labels_are_explained(tmp_path: Path, rows: dict[str, Any]) -> None:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(image=datasets.Image(), label=datasets.ClassLabel(names=["cat", "dog"]))
    (tmp_path / "pets").mkdir()
    for labels, message in (([-1] * 6, "split test .* has no labels"), ([0, 1, 0, 1, 0, -1], "found -1 for .*pets/5")):
        table = datasets.Dataset.from_dict({**rows, "label": labels}, features)
        table.to_parquet(str(tmp_path / "pets" / "test.parquet"))
        with pytest.raises(DataError, match=message):
            load_data(f"hf:{tmp_path / 'pets'}")
