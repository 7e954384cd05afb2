"""Orders of a stream: their spelling, what they draw, and how streams that join domains are run, recorded and shown."""

from __future__ import annotations

import dataclasses
import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from records import make_record, plan, run
from test_results import rows_of
from typer.testing import CliRunner

from tta_panda import CLIP, Panda, Stream, Tent, evaluate, load_data
from tta_panda.cli import app
from tta_panda.data.corruptions import CORRUPTIONS
from tta_panda.data.dataset import ImageDataset
from tta_panda.data.order import Order
from tta_panda.data.stream import arrange
from tta_panda.errors import DataError, InvalidInputError, TtaPandaError
from tta_panda.evaluation.loop import SlidingWindow
from tta_panda.evaluation.plan import Sources
from tta_panda.evaluation.record import Measurement, RunRecord
from tta_panda.evaluation.run import count_encoded
from tta_panda.evaluation.store import RunStore
from tta_panda.experiments.setup import Setup
from tta_panda.reporting.cells import ACCURACY, BIAS
from tta_panda.reporting.comparison import compare, corruption_table

LABELS = st.lists(st.integers(0, 6), min_size=1, max_size=80).map(np.array)
SEEDS = st.integers(0, 1000)
balanced = np.arange(1000) % 10


def arranged(name: str, value: float | None, labels: np.ndarray, seed: int = 0) -> np.ndarray:
    return arrange(Order(images=name, value=value), labels, np.random.default_rng(seed), 10)


def run_lengths(labels: np.ndarray) -> list[int]:
    return [len(list(group)) for _, group in itertools.groupby(labels)]


def dataset(first: int, count: int = 20, classes: int = 5) -> ImageDataset:
    """Images that say which they are."""
    images = np.arange(first, first + count, dtype=np.uint8)[:, None, None, None].repeat(4, 1).repeat(4, 2).repeat(3, 3)
    return ImageDataset(images, np.arange(count) % classes, tuple("abcde"[:classes]))


def seen(stream: Stream) -> list[int]:
    return [int(image[0, 0, 0]) for batch in stream for image in batch[0]]


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("shuffled", "shuffled"),
        ("reset", "shuffled"),
        ("reset+sequential", "sequential"),
        ("continual", "continual"),
        ("shuffled + mixed", "mixed"),
        ("correlated", "correlated:0.1"),
        ("correlated:0.10+mixed", "mixed+correlated:0.1"),
        ("correlated:0", "correlated:0"),
        ("gradual+imbalanced", "gradual+imbalanced:inf"),
        ("imbalanced:5e5", "imbalanced:500000"),
        ("mixed+imbalanced:1e+20", "mixed+imbalanced:1e20"),
        ("label_shift:1e-3", "label_shift:0.001"),
    ],
)
def test_an_order_has_one_spelling(text, canonical):
    assert str(Order.parse(text)) == canonical
    assert Order.parse(canonical) == Order.parse(text)
    [config] = plan(["clip"], order=text, corruptions=["clean"])
    assert config.stream.order == str(dataclasses.replace(Order.parse(text), domains="reset"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("continuous", "Did you mean 'continual'"),
        ("continual+mixed", "one of each"),
        ("sequential+correlated", "one of each"),
        ("mixed+sequential", r"continual\+sequential"),
        ("correlated:-1", r"at least 0, as in correlated:0\.1; got correlated:-1"),
        ("correlated:often", "a number"),
        ("correlated:nan", "a number"),
        ("imbalanced:0.5", "at least 1"),
        ("label_shift:inf", "a number"),
        ("sequential:3", "takes no number"),
        ("continual:3", "takes no number"),
        ("", "Unknown order"),
    ],
)
def test_what_is_no_order_is_refused(text, message):
    with pytest.raises(TtaPandaError, match=message):
        Order.parse(text)


