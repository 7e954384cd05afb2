"""Which records stand together in a table, what stands in its cells, and what is never averaged."""

from __future__ import annotations

import csv
import functools
import io
import sys
from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from records import make_record
from rich.console import Console
from scipy import stats
from typer.testing import CliRunner

import tta_panda
from tta_panda.cli import app
from tta_panda.cli.report import write_report
from tta_panda.data.corruptions import CORRUPTIONS
from tta_panda.errors import InvalidInputError, NumericalError
from tta_panda.escapes import markdown_text
from tta_panda.evaluation.config import MethodConfig, StreamConfig
from tta_panda.evaluation.record import RunRecord
from tta_panda.evaluation.store import RunStore
from tta_panda.reporting.cells import ACCURACY, BIAS, NO_SHARED_SEED, NOT_RUN, Cell, half_interval, over_seeds
from tta_panda.reporting.comparison import (
    compare,
    corruption_table,
    findings,
    passes_table,
    read_comparisons,
    summary_table,
)
from tta_panda.reporting.exports import to_csv, to_markdown, write_tables
from tta_panda.reporting.tables import MARGIN_NOTE, ONE_SEED_NOTE, SD_NOTE, Column, Row, Table, spread_notes
from tta_panda.reporting.terminal import print_tables


def pair(corruption: str, plain: float, panda: float, method: str = "clip", **stream) -> list[RunRecord]:
    return [
        make_record(method, corruption, accuracy=plain, bias=1 - plain, **stream),
        make_record(f"{method}+panda", corruption, accuracy=panda, bias=1 - panda, **stream),
    ]


def rows_of(table) -> dict[str, list[str]]:
    return {row.name: [column.full_text(cell) for column, cell in table.items(row)] for row in table.rows}


def kinds_of(table) -> dict[str, str]:
    return {row.name: table.columns[2].kind(row.cells[2]) for row in table.rows}


def test_plain_panda_and_difference_stand_side_by_side():
    records = [*pair("clean", 0.9, 0.9), *pair("fog", 0.5, 0.6), *pair("snow", 0.2, 0.1)]
    [comparison] = compare(records)
    accuracy, bias = corruption_table(comparison, ACCURACY), corruption_table(comparison, BIAS)
    assert [column.title for column in accuracy.columns] == ["clip", "clip+panda", "Δ"]
    assert rows_of(accuracy) == {
        "clean": ["90.0", "90.0", "+0.0"],
        "snow": ["20.0", "10.0", "-10.0"],
        "fog": ["50.0", "60.0", "+10.0"],
        "mean of 2": ["35.0", "35.0", "+0.0"],  # clean is no corruption
    }
    assert rows_of(bias)["fog"] == ["0.500", "0.400", "-0.100"]


def test_differences_are_coloured_only_where_they_exceed_their_margin():
    seeds = {"fog": (0.1, 0.12, 0.11), "snow": (0.1, -0.02, 0.0), "frost": (-0.1, -0.1, -0.1), "contrast": (0.0,) * 3}
    records = [
        record
        for corruption, gains in seeds.items()
        for seed, gain in enumerate(gains)
        for record in pair(corruption, 0.5, 0.5 + gain, seed=seed)
    ]
    kinds = {"fog": "better", "snow": "", "frost": "worse", "contrast": ""}
    [comparison] = compare(records)
    for metric in (ACCURACY, BIAS):
        found = kinds_of(corruption_table(comparison, metric))
        assert {name: found[name] for name in kinds} == kinds
    [alone] = compare([record for record in records if record.config.stream.seed == 0])
    assert set(kinds_of(corruption_table(alone, BIAS)).values()) == {""}


@given(st.lists(st.floats(-50, 50), min_size=2, max_size=60))
def test_margins_are_students(values):
    interval = stats.ttest_1samp(values, 0).confidence_interval(0.95) if len(set(values)) > 1 else (0, 0)
    assert half_interval(values) == pytest.approx((interval[1] - interval[0]) / 2, rel=2e-3, abs=1e-6)


