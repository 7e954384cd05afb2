"""ImageNet and ImageNet-C: classes in label order with CLIP's names, folders, and lists of images."""

from __future__ import annotations

from pathlib import Path

import pytest
from data_files import write_image

from tta_panda.data import load_data
from tta_panda.data.dataset import ImageFiles
from tta_panda.data.source import published_classes
from tta_panda.errors import DataError, InvalidInputError
from tta_panda.images import AS_PUBLISHED


def write_imagenet(root: Path) -> None:
    content = write_image(root / "one.png", 8, 8).read_bytes()
    for number, wnid in enumerate(published_classes("imagenet")):
        (root / wnid).mkdir(parents=True)
        (root / wnid / f"ILSVRC2012_val_{number:08}.JPEG").write_bytes(content)
    (root / "one.png").unlink()


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


def test_imagenet_folders(tmp_path: Path) -> None:
    write_imagenet(tmp_path / "ImageNet-C" / "fog" / "3")
    dataset = load_data("imagenet-c", "fog", 3, root=tmp_path)
    assert isinstance(dataset, ImageFiles)
    assert dataset.labels.tolist() == list(range(1_000))
    assert dataset.class_names[1] == "goldfish"
    assert dataset.paths[1].parent.name == "n01443537"
    assert dataset.decoding == AS_PUBLISHED
    validation = load_data("imagenet", root=tmp_path / "ImageNet-C" / "fog" / "3")
    assert len(validation) == 1_000

    names = tmp_path / "list.txt"
    names.write_text("n01443537/ILSVRC2012_val_00000001.JPEG\nILSVRC2012_val_00000999\n# a comment\n")
    listed = load_data("imagenet-c", "fog", 3, root=tmp_path, image_list=names)
    assert listed.labels.tolist() == [1, 999]
    names.write_text("ILSVRC2012_val_00001000.JPEG\n")
    with pytest.raises(DataError, match="1 of the 1 listed images are not in"):
        load_data("imagenet-c", "fog", 3, root=tmp_path, image_list=names)
    with pytest.raises(InvalidInputError, match="is not a data set of image files"):
        load_data("glyphs-c", image_list=names)

    with pytest.raises(DataError, match=r"val/<class>.*To run without clean images, use --corruption all"):
        load_data("imagenet-c", "clean", root=tmp_path)
    write_imagenet(tmp_path / "val")
    assert load_data("imagenet-c", "clean", root=tmp_path).paths[0].is_relative_to(tmp_path / "val")
    last = tmp_path / "ImageNet-C" / "fog" / "3" / "n15075141"
    next(last.iterdir()).unlink()
    last.rmdir()
    with pytest.raises(DataError, match=r"1,000 class folders.*1 missing: n15075141"):
        load_data("imagenet-c", "fog", 3, root=tmp_path)
