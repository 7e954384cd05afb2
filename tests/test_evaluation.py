"""Metrics against numpy, records, the store, and what the runner shares and skips."""

from __future__ import annotations

import itertools
import json
import os
import stat
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from records import make, plan, run, without_time

from tta_panda import CLIP, TPS, Panda, Stream, Tent, Zero, load_data
from tta_panda.cli.runs import default_workers
from tta_panda.errors import InvalidInputError, NumericalError, StoreError, TtaPandaError, UnknownNameError
from tta_panda.evaluation import loop as loop_module
from tta_panda.evaluation import run as run_module
from tta_panda.evaluation.config import StreamConfig
from tta_panda.evaluation.loop import evaluate, group_by_shared_passes, run_stream
from tta_panda.evaluation.metrics import Scores, StreamMetrics
from tta_panda.evaluation.plan import Sources
from tta_panda.evaluation.record import SCHEMA, FailedRun, RunRecord
from tta_panda.evaluation.run import Evaluator
from tta_panda.evaluation.store import RunStore
from tta_panda.executors import available_cores
from tta_panda.methods.sharing import SharedFeatures

METHODS = ["clip", "clip+panda", "tent", "tent+panda"]
MINI = Sources("mini")


def test_metrics_equal_numpy():
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(57, 4)).astype(np.float32), rng.integers(0, 4, 57)
    metrics = StreamMetrics(4)
    for part in np.array_split(np.arange(57), 5):
        metrics.update(Scores.of(torch.from_numpy(logits[part]), torch.from_numpy(labels[part])))
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    accuracy = (logits.argmax(1) == labels).mean()
    assert metrics.accuracy == pytest.approx(accuracy)
    assert metrics.accuracy_stderr == pytest.approx(np.sqrt(accuracy * (1 - accuracy) / 57))
    assert metrics.bias == pytest.approx(np.abs(p.mean(0) - np.bincount(labels, minlength=4) / 57).sum(), abs=1e-6)
    assert metrics.predicted.tolist() == np.bincount(logits.argmax(1), minlength=4).tolist()


def test_metrics_beyond_the_paper_equal_numpy():
    rng = np.random.default_rng(1)
    logits, labels = 3 * rng.normal(size=(203, 5)), rng.integers(0, 4, 203)  # the fifth class never occurs
    metrics = StreamMetrics(5)
    for part in np.array_split(np.arange(203), 7):
        scores = Scores.of(torch.from_numpy(logits[part]), torch.from_numpy(labels[part]))
        metrics.update(scores)
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    right = logits.argmax(1) == labels
    losses = -np.log(p[np.arange(203), labels])
    assert metrics.nll == pytest.approx(losses.mean())
    assert metrics.nll_stderr == pytest.approx(losses.std() / np.sqrt(203))
    edges = np.linspace(0, 1, 16)
    in_bins = [(p.max(1) > low) & (p.max(1) <= high) for low, high in itertools.pairwise(edges)]
    gaps = [mask.mean() * abs(p.max(1)[mask].mean() - right[mask].mean()) for mask in in_bins if mask.any()]
    assert metrics.ece == pytest.approx(sum(gaps))
    assert metrics.recalls.tolist() == pytest.approx([right[labels == k].mean() for k in range(4)])
    parts = StreamMetrics(5)
    for indices in np.array_split(rng.permutation(203), 4):  # any parts of batches
        parts.update(Scores.of(torch.from_numpy(logits), torch.from_numpy(labels)).select(indices))
    assert (parts.accuracy, parts.samples, parts.nll) == (metrics.accuracy, 203, pytest.approx(metrics.nll))


def test_top_5_equals_numpy_and_needs_five_classes():
    rng = np.random.default_rng(2)
    logits, labels = rng.normal(size=(100, 12)), rng.integers(0, 12, 100)
    metrics, few = StreamMetrics(12), StreamMetrics(4)
    metrics.update(Scores.of(torch.from_numpy(logits), torch.from_numpy(labels)))
    assert metrics.top5_accuracy == (np.argsort(-logits, axis=1)[:, :5] == labels[:, None]).any(1).mean() < 1
    few.update(Scores.of(torch.from_numpy(logits[:, :4]), torch.from_numpy(labels % 4)))
    assert few.top5_accuracy is None


