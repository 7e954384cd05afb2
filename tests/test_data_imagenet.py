"""ImageNet and ImageNet-C: classes in label order with CLIP's names, folders, and lists of images."""

from __future__ import annotations

from pathlib import Path

import pytest
from data_files import write_image

from tta_panda.data import check_data, load_data
from tta_panda.data.dataset import ImageFiles
from tta_panda.data.source import published_classes
from tta_panda.errors import DataError, InvalidInputError
from tta_panda.images import AS_PUBLISHED

CLASSES = {"n01440764": "tench", "n01443537": "goldfish", "n15075141": "toilet paper"}


def write_imagenet(root: Path) -> None:
    for number, wnid in enumerate(CLASSES):
        write_image(root / wnid / f"{number}.png", 8, 8).rename(root / wnid / f"ILSVRC2012_val_{number:08}.JPEG")


def test_imagenet_classes_are_those_of_clip() -> None:
    open_clip = pytest.importorskip("open_clip")
    names = list(published_classes("imagenet").values())
    assert len(set(names)) == 1_000
    assert list(published_classes("imagenet")) == sorted(published_classes("imagenet"))
    differing = {index for index in range(1_000) if names[index] != open_clip.IMAGENET_CLASSNAMES[index]}
    assert differing == {744, 836}  # the second "missile" and the first "sunglasses": names have to differ


def test_imagenet_synsets_are_in_label_order() -> None:
    info = pytest.importorskip("timm.data")
    assert info.ImageNetInfo().label_names() == list(published_classes("imagenet"))


def test_imagenet_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tta_panda.data.folders.published_classes", lambda _name: CLASSES)
    fog = tmp_path / "ImageNet-C" / "fog"
    write_imagenet(fog / "3")
    dataset = load_data("imagenet-c", "fog", 3, root=tmp_path)
    assert isinstance(dataset, ImageFiles)
    assert dataset.labels.tolist() == [0, 1, 2]
    assert dataset.class_names[1] == "goldfish"
    assert dataset.paths[1].parent.name == "n01443537"
    assert dataset.decoding == AS_PUBLISHED
    assert len(load_data("imagenet", root=fog / "3")) == 3

    names = tmp_path / "list.txt"
    names.write_text("n01443537/ILSVRC2012_val_00000001.JPEG\nILSVRC2012_val_00000002\n# a comment\n")
    listed = load_data("imagenet-c", "fog", 3, root=tmp_path, image_list=names)
    assert listed.labels.tolist() == [1, 2]
    names.write_text("ILSVRC2012_val_00001000.JPEG\n")
    with pytest.raises(DataError, match="1 of the 1 listed images are not in"):
        load_data("imagenet-c", "fog", 3, root=tmp_path, image_list=names)
    with pytest.raises(InvalidInputError, match="is not a data set of image files"):
        load_data("glyphs-c", image_list=names)

    with pytest.raises(DataError, match=r"val/<class>.*To run without clean images, use --corruption all"):
        load_data("imagenet-c", "clean", root=tmp_path)
    write_imagenet(tmp_path / "val")
    assert load_data("imagenet-c", "clean", root=tmp_path).paths[0].is_relative_to(tmp_path / "val")

    def checked(item: str) -> tuple[str, str]:
        [finding] = [finding for finding in check_data(tmp_path) if finding.item == item]
        return finding.status, finding.detail

    assert checked("val") == ("partial", "3 of 50,000 images")
    assert checked("fog") == ("partial", "severity 3: 3 of 50,000 images")
    assert checked("snow") == ("missing", "")
    last = fog / "3" / "n15075141"
    next(last.iterdir()).unlink()
    assert checked("fog") == ("partial", "severity 3: 2 of 50,000 images")
    last.rmdir()
    assert checked("fog")[0] == "damaged" and "1 missing: n15075141" in checked("fog")[1]
    with pytest.raises(DataError, match=r"3 class folders of imagenet-c.*1 missing: n15075141"):
        load_data("imagenet-c", "fog", 3, root=tmp_path)
    (fog / "3" / "cats").mkdir()
    assert checked("fog")[0] == "damaged" and "1 unknown: cats" in checked("fog")[1]
