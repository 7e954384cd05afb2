"""Pictures divided among workers: each shard a stream of its own, rows in the order of the pictures, resumable."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

import tta_panda
from tta_panda.cli import app
from tta_panda.data.glyphs import VALIDATION_CLASSES
from tta_panda.errors import DataError, InvalidInputError
from tta_panda.executors import SerialExecutor
from tta_panda.prediction.files import as_row, read_rows
from tta_panda.prediction.recipe import Recipe
from tta_panda.prediction.shards import ShardedJob, ShardPrediction

RECIPE = Recipe(model="mini", method="tent+panda", classes=VALIDATION_CLASSES, options={"lr": 0.01})


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Thirteen foggy symbols, and a file that is no picture."""
    folder = tmp_path_factory.mktemp("symbols")
    for index, image in enumerate(tta_panda.load_data("glyphs-val-c", "fog", limit=13).images):
        Image.fromarray(image).save(folder / f"{index:02}.png")
    (folder / "07-empty.png").touch()
    return sorted(map(str, folder.iterdir()))


def make_job(output: Path, recipe: Recipe = RECIPE) -> ShardedJob:
    return ShardedJob(ShardPrediction(recipe, batch_size=3), SerialExecutor(), output, shard_size=5)


def test_every_shard_is_a_stream_of_its_own(paths: list[str], tmp_path: Path, mini_classifier) -> None:
    job, pictures = make_job(tmp_path / "rows.csv"), []
    assert job.start(paths) and job.run(pictures.append) == {}
    method = tta_panda.create_method("tent+panda", mini_classifier, lr=0.01)
    expected = []
    for first in (0, 5, 10):
        method.reset()
        expected += map(as_row, tta_panda.predict(method, paths[first : first + 5], batch_size=3))
    assert list(read_rows(tmp_path / "rows.csv")) == expected
    assert sum(pictures) == pytest.approx(len(paths))
    assert (job.summary.pictures, job.summary.skipped) == (14, 1)
    assert job.summary.changed == sum(row["predicted"] != row["plain_predicted"] for row in expected)
    assert sum(job.summary.own.predicted) == 13
    assert not job.folder.exists()


def test_what_failed_is_tried_again_by_a_resumed_job(paths: list[str], tmp_path: Path, monkeypatch) -> None:
    whole = make_job(tmp_path / "whole.jsonl")
    whole.start(paths)
    whole.run(lambda _pictures: None)
    original = ShardPrediction.__call__

    def broken(self, task, advance):
        if task.first == 5:
            raise RuntimeError("out of luck")
        return original(self, task, advance)

    monkeypatch.setattr(ShardPrediction, "__call__", broken)
    job = make_job(tmp_path / "rows.jsonl")
    job.start(paths)
    [(shard, reason)] = job.run(lambda _pictures: None).items()
    assert str(shard) == "pictures 6 to 10" and reason.startswith("RuntimeError: out of luck")
    assert not job.output.exists() and job.summary is None
    monkeypatch.undo()
    with pytest.raises(InvalidInputError, match="is unfinished: type --resume"):
        make_job(job.output).start(paths)
    with pytest.raises(InvalidInputError, match="begun with another method"):
        make_job(job.output, replace(RECIPE, method="clip")).start(paths, resume=True)
    with pytest.raises(DataError, match="pictures are not those"):
        make_job(job.output).start(paths[1:], resume=True)
    calls = []
    monkeypatch.setattr(ShardPrediction, "__call__", lambda *given: calls.append(given[1].first) or original(*given))
    again = make_job(job.output)
    again.start(paths, resume=True)
    assert again.run(lambda _pictures: None) == {} and calls == [5]
    assert job.output.read_bytes() == whole.output.read_bytes()
    assert again.start(paths, resume=True) is False


def test_the_command_divides_pictures_among_workers(paths: list[str], tmp_path: Path) -> None:
    folder, output = Path(paths[0]).parent, tmp_path / "rows.csv"
    options = [
        "predict",
        str(folder),
        "--classes",
        ",".join(VALIDATION_CLASSES),
        "--batch-size",
        "3",
        "-o",
        str(output),
    ]
    options += ["--batch-size", "3", "--shard-size", "5", "--method", "tent+panda", "--set", "lr=0.01"]
    result = CliRunner().invoke(app, [*options, "--workers", "2", "--json"])
    assert result.exit_code == 0, result.output
    job = make_job(tmp_path / "here.csv")
    job.start(paths)
    job.run(lambda _pictures: None)
    assert output.read_bytes() == job.output.read_bytes()
    found = json.loads(result.stdout)
    assert found["pictures"] == 14 and found["rows"] == list(read_rows(output))
    page = tmp_path / "page.html"
    again = CliRunner().invoke(app, [*options, "--workers", "2", "--resume", "--html", str(page)])
    assert "complete" in again.output and page.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--workers", "2"], "give --output"),
        (["--engine", "ray", "-o", "rows.csv", "--state", "state"], "omit --state"),
        (["--engine", "ray", "-o", "rows.csv", "--watch", "."], "not --watch"),
        (["--address", "auto"], "--engine ray"),
    ],
)
def test_what_shards_cannot_do_is_refused(tmp_path: Path, monkeypatch, arguments: list[str], message: str) -> None:
    monkeypatch.chdir(tmp_path)
    places = [] if "--watch" in arguments else ["."]
    result = CliRunner().invoke(app, ["predict", *places, "--classes", "a,b", *arguments])
    assert result.exit_code == 1 and message in str(result.exception)


def test_a_job_of_one_process_is_not_resumed_by_several(paths: list[str], tmp_path: Path) -> None:
    (tmp_path / "rows.csv").touch()
    (tmp_path / "rows.csv.checkpoint").touch()
    with pytest.raises(InvalidInputError, match="begun by a single process"):
        make_job(tmp_path / "rows.csv").start(paths, resume=True)
