"""The command that shows views."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import typer
from data_files import random_images, write_image
from PIL import Image
from typer.testing import CliRunner

from tta_panda.cli.views import views
from tta_panda.errors import DataError, InvalidInputError, UnknownNameError

app = typer.Typer()
app.command("views")(views)


def run(*arguments: object) -> str:
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if done.exception is not None:
        raise done.exception
    return done.stdout


def test_a_sheet_begins_with_the_picture(tmp_path: Path) -> None:
    image, sheet = write_image(tmp_path / "in.png", 32, 32), tmp_path / "sheet.png"
    assert str(sheet) in run(image, "--output", sheet, "--views", 5, "--size", 32)
    drawn = np.asarray(Image.open(sheet))
    assert drawn.shape == (2 * 36 - 4, 3 * 36 - 4, 3)  # five tiles in three columns
    assert np.array_equal(drawn[:32, :32], random_images(1, 32, 32)[0])
    document = json.loads(run(image, "--output", tmp_path / "again.png", "--views", 5, "--size", 32, "--json"))
    assert document["rows"][0]["views"] == 5
    assert (tmp_path / "again.png").read_bytes() == sheet.read_bytes()


def test_bad_requests_say_what_is_wrong(tmp_path: Path) -> None:
    image = write_image(tmp_path / "in.png")
    with pytest.raises(InvalidInputError, match="--size"):
        run(image, "--output", tmp_path / "out.png", "--size", 0)
    with pytest.raises(InvalidInputError, match="views"):
        run(image, "--output", tmp_path / "out.png", "--views", 0)
    with pytest.raises(UnknownNameError, match="augmix"):
        run(image, "--output", tmp_path / "out.png", "--augmentation", "augmx")
    with pytest.raises(DataError, match="no image"):
        run(tmp_path / "absent.png", "--output", tmp_path / "out.png")
    (tmp_path / "broken.png").write_text("no picture")
    with pytest.raises(DataError, match="Cannot read"):
        run(tmp_path / "broken.png", "--output", tmp_path / "out.png")
    with pytest.raises(DataError, match=r"\.png"):
        run(image, "--output", tmp_path / "out.nonsense")