@settings(max_examples=50, deadline=None)
@given(
    LABELS,
    SEEDS,
    st.sampled_from([("shuffled", None), ("sequential", None), *(("correlated", v) for v in (0, 0.01, 3))]),
)
def test_arrangements_pass_every_image_once(labels, seed, order):
    indices = arranged(*order, labels, seed)
    assert sorted(indices) == list(range(len(labels)))
    assert np.array_equal(indices, arranged(*order, labels, seed))


@settings(max_examples=50, deadline=None)
@given(LABELS, SEEDS, st.sampled_from([("imbalanced", 1), ("imbalanced", float("inf")), ("label_shift", 0.1)]))
def test_draws_take_each_image_of_a_class_before_any_twice(labels, seed, order):
    indices = arranged(*order, labels, seed)
    assert len(indices) == len(labels)
    times = np.bincount(indices, minlength=len(labels))
    for label in np.unique(labels):
        assert np.ptp(times[labels == label]) <= 1
    assert np.array_equal(indices, arranged(*order, labels, seed))


def test_the_smaller_the_number_the_longer_the_runs_of_a_class():
    def mean_run(value: float) -> float:
        return np.mean([np.mean(run_lengths(balanced[arranged("correlated", value, balanced, s)])) for s in range(5)])

    assert run_lengths(balanced[arranged("correlated", 0, balanced)]) == [100] * 10
    assert 60 < mean_run(0.01) <= 100
    assert 15 < mean_run(0.1) < mean_run(0.01)
    assert 8 < mean_run(100) < 12  # every class in every slot
    assert mean_run(100) > 5 * np.mean(run_lengths(balanced[arranged("shuffled", None, balanced)]))


def test_a_part_of_an_imbalanced_stream_is_as_pure_as_it_says():
    for ratio in (1, 9, float("inf")):
        parts = balanced[arranged("imbalanced", ratio, balanced)].reshape(10, 100)
        purity = np.mean([np.bincount(part, minlength=10).max() for part in parts]) / 100
        expected = 1.0 if ratio == float("inf") else ratio / (ratio + 9)
        assert purity == pytest.approx(expected, abs=0.07 if ratio > 1 else 0.1)
        if ratio > 1:
            assert {int(np.bincount(part, minlength=10).argmax()) for part in parts} == set(range(10))


def test_label_shift_draws_frequencies_once_and_the_order_at_random():
    shares = np.array(
        [np.bincount(balanced[arranged("label_shift", 0.3, balanced, s)], minlength=10) / 1000 for s in range(200)]
    )
    expected = np.sqrt(0.1 * 0.9 / (10 * 0.3 + 1))  # the s.d. of a component of Dirichlet(0.3, ..., 0.3)
    assert shares.mean(axis=0) == pytest.approx(np.full(10, 0.1), abs=0.05)
    assert shares.std() == pytest.approx(expected, rel=0.1)
    halves = balanced[arranged("label_shift", 0.3, balanced)].reshape(2, 500)
    first, second = (np.bincount(half, minlength=10) / 500 for half in halves)
    assert np.abs(first - second).sum() < 0.2
    assert len(set(balanced[arranged("label_shift", 0, balanced)])) == 1


def test_continual_streams_are_those_of_the_domains_one_after_another():
    domains = {"a": dataset(0), "b": dataset(100)}
    for images in ("shuffled", "sequential", "correlated:0", "label_shift:0.5"):
        alone = [seen(Stream(each, 7, seed=3, order=images)) for each in domains.values()]
        joined = Stream(domains, 7, seed=3, order=f"continual+{images}")
        assert seen(joined) == alone[0] + alone[1]
        assert len(joined) == 6  # batches go across the border
        for pixels, labels, names in joined:
            assert names == ["a" if int(image[0, 0, 0]) < 100 else "b" for image in pixels]
            assert labels.tolist() == [int(image[0, 0, 0]) % 100 % 5 for image in pixels]


