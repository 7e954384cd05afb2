"""`tta-panda reproduce` from plan to page."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from data_files import write_cifar_c, write_clean_cifar

from tta_panda.cli import app, main
from tta_panda.errors import DataError, InvalidInputError, UnknownNameError
from tta_panda.evaluation.memory import peak_memory, reset_peak_memory
from tta_panda.evaluation.store import RunStore
from tta_panda.methods.presets import PRESETS
from tta_panda.methods.tent import Tent

pytestmark = pytest.mark.usefixtures("undrawn")
SMALL = ["--limit", "10", "--seed", "0", "--workers", "1"]


def reproduce(*arguments: str | Path) -> None:
    app(["reproduce", *map(str, arguments)], standalone_mode=False)


def test_a_dry_run_says_what_runs_and_what_exists(tmp_path, capsys):
    arguments = ["fig-evolution", *SMALL, "-o", tmp_path]
    reproduce(*arguments, "--dry-run", "--json")
    plan = json.loads(capsys.readouterr().out)
    assert [row["methods"] for row in plan["rows"]] == ["tent", "tent+panda"]
    assert (plan["runs"], plan["exist"], plan["images"]) == (2, 0, 3 * (10 + 11))
    assert not any(tmp_path.glob("records/*.json"))
    reproduce(*arguments, "--json")
    made = json.loads(capsys.readouterr().out)
    assert (made["runs"], made["skipped"]) == (2, 0)
    assert [row["name"] for row in made["rows"]] == ["fig-evolution"]
    reproduce(*arguments, "--dry-run")
    assert "0 runs to make, 2 exist" in capsys.readouterr().out


def test_the_grid_is_estimated_without_model_and_data(tmp_path, capsys):
    arguments = ["fig-evolution", "--preset", "all", "--dry-run", "-o", tmp_path, "--throughput", "1000", "--json"]
    reproduce(*arguments)
    found = json.loads(capsys.readouterr().out)
    images = 5 * 3 * 2.1 * (10_000 + 10_000 + 50_000)  # seeds, with a gradient, tent and tent+panda
    assert (found["runs"], found["exist"], found["images"]) == (30, 0, images)
    assert found["hours"] == pytest.approx(images / 1000 / 3600)
    assert not list(tmp_path.iterdir())


def test_shards_of_experiments_go_where_the_experiments_look(tmp_path, capsys):
    arguments = ["fig-evolution", *SMALL, "-o", tmp_path, "--json"]
    for number in (1, 2):
        reproduce(*arguments, "--shard", f"{number}/2")
    capsys.readouterr()
    reproduce(*arguments)
    made = json.loads(capsys.readouterr().out)
    assert made["runs"] == made["skipped"] == 2


def test_photographs_have_a_model_and_data_of_their_own(tmp_path, capsys):
    arguments = ["table-photos", "--dry-run", "-o", tmp_path, "--json"]
    reproduce(*arguments, "--method", "frozen")
    found = json.loads(capsys.readouterr().out)
    images = 3 * 6 * 15 * 1.1 * 1000  # seeds, streams, corruptions: methods share the passes
    assert (found["rows"][0]["data"], found["images"]) == ("cifar10-c", images)
    reproduce(*arguments, "--method", "tent,views", "--quick", "--limit", "30", "--data", "glyphs-c", "--model", "mini")
    found = json.loads(capsys.readouterr().out)
    assert {row["data"] for row in found["rows"]} == {"glyphs-c"}
    assert found["runs"] == 2 * 6 * (4 + 4 + 4) * 8
    with pytest.raises(UnknownNameError, match="'trained' or"):
        reproduce(*arguments, "--method", "train")
    with pytest.raises(InvalidInputError, match="table-photos has its own settings: reproduce it alone"):
        reproduce("table-main", *arguments)


def test_published_settings_are_run_unless_others_are_named(tmp_path, capsys):
    arguments = ["check-published", "--method", "clip", "-o", tmp_path, "--json"]
    reproduce(*arguments, "--dry-run")
    found = json.loads(capsys.readouterr().out)
    images = {row["data"]: row["images"] for row in found["rows"]}
    assert images == {"cifar100-c": 2 * 150_000, "cifar10-c": 150_000, "imagenet-c": 15 * 5000}
    reproduce(*arguments, "--data", "glyphs-c", "--limit", "10")
    [[ours, printed]] = [row["tables"] for row in json.loads(capsys.readouterr().out)["rows"]]
    assert ours["columns"] == ["ours"] and 0 < ours["rows"]["clip"][0]["value"] < 100
    assert printed["of_paper"] and printed["rows"]["clip"][0]["value"] == 24.54


def test_two_presets_of_one_data_set_keep_their_results(tmp_path, monkeypatch, capsys):
    own = replace(PRESETS["mini"], name="other", panda={**PRESETS["mini"].panda, "ratio": 0.5})
    monkeypatch.setitem(PRESETS, "other", own)
    # Two batches: the first is predicted before Tent learns, whatever its learning rate.
    reproduce("fig-evolution", *SMALL, "--limit", "120", "--preset", "mini,other", "-o", tmp_path, "--json")
    made = json.loads(capsys.readouterr().out)
    assert made["runs"] == 4
    assert {Path(row["files"]).parent.name for row in made["rows"]} == {"mini", "other"}
    mini, other = ((tmp_path / name / "fig-evolution" / "fig-evolution.csv").read_text() for name in ("mini", "other"))
    assert mini != other


def test_a_stream_of_all_corruptions_from_runs_to_page(tmp_path, capsys):
    reproduce("fig-continual", *SMALL, "-o", tmp_path, "--json")
    made = json.loads(capsys.readouterr().out)
    records = RunStore(tmp_path / "records").records()
    assert made["runs"] == len(records) == 4
    assert {(record.config.stream.order, len(record.domains)) for record in records} == {("continual", 15)}
    accuracies, betas = ({name: row[-1] for name, row in table["rows"].items()} for table in made["rows"][0]["tables"])
    tent = next(record for record in records if record.config.method.name == "tent+panda")
    assert accuracies["fog"]["value"] == pytest.approx(100 * tent.domains["fog"].accuracy)
    assert betas["snow"]["value"] == pytest.approx(tent.domains["snow"].mean_beta)
    assert "Beyond the paper. tta-panda reproduce fig-continual" in Path(made["report"]).read_text(encoding="utf-8")


def test_a_benchmark_on_disk_is_run_with_the_papers_settings(tmp_path, tiny_checkpoint, capsys):
    write_cifar_c(tmp_path / "data")
    write_clean_cifar(tmp_path / "data")
    arguments = ["--model", tiny_checkpoint, "--data", "cifar10-c", "--data-root", tmp_path / "data", "--seed", "0"]
    reproduce("fig-evolution", *arguments, "-o", tmp_path / "out", "--json")
    assert json.loads(capsys.readouterr().out)["skipped"] == 0
    records = RunStore(tmp_path / "out" / "records").records()
    found = {record.config.method.name: record.config.method.options for record in records}
    assert found["tent"]["lr"] == found["tent+panda"]["lr"] == 2e-4
    assert found["tent+panda"]["beta"] == 0.6
    assert "preset cifar10-c" in (tmp_path / "out" / "fig-evolution" / "report.html").read_text()


def test_several_benchmarks_by_one_command(tmp_path, tiny_checkpoint):
    root = tmp_path / "data"
    write_cifar_c(root, "CIFAR-10-C")
    write_cifar_c(root, "CIFAR-100-C")
    arguments = ["--preset", "cifar10-c,cifar100-c", "--model", tiny_checkpoint, "--data-root", root, "--seed", "0"]
    reproduce("fig-evolution", *arguments, "-o", tmp_path / "out")
    assert {path.parent.parent.name for path in (tmp_path / "out").glob("*/*/*.csv")} == {"cifar10-c", "cifar100-c"}
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert 'id="cifar10-c-fig-evolution"' in page and 'id="cifar100-c-fig-evolution"' in page
    with pytest.raises(InvalidInputError, match="omit --data"):
        reproduce("fig-evolution", "--preset", "all", "--data", "cifar10-c")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["table-mian"], "Did you mean 'table-main'"),
        (["table-main", "--set", "beta=best"], "paper, auto or a number"),
        (["table-main", "--set", "beta=paper"], "--preset"),
        (["table-main", "--seed", "4-0"], "range"),
        (["table-main", "--preset", "cifar"], "cifar10-c"),
        (["table-main", "--protocol", "mine"], "protocol"),
        (["table-main", "--model", "mini", "--data", "glyphs"], "glyphs-c"),
    ],
)
def test_mistakes_get_a_sentence(monkeypatch, capsys, tmp_path, arguments, message):
    monkeypatch.setattr(sys, "argv", ["tta-panda", "reproduce", *arguments, "-o", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(sys.platform != "linux", reason="other systems cannot forget an earlier peak")
def test_memory_is_that_of_what_went_on():
    device = torch.device("cpu")
    reset_peak_memory(device)
    before = peak_memory(device)
    block = torch.ones(64 << 18).share_memory_()  # 64 MB, touched, and not taken from memory that was freed
    after = peak_memory(device)
    assert before is not None and after is not None and after - before > 32 << 20
    del block


def test_what_cannot_be_read_is_left_out_and_the_rest_is_shown(tmp_path, tiny_checkpoint, capsys):
    folder = write_cifar_c(tmp_path / "data")  # no clean images beside it
    (folder / "fog.npy").unlink()
    arguments = ["--model", tiny_checkpoint, "--data", "cifar10-c", "--data-root", tmp_path / "data", "--seed", "0"]
    reproduce("fig-bias", *arguments, "--limit", "10", "--set", "beta=auto", "-o", tmp_path / "out")
    said = capsys.readouterr()
    assert "not run: cifar10-c, fog at severity 5" in said.err and "not run: cifar10-c, clean" in said.err
    rows = {line.split(",")[0]: line for line in (tmp_path / "out/fig-bias/fig-bias.csv").read_text().splitlines()}
    assert "not run" in rows["fog"] and "not run" in rows["clean"] and "not run" not in rows["snow"]
    assert "not run" in rows["mean of 15"]
    for path in folder.glob("*.npy"):
        path.unlink()
    with pytest.raises(DataError):
        reproduce("fig-bias", *arguments, "--limit", "9", "-o", tmp_path / "none")


def test_a_diverged_run_is_remembered(tmp_path, monkeypatch, capsys):
    original = Tent._adapt
    calls = []

    def broken(self, batch):
        calls.append(len(batch.images))
        return original(self, batch) * (float("nan") if self.features.debiaser is None else 1.0)

    monkeypatch.setattr(Tent, "_adapt", broken)
    for _ in range(2):
        reproduce("fig-evolution", *SMALL, "-o", tmp_path)
        assert "diverged: tent on gaussian_noise at severity 5, seed 0" in capsys.readouterr().err
        assert ",diverged," in (tmp_path / "fig-evolution" / "fig-evolution.csv").read_text()
    assert len(calls) == 2  # one batch of each, once