def test_one_seed_has_no_margin_and_says_why():
    records = []
    for name in ("clip", "tent"):
        plain, panda = pair("fog", 0.5, 0.6, name)
        # Tenths of a stream agree with each other whatever another seed would give: they are no margin.
        tenths = [panda.tenths[0].model_copy(update={"accuracy": 0.59 + 0.002 * index}) for index in range(10)]
        records += [plain, panda.model_copy(update={"tenths": tenths})]
    [comparison] = compare(records)
    table = corruption_table(comparison, ACCURACY)
    assert rows_of(table)["fog"] == ["50.0", "60.0", "+10.0", "50.0", "60.0", "+10.0"]
    assert spread_notes([table]) == [ONE_SEED_NOTE]
    assert markdown_text(ONE_SEED_NOTE) in to_markdown(table)
    [several] = compare([*records, *pair("fog", 0.5, 0.7, seed=1)])
    assert spread_notes(several.tables()) == [SD_NOTE, MARGIN_NOTE, ONE_SEED_NOTE]  # of tent there is one seed


def test_many_methods_are_summed_up_one_per_row():
    records = [*pair("clean", 0.9, 0.8)]
    for method in ("tent", "clip", "eta", "sar"):
        records += [*pair("fog", 0.5, 0.6, method), *pair("snow", 0.2, 0.4, method)]
    [comparison] = compare(records)
    rows = rows_of(summary_table(comparison))
    assert list(rows) == ["clip", "tent", "eta", "sar"]
    assert rows["clip"][:6] == ["35.0", "50.0", "+15.0", "0.650", "0.500", "-0.150"]
    assert rows["clip"][6:] == ["2", "90.0", "80.0", "-10.0"]
    assert rows["tent"][-1] == NOT_RUN
    assert rows_of(passes_table(comparison))["clip"] == ["100.0", "12.5", "0.0", "0.0"]
    assert len(corruption_table(comparison, ACCURACY).columns) == 12


def test_seeds_are_averaged_with_their_spread_and_differences_are_paired():
    seeds = [
        *pair("fog", 0.5, 0.6),
        *pair("fog", 0.3, 0.4, seed=1),
        *pair("snow", 0.2, 0.2),
        *pair("snow", 0.4, 0.2, seed=1),
    ]
    [comparison] = compare(seeds)
    rows = rows_of(corruption_table(comparison, ACCURACY))
    assert rows["fog"] == ["40.0 ± 14.1", "50.0 ± 14.1", "+10.0 ± 0.0"]  # both seeds gain ten points
    assert rows["mean of 2"] == ["35.0 ± 0.0", "35.0 ± 7.1", "+0.0 ± 63.5"]  # two seeds say little


def test_missing_cells_say_so_and_means_take_the_seeds_that_all_have():
    [comparison] = compare([*pair("fog", 0.5, 0.6), make_record("clip", "snow"), *pair("fog", 0.3, 0.6, seed=1)])
    rows = rows_of(corruption_table(comparison, ACCURACY))
    assert rows["snow"] == ["50.0", NOT_RUN, NOT_RUN]
    assert rows["mean of 2"] == ["50.0", NOT_RUN, NOT_RUN]  # of seed 0, the only one with snow


def test_differences_are_taken_over_the_seeds_that_both_have():
    assert over_seeds({0: 1.0, 1: 3.0}) - over_seeds({1: 2.0}) == over_seeds({1: 1.0})
    assert (over_seeds({0: 1.0}) - over_seeds({1: 2.0})).why_empty == NO_SHARED_SEED
    assert (over_seeds({0: 1.0}) - Cell(why_empty="diverged")).why_empty == "diverged"


def test_runs_without_a_shared_seed_say_so():
    plain, other = pair("fog", 0.5, 0.6)[0], pair("fog", 0.5, 0.6, seed=1)[1]
    [comparison] = compare([plain, other, *pair("snow", 0.5, 0.6, seed=1)])
    rows = rows_of(corruption_table(comparison, ACCURACY))
    assert rows["fog"] == ["50.0", "60.0", NO_SHARED_SEED]
    assert rows["snow"] == ["50.0", "60.0", "+10.0"]
    assert rows["mean of 2"] == [NO_SHARED_SEED, "60.0", NO_SHARED_SEED]


