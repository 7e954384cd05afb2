"""Metrics against numpy, records, the store, and what the runner shares and skips."""

from __future__ import annotations

import itertools
import json
import os
import stat
import warnings

import numpy as np
import pytest
import torch

from tta_panda import CLIP, TPS, Panda, Stream, Tent, Zero, load_data
from tta_panda.errors import InvalidInputError, NumericalError, StoreError, UnknownNameError
from tta_panda.evaluation import run as run_module
from tta_panda.evaluation.loop import evaluate, shared_passes
from tta_panda.evaluation.metrics import TalliesByTenth, Tally
from tta_panda.evaluation.plan import plan_runs
from tta_panda.evaluation.record import RunConfig
from tta_panda.evaluation.run import Runner
from tta_panda.evaluation.store import RunStore
from tta_panda.methods.sharing import SharedFeatures

METHODS = ["clip", "clip+panda", "tent", "tent+panda"]


def plan(methods=METHODS, **more) -> list[RunConfig]:
    options = {"model": "mini", "data": "glyphs-val-c", "corruptions": ["fog"], "batch_size": 20, "limit": 50}
    return plan_runs(methods, **(options | more))


def without_time(record) -> dict:
    return record.model_dump(exclude={"seconds", "images_per_second", "peak_memory", "environment"})


def test_metrics_equal_numpy():
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(57, 4)).astype(np.float32), rng.integers(0, 4, 57)
    tally = Tally(4)
    for part in np.array_split(np.arange(57), 5):
        tally.update(torch.from_numpy(logits[part]), torch.from_numpy(labels[part]))
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    accuracy = (logits.argmax(1) == labels).mean()
    assert tally.accuracy == pytest.approx(accuracy)
    assert tally.accuracy_stderr == pytest.approx(np.sqrt(accuracy * (1 - accuracy) / 57))
    assert tally.l1 == pytest.approx(np.abs(p.mean(0) - np.bincount(labels, minlength=4) / 57).sum(), abs=1e-6)
    assert tally.predicted.tolist() == np.bincount(logits.argmax(1), minlength=4).tolist()


def test_metrics_beyond_the_paper_equal_numpy():
    rng = np.random.default_rng(1)
    logits, labels = 3 * rng.normal(size=(203, 5)), rng.integers(0, 4, 203)  # the fifth class never occurs
    tally, tenths = Tally(5), TalliesByTenth(5, 203)
    for part in np.array_split(np.arange(203), 7):
        for each in (tally, tenths):
            each.update(torch.from_numpy(logits[part]), torch.from_numpy(labels[part]))
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    right = logits.argmax(1) == labels
    losses = -np.log(p[np.arange(203), labels])
    assert tally.nll == pytest.approx(losses.mean())
    assert tally.nll_stderr == pytest.approx(losses.std() / np.sqrt(203))
    edges = np.linspace(0, 1, 16)
    in_bins = [(p.max(1) > low) & (p.max(1) <= high) for low, high in itertools.pairwise(edges)]
    gaps = [mask.mean() * abs(p.max(1)[mask].mean() - right[mask].mean()) for mask in in_bins if mask.any()]
    assert tally.ece == pytest.approx(sum(gaps))
    assert tally.recalls.tolist() == pytest.approx([right[labels == k].mean() for k in range(4)])
    whole = [range(-(-203 * t // 10), -(-203 * (t + 1) // 10)) for t in range(10)]
    assert [t.samples for t in tenths.tallies] == [len(part) for part in whole]
    assert [t.accuracy for t in tenths.tallies] == pytest.approx([right[list(part)].mean() for part in whole])


def test_records_hold_metrics_beyond_the_paper(tmp_path):
    [record] = Runner(RunStore(tmp_path)).run(plan(["tent+panda"]))
    assert 0 <= record.recall_min <= record.recall_max <= 1 and record.recall_sd > 0
    assert 0 < record.ece < 1 and record.nll > 0 and record.nll_stderr > 0
    assert sum(tenth.samples for tenth in record.tenths) == record.samples == 50 and len(record.tenths) == 10
    assert record.images_per_second == pytest.approx(50 / record.seconds, rel=0.01)
    assert record.peak_memory is None or record.peak_memory > 1 << 20


def test_bias_is_none_for_right_and_two_for_utterly_wrong_predictions():
    right, wrong = Tally(2), Tally(2)
    right.update(torch.tensor([[99.0, -99.0], [-99.0, 99.0]]), torch.tensor([0, 1]))
    wrong.update(torch.tensor([[99.0, -99.0], [99.0, -99.0]]), torch.tensor([1, 1]))
    assert right.l1 == pytest.approx(0)
    assert wrong.l1 == pytest.approx(2)


def test_plans_resolve_options_and_domains():
    configs = plan(corruptions=["clean", "all"], seeds=[0, 1, 0], settings={"beta": 0.4, "lr": 0.01})
    assert len(configs) == 2 * 16 * 4
    assert len({config.key for config in configs}) == len(configs)
    assert configs[0].corruption == "clean"
    assert configs[0].severity == 0
    by_name = {str(config.method_name): config.options for config in configs}
    assert by_name["tent+panda"]["beta"] == 0.4
    assert by_name["tent"]["lr"] == 0.01
    assert by_name["clip"] == {"protocol": "paper"}


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"corruptions": ["fogg"]}, UnknownNameError, "'fog'"),
        ({"severities": [6]}, InvalidInputError, "1 to 5"),
        ({"data": "glyphs"}, UnknownNameError, "glyphs-c"),
        ({"batch_size": 0}, InvalidInputError, "at least 1"),
        ({"seeds": [0, -1]}, InvalidInputError, "not be negative"),
        ({"methods": []}, InvalidInputError, "at least one"),
        ({"methods": ["tant"]}, UnknownNameError, "'tent'"),
        ({"settings": {"leraning_rate": 1}}, UnknownNameError, "option of"),
    ],
)
def test_plans_refuse_what_cannot_run(change, error, message):
    with pytest.raises(error, match=message):
        plan(**change)