def test_scores_of_several_methods_are_those_of_each(monkeypatch, mini_classifier):
    logits, labels = torch.randn(5, 30, 7, generator=torch.Generator().manual_seed(0)), torch.arange(30) % 7
    for together, own in zip(Scores.of_each(logits, labels), logits, strict=True):
        alone = Scores.of(own, labels)
        for columns in zip(together, alone, strict=True):
            np.testing.assert_array_equal(*columns)
        sums = StreamMetrics(7), StreamMetrics(7)
        for metrics, scores in zip(sums, (together, alone), strict=True):
            metrics.update(scores)
        assert (sums[0].nll, sums[0].nll_stderr, sums[0].ece) == (sums[1].nll, sums[1].nll_stderr, sums[1].ece)
    stream = Stream(load_data("glyphs-val-c", "fog", limit=20), 10)
    several = [[CLIP(mini_classifier, debias=Panda(beta=beta)) for beta in (0.2, 0.4, 0.6)] for _ in range(2)]
    at_once = run_stream(several[0], stream)
    monkeypatch.setattr(loop_module, "LOGITS_AT_ONCE", 1)
    for one, other in zip(at_once, run_stream(several[1], stream), strict=True):
        assert one.metrics.nll == other.metrics.nll and one.metrics.accuracy == other.metrics.accuracy


def test_records_hold_metrics_beyond_the_paper(tmp_path):
    [record] = run(plan(["tent+panda"]), tmp_path)
    assert 0 <= record.recall_min <= record.recall_mean <= record.recall_max <= 1 and record.recall_sd > 0
    assert record.accuracy <= record.top5_accuracy <= 1
    assert 0 < record.ece < 1 and record.nll > 0 and record.nll_stderr > 0
    assert sum(tenth.samples for tenth in record.tenths) == record.samples == 50 and len(record.tenths) == 10
    assert record.images_per_second == pytest.approx(50 / record.seconds, rel=0.01)
    if sys.platform != "win32":
        assert record.peak_memory > 1 << 20


def test_bias_is_none_for_right_and_two_for_utterly_wrong_predictions():
    right, wrong = StreamMetrics(2), StreamMetrics(2)
    right.update(Scores.of(torch.tensor([[99.0, -99.0], [-99.0, 99.0]]), torch.tensor([0, 1])))
    wrong.update(Scores.of(torch.tensor([[99.0, -99.0], [99.0, -99.0]]), torch.tensor([1, 1])))
    assert right.bias == pytest.approx(0)
    assert wrong.bias == pytest.approx(2)


def test_every_value_of_a_setting_is_planned_where_a_method_has_it():
    configs = plan(["clip", "clip+panda", "dmn+panda"], settings={"beta": [0.1, 0.5, 0.1], "slots": [2, 3]})
    found = [(config.method.name, *map(config.method.options.get, ("beta", "slots"))) for config in configs]
    betas = [("clip", None, None), ("clip+panda", 0.1, None), ("clip+panda", 0.5, None)]
    assert found == betas + [("dmn+panda", beta, slots) for beta in (0.1, 0.5) for slots in (2, 3)]
    with pytest.raises(InvalidInputError, match=r"beta must be .*, got \[\]"):
        plan(["clip+panda"], settings={"beta": []})


