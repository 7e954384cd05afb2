"""Making CIFAR-C: the published layout, and the same bytes however it is made."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from data_files import write_clean_cifar, write_image

from tta_panda.data import check_data, load_data
from tta_panda.data.corruptions import CORRUPTIONS, corrupt
from tta_panda.data.make import make_corrupted
from tta_panda.errors import DataError, InvalidInputError, UnknownNameError

ALL = (1, 2, 3, 4, 5)
SOME = ("fog", "contrast", "motion_blur", "snow", "shot_noise", "frost")


def contents(folder: Path) -> dict[str, str]:
    """Digests of all files of the data set."""
    paths = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def parts(folder: Path) -> list[Path]:
    """Temporary files."""
    return list(folder.glob(".*.part.*"))


@pytest.fixture
def clean(tmp_path: Path) -> Path:
    write_clean_cifar(tmp_path / "clean", count=30)
    return tmp_path / "clean"


def test_layout_is_the_published_one(clean: Path, tmp_path: Path) -> None:
    make_corrupted("cifar10-c", clean, tmp_path, ["all"], ALL)
    folder = tmp_path / "CIFAR-10-C"
    assert {path.stem for path in folder.glob("*.npy")} == {*CORRUPTIONS, "labels"}
    images, labels = np.load(folder / "fog.npy"), np.load(folder / "labels.npy")
    source = load_data("cifar10", root=clean)
    assert (images.shape, images.dtype) == ((150, 32, 32, 3), np.uint8)
    assert (labels.shape, labels.dtype) == ((150,), np.uint8)
    assert labels.tolist() == source.labels.tolist() * 5
    pictures = source.images_at(np.arange(30))
    for severity in ALL:
        rows = images[30 * (severity - 1) : 30 * severity]
        assert np.array_equal(rows, corrupt(pictures, "fog", severity, seed=0))
        loaded = load_data("cifar10-c", "fog", severity, root=tmp_path)
        assert np.array_equal(loaded.images_at(np.arange(30)), rows)


def test_bytes_do_not_depend_on_workers_or_order(clean: Path, tmp_path: Path) -> None:
    names = ["snow", "contrast"]
    make_corrupted("cifar10-c", clean, tmp_path / "two", names, [2, 5], workers=2)
    make_corrupted("cifar10-c", clean, tmp_path / "one", names, [5])
    first = make_corrupted("cifar10-c", clean, tmp_path / "one", names[::-1], [2, 5])
    assert [(made["made"], made["holds"]) for made in first] == [([2], [2, 5])] * 2
    assert contents(tmp_path / "one" / "CIFAR-10-C") == contents(tmp_path / "two" / "CIFAR-10-C")
    again = make_corrupted("cifar10-c", clean, tmp_path / "one", names, [2, 5])
    assert [(made["made"], made["holds"]) for made in again] == [([], [2, 5])] * 2


def test_unfilled_severities_are_refused(clean: Path, tmp_path: Path) -> None:
    make_corrupted("cifar10-c", clean, tmp_path, ["fog"], [3, 5])
    assert len(load_data("cifar10-c", "fog", 3, root=tmp_path)) == 30
    with pytest.raises(DataError, match=r"no images of severity 4; made so far: 3, 5.*--corruption fog --severity 4"):
        load_data("cifar10-c", "fog", 4, root=tmp_path)


def test_a_crash_between_file_and_note_leaves_the_note_behind(clean: Path, tmp_path: Path) -> None:
    make_corrupted("cifar10-c", clean, tmp_path, ["fog"], [5])
    folder = tmp_path / "CIFAR-10-C"
    whole = contents(folder)
    note = json.loads((folder / "fog.json").read_text())
    (folder / "fog.json").write_text(json.dumps({**note, "severities": []}))
    (folder / ".fog.0123456789abcdef.part.npy").write_bytes(b"half a file")
    with pytest.raises(DataError, match="none yet"):
        load_data("cifar10-c", "fog", 5, root=tmp_path)
    make_corrupted("cifar10-c", clean, tmp_path, ["fog"], [5])
    assert contents(folder) == whole
    assert not parts(folder)


def test_what_does_not_belong_together_is_refused(clean: Path, tmp_path: Path) -> None:
    make_corrupted("cifar10-c", clean, tmp_path, ["fog"], [5], seed=0)
    with pytest.raises(DataError, match="was made with seed 0, not 1"):
        make_corrupted("cifar10-c", clean, tmp_path, ["fog"], [5], seed=1)
    write_clean_cifar(tmp_path / "other", count=10)
    with pytest.raises(DataError, match="does not match the labels of the clean images"):
        make_corrupted("cifar10-c", tmp_path / "other", tmp_path, ["snow"], [5])
    with pytest.raises(UnknownNameError, match="fog"):
        make_corrupted("cifar10-c", clean, tmp_path, ["foggy"], [5])
    with pytest.raises(InvalidInputError, match="1 to 5"):
        make_corrupted("cifar10-c", clean, tmp_path, ["fog"], [6])
    with pytest.raises(DataError, match="tta-panda data download cifar10 -o"):
        make_corrupted("cifar10-c", tmp_path / "absent", tmp_path, ["fog"], [5])


def test_photographs_of_frost_are_told_apart_by_content(clean: Path, tmp_path: Path) -> None:
    for number in (1, 2):
        write_image(tmp_path / str(number) / "frost" / "a.png", 40, 40, seed=number)
    make_corrupted("cifar10-c", clean, tmp_path, ["frost"], [5], frost=tmp_path / "1" / "frost")
    with pytest.raises(DataError, match=r"was made with textures 'photographs .*', not 'photographs .*'"):
        make_corrupted("cifar10-c", clean, tmp_path, ["frost"], [4], frost=tmp_path / "2" / "frost")
    (tmp_path / "1" / "frost").rename(tmp_path / "renamed")
    (made,) = make_corrupted("cifar10-c", clean, tmp_path, ["frost"], [4], frost=tmp_path / "renamed")
    assert made["holds"] == [4, 5]


def test_missing_photographs_are_noticed_before_workers_start(clean: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="Frost photographs: no image files in"):
        make_corrupted("cifar10-c", clean, tmp_path, ["frost"], [5], frost=tmp_path / "absent", workers=2)
    assert not (tmp_path / "CIFAR-10-C").exists()


def test_published_files_are_left_alone(clean: Path, tmp_path: Path) -> None:
    folder = tmp_path / "CIFAR-10-C"
    folder.mkdir()
    np.save(folder / "fog.npy", np.zeros((150, 32, 32, 3), np.uint8))
    (made,) = make_corrupted("cifar10-c", clean, tmp_path, ["fog"], [5])
    assert (made["made"], made["holds"]) == ([], list(ALL))
    assert not np.load(folder / "fog.npy").any()


def test_check_names_what_is_missing_and_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tta_panda.data.cifar.TEST_IMAGES", 30)
    write_clean_cifar(tmp_path, count=30)
    make_corrupted("cifar10-c", tmp_path, tmp_path, ["fog"], [5])
    make_corrupted("cifar10-c", tmp_path, tmp_path, ["snow"], ALL)
    np.save(tmp_path / "CIFAR-10-C" / "contrast.npy", np.zeros((10, 32, 32, 3), np.uint8))
    found = {(finding.data, finding.item): finding for finding in check_data(tmp_path)}
    status = {key: finding.status for key, finding in found.items()}
    assert status["cifar10", "test_batch"] == "damaged"  # random images do not have the md5 sum of CIFAR-10
    assert status["cifar10-c", "labels.npy"] == "ok"
    assert status["cifar10-c", "fog.npy"] == "partial"
    assert status["cifar10-c", "snow.npy"] == "ok"
    assert status["cifar10-c", "contrast.npy"] == "damaged"
    assert "expected uint8 (150, 32, 32, 3)" in found["cifar10-c", "contrast.npy"].detail
    assert status["cifar10-c", "frost.npy"] == "missing"
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no published data set"):
        check_data(tmp_path / "empty")


@pytest.mark.parametrize(
    "labels",
    [np.tile(np.arange(30) % 10, 5) + 0.0, np.tile(np.arange(30) % 10, 5) - 1, np.zeros(150, np.uint8)],
    ids=["float", "negative", "one class"],
)
def test_check_names_labels_that_are_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, labels: npt.NDArray[np.generic]
) -> None:
    monkeypatch.setattr("tta_panda.data.cifar.TEST_IMAGES", 30)
    (tmp_path / "CIFAR-10-C").mkdir()
    np.save(tmp_path / "CIFAR-10-C" / "labels.npy", labels)
    assert check_data(tmp_path)[0].status == "damaged"