def test_options_tell_columns_of_one_method_apart():
    fixed = make_record("clip+panda", options={"beta": 0.4})
    [comparison] = compare([*pair("fog", 0.5, 0.6), fixed])
    titles = [column.title for column in corruption_table(comparison, BIAS).columns]
    assert titles == ["clip", "clip+panda (beta=auto)", "Δ", "clip+panda (beta=0.4)", "Δ"]


def test_methods_are_compared_on_one_stream(mini_classifier):
    stream = tta_panda.Stream(tta_panda.load_data("glyphs-c", "fog", limit=40), 20, seed=0)
    names = ["clip", "clip+panda", "tent"]
    compared = tta_panda.compare(names, stream, classifier=mini_classifier)
    assert list(compared) == names and compared["clip"].samples == 40
    assert compared["tent"].nll == tta_panda.evaluate(tta_panda.Tent(mini_classifier), stream).nll
    frame = compared.to_dataframe()
    assert list(frame["method"]) == names and frame["accuracy"][1] == compared["clip+panda"].accuracy
    change = f"{100 * (compared['clip+panda'].accuracy - compared['clip'].accuracy):+.1f}"
    assert f">{change}<" in compared._repr_html_() and f"| {change} |" in repr(compared)
    assert compared.plot()._repr_png_().startswith(b"\x89PNG")
    own = tta_panda.compare({"low": tta_panda.CLIP(mini_classifier), "clip": tta_panda.CLIP(mini_classifier)}, stream)
    assert own["low"].nll == own["clip"].nll
    assert list(compared["clip"].to_dataframe()["samples"]) == [40]


def test_what_cannot_be_compared_is_said(mini_classifier, tiny_classifier, images, monkeypatch):
    batches = [(images[:4], [0, 1, 2, 3])]
    clip = tta_panda.CLIP(mini_classifier)
    for methods, stream, reason in (
        (["clip"], batches, "needs a classifier"),
        ("clip", batches, "list of names"),
        ([1], batches, "a name or a tta_panda.Method, got 1"),
        ([clip, tta_panda.CLIP(mini_classifier)], batches, "called 'clip'"),
        ({"a": clip, "b": clip}, batches, "same object"),
        ([clip, tta_panda.Tent(tiny_classifier)], batches, "the same one"),
        ([clip], iter(batches), r"use list\(data\)"),
    ):
        with pytest.raises(InvalidInputError, match=reason):
            tta_panda.compare(methods, stream)
    found = tta_panda.compare([clip], batches)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(tta_panda.MissingExtraError, match=r'pip install "tta-panda\[pandas\]"'):
        found.to_dataframe()


def test_a_method_that_diverges_leaves_the_others(mini_classifier, images, monkeypatch):
    def fail(*_: object) -> None:
        raise NumericalError("NaN")

    tent = tta_panda.Tent(mini_classifier)
    monkeypatch.setattr(tent, "_adapt", fail)
    found = tta_panda.compare([tta_panda.CLIP(mini_classifier), tent], [(images[:4], [0, 1, 2, 3])])
    assert found["tent"] is None and "| tent | diverged | diverged |" in repr(found)
    assert list(found.to_dataframe()["method"]) == ["clip"]
    found.plot()


OTHER_VALUES = {
    "precision": "bf16",
    "order": "sequential",
    "preprocess": "exact",
    "severity": 3,
    "limit": 10,
    "ignore_orientation": True,
    "window": 4,
}


@pytest.mark.parametrize("name", [each.name for each in fields(StreamConfig)])
def test_nothing_but_the_seed_is_ever_averaged(name):
    one = make_record(accuracy=0.2, batch_size=1)
    stream = one.config.stream
    value = getattr(stream, name)
    changed = OTHER_VALUES.get(name, value + 1 if isinstance(value, int) else f"{value}x")
    # Another seed besides, so that the two could be taken for seeds of one run.
    config = replace(one.config, stream=replace(stream, **{"seed": 1, name: changed}))
    other = one.model_copy(update={"accuracy": 0.8, "config": config})
    comparisons = compare([one, other])
    values = sorted(
        row.cells[0].value
        for comparison in comparisons
        for row in corruption_table(comparison, ACCURACY).rows
        if not row.is_mean
    )
    assert values == ([50.0] if name == "seed" else [20.0, 80.0])
    assert other.config.key != one.config.key
    if len(comparisons) > 1:
        assert len({comparison.title for comparison in comparisons}) == 2


