"""Records for others: the formats of CLIP_benchmark and robustbench, the leaderboard, and trackers."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from documents import links_outside
from records import make_record, plan, run

from tta_panda.data.corruptions import CORRUPTIONS
from tta_panda.errors import StoreError, TtaPandaWarning
from tta_panda.evaluation.record import RunRecord
from tta_panda.evaluation.store import RunStore
from tta_panda.reporting.exchange import read_clip_benchmark, to_clip_benchmark, write_exchange
from tta_panda.reporting.leaderboard import make_entries, read_submissions, write_leaderboard
from tta_panda.reporting.tracking import PROJECT, TRACKERS, Tracker

CLIP = {"model": "ViT-B-32-quickgelu:openai"}

# Published in the repository LAION-AI/CLIP_benchmark, for imagenet1k in Arabic.
PUBLISHED = (
    '{"dataset": "imagenet1k", "model": "xlm-roberta-base-ViT-B-32", "pretrained": "laion5b_s13b_b90k", '
    '"task": "zeroshot_classification", "metrics": {"acc1": 0.26514, "acc5": 0.4663, "mean_per_class_recall": '
    '0.26506}, "language": "ar"}'
)
# The fields of model_info/cifar10/corruptions/Calian2021Defending.json in RobustBench/robustbench, by type.
MODEL_INFO = {
    "link": str,
    "name": str,
    "authors": str,
    "additional_data": bool,
    "number_forward_passes": int,
    "dataset": str,
    "venue": str,
    "architecture": str,
    "eps": type(None),
    "clean_acc": str,
    "reported": str,
    "corruptions_acc": str,
}


def many(methods=("clip", "tent+panda"), severities=(5,), **stream) -> list[RunRecord]:
    """Records on clean images and all corruptions, whose accuracy grows with the severity."""
    stream = {**CLIP, "data": "cifar10-c", **stream}
    return [
        make_record(method, name, accuracy=0.9 if name == "clean" else 0.1 * severity, severity=severity, **stream)
        for method in methods
        for severity, names in ((0, ["clean"]), *((each, CORRUPTIONS) for each in severities))
        for name in names
    ]


def test_results_have_clip_benchmarks_fields_and_say_which_method_adapted():
    fields = json.loads(PUBLISHED)
    [plain] = to_clip_benchmark(make_record(data="cifar10-c", corruption="clean", **CLIP)).values()
    written = json.loads(plain.model_dump_json(exclude_none=True))
    assert {name: type(value) for name, value in written.items() if name in fields} == {
        name: type(value) for name, value in fields.items()
    }
    assert (written["dataset"], written["model"], written["pretrained"]) == ("cifar10", "ViT-B-32-quickgelu", "openai")
    [tent] = to_clip_benchmark(make_record("tent+panda", data="cifar10-c", **CLIP)).values()
    assert (tent.dataset, tent.model) == ("cifar10-c/fog/5", "ViT-B-32-quickgelu (tent+panda)")
    joined = make_record("clip", "fog,snow", order="continual")
    assert [each.dataset for each in to_clip_benchmark(joined).values()] == ["glyphs-c/fog/5", "glyphs-c/snow/5"]


def test_metrics_of_clip_benchmark_are_measured(tmp_path):
    [record] = run(plan(["clip"]), tmp_path)
    [result] = to_clip_benchmark(record).values()
    metrics = json.loads(result.model_dump_json())["metrics"]
    assert metrics.keys() == json.loads(PUBLISHED)["metrics"].keys()
    assert 0 < metrics["acc1"] < metrics["acc5"] <= 1 and metrics["mean_per_class_recall"] > 0
    path = tmp_path / "result.json"
    path.write_text(result.model_dump_json())
    assert read_clip_benchmark(path) == result


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "Invalid JSON"),
        ("[]", "the file"),
        (PUBLISHED.replace("zeroshot_classification", "zeroshot_retrieval"), "task: Input should be"),
        (PUBLISHED.replace('"acc1"', '"mean_average_precision"'), "metrics.acc1: Field required"),
        (PUBLISHED.replace("0.26514", "26.514"), "metrics.acc1: Input should be less than or equal to 1"),
        (PUBLISHED.replace("0.26514", "NaN"), "metrics.acc1"),
    ],
)
def test_other_files_are_refused_with_the_field(tmp_path, content, message):
    path = tmp_path / "result.json"
    path.write_text(content)
    with pytest.raises(StoreError, match=re.escape(str(path))) as caught:
        read_clip_benchmark(path)
    assert message in str(caught.value)


def test_a_result_without_top_5_is_read_as_clip_benchmark_writes_it(tmp_path):
    path = tmp_path / "result.json"
    path.write_text(PUBLISHED.replace("0.4663", "NaN"))
    assert read_clip_benchmark(path).metrics.acc5 is None


def test_model_info_has_robustbenchs_fields_and_the_mean_over_severities(tmp_path):
    paths = write_exchange([*many(severities=(1, 5)), *many(["sar"], batch_size=50)[:-1]], tmp_path)
    infos = {path: json.loads(path.read_text()) for path in paths if "model_info" in path.parts}
    assert {path.parent for path in infos} == {tmp_path / "model_info" / "cifar10" / "corruptions"}
    assert len(infos) == 2  # sar misses a corruption
    for info in infos.values():
        assert {name: type(info.get(name)) for name in MODEL_INFO} == MODEL_INFO
        assert (info["clean_acc"], info["corruptions_acc"]) == ("90.00", "30.00")
        assert "severity 1, 5" in info["footnote"] and "batches of 100" in info["footnote"]
    assert len([path for path in paths if "clip_benchmark" in path.parts]) == 2 * 31 + 15


def test_other_data_are_not_written_as_robustbenchs(tmp_path):
    assert {path.parent.name for path in write_exchange(many(data="glyphs-c"), tmp_path)} == {"clip_benchmark"}


@pytest.fixture
def people(tmp_path) -> Path:
    """Real records of two people: the same protocol, another one, and a result of CLIP_benchmark."""
    root = tmp_path / "people"
    methods = ["clip", "clip+panda"]
    run(plan(methods, corruptions=["clean", "fog", "snow"], seeds=[0, 1]), root / "alice")
    run(plan(["clip"], corruptions=["fog", "snow"]), root / "bob & co")
    run(plan(["clip"], corruptions=["fog", "snow"], order="continual"), root / "bob & co")
    (root / "bob & co" / "result.json").write_text(PUBLISHED)
    return root


def test_protocols_are_never_mixed_and_every_number_links_to_its_records(people):
    submissions, problems = read_submissions(people)
    assert len(submissions) == 16 and not problems
    entries = make_entries(submissions)
    shuffled = [each for each in entries if "order shuffled" in each.protocol]
    assert {(each.person, each.method.name, each.column.split(", ", 1)[1]) for each in shuffled} == {
        *(("alice", name, column) for name in ("clip", "clip+panda") for column in ("clean", "snow, fog, severity 5")),
        ("bob & co", "clip", "snow, fog, severity 5"),
    }
    of_alice = next(each for each in shuffled if each.person == "alice" and "fog" in each.column)
    records = [json.loads(path.read_text()) for _, path in of_alice.files]
    assert of_alice.cell.value == pytest.approx(100 * sum(record["accuracy"] for record in records) / 4)
    assert len({each.protocol for each in entries}) == 3
    page = write_leaderboard(people / "leaderboard.html", entries, {}).read_text("utf-8")
    assert page.count("<h2>") == page.count("Protocol: ") == 3 and "batches of 20, 50 images" in page
    links = links_outside(page)
    assert len(links) == 16 and all((people / link.replace("%20", " ").replace("%26", "&")).is_file() for link in links)


def test_what_differs_in_data_weights_or_corruptions_has_a_column_or_table_of_its_own(tmp_path):
    def entries(*records: RunRecord):
        for number, record in enumerate(records):
            RunStore(tmp_path / str(number)).save(record)
        return make_entries([*_submissions(tmp_path)])

    first = make_record()
    found = entries(
        first,
        first.model_copy(update={"weights_hash": "fedcba9876543210"}),
        make_record(fingerprint="made with seed 1"),
        make_record(corruption="snow"),
        make_record(batch_size=50),
        make_record(data="cifar10-c"),
    )
    assert len({(each.protocol, each.column) for each in found}) == 6
    assert len({each.protocol for each in found}) == 3  # weights and batches
    assert [each.column for each in found if "made with seed 1" in each.column]


def test_a_mean_over_many_fingerprints_has_one(tmp_path):
    found = set()
    for person, last in (("alice", "d"), ("bob", "d"), ("carol", "e")):
        for name, fingerprint in zip(CORRUPTIONS[:4], ["a", "b", "c", last], strict=True):
            record = make_record(corruption=name, data="imagenet-c", fingerprint=fingerprint * 12)
            RunStore(tmp_path / person).save(record)
        found |= {each.column for each in make_entries([*_submissions(tmp_path / person)])}
    assert len(found) == 2 and all(re.search(r" \[[0-9a-f]{12}\]$", column) for column in found)


def _submissions(root: Path):
    """Made-up records, which contradict themselves, unchecked."""
    from tta_panda.reporting.leaderboard import Submission

    for path in sorted(root.rglob("*.json")):
        yield Submission(path.parent.name, path, RunStore.read(path, path.stem))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"samples": 51}, "sum to 50"),
        ({"accuracy": 0.999}, "do not allow the accuracy"),
        ({"bias": 0.0}, "give the bias"),
        ({"tenths": []}, None),
        ({"class_names": ["heart"]}, "classes"),
        ({"weights_hash": 5}, "not a valid record"),
        ({"schema_number": 1}, "reads schema"),
        ({"config": None}, "not a valid record"),
    ],
)
def test_records_that_contradict_themselves_are_not_shown(people, tta_panda_report, change, message):
    path = next(path for path in sorted((people / "alice").glob("*.json")) if '"clean"' in path.read_text())
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    _, problems = read_submissions(people)
    assert (message is None and not problems) or message in problems[path]
    done = tta_panda_report(people, "--leaderboard")
    assert done.exit_code == int(message is not None)
    assert (people / "leaderboard.html").read_text("utf-8").count("Not shown") == done.exit_code


def test_a_cut_or_renamed_file_and_other_labels_are_not_shown(people):
    by_stream = sorted((people / "alice").glob("*.json"), key=lambda path: str(json.loads(path.read_text())["config"]))
    first, second, third, *_ = reversed(by_stream)  # the fourth is of the same images as the third
    first.write_text(first.read_text()[:100])
    second.rename(second.with_name("0" * 20 + ".json"))
    changed = json.loads(third.read_text())
    counts = changed["label_counts"]
    there = max(range(len(counts)), key=lambda k: changed["predicted_counts"][k] - counts[k])
    counts[there], counts[there - 1] = counts[there] + 1, counts[there - 1] - 1
    frequencies = [count / changed["samples"] for count in counts]
    changed["bias"] = sum(abs(p - q) for p, q in zip(changed["mean_probabilities"], frequencies, strict=True))
    third.write_text(json.dumps(changed))
    _, problems = read_submissions(people)
    assert {path.name for path in problems} >= {first.name, "0" * 20 + ".json"}
    assert any("other label counts" in text for text in problems.values())


@pytest.fixture
def tta_panda_report(undrawn):
    """`tta-panda report`, in this process."""
    from typer.testing import CliRunner

    from tta_panda.cli import app

    return lambda *arguments: CliRunner().invoke(app, ["report", *map(str, arguments)], catch_exceptions=False)


def test_the_command_line_makes_the_page_and_the_exports(people, tta_panda_report, tmp_path):
    assert "16 files of alice, bob & co" in tta_panda_report(people, "--leaderboard").stdout
    document = json.loads(tta_panda_report(people, "--leaderboard", "--json").stdout)
    assert len(document["rows"]) == 16 and document["problems"] == [] and Path(document["report"]).is_file()
    tta_panda_report(people / "alice", "--export", tmp_path / "others")
    assert len(list((tmp_path / "others").rglob("*.json"))) == 12
    for nothing in (tmp_path / "nowhere", people / "alice"):
        with pytest.raises(StoreError, match="one folder for each person"):
            tta_panda_report(nothing, "--leaderboard")


def logged_by(monkeypatch, name: str, **replaced) -> list[tuple]:
    calls: list[tuple] = []
    module = SimpleNamespace(
        __name__=name,
        init=lambda **options: calls.append(("init", options)),
        log=lambda numbers: calls.append(("log", numbers)),
        finish=lambda: calls.append(("finish",)),
    )
    vars(module).update(replaced)
    monkeypatch.setitem(sys.modules, name, module)
    return calls


@pytest.mark.parametrize("name", TRACKERS)
def test_trackers_get_a_line_for_each_tenth_and_one_for_the_stream(monkeypatch, name):
    calls = logged_by(monkeypatch, name)
    record = make_record("tent+panda", "fog,snow", order="continual")
    Tracker(name)(record)
    kinds = [kind for kind, *_ in calls]
    assert kinds == ["init", *["log"] * 21, "finish"]  # twenty tenths: ten for each domain
    options = calls[0][1]
    assert options["project"] == PROJECT and options["config"]["method"] == "tent+panda"
    assert options["config"]["record"] == record.config.key and options["config"]["batch_size"] == 100
    assert calls[1][1]["tenth"] == 1 and calls[1][1]["tenth/accuracy"] == record.tenths[0].accuracy
    assert calls[-2][1]["accuracy"] == record.accuracy and calls[-2][1]["fog/bias"] == record.domains["fog"].bias


def test_a_tracker_that_fails_does_not_stop_the_evaluation(monkeypatch, tmp_path, capsys):
    def refuse(**_options):
        print("no account")
        raise RuntimeError("no account")

    calls = logged_by(monkeypatch, "wandb", init=refuse)
    tracker = Tracker("wandb")
    with pytest.warns(TtaPandaWarning, match="wandb cannot log clip on fog .*: no account. Records are saved"):
        tracker(make_record())
    tracker(make_record())
    assert calls == []
    assert capsys.readouterr().out == ""


def test_bench_logs_new_records_only(monkeypatch, tmp_path, undrawn):
    from typer.testing import CliRunner

    from tta_panda.cli import app

    calls = logged_by(monkeypatch, "trackio")
    arguments = ["--method", "clip", "--corruption", "fog", "--limit", "20", "-o", str(tmp_path), "--log", "trackio"]
    for _ in range(2):
        assert CliRunner().invoke(app, ["bench", *arguments], catch_exceptions=False).exit_code == 0
    assert [kind for kind, *_ in calls].count("init") == 2  # clip and clip+panda, once


@pytest.mark.parametrize(("name", "message"), [("wand", "Did you mean 'wandb'"), ("wandb", "tta-panda\\[wandb\\]")])
def test_a_tracker_that_is_not_there_is_refused_before_anything_runs(monkeypatch, tmp_path, name, message):
    from typer.testing import CliRunner

    from tta_panda.cli import app

    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(Exception, match=message):
        CliRunner().invoke(app, ["bench", "--log", name, "-o", str(tmp_path)], catch_exceptions=False)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("name", TRACKERS)
def test_the_real_trackers_work_offline(monkeypatch, tmp_path, name):
    for variable, value in (("WANDB_MODE", "offline"), ("WANDB_DIR", tmp_path), ("TRACKIO_DIR", tmp_path)):
        monkeypatch.setenv(variable, str(value))
    pytest.importorskip(name, reason=f"needs tta-panda[{name}]")  # reads the variables
    Tracker(name)(make_record())
    assert list(tmp_path.rglob("*.wandb" if name == "wandb" else "*.db"))