def test_mixed_streams_pool_all_domains():
    stream = Stream({"a": dataset(0), "b": dataset(100)}, 8, order="mixed")
    assert sorted(seen(stream)) == [*range(20), *range(100, 120)]
    assert sum(len(set(names)) == 2 for _, _, names in stream) >= 4
    by_class = Stream({"a": dataset(0), "b": dataset(100)}, 8, order="mixed+correlated:0")
    assert [len(set(labels.tolist())) for _, labels, _ in by_class] == [1] * 5


def test_streams_of_several_domains_say_what_they_need():
    with pytest.raises(InvalidInputError, match=r"such as 'continual\+sequential'; got 'sequential'"):
        Stream({"a": dataset(0), "b": dataset(9)}, 5, order="sequential")
    with pytest.raises(DataError, match="same classes"):
        Stream({"a": dataset(0), "b": dataset(9, classes=4)}, 5, order="mixed")
    with pytest.raises(DataError, match="no images"):
        Stream({}, 5, order="mixed")
    assert len(Stream({"a": dataset(0)}, 5)) == 4


def test_gradual_severities_rise_and_fall():
    assert Order.parse("gradual").severities(5) == [1, 2, 3, 4, 5, 4, 3, 2, 1]
    assert Order.parse("gradual").severities(1) == [1]
    assert Order.parse("continual").severities(5) == [5]
    [config] = plan(["clip"], order="gradual", corruptions=["fog", "snow"], severities=[2])
    assert config.stream.visits == [("fog", 1), ("fog", 2), ("fog", 1), ("snow", 1), ("snow", 2), ("snow", 1)]


def test_joined_domains_are_one_run_and_clean_images_one_of_their_own():
    streams = [config.stream for config in plan(["clip"], order="continual", corruptions=["clean", "all"])]
    assert [(s.corruption, s.severity, s.order) for s in streams] == [("clean", 0, "shuffled"), ("all", 5, "continual")]
    assert streams[1].corruptions == CORRUPTIONS
    assert plan(["clip"], corruptions=["clean"])[0].key == plan(["clip"], corruptions=["clean"], order="mixed")[0].key
    [one] = plan(["clip"], corruptions=["fog"], order="mixed+correlated:0")
    assert one.stream.order == "correlated:0"  # nothing to mix
    two = plan(["clip"], corruptions=["snow", "fog"], order="mixed", severities=[3, 5])
    assert [(c.stream.corruption, c.stream.severity) for c in two] == [("snow,fog", 3), ("snow,fog", 5)]


@pytest.fixture(scope="module")
def continual(tmp_path_factory) -> list[RunRecord]:
    folder = tmp_path_factory.mktemp("continual")
    methods = ["clip", "clip+panda", "tent"]
    records = run(plan(methods, order="continual", corruptions=["clean", "fog", "snow"], limit=30), folder)
    assert RunStore(folder).load(records[-1].config) == records[-1]
    return records


def test_a_continual_run_is_measured_on_each_corruption_and_along_the_stream(continual, tmp_path):
    clip, panda, tent = continual[3:]
    alone = run(plan(["clip", "tent"], corruptions=["fog", "snow"], limit=30), tmp_path)
    for domain, record in zip(("fog", "snow"), alone[::2], strict=True):
        assert clip.domains[domain].accuracy == record.accuracy
        assert clip.domains[domain].nll == pytest.approx(record.nll, abs=1e-5)
    assert tent.domains["snow"].nll != pytest.approx(alone[3].nll, abs=1e-6)  # it has seen fog before
    assert tent.samples == 60 and len(tent.tenths) == 20 and tent.restarts == tent.skipped_steps == 0
    means = [np.mean([getattr(part, name) for part in panda.domains.values()]) for name in ("accuracy", "mean_beta")]
    assert means == pytest.approx([panda.accuracy, panda.mean_beta])
    assert np.mean([tenth.mean_beta for tenth in panda.tenths]) == pytest.approx(panda.mean_beta)
    assert clip.mean_beta is clip.tenths[0].mean_beta is clip.domains["fog"].mean_beta is None
    assert [(row["corruption"], row["samples"], row["order"]) for row in tent.rows()] == [
        ("fog", 30, "continual"),
        ("snow", 30, "continual"),
    ]


