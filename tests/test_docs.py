"""What the documentation tells people to type, typed."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from data_files import random_images, write_image
from documents import DOCS, PAGES, ROOT, blocks, name_of

import tta_panda
from tta_panda.cli import app, main
from tta_panda.data.corruptions import expand_corruptions
from tta_panda.experiments import EXPERIMENTS, SELECTIONS
from tta_panda.methods import METHODS, parse_method
from tta_panda.methods.presets import PRESETS

COMMANDS: Any = typer.main.get_command(app)  # of click, or of what typer has in its place
GROUPS = {name for name, command in COMMANDS.commands.items() if hasattr(command, "commands")}
UsageError = typer.BadParameter.__mro__[1]
EXTENDING, STARTING = DOCS / "extending.md", DOCS / "get-started.md"  # with tests of their own


def commands(page: Path) -> Iterator[list[str]]:
    """The arguments of every `tta-panda` command that a page shows, in blocks of code and in sentences."""
    shown = [block.code.replace("\\\n", " ") for block in blocks(page, "sh", "console")]
    lines = [line.strip().removeprefix("$ ") for code in shown for line in code.splitlines()]
    prose = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.S | re.M)
    lines += [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", prose)]
    names = "|".join(COMMANDS.commands)  # sentences about a command may omit `tta-panda`
    for line in lines:
        if line.startswith("tta-panda ") or re.match(rf"({names}) .*--", line):
            arguments = shlex.split(line.removeprefix("tta-panda "), comments=True)
            if arguments not in ([group] for group in GROUPS):  # a sentence about all its commands
                yield arguments


def parse(arguments: list[str]) -> dict[str, Any]:
    """What the command line makes of the arguments; an error where it refuses them."""
    command, context = COMMANDS, COMMANDS.context_class(COMMANDS)
    while hasattr(command, "commands"):
        _, command, arguments = command.resolve_command(context, arguments)
        context = command.context_class(command, parent=context)
    command.parse_args(context, arguments)
    return context.params


def run_command(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["tta-panda", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code, arguments


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_command_line_takes_every_command(page):
    own = {"balanced"} if page == EXTENDING else set()
    for arguments in commands(page):
        given = parse(arguments)
        for name in {*(given.get("method") or "all").split(",")} - {"all", "frozen", "views", "trained"} - own:
            parse_method(name)
        assert given.get("preset") in (None, "all", *PRESETS), arguments
        assert {*given.get("names", ())} <= {*EXPERIMENTS, *SELECTIONS}, arguments
        expand_corruptions({*(given.get("corruption") or "all").split(",")} - {"clean", "available"})


@pytest.mark.parametrize("arguments", [["bench", "--methods", "clip"], ["benhc"], ["corrupt", "in", "--severe", "3"]])
def test_a_wrong_command_is_noticed(arguments):
    with pytest.raises(UsageError):
        parse(arguments)


@pytest.mark.slow
def test_getting_started_leads_to_ones_own_images(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for index in range(4):
        write_image(tmp_path / "photos" / ("cat", "dog")[index % 2] / f"{index}.jpg", 64, 64, seed=index)
    for arguments in commands(STARTING):
        fetches = arguments[0] == "predict" and "--model" not in arguments
        run_command([*arguments, *(["--model", "lite0"] if fetches else [])], monkeypatch)
    assert (tmp_path / "page.html").exists()
    assert len((tmp_path / "predictions.csv").read_text().splitlines()) == 1 + 4
    [block] = blocks(STARTING, "python")
    capsys.readouterr()
    exec(compile(block.code, str(STARTING), "exec"), {})
    assert len(re.findall("^<.*jpg: ", capsys.readouterr().out, re.MULTILINE)) == 4


def given_to_readers(page: Path, folder: Path) -> dict[str, Any]:
    """What the code of a page takes as given, because readers have their own."""
    images = random_images(8)
    batch = torch.from_numpy(images).permute(0, 3, 1, 2)
    domains = {name: tta_panda.load_data("glyphs-c", name, limit=20) for name in ("fog", "snow")}
    classifier = tta_panda.ZeroShotClassifier(tta_panda.load_model("mini"), domains["fog"].class_names)
    if page in (ROOT / "README.md", DOCS / "own-images.md"):
        for index, image in enumerate(images):
            write_image(folder / "photos" / ("cat", "dog")[index % 2] / f"{index}.jpg", *image.shape[:2], seed=index)
    if page == DOCS / "own-images.md":
        return {"tta_panda": tta_panda, "method": tta_panda.create_method("clip+panda", classifier), "pictures": batch}
    if page == DOCS / "streams.md":
        return {"tta_panda": tta_panda, **domains}
    if page == DOCS / "benchmarks.md":
        stream = tta_panda.Stream(domains["fog"], batch_size=10)
        return {"tta_panda": tta_panda, "images": images, "stream": stream, "classifier": classifier}
    if page.parent == DOCS / "methods":
        return {"tta_panda": tta_panda, "images": batch, "classifier": classifier}
    return {"images": batch}


@pytest.mark.parametrize(
    "page", [page for page in PAGES if blocks(page, "python") and page not in (EXTENDING, STARTING)], ids=name_of
)
def test_python_runs(page, tmp_path, monkeypatch):
    """All blocks of a page, one after another, with other models in the place of weights that must be fetched."""
    monkeypatch.chdir(tmp_path)
    load = tta_panda.load_model
    monkeypatch.setattr(tta_panda, "load_model", lambda name: load("mini" if name.endswith(":openai") else name))
    monkeypatch.setattr("tta_panda.prediction.predict.load_model", lambda name, *how: load("lite0", *how))
    names = given_to_readers(page, tmp_path)
    for block in blocks(page, "python"):
        if block.reason is None:
            exec(compile(block.code, str(page), "exec"), names)
    if "logits" in names:
        assert names["logits"].shape == (8, 3)


def test_little_is_not_run():
    unrun = [block for page in PAGES for block in blocks(page, "python") if block.reason]
    assert len(unrun) <= 1


def test_every_method_has_its_page():
    pages = {page.stem: page.read_text(encoding="utf-8") for page in (DOCS / "methods").glob("*.md")}
    assert pages.keys() == set(METHODS)
    overview = (DOCS / "methods.md").read_text(encoding="utf-8")
    for name, text in pages.items():
        for part in ("## Idea", "$$", "## When to use it", "**Single images**", "**State**", "## Options"):
            assert part in text, (name, part)
        assert f"(methods/{name}.md)" in overview


def test_every_test_that_a_page_names_exists():
    sources = {path.name: path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_*.py")}
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    named = re.findall(r"`(?:tests/)?(test_\w+\.py)(?:::(test_\w+))?`", text)
    assert len(named) > 1
    for file, test in named:
        assert f"def {test}" in sources[file] if test else file in sources


def test_relative_links_lead_to_files_and_headings():
    """As those see them who read the repository without building the site."""
    others = [ROOT / "CHANGELOG.md", *(ROOT / "src").rglob("*.md")]
    for page in [*PAGES, *others]:
        for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
            if re.match(r"\w+:", link):
                continue
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            assert target.exists(), f"{name_of(page)}: {link}"
            assert not anchor or anchor in anchors(target), f"{name_of(page)}: {link}"


def anchors(page: Path) -> set[str]:
    """Of the headings of a page, as GitHub and the site make them."""
    prose = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.S | re.M)
    headings = re.findall(r"^#+ (.+)$", prose, re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.fixture(scope="module")
def own_package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page's method as a package that is installed: its module, and the metadata of its entry point."""
    root = tmp_path_factory.mktemp("own")
    (root / "balanced.py").write_text(blocks(EXTENDING, "python")[0].code)
    [(_, project, _)] = blocks(EXTENDING, "toml")
    name, version = (re.search(rf'^{key} = "(.*)"', project, re.MULTILINE)[1] for key in ("name", "version"))
    group, target = re.search(r'entry-points\."(.*)"\]\n(.*)', project).groups()
    metadata = root / f"{name}-{version}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (metadata / "entry_points.txt").write_text(f"[{group}]\n{target.replace(chr(34), '')}\n")
    return root


