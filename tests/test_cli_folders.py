"""Your own images on the command line: from a folder to records, whatever is in it."""

from __future__ import annotations

import json
import pickle
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
from data_files import random_images, write_image
from faulty import double
from PIL import Image
from typer.testing import CliRunner

from tta_panda.cli import app, main
from tta_panda.errors import TtaPandaWarning
from tta_panda.executors import load_function

pytestmark = pytest.mark.filterwarnings("ignore::tta_panda.errors.TtaPandaWarning")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undrawn: None) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for index in range(6):
        write_image(tmp_path / "photos" / ("heart", "star")[index % 2] / f"{index}.png", 40 + index, 50, seed=index)
    return tmp_path / "photos"


def document(*arguments: str | Path, code: int = 0) -> dict[str, Any]:
    result = CliRunner().invoke(app, [*map(str, arguments), "--json"])
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)  # type: ignore[no-any-return]


def bench(root: Path, *more: str, code: int = 0) -> dict[str, Any]:
    output = root.parent / "runs"
    folder = ("--data", "folder", "--data-root", root)
    return document("bench", *folder, "--method", "clip", "--batch-size", "4", "-o", output, *more, code=code)


def domains(content: dict[str, Any]) -> list[tuple[str, int, int]]:
    rows = [row for row in content["rows"] if row["method"] == "clip"]
    return [(row["corruption"], row["severity"], row["samples"]) for row in rows]


def test_the_first_command_runs_on_what_is_there(photos: Path) -> None:
    assert domains(bench(photos)) == [("clean", 0, 6)]


def test_what_corrupt_writes_is_a_data_set(photos: Path, tmp_path: Path) -> None:
    made = tmp_path / "made"
    command = ("corrupt", photos, made, "--corruption", "fog,spatter", "--workers", "1")
    document(*command)
    assert domains(bench(made)) == [("fog", 5, 6), ("spatter", 5, 6)]
    rows = document(*command, "--clean")["rows"]
    assert [(row["corruption"], row["images"]) for row in rows] == [("fog", 6), ("spatter", 6), ("clean", 6)]
    assert domains(bench(made)) == [("clean", 0, 6), ("fog", 5, 6), ("spatter", 5, 6)]
    assert bench(photos)["skipped"] == 2  # the copies are the same images


def test_broken_images_cost_their_domain_or_themselves(photos: Path, tmp_path: Path) -> None:
    made = tmp_path / "made"
    document("corrupt", photos, made, "--corruption", "fog", "--clean", "--workers", "1")
    broken = made / "fog" / "5" / "heart" / "0.png"
    broken.write_bytes(broken.read_bytes()[:99])
    stopped = bench(made, code=1)
    assert domains(stopped) == [("clean", 0, 6)]
    [missing] = stopped["missing"]
    assert missing["status"] == "unreadable"
    assert "heart/0.png" in missing["reason"] and "--skip-broken" in missing["reason"]
    skipping = bench(made, "--skip-broken")
    assert domains(skipping) == [("clean", 0, 6), ("fog", 5, 5)]
    assert domains(bench(made, code=1)) == [("clean", 0, 6)]  # its record is not that of all images
    broken.unlink()
    assert bench(made)["skipped"] == 4  # but that of the others


def test_orientation_decides_a_run_on_image_files(photos: Path, tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(random_images(1, 40, 60)[0]).save(photos / "heart" / "turned.jpg", exif=exif)
    upright, stored = (bench(photos, *option)["rows"][0] for option in ((), ("--ignore-orientation",)))
    assert upright["record"] != stored["record"]
    assert upright["nll"] != stored["nll"]
    assert (upright["ignore_orientation"], stored["ignore_orientation"]) == (False, True)


def test_notes_are_shown_once(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a.heic", "b.heic", "c.txt"):
        (photos / "heart" / name).write_text("no image")
    (photos / "star" / "empty.png").write_bytes(b"")
    command = f"bench --data folder --data-root {photos} --method clip --skip-broken -o {tmp_path / 'runs'}"
    monkeypatch.setattr(sys, "argv", ["tta-panda", *command.split()])
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        with pytest.raises(SystemExit) as ended:
            main()
    assert ended.value.code == 0
    said = capsys.readouterr().err.strip().splitlines()
    assert [line for line in said if "%" not in line] == [  # a slow machine prints progress, too
        f"note: {photos}: 7 of 10 files used: 2 .heic, 1 .txt skipped",
        "note: 1 of 7 images skipped:",
        f"  {photos}/star/empty.png: empty file",
    ]


def test_workers_do_not_repeat_notes() -> None:
    with warnings.catch_warnings(record=True) as caught:
        load_function(pickle.dumps(double), 1)
        warnings.warn("said while planning", TtaPandaWarning, stacklevel=1)
    assert caught == []