def test_tables_show_a_continual_run_corruption_by_corruption(continual):
    [comparison] = compare(continual)
    assert "order continual" in comparison.title and "corruption fog,snow" in comparison.title
    rows = rows_of(corruption_table(comparison, ACCURACY))
    assert list(rows) == ["clean", "snow", "fog", "mean of 2"]
    clip = continual[3]
    assert rows["fog"][0] == f"{100 * clip.domains['fog'].accuracy:.1f}"
    assert rows["mean of 2"][0] == f"{100 * clip.accuracy:.1f}"
    section = comparison.section("x")
    assert len(section.runs) == 6 and len(section.figures) == 3


def test_streams_of_other_orders_or_corruptions_do_not_stand_in_one_table(continual):
    clip = continual[3]
    parts = {name: Measurement(**dict(clip.domains["fog"])) for name in ("fog", "contrast")}
    changes = [{"order": "mixed"}, {"corruption": "fog,contrast"}, {"corruption": "fog", "order": "shuffled"}]
    configs = [dataclasses.replace(clip.config, stream=dataclasses.replace(clip.config.stream, **c)) for c in changes]
    others = [clip.model_copy(update={"config": configs[0]})]
    others += [clip.model_copy(update={"config": configs[1], "domains": parts})]
    others += [clip.model_copy(update={"config": configs[2], "domains": {}})]
    comparisons = compare([*continual, *others])
    assert len(comparisons) == 4
    assert all(comparison.has_clean for comparison in comparisons)  # seen alone, they belong to all


def test_the_worst_tenth_has_a_row():
    values = dict(zip(CORRUPTIONS, np.linspace(0.9, 0.2, 15), strict=True))
    records = [make_record("clip", name, accuracy=value, bias=1 - value) for name, value in values.items()]
    [comparison] = compare(records)
    assert rows_of(corruption_table(comparison, ACCURACY))["worst 2"] == ["22.5"]
    assert rows_of(corruption_table(comparison, BIAS))["worst 2"] == ["0.775"]


def test_evaluate_measures_named_domains_of_any_iterable(mini_classifier, images):
    labels = torch.arange(40) % 10
    names = ["day", "night"] * 20
    result = evaluate(CLIP(mini_classifier), [(images, labels, names)])
    day = evaluate(CLIP(mini_classifier), [(images[::2], labels[::2])])
    assert list(result.domains) == ["day", "night"] and day.domains == {}
    assert result.domains["day"].nll == pytest.approx(day.nll, abs=1e-5)


def test_every_method_sees_the_same_stream(mini_classifier):
    stream = Stream(load_data("glyphs-val-c", "fog", limit=40), 20, order="label_shift:0.3")
    first, second = (evaluate(method, stream) for method in (CLIP(mini_classifier), Tent(mini_classifier)))
    assert first.label_counts == second.label_counts and sum(first.label_counts) == 40


def test_experiments_look_up_corruptions_of_a_joined_stream():
    setup = Setup(seeds=(0, 1))
    series = setup.series("clip", order="continual", limit=7)
    fog, snow, clean = (setup.runs(series, name) for name in ("fog", "snow", "clean"))
    assert fog == snow and [run.stream.seed for run in fog] == [0, 1]
    assert (
        fog[0].stream.title() == "mini, glyphs-c, corruption all, severity 5, order continual, batches of 100, 7 images"
    )
    assert clean[0].stream.order == "shuffled" and clean[0].stream.limit == 7


def test_batches_of_few_classes() -> None:
    order = arranged("few_classes", 3, balanced)
    batches = balanced[order].reshape(-1, 10)
    assert max(len(np.unique(batch)) for batch in batches) == 3
    assert len({tuple(np.unique(batch)) for batch in batches}) > 20  # other classes in other batches
    assert len(np.unique(balanced[order])) == 10
    assert len(arranged("few_classes", 30, balanced[:7])) == 7
    with pytest.raises(InvalidInputError, match="few_classes takes a whole number of at least 1"):
        Order.parse("few_classes:2.5")


