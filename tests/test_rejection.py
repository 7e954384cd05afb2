"""Unknown classes: p-values from negatives, streams with unknown classes, what is measured, and rejected pictures."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest
import torch
from records import make_record, plan, run
from typer.testing import CliRunner

import tta_panda
from tta_panda import CLIP, Level, Panda, Stream, Tent, load_data
from tta_panda.cli import app
from tta_panda.errors import InvalidInputError, UnknownNameError
from tta_panda.evaluation.loop import evaluate, run_stream
from tta_panda.evaluation.metrics import Scores, StreamMetrics
from tta_panda.experiments import EXPERIMENTS
from tta_panda.experiments.setup import Setup
from tta_panda.panda.rejection import RECENT, NegativeEnergies
from tta_panda.prediction.files import read_rows
from tta_panda.reporting.exports import to_markdown

KNOWN = ("cloud", "star", "skull and crossbones", "chess rook", "hot beverage")
UNKNOWN = ("yin yang", "cat face", "writing hand", "gear", "peace")


def energies(features: torch.Tensor, classifier, bias: float | torch.Tensor = 0.0) -> np.ndarray:
    logits = classifier.logit_scale * features @ classifier.class_embeddings.T + bias
    return np.log(np.exp(logits.double().numpy()).sum(axis=1))


def shares_at_least(values: np.ndarray, images: np.ndarray) -> list[float]:
    return [float(np.mean(values >= image)) for image in images]


def test_p_values_are_shares_of_the_latest_negatives():
    rng, null = np.random.default_rng(0), NegativeEnergies()
    assert null.p_values(torch.zeros(3), torch.zeros(0)) is None
    seen: list[float] = []
    for batch in range(12):
        images, negatives = rng.integers(0, 6, 9), rng.integers(0, 4, 0 if batch == 5 else 11)  # with many ties
        seen = [*seen, *negatives][-RECENT:]
        found = null.p_values(torch.from_numpy(images).float(), torch.from_numpy(negatives).float())
        np.testing.assert_allclose(found, shares_at_least(np.array(seen), images), atol=1e-6)
    assert len(null.latest) == RECENT


@pytest.mark.parametrize("debias", [Panda(beta=0.5), Panda(), Level(gate=Panda())])
def test_images_are_compared_with_negatives_that_are_corrected_like_them(tiny_classifier, images, debias):
    method = CLIP(tiny_classifier, debias=debias)
    assert method.p_values is None
    found, negatives = [], np.empty(0)
    for batch in images[:40].split(20):
        encoded = method.features.encode(method.features.prepare(batch))
        logits = method.adapt_encoded(encoded)
        beta = 0.0 if isinstance(debias, Level) else method.beta
        bias = logits - tiny_classifier.logits(encoded.features) if isinstance(debias, Level) else torch.zeros(1, 1)
        shift = beta * encoded.offset
        own = energies(encoded.features - shift, tiny_classifier, bias)
        null = energies(encoded.negatives - shift, tiny_classifier, bias.mean(dim=0))
        negatives = np.concatenate([negatives, null])
        np.testing.assert_allclose(method.p_values, shares_at_least(negatives, own), atol=1e-6)
        found.append(method.p_values)
    assert len(set(torch.cat(found).tolist())) > 2
    saved = method.state_dict()
    again = method.adapt(images[:20])
    expected = method.p_values
    method.reset()
    assert method.p_values is None
    method.load_state_dict(saved)
    assert torch.equal(method.adapt(images[:20]), again) and torch.equal(method.p_values, expected)


def test_methods_without_negatives_have_no_p_values_and_trained_ones_have(tiny_classifier, images):
    for debias in (None, Panda(beta=0), Level()):
        method = CLIP(tiny_classifier, debias=debias)
        method.adapt(images[:20])
        assert method.p_values is None
    tent = Tent(tiny_classifier, debias=Panda(beta=0.5))
    tent.adapt(images[:20])
    assert tent.p_values.shape == (20,) and not tent.p_values.requires_grad


def test_unknown_images_count_for_detection_alone():
    rng = np.random.default_rng(0)
    logits, labels = 3 * rng.normal(size=(150, 6)).round(1), rng.integers(-1, 6, 150)
    known = labels >= 0
    both, alone = StreamMetrics(6), StreamMetrics(6)
    for part in np.array_split(np.arange(150), 4):
        both.update(Scores.of(torch.from_numpy(logits[part]), torch.from_numpy(labels[part])))
    alone.update(Scores.of(torch.from_numpy(logits[known]), torch.from_numpy(labels[known])))
    for name in ("samples", "accuracy", "top5_accuracy", "bias", "nll", "nll_stderr", "ece"):
        assert getattr(both, name) == pytest.approx(getattr(alone, name)), name
    assert both.unknown == (~known).sum() and alone.detected() == {}
    energy = np.log(np.exp(logits).sum(axis=1)).astype(np.float32)
    pairs = energy[known][:, None] - energy[~known]
    found = both.detected()
    assert found["auroc"] == pytest.approx(np.mean((pairs > 0) + (pairs == 0) / 2))
    threshold = np.sort(energy[known])[int(0.05 * (known.sum() - 1))]  # 95 % of the known ones have at least this
    assert found["fpr95"] == pytest.approx((energy[~known] >= threshold).mean())
    assert found["known_energies"][50] == pytest.approx(np.median(energy[known]))
    assert "known_p_values" not in found


def test_a_stream_of_known_and_unknown_classes(mini):
    data = load_data("glyphs-val-c", "fog", limit=60, unknown_classes=UNKNOWN)
    whole = load_data("glyphs-val-c", "fog", limit=60)
    assert data.class_names == KNOWN and len(data) == 60 and len(data.head(20)) == 20
    assert [data.class_names[k] if k >= 0 else None for k in data.labels] == [
        name if name in KNOWN else None for name in (whole.class_names[k] for k in whole.labels)
    ]
    assert (data.images_at(np.arange(5)) == whole.images_at(np.arange(5))).all()
    with pytest.raises(UnknownNameError, match="gear"):
        load_data("glyphs-val-c", unknown_classes=["gears"])
    for order in ("sequential", "correlated:0.1", "imbalanced:2", "label_shift:1", "few_classes:3", "mixed"):
        labels = [label for _, labels, *_ in Stream({"fog": data}, 20, order=order) for label in labels.tolist()]
        assert len(labels) == 60 and {-1, 0} <= set(labels), order
    classifier = tta_panda.make_classifier(mini, KNOWN)
    method = tta_panda.create_method("clip+panda+level", classifier)
    result = evaluate(method, Stream(data, 20))
    assert (result.samples, result.unknown) == (30, 30) and sum(result.label_counts) == 30
    assert result.auroc > 0.5 and 0 <= result.fpr95 <= 1 and len(result.known_p_values) == 101
    [row] = result.rows()
    assert row["auroc"] == result.auroc and "known_energies" not in row
    alone = run_stream([CLIP(classifier, debias=Panda())], Stream(data, 20))[0].result()
    together = run_stream([CLIP(classifier, debias=Panda(beta=b)) for b in ("auto", 0.4)], Stream(data, 20))[0].result()
    assert alone.known_p_values == together.known_p_values
    single = evaluate(CLIP(classifier, debias=Panda()), Stream(data.head(20), 1), window=4)
    assert single.auroc is not None and single.known_p_values == []
    sorted_by_class = evaluate(method, Stream(data, 20, order="correlated:0"))  # tenths without a known image
    assert len(sorted_by_class.tenths) < 10 and sum(each.samples for each in sorted_by_class.tenths) == 30
    with pytest.raises(tta_panda.DataError, match="no images of the classes"):
        evaluate(method, [(torch.zeros(2, 3, 32, 32), torch.tensor([-1, -1]))])


def test_records_and_bench_have_unknown_classes(tmp_path, undrawn):
    [record] = run(plan(["clip+panda"], unknown_classes=",".join(UNKNOWN[:2])), tmp_path / "runs")
    assert "unknown classes yin yang,cat face" in record.config.stream.title() and len(record.class_names) == 8
    options = ["--data", "glyphs-val-c", "--corruption", "clean,fog", "--limit", "40", "--method", "clip"]
    options += ["--unknown-classes", ",".join(UNKNOWN), "-o", str(tmp_path / "bench"), "--device", "cpu"]
    result = CliRunner().invoke(app, ["bench", *options], catch_exceptions=False)
    assert result.exit_code == 0 and "AUROC" in result.output
    assert "no p-values" in (tmp_path / "bench" / "tables" / "comparison-unknown.md").read_text()


def test_the_table_counts_rejected_images():
    setup = Setup(seeds=(0,))
    experiment = EXPERIMENTS["table-unknown"]
    records = {config.key: make_record(config=config) for config in experiment.runs(setup)}
    [table] = experiment.section(setup, records).tables
    plain, panda, _ = table.rows
    values = dict(zip((column.title for column in table.columns), panda.cells, strict=True))
    assert plain.cells[-1].why_empty == "no p-values"
    # the 101 values 0, 0.01, ... 1: ten are below the tenth percentile, and fifty above 0.5
    assert values["energy: known"].value == pytest.approx(1000 / 101)
    assert values["p: worst"].value == values["p: unknown"].value == pytest.approx(5000 / 101)
    assert "FPR95" in to_markdown(table)


def test_rejected_pictures(mini, foggy, tmp_path):
    classifier = tta_panda.make_classifier(mini, KNOWN)
    method = tta_panda.create_method("clip+panda", classifier)
    predictions = tta_panda.predict(foggy, method=method, reject=0.2, progress=False)
    assert [each.rejected for each in predictions] == [each.p_value > 0.2 for each in predictions]
    rejected = sum(each.rejected for each in predictions)
    assert 0 < rejected < 60 and predictions.summary["rejected"] == rejected
    assert f"{rejected} of 60 images ({rejected / 60:.1%}) rejected" in predictions.explanation
    method.reset()
    kept = tta_panda.predict(foggy, method=method, progress=False)
    assert [each.p_value for each in kept] == [each.p_value for each in predictions]
    assert {each.rejected for each in kept} == {None} and "rejected" not in kept.explanation
    with pytest.raises(InvalidInputError, match="clip would have to draw negatives; use clip"):
        tta_panda.predict(foggy, method=tta_panda.create_method("clip", classifier), reject=0.2)
    with pytest.raises(InvalidInputError, match="reject must be a number from 0 to 1"):
        tta_panda.predict(foggy, method=method, reject=5)


def test_predict_writes_p_values(tmp_path, images, foggy):
    folder = tmp_path / "photos"
    folder.mkdir()
    for index, picture in enumerate(foggy[:30].permute(0, 2, 3, 1).numpy()):
        tta_panda.prediction.predict.Image.fromarray(picture).save(folder / f"{index:02}.png")
    output, page = tmp_path / "out.csv", tmp_path / "page.html"
    command = ["predict", str(folder), "--model", "mini", "--classes", ",".join(KNOWN), "--device", "cpu"]
    options = ["--reject", "0.2", "-o", str(output), "--html", str(page), "--json"]
    result = CliRunner().invoke(app, [*command, *options], catch_exceptions=False)
    rows = list(read_rows(output))
    assert {row["rejected"] for row in rows} == {True, False}
    assert all(row["rejected"] == (row["p_value"] > 0.2) for row in rows)
    assert json.loads(result.stdout)["rejected"] == sum(row["rejected"] for row in rows)
    assert "rejected: none of the classes" in page.read_text()
    without = CliRunner().invoke(app, [*command, "--method", "clip"], catch_exceptions=False)
    assert {row["p_value"] + row["rejected"] for row in csv.DictReader(without.stdout.splitlines())} == {""}


@pytest.mark.parametrize("options", [["--corruption", "clean"], ["--order", "label_shift:0", "--corruption", "fog"]])
def test_bench_says_what_it_cannot_measure(options, tmp_path, undrawn):
    options = ["--data", "glyphs-val-c", "--limit", "10", "--method", "clip", "--device", "cpu", *options]
    options += ["--unknown-classes", "gear", "-o", str(tmp_path)]
    assert CliRunner().invoke(app, ["bench", *options], catch_exceptions=False).exit_code == 0
    table = (tmp_path / "tables" / "comparison-unknown.md").read_text()
    assert "none unknown" in table if "--order" in options else "0." in table
