"""Which records stand together in a table, what stands in its cells, and what is not mixed."""

from __future__ import annotations

import pytest

from tta_panda.evaluation.record import PassesPerBatch, RunConfig, RunRecord
from tta_panda.reporting.grids import result_grids, verdicts
from tta_panda.reporting.html import render_report
from tta_panda.reporting.summary import summary_grids
from tta_panda.reporting.tables import columns, result_tables


def record(method="clip", panda=False, corruption="fog", accuracy=0.5, l1=0.4, **more) -> RunRecord:
    fields = {"options": {"beta": "auto"} if panda else {}, "model": "mini", "data": "glyphs-c", "severity": 5}
    fields |= {"batch_size": 100, "seed": 0, **more}
    config = RunConfig(method=method, panda=panda, corruption=corruption, **fields)
    return RunRecord(
        config=config,
        samples=10,
        accuracy=accuracy,
        accuracy_stderr=0.1,
        l1=l1,
        class_names=["heart", "star"],
        predicted_counts=[7, 3],
        label_counts=[5, 5],
        mean_probabilities=[0.7, 0.3],
        passes=PassesPerBatch(images=100, images_with_gradient=12.5, texts=0, texts_with_gradient=0),
        seconds=1.0,
        environment={"python": "3"},
    )


def pair(corruption: str, plain: float, panda: float, **more) -> list[RunRecord]:
    return [
        record(corruption=corruption, accuracy=plain, l1=1 - plain, **more),
        record(corruption=corruption, accuracy=panda, l1=1 - panda, panda=True, **more),
    ]


def test_plain_panda_and_difference_stand_side_by_side():
    [table] = result_tables([*pair("clean", 0.9, 0.9, severity=0), *pair("fog", 0.5, 0.6), *pair("snow", 0.2, 0.1)])
    shown = columns(table, "accuracy", 100.0)
    assert [column.title for column in shown] == ["clip", "clip+panda", "Δ"]
    assert [column.value("fog") for column in shown] == pytest.approx([50, 60, 10])
    assert [column.mean() for column in shown] == pytest.approx([35, 35, 0])  # clean is no corruption
    accuracy, bias = result_grids(table)
    assert [row.name for row in accuracy.rows] == ["clean", "snow", "fog", "mean of 2"]
    assert [cell.kind for cell in (accuracy.rows[2].cells[2], accuracy.rows[1].cells[2])] == ["better", "worse"]
    assert [cell.kind for cell in (bias.rows[2].cells[2], bias.rows[1].cells[2])] == ["better", "worse"]
    [sentence] = verdicts(table)
    assert "accuracy 35.0 → 35.0 (+0.0)" in sentence
    assert sentence.endswith("lower in 1 and higher in 1 of 2")


def test_many_methods_are_summed_up_one_per_row():
    records = [*pair("clean", 0.9, 0.8, severity=0)]
    for method in ("tent", "clip", "eta", "sar"):
        records += [*pair("fog", 0.5, 0.6, method=method), *pair("snow", 0.2, 0.4, method=method)]
    [table] = result_tables(records)
    means, passes = summary_grids(table)
    assert [row.name for row in means.rows] == ["clip", "tent", "eta", "sar"]
    texts = [cell.text for cell in means.rows[0].cells]
    assert texts == ["35.0", "50.0", "+15.0", "0.650", "0.500", "-0.150", "2 of 2", "90.0", "80.0", "-10.0"]
    assert means.rows[1].cells[-1].text == "not run"
    assert passes.rows[0].name == "clip"
    assert [cell.text for cell in passes.rows[0].cells] == ["100", "12.5", "0", "0"]
    grids = result_grids(table)
    assert [grid.title for grid in grids] == ["Accuracy (%)"] * 2 + ["Prediction bias (L1)"] * 2
    assert [len(grid.headers) for grid in grids] == [9, 3, 9, 3]


def test_seeds_are_averaged_and_missing_cells_say_so():
    [table] = result_tables([*pair("fog", 0.5, 0.6), *pair("fog", 0.3, 0.6, seed=1), record(corruption="snow")])
    assert columns(table, "accuracy")[0].value("fog") == pytest.approx(0.4)
    accuracy, _ = result_grids(table)
    assert [cell.text for cell in accuracy.rows[0].cells] == ["50.0", "not run", "not run"]
    assert verdicts(table) == []


def test_options_tell_columns_of_one_method_apart():
    fixed = record(panda=True, options={"beta": 0.4})
    [table] = result_tables([*pair("fog", 0.5, 0.6), fixed])
    titles = [column.title for column in columns(table, "l1")]
    assert titles == ["clip", "clip+panda (beta=auto)", "Δ", "clip+panda (beta=0.4)", "Δ"]


@pytest.mark.parametrize(
    "other",
    [
        {"severity": 3},
        {"model": "other"},
        {"weights": "abc"},
        {"data": "cifar10-c"},
        {"data_fingerprint": "made with seed 1"},
        {"batch_size": 10},
        {"limit": 10},
        {"preprocess": "exact"},
        {"image_list": "abc"},
    ],
    ids=lambda other: next(iter(other)),
)
def test_what_differs_in_more_than_the_seed_is_never_averaged(other):
    tables = result_tables([record(accuracy=0.2), record(accuracy=0.8, **other)])
    values = sorted(table.value(table.series[0], "fog", "accuracy") for table in tables)
    assert values == [0.2, 0.8]


def test_clean_runs_stand_in_the_table_of_every_severity():
    tables = result_tables([record(corruption="clean", severity=0), record(severity=3), record(severity=5)])
    assert [table.corruptions for table in tables] == [("clean", "fog")] * 2
    [alone] = result_tables([record(corruption="clean", severity=0)])
    assert alone.corruptions == ("clean",)


def test_names_are_escaped_in_the_page():
    page = render_report([record(model="<script>alert(1)</script>")])
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
