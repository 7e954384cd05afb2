"""Imports point one way, the public surface is small and lazy, and registries resolve."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tta_panda
from tta_panda.errors import InvalidInputError, TtaPandaError, UnknownNameError
from tta_panda.registry import Registry

PACKAGE = Path(tta_panda.__file__).parent
MAY_IMPORT = {
    "panda": set(),
    "views": set(),
    "models": set(),
    "data": set(),
    "methods": {"panda", "models", "views"},
    "evaluation": {"panda", "models", "methods", "data"},
    "prediction": {"models", "methods", "data"},
    "experiments": {"panda", "models", "methods", "data", "evaluation", "reporting"},
    "reporting": {"methods", "models", "data", "evaluation"},
    "app": {"panda", "models", "methods", "data", "evaluation", "reporting", "prediction"},
    "cli": {
        "panda",
        "models",
        "methods",
        "data",
        "views",
        "evaluation",
        "experiments",
        "reporting",
        "prediction",
        "app",
    },
}
COMMON = {"chunks", "errors", "escapes", "files", "images", "options", "pickles", "progress", "registry"}
COMMON |= {"state", "transfers", "executors", "ray_executor"}


def imported_parts(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
        elif isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
    return {name.split(".")[1] for name in names if name.startswith("tta_panda.")}


@pytest.mark.parametrize("part", MAY_IMPORT.keys())
def test_imports_point_one_way(part):
    for path in (PACKAGE / part).rglob("*.py"):
        foreign = imported_parts(path) - {part} - COMMON
        assert foreign <= MAY_IMPORT[part], f"{path.relative_to(PACKAGE)} imports {sorted(foreign - MAY_IMPORT[part])}"


@pytest.mark.parametrize("part", ["evaluation", "prediction", "data"])
def test_tasks_do_not_know_that_they_may_run_on_a_cluster(part):
    for path in (PACKAGE / part).rglob("*.py"):
        assert "ray_executor" not in imported_parts(path), path.relative_to(PACKAGE)


def test_every_part_is_covered():
    parts = {path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert parts == set(MAY_IMPORT)


def drawn_files(drawing: str) -> set[str]:
    """Paths of the files in a drawing.

    A line is indented by two spaces per folder and starts with the name of a folder (`panda/`) or of one or more files
    (`crops.py geometry.py`); two spaces or more separate names and description. Files belong to the folder above them
    that is indented less.
    """
    files: set[str] = set()
    folders: list[str] = []
    for line in drawing.strip().splitlines()[1:]:
        depth = (len(line) - len(line.lstrip())) // 2
        names = re.split(r" {2,}", line.strip())[0].split()
        folders = folders[: depth - 1]
        if names[0].endswith("/"):
            folders.append(names[0])
        else:
            files |= {"".join([*folders, name]) for name in names}
    return files


def test_a_drawing_is_read_by_path():
    drawing = "src/\n  a.py b.py  two\n  deep/  a folder\n    a.py  another\n    deeper/\n      c.py\n  d.py\n"
    assert drawn_files(drawing) == {"a.py", "b.py", "deep/a.py", "deep/deeper/c.py", "d.py"}


def test_the_drawing_of_the_architecture_shows_every_file_and_no_other():
    drawing = (PACKAGE.parents[1] / "docs" / "architecture.md").read_text(encoding="utf-8").split("```")[1]
    files = {path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py")}
    assert drawn_files(drawing) == {path for path in files if not path.endswith("/__init__.py")}


def test_importing_the_package_costs_nothing():
    code = "import sys, tta_panda; print(sorted({'torch', 'numpy', 'open_clip'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


def test_the_public_surface():
    assert all(getattr(tta_panda, name) is not None for name in tta_panda.__all__)
    assert set(dir(tta_panda)) == set(tta_panda.__all__)
    with pytest.raises(AttributeError, match="nothing"):
        _ = tta_panda.nothing


def test_the_five_lines(images):
    model = tta_panda.load_model("mini")
    classifier = tta_panda.ZeroShotClassifier(model, ["airplane", "bird", "cat"])
    method = tta_panda.Tent(classifier, lr=2e-4, debias=tta_panda.Panda(beta=0.6))
    logits = method.adapt(images)
    method.reset()
    assert logits.shape == (40, 3)
    assert model.image_size == 32


def test_registries_are_lazy_and_suggest():
    registry: Registry[object] = Registry("thing", {"path": "pathlib:Path", "never": "no.such.module:attribute"})
    assert registry.get("path") is Path
    assert registry.names("p*") == ["path"]
    assert list(registry) == ["path", "never"]
    with pytest.raises(UnknownNameError, match=r"Unknown thing 'pth'\. Did you mean 'path'"):
        registry.get("pth")
    registry.register("list", list)
    assert registry.get("list") is list
    with pytest.raises(InvalidInputError, match="registered already"):
        registry.register("list", tuple)
    assert issubclass(UnknownNameError, TtaPandaError)
    assert issubclass(UnknownNameError, LookupError)