def test_recurring_domains_come_again_in_another_order() -> None:
    images = np.arange(6, dtype=np.uint8)[:, None, None, None] * np.ones((1, 8, 8, 3), np.uint8)
    domains = {
        name: ImageDataset(images + shift, np.arange(6) % 2, ("a", "b")) for name, shift in (("fog", 0), ("snow", 100))
    }
    stream = Stream(domains, 6, order="recurring:3")
    batches = list(stream)
    assert [set(names) for _, _, names in batches] == [{"fog"}, {"snow"}] * 3
    seen = [pixels[:, 0, 0, 0].tolist() for pixels, _, _ in batches]
    assert all(sorted(each) == sorted(seen[i % 2]) for i, each in enumerate(seen))
    assert seen[0] != seen[2] and seen[:2] == [
        pixels[:, 0, 0, 0].tolist() for pixels, _, _ in Stream(domains, 6, order="continual")
    ]
    assert str(Order.parse("correlated:0.1+recurring:3")) == "recurring:3+correlated:0.1"
    with pytest.raises(InvalidInputError, match="recurring takes a whole number"):
        Order.parse("recurring:0")


def test_recurring_streams_are_recorded(tmp_path: Path) -> None:
    command = ["bench", "--method", "clip", "--corruption", "fog,snow", "--order", "recurring:2", "--limit", "20"]
    result = CliRunner().invoke(app, [*command, "--json", "-o", str(tmp_path)])
    assert result.exit_code == 0, result.output
    rows = [row for row in json.loads(result.stdout)["rows"] if row["method"] == "clip"]
    assert [(row["corruption"], row["samples"], row["order"]) for row in rows] == [
        ("fog", 40, "recurring:2"),
        ("snow", 40, "recurring:2"),
    ]


def test_a_window_predicts_each_image_among_the_last_and_adapts_once_all_are_new(mini_classifier, images) -> None:
    options = {"lr": 0.01, "debias": Panda(beta=0.3)}
    windowed, batched = (Tent(mini_classifier, **options) for _ in range(2))
    window = SlidingWindow(windowed, 4)
    logits = torch.cat([window.adapt(image[None]) for image in images[:11]])
    expected = {3: batched.adapt(images[:4])[-1]}
    between = Tent(mini_classifier, **options)
    between.load_state_dict(batched.state_dict())
    expected[5] = between.adapt(images[2:6])[-1]  # as if image 4 had not been predicted
    expected[7] = batched.adapt(images[4:8])[-1]
    for index, one in expected.items():
        torch.testing.assert_close(logits[index], one, atol=1e-5, rtol=1e-5)
    for name, tensor in windowed.adapted.items():
        assert torch.equal(tensor, batched.adapted[name])
    assert windowed.passes.batches == 11


def test_windows_are_recorded(mini_classifier, images, tmp_path: Path) -> None:
    command = ["bench", "--method", "tent", "--corruption", "fog", "--limit", "6", "--json", "-o", str(tmp_path)]
    result = CliRunner().invoke(app, [*command, "--batch-size", "1", "--window", "3"])
    assert result.exit_code == 0, result.output
    assert {(row["samples"], row["window"]) for row in json.loads(result.stdout)["rows"]} == {(6, 3)}
    counted = plan(["clip", "vte"], batch_size=1, window=3, limit=6)
    assert count_encoded(counted, Sources("mini"))[0] == 6 * (3 + 3 * counted[1].method.options["views"])
    refused = CliRunner().invoke(app, [*command, "--window", "3"])
    assert "batches of 100: add --batch-size 1" in str(refused.exception)
    with pytest.raises(InvalidInputError, match="batches of one image, got 2"):
        evaluate(CLIP(mini_classifier), [(images[:2], torch.tensor([0, 1]))], window=3)
    with pytest.raises(InvalidInputError, match="window"):
        evaluate(CLIP(mini_classifier), [(images[:1], torch.tensor([0]))], window=0)