OTHER_METHODS = {"name": ["tent", "clip+panda"], "options": [{"protocol": "reference"}]}


def test_a_method_is_never_averaged_with_another():
    assert {each.name for each in fields(MethodConfig)} == OTHER_METHODS.keys()
    one = make_record(accuracy=0.2)
    for change in ({name: value} for name, values in OTHER_METHODS.items() for value in values):
        config = replace(one.config, method=replace(one.config.method, **change))
        other = make_record(config=replace(config, stream=replace(config.stream, seed=1)))
        [comparison] = compare([one, other])
        values = [cell.value for row in corruption_table(comparison, ACCURACY).rows for cell in row.cells[:2]]
        assert sorted(values) == [20.0, 50.0]


def test_clean_runs_stand_in_the_table_of_every_severity():
    records = [make_record(corruption="clean"), make_record(severity=3), make_record(severity=5)]
    comparisons = compare(records)
    assert [comparison.setting.severity for comparison in comparisons] == [3, 5]
    assert all(comparison.has_clean and comparison.corruptions == ["fog"] for comparison in comparisons)
    [alone] = compare(records[:1])
    assert (alone.has_clean, alone.corruptions) == (True, [])


def test_methods_that_are_not_registered_here_are_shown_all_the_same():
    [comparison] = compare([make_record("theirs"), make_record("theirs+panda"), make_record("tent")])
    assert [method.name for method in comparison.methods] == ["tent", "theirs", "theirs+panda"]
    assert len(comparison.pairs) == 1


def test_data_that_differ_in_one_domain_leave_the_others_together():
    records = [make_record(corruption=name, fingerprint=f"of {name}") for name in ("fog", "snow", "frost")]
    other = make_record(corruption="fog", fingerprint="other fog", accuracy=0.9, seed=1)
    corruptions = [comparison.corruptions for comparison in compare([*records, other])]
    assert sorted(corruptions) == [["fog"], ["fog"], ["snow", "frost"]]
    assert [comparison.corruptions for comparison in compare(records)] == [["snow", "frost", "fog"]]


def test_runs_that_diverged_say_so_in_every_table():
    records = [*pair("fog", 0.5, 0.6), *pair("snow", 0.5, 0.6)]
    diverged = [make_record("tent").config, make_record("clip+panda", "frost").config]
    [comparison] = compare([*records, make_record("clip", "frost")], diverged)
    table = corruption_table(comparison, ACCURACY)
    assert [column.title for column in table.columns] == ["clip", "clip+panda", "Δ", "tent"]
    rows = rows_of(table)
    assert rows["frost"] == ["50.0", "diverged", "diverged", NOT_RUN]
    assert rows["fog"] == ["50.0", "60.0", "+10.0", "diverged"]
    assert "tent" not in rows_of(passes_table(comparison))


def test_every_column_of_every_table_is_in_its_csv_file():
    records = [*pair("clean", 0.9, 0.8)]
    for method in ("tent", "clip"):
        records += [*pair("fog", 0.5, 0.6, method), *pair("fog", 0.4, 0.6, method, seed=1)]
    [comparison] = compare(records)
    for table in comparison.tables():
        header, *rows = csv.reader(io.StringIO(to_csv(table)))
        spreads = sum(title.endswith((" s.d.", " margin")) for title in header)
        assert len(set(header)) == len(header) == 1 + len(table.columns) + spreads
        assert all(len(row) == len(header) for row in rows)


