"""What the documentation tells people to type, typed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"


def blocks(page: Path, language: str) -> list[str]:
    """The code blocks of a page."""
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def own_package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page's method as a package that is installed: its module, and the metadata of its entry point."""
    root = tmp_path_factory.mktemp("own")
    (root / "balanced.py").write_text(blocks(DOCS / "extending.md", "python")[0])
    [project] = blocks(DOCS / "extending.md", "toml")
    name, version = (re.search(rf'^{key} = "(.*)"', project, re.MULTILINE)[1] for key in ("name", "version"))
    group, target = re.search(r'entry-points\."(.*)"\]\n(.*)', project).groups()
    metadata = root / f"{name}-{version}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (metadata / "entry_points.txt").write_text(f"[{group}]\n{target.replace(chr(34), '')}\n")
    return root


def run(command: list[str], own_package: Path, folder: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": f"{own_package}", "TERM": "dumb", "COLUMNS": "120"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_method_of_ones_own_takes_thirty_lines_and_runs(tmp_path):
    method, use, trained = blocks(DOCS / "extending.md", "python")
    assert len(method.splitlines()) <= 30
    assert trained.count("class ") == 1
    without_entry_point = tmp_path / "alone"
    without_entry_point.mkdir()
    (without_entry_point / "balanced.py").write_text(method)
    printed = run([sys.executable, "-c", use], without_entry_point, tmp_path)
    assert re.search(r"^balanced .*200 images: accuracy", printed, re.MULTILINE)
    assert re.search(r"^balanced\+panda .*200 images: accuracy", printed, re.MULTILINE)


def test_it_is_a_method_of_the_command_line_of_workers_and_of_reports(own_package, tmp_path):
    main = "import sys; from tta_panda.cli import main; main()"
    commands = [line for block in blocks(DOCS / "extending.md", "sh") for line in block.splitlines()]
    listed, benched = (line.replace('"', "").split()[1:] for line in commands)
    assert "strength=0.5" in run([sys.executable, "-c", main, *listed], own_package, tmp_path)
    printed = run([sys.executable, "-c", main, *benched, "--workers", "2"], own_package, tmp_path)
    assert "balanced+panda" in printed
    assert "balanced+panda" in (tmp_path / "runs" / "report.html").read_text(encoding="utf-8")
    # A report can be made where the method is not installed.
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    assert "balanced+panda" in run([sys.executable, "-c", main, "report", "runs"], elsewhere, tmp_path)


def test_the_trained_method_trains(tmp_path):
    code = blocks(DOCS / "extending.md", "python")[2] + (
        "import tta_panda\n"
        "tta_panda.register_method('sharpest', SharpestHalf)\n"
        "data = tta_panda.load_data('glyphs-c', 'fog', limit=20)\n"
        "classifier = tta_panda.ZeroShotClassifier(tta_panda.load_model('mini'), data.class_names)\n"
        "method = tta_panda.create_method('sharpest+panda', classifier, lr=1e-2, beta=0.3)\n"
        "stream = tta_panda.Stream(data, batch_size=10, seed=0)\n"
        "first, second = (tta_panda.evaluate(method, stream, reset=False).nll for _ in range(2))\n"
        "print(first != second, method)\n"
    )
    printed = run([sys.executable, "-c", code], tmp_path, tmp_path)
    assert printed.startswith("True SharpestHalf(ZeroShotClassifier('mini', ")
