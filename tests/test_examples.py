"""The examples, run as their readers run them, on embedded data."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
from data_files import write_image
from documents import ROOT

EXAMPLES = ROOT / "examples"
CLASSES = ["star", "heart", "--model", "mini"]


def run(script: str, *arguments: str | Path) -> str:
    command = [sys.executable, str(EXAMPLES / script), *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_camera_or_a_video(tmp_path):
    writer = cv2.VideoWriter(str(tmp_path / "clip.avi"), cv2.VideoWriter_fourcc(*"MJPG"), 10, (64, 48))
    for shade in range(25):
        writer.write(np.full((48, 64, 3), 10 * shade, np.uint8))
    writer.release()
    printed = run("camera.py", tmp_path / "clip.avi", *CLASSES).splitlines()
    assert len(printed) == 3
    assert all("star" in line or "heart" in line for line in printed)


def test_a_folder_to_csv(tmp_path):
    for index in range(3):
        write_image(tmp_path / "photos" / "below" / f"{index}.jpg", seed=index)
    (tmp_path / "photos" / "broken.jpg").write_bytes(b"no picture")
    printed = run("folder_to_csv.py", tmp_path / "photos", tmp_path / "out.csv", *CLASSES)
    assert printed.startswith("4 pictures, ")
    with (tmp_path / "out.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["class"] in ("star", "heart") for row in rows] == [True, True, True, False]
    assert rows[3]["error"]


def test_an_encoder_of_ones_own():
    assert "needs more than this model has: none" in run("own_encoder.py").replace("need ", "needs ")


def test_the_notebook_runs_and_is_small():
    nbformat = pytest.importorskip("nbformat", reason="the notebook needs tta-panda[test]")
    from nbclient import NotebookClient

    path = EXAMPLES / "quickstart.ipynb"
    assert path.stat().st_size < 200_000
    notebook = nbformat.read(path, as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.outputs for cell in cells), "outputs are stored, for those who read it without running it"
    stored = [printed(cell) for cell in cells]
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": EXAMPLES}}).execute()
    assert [printed(cell) for cell in cells][0] == stored[0]
    assert "tent+panda" in printed(cells[-2])


def printed(cell) -> str:
    texts = [output.get("text") or output.get("data", {}).get("text/plain", "") for output in cell.outputs]
    return "".join(texts)