def test_the_report_has_every_table_as_a_file_and_escapes_names(tmp_path, undrawn):
    store = RunStore(tmp_path)
    for record in [*pair("fog", 0.5, 0.6, model="<script>alert(1)</script>"), *pair("snow", 0.5, 0.6, model="a_b & c")]:
        store.save(record)
    write_tables(compare(store.records())[0].section("comparison"), tmp_path / "tables")  # of an earlier report
    others = {"comparison-of-ours.csv", "comparison-1-accuracy.xlsx", "comparison"}
    for name in others:
        (tmp_path / "tables" / name).touch()
    (tmp_path / "report.html").touch()
    page = write_report(*read_comparisons(store), tmp_path / "report.html").read_text("utf-8")
    assert "<script>alert" not in page
    assert "&lt;script&gt;" in page
    names = {path.name for path in (tmp_path / "tables").iterdir()}
    assert names == others | {
        f"comparison-{index}-{table}.{suffix}"
        for index in (1, 2)
        for table in ("summary", "accuracy", "bias", "calibration", "passes")
        for suffix in ("csv", "md", "tex")
    }


def test_a_report_destroys_nothing_of_others(tmp_path, undrawn):
    runs, others = tmp_path / "runs", tmp_path / "paper" / "tables" / "comparison-2-accuracy.csv"
    path = RunStore(runs).save(make_record())
    before = path.read_bytes()
    others.parent.mkdir(parents=True)
    others.touch()
    tta_panda = functools.partial(CliRunner().invoke, app)
    assert tta_panda(["report", str(runs), "-o", str(tmp_path / "paper" / "report.html")]).exit_code == 0
    assert others.exists()
    for arguments, message in (
        ([path], "is read by this command"),
        ([runs / "a.html", "--csv", runs / "." / "a.html"], "the same file"),
        ([tmp_path / "a.html", "--parquet", path], "is read by this command"),
    ):
        done = tta_panda(["report", str(runs), "-o", *map(str, arguments)])
        assert done.exit_code == 1 and message in str(done.exception)
    assert path.read_bytes() == before and {each.name for each in runs.iterdir()} == {path.name}


def test_tables_fit_a_narrow_terminal_without_cutting_numbers():
    records = [record for name in ("clip", "tent", "eta") for record in pair("fog", 0.51, 0.62, name)]
    [comparison] = compare(records)
    console = Console(width=60, record=True, file=io.StringIO())
    print_tables(console, comparison.title, comparison.tables())
    text = console.export_text()
    assert text.count("51.0") >= 3
    assert max(map(len, text.splitlines())) <= 60


def test_a_table_is_never_cut_between_a_number_and_its_difference():
    pairs = [(Column.of(ACCURACY, f"m{index}"), Column.delta(ACCURACY, f"d{index}")) for index in range(5)]
    columns = [column for pair in pairs for column in pair]
    table = Table("wide", "method", columns, [Row("clip", [Cell(50.0)] * len(columns))])
    console = Console(width=30, record=True, file=io.StringIO())
    print_tables(console, "title", [table])
    lines = [line.split() for line in console.export_text().splitlines()]
    heads = [words for words in lines if words and words[-1] in {column.title for column in columns}]
    assert sum(len(head) for head in heads) == len(columns)
    assert all(head[0].startswith("m") and head[-1].startswith("d") for head in heads)


def test_what_methods_found_is_said_for_each_of_few_corruptions_and_in_sum_for_many():
    def told(number):
        names = CORRUPTIONS[:number]
        records = [make_record(method, name) for name in names for method in ("clip", "clip+panda")]
        said = {"explanation": "Nothing was subtracted: one class.", "mean_beta": 0.0}
        records[1] = records[1].model_copy(update=said)
        records[3] = records[3].model_copy(update={"explanation": "The negatives look like heart."})
        [comparison] = compare(records)
        return findings(comparison)

    first, second, *_ = CORRUPTIONS
    nothing = f"clip+panda on {first}: Nothing was subtracted: one class."
    assert told(2) == [nothing, f"clip+panda on {second}: The negatives look like heart."]
    assert told(4) == [f"clip+panda: mean β 0.22, from 0.00 ({first}) to 0.30 ({max(CORRUPTIONS[1:4])})", nothing]