def test_plans_resolve_options_and_domains():
    configs = plan(METHODS, corruptions=["clean", "all"], seeds=[0, 1, 0], settings={"beta": 0.4, "lr": 0.01})
    assert len(configs) == 2 * 16 * 4
    assert len({config.key for config in configs}) == len(configs)
    assert (configs[0].stream.corruption, configs[0].stream.severity) == ("clean", 0)
    by_name = {config.method.name: config.method.options for config in configs}
    assert by_name["tent+panda"]["beta"] == 0.4
    assert by_name["tent"]["lr"] == 0.01
    assert by_name["clip"] == {"protocol": "paper"}


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"corruptions": ["fogg"]}, UnknownNameError, "'fog'"),
        ({"severities": [6]}, InvalidInputError, "1 to 5"),
        ({"data": "glyphs"}, UnknownNameError, "glyphs-c"),
        ({"batch_size": 0}, InvalidInputError, "a whole number >= 1, got 0"),
        ({"seeds": [0, -1]}, InvalidInputError, "seed must be a whole number from 0 to"),
        ({"precision": "fp8"}, UnknownNameError, "precision"),
        ({"order": "sorted"}, UnknownNameError, "order"),
        ({"limit": 0}, InvalidInputError, "a whole number >= 1 or None, got 0"),
        ({"methods": []}, InvalidInputError, "at least one"),
        ({"methods": ["tant"]}, UnknownNameError, "'tent'"),
        ({"settings": {"leraning_rate": 1}}, UnknownNameError, "option of"),
    ],
)
def test_plans_refuse_what_cannot_run(change, error, message):
    with pytest.raises(error, match=message):
        plan(**{"methods": METHODS, **change})


def test_a_key_depends_on_every_field_and_not_on_their_order(tmp_path):
    [config] = plan(["clip+panda"], batch_size=1, limit=5)
    [record] = run([config], tmp_path)
    content = json.loads(record.model_dump_json())
    stream, method = (dict(reversed(content["config"][part].items())) for part in ("stream", "method"))
    shuffled = RunRecord.model_validate({**content, "config": {"method": method, "stream": stream}})
    assert shuffled.config == config and shuffled.config.key == config.key
    keys = {config.key}
    for name, value in stream.items():
        others = {"precision": "bf16", "order": "sequential", "preprocess": "exact", "ignore_orientation": True}
        other = (others | {"window": 4, "severity": 4}).get(name)
        other = other or (value + 1 if isinstance(value, int) else "other")
        keys.add(replace(config, stream=replace(config.stream, **{name: other})).key)
    keys.add(replace(config, method=replace(config.method, name="tent+panda")).key)
    keys.add(replace(config, method=replace(config.method, options={**method["options"], "beta": 0.1})).key)
    assert len(keys) == len(stream) + 3
    assert hash(config.method) == hash(replace(config.method, options=dict(reversed(method["options"].items()))))


def test_titles_name_what_differs():
    stream = StreamConfig(model="mini", data="glyphs-c", severity=5, limit=1000, seed=3)
    assert stream.title() == "mini, glyphs-c, severity 5, seed 3, batches of 100, 1000 images"
    plain = replace(stream, seed=0, limit=None, severity=0, weights="abc")
    assert plain.title() == "mini, glyphs-c, batches of 100"
    assert plain.title(["limit", "image_list"]) == "mini, glyphs-c, batches of 100, all images"
    assert plain.title(["weights", "order"]) == "mini, weights abc, glyphs-c, order shuffled, batches of 100"
    assert replace(plain, preprocess="exact").title().endswith("preprocess exact")


def test_the_same_runs_twice_give_the_same_records(tmp_path):
    first = run(plan(METHODS), tmp_path / "a")
    second = run(plan(METHODS), tmp_path / "b")
    assert [without_time(record) for record in first] == [without_time(record) for record in second]
    assert [record.samples for record in first] == [50] * 4
    assert first[0].mean_beta is None
    assert first[1].mean_beta is not None
    other_seed = run(plan(METHODS, seeds=[1]), tmp_path / "c")
    assert other_seed[3].bias != first[3].bias


def test_more_processes_give_the_same_records(tmp_path):
    configs = plan(["clip+panda", "dmn"], limit=20)  # which share passes: a single task, for one of two processes
    here, apart = run(configs, tmp_path / "a"), run(configs, tmp_path / "b", workers=2)
    for config, one, other in zip(configs, here, apart, strict=True):
        assert one.config == other.config == config
        assert one.accuracy == other.accuracy
        assert one.bias == pytest.approx(other.bias, abs=1e-5)


def test_small_work_stays_in_one_process():
    configs = plan(METHODS, limit=None)
    assert default_workers(configs, MINI, "cpu") == 1
    many = plan(["clip", "tent"], corruptions=["all"], limit=None)
    assert default_workers(many, MINI, "cpu") == max(1, min(available_cores(), 3))
    assert default_workers(many, MINI, "cuda") == 1
    assert default_workers(many, Sources("ViT-B-32:random"), "cpu") == 1


