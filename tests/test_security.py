"""What SECURITY.md promises of the code as a whole, and that its promises have tests."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import tta_panda

PACKAGE = Path(tta_panda.__file__).parent
PROJECT = Path(__file__).parents[1]

FORBIDDEN = {
    "eval", "exec", "compile", "__import__",
    "os.system", "os.popen", "os.exec*", "os.spawn*", "os.posix_spawn*", "pty.*", "subprocess.*", "commands.*",
    "pickle.load", "pickle.loads", "pickle.Unpickler", "dill.*", "cloudpickle.*", "joblib.*", "marshal.*", "shelve.*",
    "numpy.load", "yaml.load*", "yaml.unsafe_load*", "yaml.full_load*", "yaml.Loader", "yaml.*Loader",
    "torch.hub.*", "torch.jit.load", "runpy.*", "code.*", "tempfile.mktemp",
    "xml.*", "urllib.request.*", "zipfile.ZipFile.extract*", "shutil.unpack_archive",
}  # fmt: skip
"""What runs a text or a file, or reads one that can ask for it."""


@functools.cache
def forbidden(name: str) -> bool:
    return any(name == each or (each.endswith("*") and name.startswith(each[:-1])) for each in FORBIDDEN)


def used_names(tree: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """Dotted names that a file uses, as they are spelled where they come from, whatever it calls them."""
    known: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                known[alias.asname or alias.name.partition(".")[0]] = (
                    alias.name if alias.asname else alias.name.partition(".")[0]
                )
                yield alias.name + ".", node
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                known[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                yield f"{node.module}.{alias.name}", node
    for node in ast.walk(tree):
        name = dotted(node)
        if name:
            first, dot, rest = name.partition(".")
            yield known.get(first, first) + dot + rest, node


def dotted(node: ast.AST) -> str:
    """`a.b.c` as it is written; an attribute of anything but a name begins with a question mark."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value) or '?'}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def risks(code: str) -> list[str]:
    """Every use of what is forbidden, and every call whose safety is in its arguments."""
    tree = ast.parse(code)
    used = list(used_names(tree))
    names = {id(node): name for name, node in used}
    found = [name for name, _ in used if forbidden(name)]
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name, given = names.get(id(node.func), ""), {each.arg: each.value for each in node.keywords}
        constants = {key: value.value for key, value in given.items() if isinstance(value, ast.Constant)}
        if name == "torch.load" and constants.get("weights_only") is not True:
            found.append("torch.load without weights_only=True")
        if name.endswith(".extractall") and "filter" not in given:
            found.append("extractall without a filter")
        if constants.get("shell") or constants.get("allow_pickle") or constants.get("trust_remote_code"):
            found.append(f"an unsafe option of {name}")
        if constants.get("verify", True) is False:
            found.append(f"{name} without certificates")
    return found


@pytest.mark.parametrize(
    "code",
    [
        "eval('1')",
        "import os\nos.system('ls')",
        "from os import system as run\nrun('ls')",
        "import subprocess",
        "import subprocess as sp\nsp.run(['ls'])",
        "import pickle as p\np.loads(b'')",
        "from pickle import load",
        "import numpy as np\nnp.load('a')",
        "import yaml\nyaml.load(text, yaml.Loader)",
        "import torch\ntorch.load('a')",
        "import torch\ntorch.load('a', weights_only=False)",
        "from torch import load\nload('a')",
        "import torch\ntorch.hub.load('a')",
        "import tarfile\ntarfile.open('a').extractall('b')",
        "f(shell=True)",
        "f(trust_remote_code=True)",
        "import requests\nrequests.get('a', verify=False)",
        "import builtins\nrun = exec",
    ],
)
def test_the_walk_finds_what_it_looks_for(code: str) -> None:
    assert risks(code)


@pytest.mark.parametrize(
    "code",
    [
        "model.eval()",
        "import re\nre.compile('a')",
        "import torch\ntorch.compile(f)",
        "import torch\ntorch.load('a', weights_only=True)",
        "import pickle\ntry: f()\nexcept pickle.UnpicklingError: ...",
        "t.extractall('a', filter=f)",
    ],
)
def test_the_walk_finds_nothing_else(code: str) -> None:
    assert not risks(code)


def test_no_shell_no_eval_and_no_unpickling() -> None:
    files = {path.relative_to(PACKAGE).as_posix(): risks(path.read_text("utf-8")) for path in PACKAGE.rglob("*.py")}
    assert len(files) > 80
    handed_over = {"executors.py": ["pickle.loads"]}  # the main process's own function, in its worker processes
    assert {name: found for name, found in files.items() if found and handed_over.get(name) != found} == {}


def test_every_template_escapes() -> None:
    """`safe` is for drawings, whose names matplotlib escapes (tests/test_names.py)."""
    marked = [
        (path.name, found)
        for path in PACKAGE.rglob("*.j2")
        for found in re.findall(r"{{ *(\w+) *\| *safe *}}|{% *autoescape", path.read_text("utf-8"))
    ]
    assert marked == [("page.html.j2", "svg")]


def test_every_promise_names_a_test_that_exists() -> None:
    rows = re.findall(r"^- (.+?)(?=^- |^$|\Z)", (PROJECT / "SECURITY.md").read_text("utf-8"), re.DOTALL | re.MULTILINE)
    assert len(rows) > 10
    for row in rows:
        named = re.findall(r"`(test_\w+\.py)::(test_\w+)`", row)
        assert named, f"a promise without a test: {row}"
        for file, test in named:
            assert f"def {test}(" in (PROJECT / "tests" / file).read_text("utf-8"), f"{file} has no {test}"
