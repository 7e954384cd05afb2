"""Measuring: turns, ratios and margins, and every topic through the command line."""

from __future__ import annotations

import json
import math
import time
from collections import defaultdict
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from tta_panda.cli import app
from tta_panda.errors import InvalidInputError, TtaPandaError, UnknownNameError
from tta_panda.methods import create_method
from tta_panda.models import load_model
from tta_panda.models.checkpoints import weights_hash
from tta_panda.speed import Timings, take_turns
from tta_panda.speed.backends import _WAYS
from tta_panda.speed.growth import Axis, Curve, Point
from tta_panda.speed.measure import Spread
from tta_panda.speed.soak import Course
from tta_panda.speed.workload import bare_passes, draw_pictures, make_classes, standing


def run(*arguments: object) -> str:
    result = CliRunner().invoke(app, ["speed", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_ways_take_turns_after_a_call_to_warm_up():
    called: list[str] = []
    shares: list[float] = []
    timings = take_turns({"a": lambda: called.append("a"), "b": lambda: called.append("b")}, 8, shares.append)
    rounds = ["".join(called[start : start + 2]) for start in range(0, len(called), 2)]
    assert len(rounds) == 9 and set(rounds) == {"ab", "ba"}, "no way always follows the same"
    assert {way: len(taken) for way, taken in timings.seconds.items()} == {"a": 8, "b": 8}
    assert sum(shares) == pytest.approx(1)


def test_rounds_end_when_enough_was_measured():
    shares: list[float] = []
    timings = take_turns({"a": lambda: None}, 9, shares.append, is_enough=lambda taken: len(taken.seconds["a"]) == 4)
    assert len(timings.seconds["a"]) == 4
    assert sum(shares) == pytest.approx(1)


def test_a_ratio_is_that_of_rounds_and_not_of_medians():
    """A machine that becomes slower halfway slows both ways, and their ratio not at all."""
    timings = Timings({"a": [1.0, 1.0, 4.0, 4.0], "b": [2.0, 2.0, 8.0, 8.0]})
    assert timings.ratio("b", "a") == (2.0, 0.0)
    assert timings.of("a").median == 2.5 and timings.of("a").margin == pytest.approx(1.58 * 3 / 2)


def test_views_are_compared_with_pillow(tmp_path: Path):
    document = json.loads(run("views", "--views", 4, "--size", 24, "--rounds", 1, "--json"))
    ways = ["default", "exact", "Pillow"]
    assert [row["views"] for row in document["rows"]] == [f"{a}, {w}" for a in ("augmix", "crops") for w in ways]
    assert all(row["times as fast"] > 0 and row["apart (%)"] < 0.1 for row in document["rows"])
    with pytest.raises(InvalidInputError, match="Nothing to measure"):
        run("views", "--views", 1)


def test_corruptions_are_timed_one_by_one(tmp_path: Path):
    text = run("corruptions", "--rounds", 1, "--output", tmp_path / "speed.json")
    assert "glass_blur" in text
    rows = json.loads((tmp_path / "speed.json").read_text())["rows"]
    assert len(rows) == 16 and all(row["32 px: ms"] > 0 and row["224 px: ms"] > 0 for row in rows)
    assert rows[-1]["32 px: ms"] == pytest.approx(sum(row["32 px: ms"] for row in rows[:-1]))


def test_backends_agree_and_streams_keep_the_encoder_busy(monkeypatch):
    monkeypatch.delitem(_WAYS, "torch, compiled")  # takes a minute
    rows = json.loads(run("backends", "--batch-size", 2, "--rounds", 1, "--json"))["rows"]
    assert rows[0]["encoder"] == "torch" and all(row["least cosine"] > 0.999 and row["ms"] > 0 for row in rows)
    rows = json.loads(run("stream", "--batch-size", 2, "--rounds", 1, "--json"))["rows"]
    assert [row["images"] for row in rows] == ["array, 32 px", "JPEG files, 500 px"]
    assert all(0 < row["in the encoder (%)"] <= 100 for row in rows)


def test_small_pieces_take_less_memory():
    [tent, clip] = json.loads(run("memory", "--method", "tent,clip", "--batch-size", 80, "--json"))["rows"]
    assert tent["MiB"] > tent["MiB, micro_batch=20"] > 0 and tent["MiB"] > clip["MiB"]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [(["view"], UnknownNameError, "Did you mean 'views'"), (["views", "--rounds", 0], InvalidInputError, "at least 1")],
)
def test_bad_requests_say_what_is_wrong(arguments: list[object], error: type[TtaPandaError], message: str):
    with pytest.raises(error, match=message):
        run(*arguments)


def test_a_sweep_is_timed_beside_one_run():
    arguments = ["--rounds", 1, "--batch-size", 4, "--classes", 3, "--views", 2, "--method", "clip,zero,tps,tpt"]
    document = json.loads(run("sweep", *arguments, "--json"))
    assert [(row["methods"], row["runs"], row["beside"]) for row in document["rows"]] == [
        ("clip", 11, "clip+panda"),
        ("zero, tps, tpt", 6, "zero+panda"),
    ]
    assert all(row["times that"] > 0 and row["from a cache"] > 0 for row in document["rows"])
    with pytest.raises(UnknownNameError, match="method of a sweep"):
        run("sweep", "--method", "tent")


def test_every_way_is_preceded_by_what_brings_it_back_and_that_is_not_timed():
    called: list[str] = []
    before = {"a": lambda: (called.append("back"), time.sleep(0.05))}
    timings = take_turns({"a": lambda: called.append("a"), "b": lambda: called.append("b")}, 1, before=before)
    assert len(called) == 6 and all(called[place - 1] == "back" for place in range(6) if called[place] == "a")
    assert timings.of("a").median < 0.05


def test_ways_are_combined_round_by_round():
    timings = Timings({"a": [1.0, 2.0], "b": [10.0, 30.0]}, {"a": [1.0, 1.0], "b": [2.0, 2.0]})
    timings.combine("mostly a", {"a": 0.9, "b": 0.1})
    assert timings.seconds["mostly a"] == pytest.approx([1.9, 4.8])
    assert timings.by("processor time").seconds["mostly a"] == pytest.approx([1.1, 1.1])


def test_methods_are_compared_with_their_passes_alone():
    few = ["--batch-size", 4, "--classes", 3, "--rounds", 1]
    document = json.loads(run("methods", *few, "--method", "clip,sar+panda,zero", "--json"))
    rows = {row["method"]: row for row in document["rows"]}
    assert list(rows) == ["clip", "sar", "zero"]
    assert all(row["outside (%)"] > 0 and row["+panda: outside (%)"] > 0 for row in rows.values())
    assert all(row[ratio] > 0.1 for row in rows.values() for ratio in ("x limit", "+panda: x limit"))
    assert rows["zero"]["views: ms"] > rows["clip"]["views: ms"]


def test_panda_is_compared_with_the_plain_method():
    few = ["--batch-size", 4, "--classes", 3]
    [row] = json.loads(run("panda", *few, "--method", "clip", "--rounds", 2, "--json"))["rows"]
    assert row["rounds"] == 2 and all(row[ratio] > 0.1 for ratio in ("x plain", "beta auto", "refreshed"))


def test_panda_is_timed_until_one_percent_is_resolved(monkeypatch):
    monkeypatch.setattr("tta_panda.speed.panda._PRECISION", math.inf)
    [row] = json.loads(run("panda", "--batch-size", 2, "--classes", 3, "--method", "clip", "--json"))["rows"]
    assert row["rounds"] == 20


def test_a_method_that_the_model_cannot_serve_is_left_out_by_name():
    asked = ["--model", "timm:test_resnet:random", "--batch-size", 3, "--classes", 5, "--rounds", 1]
    document = json.loads(run("methods", *asked, "--method", "clip,bat,tent", "--json"))
    assert [row["method"] for row in document["rows"]] == ["clip", "tent"]
    assert any(note.startswith("bat is left out: ") for note in document["notes"])


@pytest.mark.parametrize("name", ["clip+panda", "tent+panda", "sar", "deyo+panda", "mint", "zero", "tpt", "bat"])
def test_bare_passes_are_those_that_the_method_counts(name: str):
    model = load_model("mini")
    method, images = create_method(name, make_classes(model, 3)), draw_pictures(6, model.image_size)
    made: dict[tuple[str, bool], int] = defaultdict(int)
    passes = bare_passes(method, images).args[2]
    for encode, inputs, with_gradient in passes:
        made[encode, with_gradient] += len(inputs[0])
    counted = method.passes
    assert made["encode_image", False] == counted.images
    assert made["encode_image", True] == counted.images_with_gradient
    assert made["encode_embedded", False] == counted.texts
    assert made["encode_embedded", True] == counted.texts_with_gradient
    assert "encode_image" not in vars(model)  # recording has ended


def test_bare_passes_leave_no_gradients_and_change_no_model():
    model = load_model("timm:test_resnet:random")
    method, images = create_method("tent", make_classes(model, 3)), draw_pictures(4, model.image_size)
    before = weights_hash(model)
    replay = bare_passes(method, images)
    replay()
    trained = replay.args[1]
    assert trained and all(parameter.requires_grad and parameter.grad is None for parameter in trained)
    assert weights_hash(model) == before


def test_a_method_comes_back_to_where_it_stood():
    model = load_model("mini")
    method, images = create_method("tent+panda", make_classes(model, 3)), draw_pictures(6, model.image_size)
    come_back = standing(method, images)
    first = method.adapt(images)
    assert not torch.equal(method.adapt(images), first)
    come_back()
    assert torch.equal(method.adapt(images), first)


def test_any_number_of_classes_has_names():
    names = make_classes(load_model("mini"), 500).class_names
    assert names[:2] == ("airplane", "umbrella") and names[-1].startswith("thing ") and len(set(names)) == 500


def test_growth_has_a_row_and_drawings_for_every_axis(tmp_path: Path):
    run("growth", "--method", "zero", "--batch-size", 2, "--classes", 3, "--rounds", 1, "-o", tmp_path / "growth.json")
    [row] = json.loads((tmp_path / "growth.json").read_text())["rows"]
    assert row["over"] == "views" and len(row["at"]) == len(row["ms"]) == len(row["MB"])
    assert 0 < row["time ~"] < 3
    assert sorted(path.name for path in tmp_path.glob("*.png")) == ["growth-1.png", "growth-2.png"]
    with pytest.raises(InvalidInputError, match=r"Growth is measured for clip\+panda"):
        run("growth", "--method", "clip")


def test_an_exponent_is_that_of_the_upper_half():
    axis = Axis("images", dict.fromkeys((1, 10, 100, 200, 400), Point(1, 3)), ["clip"])
    curve = Curve(axis, "clip", [Spread(value, 0.0) for value in (5.0, 5.0, 5.0, 10.0, 20.0)], [2**20 * 7] * 5)
    assert curve.row["time ~"] == pytest.approx(1) and curve.row["memory ~"] == pytest.approx(0)
    assert curve.row["MB"] == [7.0] * 5


def test_soak_follows_streams_to_their_end(tmp_path: Path):
    short = ["--images", 100, "--batch-size", 2, "--method", "clip,predict", "-o", tmp_path / "soak.json"]
    assert "predict" in run("soak", *short)
    document = json.loads((tmp_path / "soak.json").read_text())
    assert [(row["stream"], row["images"]) for row in document["rows"]] == [("clip", 100), ("predict", 100)]
    assert all(row["MB"] > 0 and row["second half"] > 0 for row in document["rows"])
    [memory, speed] = document["figures"][0]["panels"]
    assert [line["label"] for line in memory["lines"]] == ["clip", "predict"]
    thousands = [images / 1000 for images in range(2, 101, 2)]
    assert all(line["xs"] == thousands for line in [*memory["lines"], *speed["lines"]])
    assert sorted(path.name for path in tmp_path.glob("*.png")) == ["soak-1.png", "soak-2.png"]
    with pytest.raises(InvalidInputError, match="at least --images 100, got 97"):
        run("soak", *short, "--images", 97)


def test_a_stream_that_grows_and_slows_is_seen_after_its_beginning():
    places = list(range(1000, 51_000, 1000))
    memory = [2**20 * (500 if place <= 5000 else 300 + place // 1000) for place in places]
    slower = [1.5 if place < 28_000 else 3.0 for place in places]
    row = Course("leaky", places, memory, [100.0] * len(places), slower).row
    assert row["largest less smallest"] == 44 and row["MB per 100,000 images"] == pytest.approx(100)
    assert (row["images/s"], row["x encoder, first half"], row["second half"], row["±"]) == (100, 1.5, 3, 0)