def test_finished_runs_are_not_run_again(tmp_path, monkeypatch):
    first = run(plan(["clip"]), tmp_path)
    files = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    monkeypatch.setattr(run_module, "load_model", lambda *_, **__: pytest.fail("nothing needs to be loaded"))
    outcome = make(plan(["clip"]), tmp_path)
    assert list(outcome.records.values()) == first
    assert outcome.existed == 1
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == files


def test_an_interruption_loses_nothing_that_was_finished(tmp_path):
    def interrupt_tent(configs, share):
        if configs[0].method.name == "tent":
            raise KeyboardInterrupt

    store = RunStore(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        make(plan(METHODS), tmp_path, report=interrupt_tent)
    assert {record.config.method.name for record in store.records()} == {"clip", "clip+panda"}
    whole = run(plan(METHODS), tmp_path)
    isolated = run(plan(METHODS), tmp_path / "other")
    assert [without_time(record) for record in whole] == [without_time(record) for record in isolated]


def test_a_damaged_record_is_set_aside_and_made_again(tmp_path, caplog):
    store = RunStore(tmp_path)
    [config] = plan(["clip"])
    [record] = run([config], tmp_path)
    for damage in (
        b"",
        b"{",
        b"[" * 100_000,
        b'{"samples": 1}',
        store.path(config).read_bytes().replace(b'"accuracy":', b'"acuracy":'),
    ):
        store.path(config).write_bytes(damage)
        assert store.load(config) is None
        assert "not a valid record" in caplog.text
        assert store.path(config).with_suffix(".damaged").read_bytes() == damage
        [again] = run([config], tmp_path)
        assert without_time(again) == without_time(record)
        assert store.records() == [again]


def test_other_json_files_are_left_alone(tmp_path, caplog):
    (tmp_path / "package.json").write_text("{}")
    (tmp_path / f"{'0' * 20}.json").write_text("{}")
    assert RunStore(tmp_path).records() == []
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"{'0' * 20}.json", "package.json"]
    assert "skipped" in caplog.text and "package.json" not in caplog.text


def test_a_run_that_diverges_is_reported_and_remembered(tmp_path):
    store = RunStore(tmp_path)
    configs = plan(["clip", "tent"], settings={"lr": 1e30})
    for _ in range(2):  # the second time it is remembered
        outcome = make(configs, tmp_path)
        assert [record.config.method.name for record in outcome.records.values()] == ["clip"]
        assert "smaller learning rate" in outcome.diverged[configs[1].key].message
        assert [row["what"] for row in outcome.missing()] == ["tent on fog at severity 5, seed 0"]
    store.divergence_path(configs[1]).unlink()
    assert store.divergences(configs) == {}


def test_one_that_diverges_takes_no_other_of_its_pass_with_it(tmp_path, monkeypatch, mini_classifier):
    original = CLIP._adapt

    def broken_with_panda(self, encoded):
        logits = original(self, encoded)
        return logits if self.features.debiaser is None else logits * float("nan")

    monkeypatch.setattr(CLIP, "_adapt", broken_with_panda)
    [record] = run(plan(["clip+panda", "clip"]), tmp_path)
    assert record.config.method.name == "clip" and record.samples == 50
    with pytest.raises(NumericalError, match="in batch 1: the method diverged"):
        evaluate(CLIP(mini_classifier, debias=Panda(beta=0.5)), Stream(load_data("glyphs-val-c", limit=5), 5, seed=0))


def test_records_survive_json(tmp_path):
    store = RunStore(tmp_path)
    [record] = run(plan(["clip+panda"]), tmp_path)
    assert store.load(record.config) == record
    row = record.rows()[0]
    expected = {"method": "clip+panda", "corruption": "fog", "severity": 5, "seed": 0, "samples": 50}
    assert {key: row[key] for key in expected} == expected
    assert {"accuracy", "bias", "ece", "options", "record"} <= set(row)
    assert json.loads(json.dumps(row)) == row


