"""The examples, run as their readers run them, on embedded data."""

from __future__ import annotations

import csv
import runpy
import sys
from collections.abc import Callable

import cv2
import numpy as np
import pytest
from data_files import write_image
from documents import ROOT

EXAMPLES = ROOT / "examples"
CLASSES = ["star", "heart", "--model", "mini"]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """A script in this process: what it prints."""

    def call(script: str, *arguments: object) -> str:
        monkeypatch.setattr(sys, "argv", [script, *map(str, arguments)])
        runpy.run_path(str(EXAMPLES / script), run_name="__main__")
        return capsys.readouterr().out

    return call


def test_a_camera_or_a_video(run, tmp_path):
    writer = cv2.VideoWriter(str(tmp_path / "clip.avi"), cv2.VideoWriter_fourcc(*"MJPG"), 10, (64, 48))
    for shade in range(25):
        writer.write(np.full((48, 64, 3), 10 * shade, np.uint8))
    writer.release()
    printed = run("camera.py", tmp_path / "clip.avi", *CLASSES).splitlines()
    assert len(printed) == 3
    assert all("star" in line or "heart" in line for line in printed)


def test_a_folder_to_csv(run, tmp_path):
    for index in range(3):
        write_image(tmp_path / "photos" / "below" / f"{index}.jpg", seed=index)
    (tmp_path / "photos" / "broken.jpg").write_bytes(b"no picture")
    printed = run("folder_to_csv.py", tmp_path / "photos", tmp_path / "out.csv", *CLASSES)
    assert printed.startswith("4 pictures: ") and "changed" in printed
    with (tmp_path / "out.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["class"] in ("star", "heart") for row in rows] == [False, True, True, True]
    assert rows[0]["error"] and not rows[1]["error"]


def test_an_encoder_of_ones_own(run):
    assert "this model does not support: none" in run("own_encoder.py")


@pytest.mark.slow
def test_the_notebook_runs_and_is_small():
    nbformat = pytest.importorskip("nbformat", reason="the notebook needs tta-panda[test]")
    from nbclient import NotebookClient

    path = EXAMPLES / "quickstart.ipynb"
    assert path.stat().st_size < 150_000
    notebook = nbformat.read(path, as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    stored = [kinds(cell) for cell in cells]
    assert all(stored), "outputs are stored, for those who read it without running it"
    NotebookClient(notebook, timeout=None, coalesce_streams=True, resources={"metadata": {"path": EXAMPLES}}).execute()
    assert [kinds(cell) for cell in cells] == stored


def kinds(cell) -> list[str]:
    """What a cell gives: printed text, pictures or a value; not what other packages warn of."""
    outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    return [output.output_type for output in outputs]
