"""The commands about data: what they print, and that errors are one message without a traceback."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from data_files import write_clean_cifar, write_image
from typer.testing import CliRunner

from tta_panda.cli import app
from tta_panda.data.make import make_corrupted
from tta_panda.errors import TtaPandaError

runner = CliRunner()


def rows(*arguments: str, code: int = 0) -> dict[str, Any]:
    result = runner.invoke(app, [*arguments, "--json"])
    assert result.exit_code == code, result.output
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def test_make_and_check(tmp_path: Path) -> None:
    write_clean_cifar(tmp_path, count=10)
    made = rows(
        "data", "make", "cifar10-c", "--from", str(tmp_path), "-o", str(tmp_path), "--corruption", "fog",
        "--severity", "5", "--workers", "1",
    )  # fmt: skip
    assert [(row["made"], row["holds"]) for row in made["rows"]] == [([5], [5])]
    checked = rows("data", "check", str(tmp_path), code=1)
    assert checked["damaged"] > 0  # ten images are not the ten thousand
    assert {row["status"] for row in checked["rows"]} == {"damaged", "missing"}


def test_corrupt_folder(tmp_path: Path) -> None:
    write_image(tmp_path / "in" / "a" / "1.png", 40, 40)
    document = rows(
        "corrupt", str(tmp_path / "in"), str(tmp_path / "out"), "--corruption", "fog,snow", "--severity", "3,5",
        "--workers", "1",
    )  # fmt: skip
    assert [(row["corruption"], row["severity"], row["images"]) for row in document["rows"]] == [
        ("fog", 3, 1), ("fog", 5, 1), ("snow", 3, 1), ("snow", 5, 1),
    ]  # fmt: skip
    assert document["skipped"] == []
    assert (tmp_path / "out" / "snow" / "5" / "a" / "1.png").is_file()


def test_corrupt_reports_broken_images(tmp_path: Path) -> None:
    write_image(tmp_path / "in" / "good.png", 40, 40)
    (tmp_path / "in" / "bad.png").write_bytes(b"broken")
    command = ["corrupt", str(tmp_path / "in"), str(tmp_path / "out"), "--corruption", "fog", "--workers", "1"]
    result = runner.invoke(app, command)
    assert result.exit_code == 1
    assert "skipped bad.png: not a picture" in result.stderr
    assert (tmp_path / "out" / "fog" / "5" / "good.png").is_file()
    assert runner.invoke(app, [*command, "--skip-broken"]).exit_code == 0


def test_corrupt_by_workers_names_the_real_error(tmp_path: Path) -> None:
    write_image(tmp_path / "in" / "a.png", 40, 40)
    command = ["corrupt", str(tmp_path / "in"), str(tmp_path / "out"), "--parameters", "cfar", "--workers", "2"]
    assert "Did you mean 'cifar'" in str(runner.invoke(app, command).exception)


def test_download_goes_to_data_and_says_how_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("requests.Session.get", offline)
    result = runner.invoke(app, ["data", "download", "cifar10-c", "--json"])
    assert "Cannot fetch" in str(result.exception)
    assert "Fetching CIFAR-10-C.tar (2.9 GB) into data" in result.stderr
    assert result.stdout == ""


def offline(*_: object, **__: object) -> None:
    import requests

    raise requests.ConnectionError("offline")


@pytest.mark.slow
def test_run_on_images_on_disk(tmp_path: Path) -> None:
    """From clean images to records: cifar10-c that was made here, and a folder of images of several sizes."""
    write_clean_cifar(tmp_path, count=20)
    make_corrupted("cifar10-c", tmp_path, tmp_path, ["fog"], [5])
    common = ("--method", "clip", "-o", str(tmp_path / "runs"), "--data-root", str(tmp_path))
    arrays = rows("bench", *common, "--data", "cifar10-c", "--corruption", "clean,fog")
    found = [(row["method"], row["corruption"], row["samples"]) for row in arrays["rows"]]
    assert found == [(method, name, 20) for name in ("clean", "fog") for method in ("clip", "clip+panda")]
    exact = rows("bench", *common, "--data", "cifar10-c", "--corruption", "fog", "--preprocess", "exact")
    assert exact["skipped"] == 0
    assert exact["rows"][0]["fingerprint"] == "made with seed 0"
    assert exact["rows"][0]["preprocess"] == "exact"

    for index, name in enumerate(("cat", "cat", "dog")):
        write_image(tmp_path / "photos" / name / f"{index}.png", 40 + index, 50)
    photos = (*common[:4], "--data-root", str(tmp_path / "photos"), "--data", "folder", "--corruption", "clean")
    assert rows("bench", *photos)["rows"][0]["samples"] == 3
    (tmp_path / "photos" / "list.txt").write_text("cat/0.png\ndog/2\n")
    listed = rows("bench", *photos, "--image-list", str(tmp_path / "photos" / "list.txt"))
    assert listed["rows"][0]["samples"] == 2

    write_image(tmp_path / "flat" / "a.png")
    result = runner.invoke(
        app, ["bench", *common[:4], "--data", "folder", "--data-root", str(tmp_path / "flat"), "--corruption", "clean"]
    )
    assert "no class folders" in str(result.exception)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["data", "make", "cifar10", "--from", ".", "-o", "."], "Did you mean 'cifar10-c'"),
        (["data", "download", "imagenet", "-o", "."], "Did you mean 'imagenet-c'"),
        (["data", "check", "no-such-folder"], "There is no folder"),
    ],
)
def test_mistakes_are_explained(arguments: list[str], message: str) -> None:
    result = runner.invoke(app, arguments)
    assert isinstance(result.exception, TtaPandaError)
    assert message in str(result.exception)


def test_help_stays_light() -> None:
    code = (
        "import sys\nfrom typer.testing import CliRunner\nfrom tta_panda.cli import app\n"
        "for words in (['--help'], ['data', '--help'], ['corrupt', '--help'], ['data', 'make', '--help']):\n"
        "    assert CliRunner().invoke(app, words).exit_code == 0\n"
        "print(sorted({'torch', 'numpy', 'PIL', 'cv2', 'requests'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