def test_no_half_written_file_is_left_in_the_way(tmp_path, monkeypatch):
    store = RunStore(tmp_path)
    [record] = run(plan(["clip"]), tmp_path)
    store.path(record.config).unlink()
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(StoreError, match="No space left"):
        store.save(record)
    monkeypatch.undo()
    assert list(tmp_path.iterdir()) == []
    assert store.load(record.config) is None
    assert store.records() == []


def test_copies_under_another_name_are_not_taken(tmp_path, caplog):
    store = RunStore(tmp_path)
    [config] = plan(["clip"])
    [record] = run([config], tmp_path)
    path = store.path(config)
    path.with_name(f"{'0' * 20}.json").write_bytes(path.read_bytes())
    assert store.records() == [record]
    assert "not a valid record for its name" in caplog.text
    [other] = plan(["clip"], seeds=[1])
    store.path(other).write_bytes(path.read_bytes())
    assert store.load(other) is None


@pytest.mark.parametrize("schema", [None, SCHEMA - 1, SCHEMA + 1])
def test_records_of_another_schema_are_refused_and_left_as_they_are(tmp_path, schema):
    """Also where every field is valid: the numbers of two formats must not meet in one table."""
    store = RunStore(tmp_path)
    [record] = run(plan(["clip"]), tmp_path)
    path = store.path(record.config)
    content = {**json.loads(path.read_bytes()), "version": "9.1", "schema_number": schema}
    if schema is None:
        del content["schema_number"]
    path.write_text(json.dumps(content))
    for read in (store.records, lambda: store.load(record.config)):
        with pytest.raises(StoreError, match=r"written by tta-panda 9\.1 \(record schema .* -o PATH"):
            read()
    assert json.loads(path.read_bytes()) == content


def test_a_stale_reader_does_not_set_aside_what_another_process_has_saved(tmp_path, monkeypatch):
    store, other = RunStore(tmp_path), RunStore(tmp_path)
    [record] = run(plan(["clip"]), tmp_path)
    path = store.path(record.config)
    path.write_text("{")
    original, reads = store.read, []

    def read_late(place, key):
        found = original(place, key)
        if not reads:
            other.save(record)  # after the damaged content was read, before it is set aside
        reads.append(place)
        return found

    monkeypatch.setattr(store, "read", read_late)
    assert store.load(record.config) == record
    assert other.load(record.config) == record
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


def test_equal_numbers_have_one_key():
    [whole], [real] = (plan(["clip+panda"], settings={"beta": beta}) for beta in (1, 1.0))
    assert whole == real and whole.key == real.key and hash(whole) == hash(real)
    [other] = plan(["clip+panda"], settings={"beta": 1.5})
    assert other.key != whole.key


def test_evaluate_takes_any_iterable_of_images_and_labels(mini_classifier, images):
    labels = torch.arange(40) % 10
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(images, labels), batch_size=16)
    method = CLIP(mini_classifier, debias=Panda(beta=0.3))
    result = evaluate(method, loader)
    logits = torch.cat([CLIP(mini_classifier).adapt(images)])
    plain = evaluate(CLIP(mini_classifier), [(images, labels)])
    assert plain.accuracy == pytest.approx(float((logits.argmax(1) == labels).float().mean()))
    assert plain.mean_beta is None and result.mean_beta == pytest.approx(0.3)
    assert (
        result.samples == 40 and result.tenths == [] and result.passes["images"] == pytest.approx((40 + 4) / 3)
    )  # the last batch is small
    assert "40 images: accuracy" in repr(result)
    stream = Stream(load_data("glyphs-val-c", "fog", limit=50), 20, seed=0)
    assert len(evaluate(method, stream).tenths) == 10
    going_on = Tent(mini_classifier, lr=1e-2)
    first = evaluate(going_on, [(images, labels)])
    second = evaluate(going_on, [(images, labels)], reset=False)
    assert second.nll != first.nll and second.passes == first.passes
    assert evaluate(going_on, [(images, labels)]).nll == first.nll


class MapStyle(torch.utils.data.Dataset):
    """As torchvision has them: to be indexed, and no more."""

    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        if index >= len(self):
            raise ValueError("asked for more than there is")
        return self.items[index]