@pytest.fixture
def own_modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Modules that a test imports from its own folder are forgotten after it."""
    yield
    sys.modules.pop("balanced", None)


def test_a_method_of_ones_own_takes_thirty_lines_and_runs(registered, own_modules, tmp_path, monkeypatch, capsys):
    method, use, trained = (block.code for block in blocks(EXTENDING, "python"))
    assert len(method.splitlines()) <= 30
    assert trained.count("class ") == 1
    (tmp_path / "balanced.py").write_text(method)
    monkeypatch.syspath_prepend(str(tmp_path))
    exec(compile(use, str(EXTENDING), "exec"), {})
    printed = capsys.readouterr().out
    assert re.search(r"^balanced .*200 images: accuracy", printed, re.MULTILINE)
    assert re.search(r"^balanced\+panda .*200 images: accuracy", printed, re.MULTILINE)


@pytest.mark.slow
def test_it_is_a_method_of_the_command_line_of_workers_and_of_reports(own_package, tmp_path, monkeypatch, capsys):
    listed, benched = (each for each in commands(EXTENDING) if each[0] in ("ls", "bench"))
    both = "import sys; from tta_panda.cli import app\n" + "".join(
        f"app({arguments}, standalone_mode=False)\n" for arguments in (listed, [*benched, "--workers", "2"])
    )
    paths = [str(own_package), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "TERM": "dumb", "COLUMNS": "120"}
    command = [sys.executable, "-c", both]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "strength=0.5" in done.stdout and "balanced+panda" in done.stdout
    assert "balanced+panda" in (tmp_path / "runs" / "report.html").read_text(encoding="utf-8")
    # A report can be made where the method is not installed, as it is not in this process.
    monkeypatch.chdir(tmp_path)
    run_command(["report", "runs"], monkeypatch)
    assert "balanced+panda" in capsys.readouterr().out


def test_the_trained_method_trains(registered):
    names: dict[str, Any] = {}
    exec(compile(blocks(EXTENDING, "python")[2].code, str(EXTENDING), "exec"), names)
    tta_panda.register_method("sharpest", names["SharpestHalf"])
    data = tta_panda.load_data("glyphs-c", "fog", limit=20)
    classifier = tta_panda.ZeroShotClassifier(tta_panda.load_model("mini"), data.class_names)
    method = tta_panda.create_method("sharpest+panda", classifier, lr=1e-2, beta=0.3)
    stream = tta_panda.Stream(data, batch_size=10, seed=0)
    first, second = (tta_panda.evaluate(method, stream, reset=False).nll for _ in range(2))
    assert first != second
    assert str(method).startswith("SharpestHalf(ZeroShotClassifier('mini', ")
