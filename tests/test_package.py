"""The files that are published: complete, well described, and able to run without the repository."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

import tta_panda

ROOT = Path(__file__).parents[1]
BENCH = ["-m", "tta_panda", "bench", "--method", "clip", "--corruption", "fog", "--limit", "50", "--workers", "1"]


@pytest.fixture(scope="module")
def dist(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    run("-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT), cwd=folder)  # sdist, and the wheel from it
    return folder


def run(*arguments: str, cwd: Path, python: str | Path = sys.executable, **environment: str) -> str:
    ended = subprocess.run(
        [python, *arguments], cwd=cwd, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def wheel(dist: Path) -> Path:
    [path] = dist.glob("*.whl")
    return path


def test_the_description_renders_and_the_metadata_are_valid(dist):
    files = sorted(map(str, dist.iterdir()))
    assert len(files) == 2
    assert run("-m", "twine", "check", "--strict", *files, cwd=dist).count("PASSED") == 2


def test_the_wheel_has_the_package_and_nothing_else(dist):
    names = zipfile.ZipFile(wheel(dist)).namelist()
    assert {name.partition("/")[0] for name in names} == {"tta_panda", f"tta_panda-{tta_panda.__version__}.dist-info"}
    assert "tta_panda/models/mini/mini.safetensors" in names and "tta_panda/py.typed" in names


def test_the_wheel_runs_without_the_repository(dist, tmp_path):
    """Unpacked into a folder of its own, beside the dependencies that are installed already."""
    zipfile.ZipFile(wheel(dist)).extractall(tmp_path / "unpacked")
    where = "import sys, tta_panda; print(tta_panda.__file__)"
    assert run("-c", where, cwd=tmp_path, PYTHONPATH=str(tmp_path / "unpacked")).startswith(str(tmp_path))
    assert "fog" in run(*BENCH, cwd=tmp_path, PYTHONPATH=str(tmp_path / "unpacked"))
    assert (tmp_path / "runs" / "report.html").is_file()


@pytest.mark.slow  # torch alone is downloaded for minutes
def test_the_wheel_installs_into_an_empty_environment(dist, tmp_path):
    venv.create(tmp_path / "empty", with_pip=True)
    python = tmp_path / "empty" / ("Scripts" if os.name == "nt" else "bin") / "python"
    run("-m", "pip", "install", "--quiet", str(wheel(dist)), cwd=tmp_path, python=python, PYTHONPATH="")
    assert "fog" in run(*BENCH, cwd=tmp_path, python=python, PYTHONPATH="")