@pytest.mark.parametrize("methods", [{"reset": True}, {"cache": "features"}], ids=["alone", "cached"])
def test_evaluate_takes_data_sets_and_dictionaries(mini_classifier, images, tmp_path, monkeypatch, methods):
    monkeypatch.chdir(tmp_path)
    labels = torch.arange(40) % 10
    pictures = [Image.fromarray(image.permute(1, 2, 0).numpy()) for image in images]
    expected = evaluate(CLIP(mini_classifier), [(images, labels)])
    samples = list(zip(pictures, labels.tolist(), strict=True))
    collate = lambda items: {"img": [each["image"] for each in items], "labels": [each["label"] for each in items]}  # noqa: E731
    dictionaries = [{"image": image, "label": label} for image, label in samples]
    for data in (
        samples,
        MapStyle(samples),
        iter(samples),
        dictionaries,
        MapStyle(dictionaries),
        torch.utils.data.DataLoader(MapStyle(dictionaries), batch_size=7, collate_fn=collate),
        [{"pixel_values": images / 255, "labels": labels}],
        [(image, label, "fog") for image, label in zip(images, labels, strict=True)],
    ):
        found = evaluate(CLIP(mini_classifier), data, batch_size=16, **methods)
        assert (found.samples, found.accuracy) == (40, expected.accuracy)
        assert found.nll == pytest.approx(expected.nll, abs=0.02)
    assert found.domains["fog"].samples == 40


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        ([], "no images"),
        ([torch.zeros(2, 3, 32, 32)], r"\(images, labels\) or .* got Tensor"),
        (3, "int cannot be evaluated on: expected batches"),
        ([{"picture": 1, "label": 2}], "one of image, img, pixel_values.* got picture, label"),
        ([(torch.zeros(3, 32, 32), "cat")], "indices of the class names, got 'cat'"),
        ([(torch.zeros(3, 32, 32), 10)], r"0\.\.9 for 10 classes"),
        ([(torch.zeros(2, 3, 32, 32),) * 4], "got 4 items"),
        (
            [(torch.zeros(2, 3, 32, 32), torch.tensor([0, 1]), ["fog"])],
            "Expected 2 domain names, one for each image, got 1",
        ),
        ([(torch.zeros(0, 3, 32, 32), torch.zeros(0, dtype=torch.int64))], "no images"),
        ([(torch.zeros(2, 3, 32, 32), torch.zeros(3, dtype=torch.int64))], "2 whole numbers"),
        ([(torch.zeros(2, 3, 32, 32), torch.zeros(2))], "whole numbers"),
        ([(torch.zeros(2, 3, 32, 32), torch.tensor([0, 10]))], r"0\.\.9 for 10 classes"),
        ([(torch.zeros(2, 3, 32, 32), torch.tensor([-2, 1]))], r"or be -1 .* got -2"),
    ],
)
def test_evaluate_says_what_is_wrong_with_a_stream(mini_classifier, batches, message):
    with pytest.raises(TtaPandaError, match=message):
        evaluate(CLIP(mini_classifier), batches)


def test_an_unwritable_folder_is_found_before_anything_runs(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="-o PATH"):
        RunStore(tmp_path / "file" / "runs").prepare()
    if os.geteuid() != 0:
        (tmp_path / "locked").mkdir(mode=stat.S_IRUSR | stat.S_IXUSR)
        with pytest.raises(StoreError, match="Permission denied"):
            RunStore(tmp_path / "locked").prepare()
    with pytest.raises(StoreError, match="tta-panda bench"):
        RunStore(tmp_path / "nowhere").records()


def test_frozen_methods_share_passes_where_their_views_agree(tiny_classifier):
    methods = [
        CLIP(tiny_classifier),
        Tent(tiny_classifier),
        CLIP(tiny_classifier, debias=Panda(beta=0.2)),
        CLIP(tiny_classifier, debias=Panda(beta="auto")),
        CLIP(tiny_classifier, debias=Panda(beta=0.2, ratio=0.5)),
        Tent(tiny_classifier, debias=Panda(beta=0.2)),
        CLIP(tiny_classifier, debias=Panda(beta=0.0)),
        TPS(tiny_classifier),
        Zero(tiny_classifier, augmentation="augmix", debias=Panda(beta=0.2, ratio=0.5)),
        Zero(tiny_classifier),
    ]
    assert group_by_shared_passes(methods) == [[0, 2, 3, 4, 6, 7, 8], [9], [1], [5]]