def test_a_key_depends_on_every_field_and_not_on_their_order():
    config = plan(["clip+panda"])[0]
    shuffled = RunConfig(**dict(reversed(config.model_dump().items())))
    assert shuffled.key == config.key
    changed = [config.model_copy(update={field: "something else"}) for field in RunConfig.model_fields]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # pydantic notes that the numbers are text now
        keys = {other.key for other in changed}
    assert len(keys | {config.key}) == len(RunConfig.model_fields) + 1


def test_the_same_runs_twice_give_the_same_records(tmp_path):
    first = Runner(RunStore(tmp_path / "a")).run(plan())
    second = Runner(RunStore(tmp_path / "b")).run(plan())
    assert [without_time(record) for record in first] == [without_time(record) for record in second]
    assert [record.samples for record in first] == [50] * 4
    assert first[0].mean_beta is None
    assert first[1].mean_beta is not None
    other_seed = Runner(RunStore(tmp_path / "c")).run(plan(seeds=[1]))
    assert other_seed[3].l1 != first[3].l1


def test_more_processes_give_the_same_records(tmp_path):
    configs = plan(["clip+panda", "dmn", "tent"], corruptions=["fog", "snow"], limit=20)
    here = Runner(RunStore(tmp_path / "a")).run(configs)
    apart = Runner(RunStore(tmp_path / "b"), workers=2).run(configs)
    assert [record.config for record in apart] == configs
    for one, other in zip(here, apart, strict=True):
        assert one.accuracy == other.accuracy
        assert one.l1 == pytest.approx(other.l1, abs=1e-5)


def test_small_work_stays_in_one_process():
    configs = plan(limit=None)
    assert run_module.default_workers(configs, "cpu") == 1
    many = plan(["clip", "tent"], corruptions=["all"], limit=None)
    assert run_module.default_workers(many, "cpu") == max(1, min(os.cpu_count() or 1, 3))
    assert run_module.default_workers(many, "cuda") == 1
    real = [config.model_copy(update={"model": "ViT-B-32:random"}) for config in many]
    assert run_module.default_workers(real, "cpu") == 1


def test_finished_runs_are_not_run_again(tmp_path, monkeypatch):
    store = RunStore(tmp_path)
    first = Runner(store).run(plan(["clip"]))
    files = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    monkeypatch.setattr(run_module, "load_model", lambda *_, **__: pytest.fail("nothing needs to be loaded"))
    assert Runner(store).run(plan(["clip"])) == first
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == files


def test_an_interruption_loses_nothing_that_was_finished(tmp_path):
    def interrupt_tent(configs, share):
        if configs[0].method == "tent":
            raise KeyboardInterrupt

    store = RunStore(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        Runner(store).run(plan(), interrupt_tent)
    assert {str(record.config.method_name) for record in store.records()} == {"clip", "clip+panda"}
    whole = Runner(store).run(plan())
    undisturbed = Runner(RunStore(tmp_path / "other")).run(plan())
    assert [without_time(record) for record in whole] == [without_time(record) for record in undisturbed]


def test_a_damaged_record_is_set_aside_and_made_again(tmp_path, caplog):
    store = RunStore(tmp_path)
    [config] = plan(["clip"])
    [record] = Runner(store).run([config])
    for damage in (b"", b"{", b'{"format": 1}', store.path(config).read_bytes().replace(b'"accuracy":', b'"acuracy":')):
        store.path(config).write_bytes(damage)
        assert store.load(config) is None
        assert "not a valid record" in caplog.text
        assert store.path(config).with_suffix(".damaged").read_bytes() == damage
        [again] = Runner(store).run([config])
        assert without_time(again) == without_time(record)
        assert store.records() == [again]


def test_other_json_files_are_none_of_the_stores_business(tmp_path, caplog):
    (tmp_path / "package.json").write_text("{}")
    (tmp_path / f"{'0' * 20}.json").write_text("{}")
    assert RunStore(tmp_path).records() == []
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"{'0' * 20}.json", "package.json"]
    assert "left out" in caplog.text and "package.json" not in caplog.text


