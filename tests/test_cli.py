"""The command line as a user meets it, end to end."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from records import without_time
from typer.core import TyperGroup
from typer.main import get_command
from typer.testing import CliRunner

from tta_panda.cli import app, main
from tta_panda.evaluation.config import DIGESTS, EMBEDDED
from tta_panda.evaluation.store import RunStore
from tta_panda.methods import METHODS

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "TERM": "dumb"}
SMALL = ["--data", "glyphs-val-c", "--limit", "40", "--batch-size", "20"]


class Outcome(NamedTuple):
    code: int
    stdout: str
    stderr: str


Run = Callable[..., Outcome]


@pytest.fixture
def tta_panda(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, undrawn) -> Run:
    """The command line in this process, without drawings: exit code and what was printed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TERM", "dumb")

    def call(*arguments: object) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["tta-panda", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        code = ended.value.code
        return Outcome(code if isinstance(code, int) else int(code is not None), *capsys.readouterr())

    return call


@pytest.fixture
def succeeded(tta_panda: Run) -> Callable[..., str]:
    def call(*arguments: object) -> str:
        outcome = tta_panda(*arguments)
        assert outcome.code == 0, outcome.stderr
        return outcome.stdout

    return call


def test_help_names_the_commands_and_imports_nothing_heavy():
    code = "import sys; sys.argv = ['tta-panda', '--help']\ntry:\n from tta_panda.cli import main; main()\n"
    code += "finally:\n heavy = {'torch', 'numpy', 'open_clip', 'matplotlib', 'pydantic', 'cv2', 'scipy', 'PIL'}\n"
    code += " print('heavy:', sorted(heavy & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=ENVIRONMENT)
    assert "heavy: []" in done.stdout
    assert all(command in done.stdout for command in ("bench", "bench", "report", "ls"))


def test_what_is_listed_in_short_needs_no_library_that_takes_seconds_to_import():
    code = "import sys\nfrom typer.testing import CliRunner\nfrom tta_panda.cli import app\n"
    code += "for words in ('ls methods', 'ls models', 'ls presets', 'ls experiments', 'ls data', 'doctor'):\n"
    code += " result = CliRunner().invoke(app, words.split(), catch_exceptions=False)\n"
    code += " assert result.exit_code == 0 and result.stdout.count('\\n') > 4, words\n"
    code += "print('heavy:', sorted({'torch', 'open_clip', 'matplotlib', 'transformers'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=ENVIRONMENT)
    assert "heavy: []" in done.stdout, done.stderr


COMMANDS = ["predict", "bench", "reproduce", "report", "explore", "ls", "corrupt", "doctor"]


@pytest.mark.parametrize("command", [*COMMANDS, "data make", "data download", "data check"])
def test_help_fits_80_columns_and_its_examples_parse(command):
    result = CliRunner().invoke(app, [*command.split(), "--help"], env={"COLUMNS": "80", "TERM": "dumb"})
    assert result.exit_code == 0 and max(map(len, result.stdout.splitlines())) <= 80
    examples = re.findall(r"^ +tta-panda (.+?) *$", result.stdout, re.MULTILINE)
    assert len(examples) == 2
    for example in examples:
        node, arguments = get_command(app), shlex.split(example)
        while isinstance(node, TyperGroup):
            node = node.commands[arguments.pop(0)]
        node.make_context("tta-panda", arguments)  # raises for an option that does not exist


def test_options_are_in_panels_and_extras_keep_their_brackets(succeeded, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    for command in ("bench", "reproduce", "predict"):
        shown = succeeded(command, "--help")
        places = [shown.index(f" {panel} ─") for panel in ("Input", "Model", "Method", "Output", "Distribution")]
        assert places == sorted(places) and ("tta-panda[ray]" in shown) == (command != "predict")
    assert "tta-panda[parquet]" in succeeded("report", "--help")


def test_version(succeeded):
    assert re.match(r"tta-panda \d+\.\d+", succeeded("--version"))


def test_a_run_is_recorded_and_not_made_again(succeeded, tmp_path):
    arguments = ["bench", "--method", "tent+panda", "--model", "mini", "--corruption", "fog", "--severity", "5"]
    arguments += [*SMALL, "--seed", "0", "--set", "beta=0.4", "-o", tmp_path / "runs"]
    assert "tent+panda" in succeeded(*arguments)
    written = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").glob("*.json")}
    saved = {each["config"]["method"]["name"]: each for each in (json.loads(path.read_text()) for path in written)}
    assert saved["tent+panda"]["config"]["method"]["options"]["beta"] == 0.4
    assert saved["tent+panda"]["mean_beta"] == pytest.approx(0.4)
    assert "2 of 2 runs existed already" in succeeded(*arguments)
    assert {path: path.stat().st_mtime_ns for path in written} == written


def test_json_is_one_document_on_stdout(succeeded, tmp_path):
    arguments = ["bench", "--method", "clip", "--corruption", "fog,clean", *SMALL, "-o", tmp_path, "--json"]
    document = json.loads(succeeded(*arguments))
    found = [(row["method"], row["corruption"], row["severity"]) for row in document["rows"]]
    assert found == [("clip", "fog", 5), ("clip+panda", "fog", 5), ("clip", "clean", 0), ("clip+panda", "clean", 0)]
    assert Path(document["report"]).is_file()
    for row in document["rows"]:
        assert 0 <= row["accuracy"] <= 1
        assert 0 <= row["bias"] <= 2
        assert row["samples"] == 40
        assert row["seed"] == 0


BENCH = ["--method", "clip,tent", "--corruption", "fog,snow", *SMALL]


def test_shards_make_together_what_one_command_makes(succeeded, tta_panda, tmp_path):
    made = [
        json.loads(succeeded("bench", *BENCH, "--shard", f"{number}/3", "-o", tmp_path / "shards", "--json"))
        for number in (2, 1, 3)
    ]
    records = [row["record"] for shard in made for row in shard["rows"]]
    assert len(records) == len(set(records)) == 8 and {shard["report"] for shard in made} == {None}
    whole = json.loads(succeeded("bench", *BENCH, "-o", tmp_path / "shards", "--json"))
    assert whole["skipped"] == 8
    succeeded("bench", *BENCH, "-o", tmp_path / "whole")
    sharded, direct = (RunStore(tmp_path / name).records() for name in ("shards", "whole"))
    assert [without_time(record) for record in sharded] == [without_time(record) for record in direct]
    for text in ("3", "0/8", "9/8", "a/b", "3/8/2"):
        assert "K from 1 to N, as in 3/8" in tta_panda("bench", *BENCH, "--shard", text).stderr


def test_a_dry_run_counts_runs_and_images_and_makes_nothing(succeeded, tta_panda, tmp_path):
    plan = json.loads(succeeded("bench", *BENCH, "-o", tmp_path, "--dry-run", "--throughput", "100", "--json"))
    rows = {row["methods"]: (row["runs"], row["images"]) for row in plan["rows"]}
    assert rows == {"clip, clip+panda": (4, 88), "tent": (2, 240), "tent+panda": (2, 264)}
    assert (plan["runs"], plan["exist"], plan["hours"]) == (8, 0, pytest.approx((88 + 240 + 264) / 100 / 3600))
    assert not list(tmp_path.iterdir())
    succeeded("bench", "--method", "tent", "--corruption", "fog", *SMALL, "-o", tmp_path)
    printed = succeeded("bench", *BENCH, "-o", tmp_path, "--dry-run")
    assert "6 runs to make, 2 exist. To encode: 340 images" in printed and "clip, clip+panda" not in printed
    assert "clip, clip+panda" in succeeded("bench", *BENCH, "-o", tmp_path, "--dry-run", "--verbose")
    assert "add --dry-run" in tta_panda("bench", "--throughput", "100").stderr


def test_bench_prints_tables_and_writes_a_report(succeeded, tmp_path):
    arguments = ["bench", "--method", "clip,tent", *SMALL, "--corruption", "clean,fog,contrast", "-o", tmp_path]
    printed = succeeded(*arguments)
    for word in ("Accuracy (%)", "Prediction bias (L1)", "tent+panda", "Δ", "weather", "mean of 2"):
        assert word in printed
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert page.count("<figcaption>") == 6  # accuracy, bias and histograms for clip and for tent
    assert "mean of 2" in page
    assert "clip+panda on fog: The negatives look like" in printed  # as many methods share them
    assert "tent+panda on clean: " in printed
    rows = json.loads(succeeded(*arguments, "--json"))["rows"]
    assert len(rows) == 12
    assert {row["method"] for row in rows} == {"clip", "clip+panda", "tent", "tent+panda"}
    exported = (tmp_path / "tables" / "comparison-accuracy.csv").read_text(encoding="utf-8")
    assert exported.startswith("corruption,clip,clip+panda,Δ clip+panda,tent,tent+panda,Δ tent+panda")

    before = page
    (tmp_path / "report.html").unlink()
    assert "Report:" in succeeded("report", tmp_path)
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == before
    assert len(json.loads(succeeded("report", tmp_path, "--json"))["rows"]) == 12


@pytest.mark.slow
def test_bench_of_all_methods_prints_means_and_passes(succeeded, tmp_path):
    arguments = ["bench", "--data", "glyphs-val-c", "--limit", "10", "--batch-size", "10", "--set", "views=3"]
    printed = succeeded(*arguments, "--corruption", "fog,contrast", "-o", tmp_path)
    assert "mean of 2 corruptions" in printed
    assert "Encoded per batch of 10 images" in printed
    recorded = {record.config.method.name for record in RunStore(tmp_path).records()}
    assert recorded == {name for base in METHODS for name in (base, f"{base}+panda")}
    rows = {name: numbers for name, *numbers in map(str.split, re.findall(r"(?m)^\S+ +\d.*", printed))}
    assert rows["sar+panda"][1] != "0"
    assert rows["zero"][:2] == ["30.0", "0.0"]
    assert rows["zero+panda"][:2] == ["31.0", "0.0"]
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    for word in ("Accuracy (%)", "bat+panda", "images with gradient"):
        assert word in page


def test_one_that_diverges_is_named_and_the_others_are_shown(tta_panda, tmp_path):
    arguments = ["bench", "--method", "clip,tent", *SMALL, "--corruption", "fog", "--set", "lr=1e30", "-o", tmp_path]
    for _ in range(2):
        outcome = tta_panda(*arguments)
        assert outcome.code == 0
        assert "diverged: tent on fog at severity 5, seed 0; tent+panda on" in outcome.stderr
        assert f"To try again, delete {tmp_path}" in outcome.stderr
        assert "clip+panda" in outcome.stdout and outcome.stdout.count("diverged") >= 4  # both tables, both variants
        assert "diverged" in (tmp_path / "report.html").read_text(encoding="utf-8")
    arguments = ["bench", "--method", "tent", *arguments[3:-1], tmp_path / "all"]
    outcome = tta_panda(*arguments, "--json")
    assert outcome.code == 0
    document = json.loads(outcome.stdout)
    assert {row["status"] for row in document["missing"]} == {"diverged"}
    assert document["rows"] == [] and document["report"] is None


def test_several_seeds_are_printed_with_their_spread(succeeded, tmp_path):
    arguments = ["bench", "--method", "clip", *SMALL, "--corruption", "fog", "--seed", "0-2", "-o", tmp_path]
    assert re.search(r"fog +[\d.]+ ± [\d.]+ +[\d.]+ ± [\d.]+ +[+-][\d.]+ ± [\d.]+", succeeded(*arguments))


def test_what_is_said_of_a_stream_is_in_the_record(succeeded, tmp_path):
    said = {
        "data": "glyphs-val-c",
        "corruption": "fog",
        "severity": 3,
        "order": "sequential",
        "seed": 2,
        "batch_size": 1,
        "window": 4,
    }
    said |= {"limit": 9, "preprocess": "exact", "precision": "bf16", "model": "mini", "templates": "mint"}
    said |= {"backend": "torch"}
    flags = [word for name, value in said.items() for word in (f"--{name.replace('_', '-')}", value)]
    for row in json.loads(succeeded("bench", "--method", "clip", *flags, "-o", tmp_path, "--json"))["rows"]:
        assert {name: row[name] for name in said} == said
    elsewhere = {"ignore_orientation", "unknown_classes"}  # for image files, and without windows
    assert said.keys() == vars(EMBEDDED).keys() - DIGESTS - elsewhere


def test_the_protocol_and_the_settings_are_in_the_record(succeeded, tmp_path):
    arguments = ["bench", "--method", "tent+panda", "--corruption", "fog", *SMALL, "--protocol", "reference"]
    printed = succeeded(*arguments, "--set", "beta=0.3", "-o", tmp_path, "--json")
    _, row = json.loads(printed)["rows"]
    expected = {"protocol": "reference", "sampler": "same_cell", "beta": 0.3}
    assert {key: row["options"][key] for key in expected} == expected
    assert row["images"] == row["images_with_gradient"] == 22  # twenty images, two negatives, and both again


def test_options_come_from_a_file_and_the_command_line_counts_more(succeeded, tta_panda, tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(
        "data: glyphs-val-c\nmethod: [clip, tent]\ncorruption: [fog]\nbatch_size: 20\nlimit: 40\nseed: 1\n"
        "set: {beta: 0.3, lr: 1e-3}\nimage_list: null\njson: true\n"
    )
    rows = json.loads(succeeded("bench", "--config", path, "-o", tmp_path, "--method", "tent"))["rows"]
    assert [row["method"] for row in rows] == ["tent", "tent+panda"]
    assert {(row["corruption"], row["seed"], row["samples"], row["batch_size"]) for row in rows} == {("fog", 1, 40, 20)}
    assert (rows[1]["options"]["beta"], rows[1]["options"]["lr"]) == (0.3, 1e-3)
    for text, message in {
        "methd: clip": "Unknown option in run.yaml 'methd'. Did you mean 'method'",
        "- clip": "must map options to values",
        "a: b: c": "Cannot read the configuration run.yaml",
        "limit: many": "Invalid value for '--limit'",
        f"limit: {'9' * 5000}": "Cannot read the configuration run.yaml",
        f"method: {'[' * 2000}": "Cannot read the configuration run.yaml",
        "set: {lr: [&a [x, x, x], [*a, *a, *a]]}": "must not nest values: set",  # a dozen such lines would have no end
        "method: [&a [x, x, x], [*a, *a, *a]]": "must not nest values: method",
    }.items():
        path.write_text(text)
        outcome = tta_panda("bench", "--config", "run.yaml")
        assert outcome.code in (1, 2) and message in outcome.stderr and "Traceback" not in outcome.stderr
    assert "Cannot read" in tta_panda("bench", "--config", "absent.yaml").stderr


def test_a_command_that_cannot_start_shows_no_progress(tta_panda, monkeypatch, tmp_path):
    started = []
    monkeypatch.setattr("rich.progress.Progress.start", lambda self: started.append(self))
    (tmp_path / "broken.pt").write_text("no weights")
    arguments = ["bench", "--method", "clip", *SMALL, "--corruption", "fog", "-o", tmp_path / "runs"]
    outcome = tta_panda(*arguments, "--model", f"ViT-B-32:{tmp_path / 'broken.pt'}")
    assert outcome.code == 1 and "broken.pt" in outcome.stderr and not started
    assert tta_panda(*arguments).code == 0 and started


def test_shells_can_complete(succeeded):
    assert "--install-completion" in succeeded("--help")


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("methods", "tent"),
        ("models", "mini"),
        ("models", "lite0"),
        ("data", "glyphs-c"),
        ("corruptions", "fog"),
        ("presets", "cifar10-c"),
    ],
)
def test_ls_lists_by_kind(succeeded, kind, name):
    assert name in [row["name"] for row in json.loads(succeeded("ls", kind, "--json"))["rows"]]
    assert name in succeeded("ls", kind, f"{name[:2]}*")


def test_what_is_listed_of_a_pattern_has_details(succeeded):
    def listed(*words):
        return {row["name"]: row for row in json.loads(succeeded("ls", *words, "--json"))["rows"]}

    assert "Wang et al. 2021" in listed("methods")["tent"]["about"] and list(listed("methods")) == [*METHODS]
    assert listed("models").keys() <= listed("models", "*").keys()  # other tests may have added some
    tent = listed("methods", "tent+*")["tent+panda"]
    assert tent["per image"] == {"images_with_gradient": 1.1} and tent["options"]["beta"] == "auto"
    assert listed("presets", "mini")["mini"].keys() == {"name", "method", "options"}
    assert listed("experiments", "table-main")["table-main"]["runs"] > 100
    assert "tta-panda ls methods PATTERN" in succeeded("ls", "methods")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bench", "--method", "tnet"], "Did you mean 'tent'"),
        (["bench", "--method", "tent+pnda"], "Did you mean 'tent+panda'"),
        (["reproduce", "all", "table-mian"], "Did you mean 'table-main'"),
        (["bench", "--method", "clip", "--corruption", "fgo"], "Did you mean 'fog'"),
        (["bench", "--method", "clip", "--data", "glyhps-c"], "Did you mean 'glyphs-c'"),
        (["bench", "--method", "clip", "--model", "mino"], "Did you mean"),
        (["bench", "--method", "clip+panda", "--set", "bta=1"], "Did you mean 'beta'"),
        (["bench", "--method", "clip+panda", "--set", "beta"], "name=value"),
        (["bench", "--method", "clip", "--severity", "9"], "1 to 5"),
        (["bench", "--method", "clip", "--seed", "zero"], "whole numbers"),
        (["bench", "--method", "clip", "--seed", "0-99999999999"], "100,000,000,000 numbers; at most 10,000"),
        (["bench", "--method", "clip+panda", "--set", "beta=abc"], "beta must be a number >= 0 or 'auto'"),
        (["bench", "--method", "clip", "--model", ""], "model is empty"),
        (["bench", "--method", "clip", "--data", "cifar10-c", "--corruption", "fog"], "--data-root"),
        (["bench", "--method", "clip", "-o", "/dev/null/runs"], "-o PATH"),
        (["bench", "--method", "clip+panda", "--set", "patch_size=64", "--limit", "5"], "at most 32"),
        (["bench", "--method", "clip", "--device", "warp", "--limit", "5"], "warp"),
        (["bench", "--preset", "cifar10"], "Did you mean 'cifar10-c'"),
        (["bench", "--preset", "cifar10-c", "--model", "mini", "--workers", "1"], "--data-root"),
        (["bench", "--protocol", "papr"], "Did you mean 'paper'"),
        (["report", "nowhere"], "no folder nowhere"),
        (["ls", "methds"], "Did you mean 'methods'"),
        (["bench", "--method", "clip", "--seed", "-1"], "seed must be a whole number from 0 to"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_mistakes_get_a_sentence_and_no_traceback(tta_panda, arguments, message):
    outcome = tta_panda(*arguments)
    assert outcome.code == 1
    assert message in outcome.stderr
    assert "Traceback" not in outcome.stderr
    assert outcome.stdout == ""


def test_weights_that_cannot_be_fetched_name_the_file_to_bring(tta_panda, monkeypatch):
    import huggingface_hub

    def unreachable(*_: object, **__: object) -> None:
        raise RuntimeError("the hub cannot be reached")

    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", unreachable)
    outcome = tta_panda("bench", "--method", "clip", "--model", "ViT-B-32-quickgelu:openai", "--limit", "5")
    assert outcome.code == 1
    assert "the hub cannot be reached" in outcome.stderr
    assert "--model ViT-B-32-quickgelu:weights/ViT-B-32-quickgelu.safetensors" in outcome.stderr


def test_brackets_in_what_a_user_types_are_printed(succeeded):
    assert "[/a]" in succeeded("ls", "corruptions", "[/a]")


def test_methods_that_a_model_cannot_serve_are_named_and_the_others_run(tta_panda, tmp_path):
    import timm
    from safetensors.torch import save_file

    save_file(timm.create_model("test_vit", num_classes=10).state_dict(), tmp_path / "vit.safetensors")
    arguments = ["bench", "--method", "clip,tpt,bat", "--model", f"timm:test_vit:{tmp_path / 'vit.safetensors'}"]
    arguments += ["--data", "glyphs-val-c", "--corruption", "fog", "--limit", "5", "-o", tmp_path / "runs"]
    outcome = tta_panda(*arguments, "--json")
    assert outcome.code == 0, outcome.stderr
    document = json.loads(outcome.stdout)
    assert [row["method"] for row in document["rows"]] == ["clip", "clip+panda"]
    assert len(document["rows"][0]["weights_hash"]) == 16
    assert [row["what"] for row in document["missing"]] == ["tpt", "tpt+panda", "bat", "bat+panda"]
    assert "not run: tpt; tpt+panda: TPT tunes" in outcome.stderr
    arguments[2] = "bat"
    outcome = tta_panda(*arguments)
    assert outcome.code == 1
    assert "has no text encoder" in outcome.stderr


def test_precision_is_part_of_a_record(succeeded, tmp_path):
    arguments = ["bench", "--method", "clip+panda", "--corruption", "fog", *SMALL, "-o", tmp_path, "--json"]
    _, exact = json.loads(succeeded(*arguments))["rows"]
    _, half = json.loads(succeeded(*arguments, "--precision", "bf16"))["rows"]
    assert (exact["precision"], half["precision"]) == ("fp32", "bf16")
    assert exact["record"] != half["record"]
    assert exact["weights_hash"] == half["weights_hash"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--device", "cuda"], "The device 'cuda' cannot be used here"),
        (["--precision", "fp8"], "Unknown precision 'fp8'"),
        (["--model", "mini:openai"], "mini has its own weights: omit ':openai'"),
    ],
)
def test_devices_and_weights_that_are_not_there_get_a_sentence(tta_panda, arguments, message):
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    outcome = tta_panda("bench", "--method", "clip", "--limit", "5", *arguments)
    assert outcome.code == 1
    assert message in outcome.stderr
    assert "Traceback" not in outcome.stderr


def test_ls_models_has_sizes_and_what_is_here(succeeded):
    (row,) = json.loads(succeeded("ls", "models", "ViT-B-32", "--json"))["rows"]
    assert (row["parameters"], row["image_size"]) == (151277313, 224)
    assert "openai" in row["weights"] and isinstance(row["here"], list)
    printed = succeeded("ls", "models", "mini")
    assert "embedded" in printed and " M" in printed


def test_what_was_corrected_is_a_note(tta_panda, monkeypatch):
    import huggingface_hub

    def unreachable(*_: object, **__: object) -> None:
        raise RuntimeError("the hub cannot be reached")

    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", unreachable)
    outcome = tta_panda("bench", "--method", "clip", "--model", "ViT-B-32:openai", "--limit", "5")
    assert "note: The weights 'openai' of ViT-B-32 run with QuickGELU, as in training." in outcome.stderr


def test_an_order_that_joins_corruptions_gives_a_row_for_each(succeeded, tta_panda, tmp_path):
    ordered = ["--corruption", "fog,snow", "--order", "mixed+correlated:0", *SMALL, "-o", tmp_path]
    found = json.loads(succeeded("bench", "--method", "clip", *ordered, "--json"))
    assert (
        sorted((row["corruption"], row["samples"]) for row in found["rows"]) == [("fog", 40)] * 2 + [("snow", 40)] * 2
    )
    assert {row["order"] for row in found["rows"]} == {"mixed+correlated:0"}
    text = succeeded("bench", "--method", "clip", *ordered)
    assert "order mixed+correlated:0" in text and re.search(r"snow +\d", text) and "mean of 2" in text
    assert "Did you mean 'continual'" in tta_panda("bench", "--order", "continuall", *SMALL).stderr