def test_sharing_a_pass_changes_no_prediction(mini_classifier):
    stream = Stream(load_data("glyphs-val-c", "fog", limit=60), 25, seed=0)
    debias = [None, Panda(beta=0.5), Panda(beta=0.5, ratio=0.3), Panda(beta=0.5, sampler="within_image")]
    together = run_stream([CLIP(mini_classifier, debias=panda) for panda in debias], stream)
    for panda, one in zip(debias, together, strict=True):
        [fewer] = run_stream([CLIP(mini_classifier, debias=panda)], stream)
        [alone] = run_stream([CLIP(mini_classifier, debias=panda)], stream, share=False)
        assert one.metrics.probabilities.tolist() == fewer.metrics.probabilities.tolist()  # to the last bit
        assert one.metrics.predicted.tolist() == alone.metrics.predicted.tolist()
        assert one.metrics.bias == pytest.approx(alone.metrics.bias, abs=1e-5)
        assert one.passes == fewer.passes == alone.passes


def test_several_sets_of_negatives_share_the_pass_over_the_images(tiny_classifier, images, monkeypatch):
    sizes = []
    original = type(tiny_classifier.model).encode_image

    def counted(self, batch):
        sizes.append(len(batch))
        return original(self, batch)

    monkeypatch.setattr(type(tiny_classifier.model), "encode_image", counted)
    pandas = [Panda(beta=beta, ratio=ratio) for ratio in (0.1, 0.5) for beta in (0.2, 0.4)]
    methods = [Zero(tiny_classifier, views=2, temperature=1.0), *(CLIP(tiny_classifier, debias=p) for p in pandas)]
    features = SharedFeatures([method.features for method in methods])
    monkeypatch.setattr("tta_panda.methods.features.IMAGES_PER_PASS", 40)
    features.encode(images)
    assert sizes == [40, 4, 20, 40]  # images, two sets of negatives, one more view of every image


def test_one_encoder_pass_of_images_and_negatives(mini_classifier, foggy, monkeypatch):
    sizes = []
    original = type(mini_classifier.model).encode_image

    def counted(self, images):
        sizes.append((len(images), torch.is_grad_enabled()))
        return original(self, images)

    monkeypatch.setattr(type(mini_classifier.model), "encode_image", counted)
    monkeypatch.setattr("tta_panda.methods.features.IMAGES_PER_PASS", 44)
    Tent(mini_classifier, debias=Panda(beta=0.5)).adapt(foggy[:40])
    CLIP(mini_classifier, debias=Panda(beta=0.5)).adapt(foggy[:40])
    assert sizes == [(44, True), (44, False)]


def test_panda_raises_accuracy_and_lowers_bias_on_noise(tmp_path):
    """The effect itself, on validation symbols: what the package exists for."""
    configs = plan(["clip", "clip+panda"], corruptions=["contrast", "fog", "gaussian_noise"], batch_size=100, limit=300)
    records = run(configs, tmp_path)
    plain, panda = records[0::2], records[1::2]
    assert np.mean([r.accuracy for r in panda]) > np.mean([r.accuracy for r in plain])
    assert np.mean([r.bias for r in panda]) < np.mean([r.bias for r in plain])


def test_a_worker_reports_methods_that_the_model_cannot_serve(tmp_path):
    import timm
    from safetensors.torch import save_file

    save_file(timm.create_model("test_vit", num_classes=10).state_dict(), tmp_path / "vit.safetensors")
    model = f"timm:test_vit:{tmp_path / 'vit.safetensors'}"
    configs = plan(["clip", "bat"], model=model, corruptions=["clean"], limit=4)
    unavailable, record = Evaluator(Sources(model)).evaluate(configs)
    assert isinstance(record, RunRecord) and record.config.method.name == "clip"
    assert isinstance(unavailable, FailedRun) and (unavailable.status, unavailable.subject) == ("unavailable", "bat")