def test_a_diverging_method_is_reported_in_words(tmp_path):
    store = RunStore(tmp_path)
    configs = plan(["clip", "tent"], settings={"lr": 1e30})
    with pytest.raises(NumericalError, match="smaller learning rate"):
        Runner(store).run(configs)
    assert [record.config.method for record in store.records()] == ["clip"]
    assert [record.config.method for record in Runner(store, keep_going=True).run(configs)] == ["clip"]


def test_one_that_diverges_takes_no_other_of_its_pass_with_it(tmp_path, monkeypatch):
    original = CLIP._adapt_encoded

    def broken_with_panda(self, encoded):
        logits = original(self, encoded)
        return logits if self.features.debiaser is None else logits * float("nan")

    monkeypatch.setattr(CLIP, "_adapt_encoded", broken_with_panda)
    with pytest.raises(NumericalError, match="after 0 images"):
        Runner(RunStore(tmp_path)).run(plan(["clip+panda", "clip"]))
    [record] = RunStore(tmp_path).records()
    assert not record.config.panda and record.samples == 50


def test_records_survive_json(tmp_path):
    store = RunStore(tmp_path)
    [record] = Runner(store).run(plan(["clip+panda"]))
    assert store.load(record.config) == record
    row = record.row()
    expected = {"method": "clip", "panda": True, "corruption": "fog", "severity": 5, "seed": 0, "samples": 50}
    assert {key: row[key] for key in expected} == expected
    assert {"accuracy", "l1"} <= set(row)
    assert json.loads(json.dumps(row)) == row


def test_no_half_written_file_is_left_in_the_way(tmp_path, monkeypatch):
    store = RunStore(tmp_path)
    [record] = Runner(store).run(plan(["clip"]))
    store.path(record.config).unlink()
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(StoreError, match="No space left"):
        store.save(record)
    monkeypatch.undo()
    assert list(tmp_path.iterdir()) == []
    assert store.load(record.config) is None
    assert store.records() == []


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
        Zero(tiny_classifier, debias=Panda(beta=0.2, ratio=0.5)),
        Zero(tiny_classifier, views=8),
    ]
    assert shared_passes(methods) == [[0, 2, 3, 4, 6, 7, 8], [9], [1], [5]]


def test_sharing_a_pass_changes_no_prediction(mini_classifier):
    stream = Stream(load_data("glyphs-val-c", "fog", limit=60), 25, seed=0)
    debias = [None, Panda(beta=0.5), Panda(beta=0.5, ratio=0.3), Panda(beta=0.5, sampler="within_image")]
    together = evaluate([CLIP(mini_classifier, debias=panda) for panda in debias], stream)
    for panda, one in zip(debias, together, strict=True):
        [fewer] = evaluate([CLIP(mini_classifier, debias=panda)], stream)
        [alone] = evaluate([CLIP(mini_classifier, debias=panda)], stream, alone=True)
        assert one.tally.probabilities.tolist() == fewer.tally.probabilities.tolist()  # to the last bit
        assert one.tally.predicted.tolist() == alone.tally.predicted.tolist()
        assert one.tally.l1 == pytest.approx(alone.tally.l1, abs=1e-5)
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
    features.encode(images)
    assert sizes == [40, 4, 20, 40]  # images, two sets of negatives, one more view of every image


def test_one_encoder_pass_of_images_and_negatives(mini_classifier, foggy, monkeypatch):
    sizes = []
    original = type(mini_classifier.model).encode_image

    def counted(self, images):
        sizes.append((len(images), torch.is_grad_enabled()))
        return original(self, images)

    monkeypatch.setattr(type(mini_classifier.model), "encode_image", counted)
    Tent(mini_classifier, debias=Panda(beta=0.5)).adapt(foggy[:40])
    CLIP(mini_classifier, debias=Panda(beta=0.5)).adapt(foggy[:40])
    assert sizes == [(44, True), (44, False)]


def test_panda_raises_accuracy_and_lowers_bias_on_noise(tmp_path):
    """The effect itself, on validation symbols: what the package exists for."""
    configs = plan(["clip", "clip+panda"], corruptions=["contrast", "fog", "gaussian_noise"], batch_size=100, limit=300)
    records = Runner(RunStore(tmp_path)).run(configs)
    plain, panda = records[0::2], records[1::2]
    assert np.mean([r.accuracy for r in panda]) > np.mean([r.accuracy for r in plain])
    assert np.mean([r.l1 for r in panda]) < np.mean([r.l1 for r in plain])


def test_a_worker_reports_methods_that_the_model_cannot_serve(tmp_path):
    import timm
    from safetensors.torch import save_file

    save_file(timm.create_model("test_vit", num_classes=10).state_dict(), tmp_path / "vit.safetensors")
    model = f"timm:test_vit:{tmp_path / 'vit.safetensors'}"
    configs = plan_runs(["clip", "bat"], model=model, data="glyphs-val-c", corruptions=["clean"], limit=4)
    run_module._start_worker(Runner(RunStore(tmp_path)), 1)
    records, unavailable, _ = run_module._run_task(configs)
    assert [record.config.method for record in records] == ["clip"]
    assert unavailable.keys() == {"bat"}
