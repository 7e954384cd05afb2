"""Every table and figure from made-up records: what is run, what is shown, and what the paper says beside it."""

from __future__ import annotations

import csv
import functools
import hashlib
import io
import json
import math
import statistics
from collections.abc import Mapping
from dataclasses import replace

import pytest
from data_files import write_cifar_c
from records import make_record
from rich.console import Console

from tta_panda.data.corruptions import CORRUPTIONS
from tta_panda.errors import InvalidInputError, UnknownNameError
from tta_panda.evaluation.config import EMBEDDED, RunConfig, StreamConfig
from tta_panda.evaluation.plan import Sources
from tta_panda.evaluation.record import RunRecord
from tta_panda.experiments import EXPERIMENTS, select_experiments
from tta_panda.experiments.base import ExperimentResults
from tta_panda.experiments.printed import BACKBONES, MEAN, METHODS, printed_accuracy
from tta_panda.experiments.setup import BETA_GRID, Setup
from tta_panda.methods import METHODS as ALL_METHODS
from tta_panda.methods.presets import PRESETS
from tta_panda.reporting.cells import ACCURACY, DIVERGED, NOT_RUN, Cell
from tta_panda.reporting.exports import to_csv, to_latex, to_markdown, write_figures, write_tables
from tta_panda.reporting.figures import DotFigure, Figure, HistogramFigure, Line, LineFigure, Panel
from tta_panda.reporting.page import Part, Section, render_page
from tta_panda.reporting.tables import Column, Row, Table
from tta_panda.reporting.terminal import print_tables

QUICK = Setup(quick=True, seeds=(0, 1))
FULL = Setup(seeds=(0,))
WITH_RUNS = [name for name in EXPERIMENTS if name != "fig-theorem"]


@functools.cache
def made_up(config: RunConfig) -> RunRecord:
    """A record with numbers that depend on the configuration and on nothing else."""
    chance = int(hashlib.sha256(config.key.encode()).hexdigest()[:8], 16) / 2**32
    return make_record(config=config, accuracy=0.5 + chance / 4, bias=1 - chance)


def papers(benchmark: str = "cifar10-c", **more) -> Setup:
    """One of the paper's benchmarks, as the paper runs it unless `more` says otherwise."""
    preset = PRESETS[benchmark]
    model = more.pop("model", preset.model)
    changes = {name: more.pop(name) for name in vars(EMBEDDED) if name in more}
    stream = StreamConfig(**{"model": model, "data": preset.data} | changes)
    return Setup(
        **{"stream": stream, "sources": Sources(model), "preset": preset, "seeds": (0,), "beta": "paper", **more}
    )


def page_of(*parts: Part) -> str:
    return render_page("title", "lead", parts, [])


def records_of(name: str, setup: Setup) -> dict[str, RunRecord]:
    return {config.key: made_up(config) for config in EXPERIMENTS[name].runs(setup)}


def section_of(name: str, setup: Setup = QUICK, records: Mapping[str, RunRecord] | None = None) -> Section:
    return EXPERIMENTS[name].section(setup, records_of(name, setup) if records is None else records)


def results_of(name: str, setup: Setup, records: Mapping[str, RunRecord]) -> ExperimentResults:
    return ExperimentResults(EXPERIMENTS[name], setup, records)


def texts(section: Section) -> list[str]:
    """What stands in the cells that are not the paper's."""
    own = [table for table in section.tables if not table.of_paper]
    return [column.text(cell) for table in own for row in table.rows for column, cell in table.items(row)]


@pytest.mark.parametrize("name", list(EXPERIMENTS))
def test_every_experiment_says_what_it_is_and_fills_every_cell(name):
    section = section_of(name)
    assert section.title and section.about.endswith(".")
    assert section.tables and NOT_RUN not in texts(section)
    assert section.figures or not name.startswith("fig-")
    assert len({config.key for config in section.runs}) == len(section.runs)
    for table in section.tables:
        assert all(len(row.cells) == len(table.columns) for row in table.rows)
        assert len({row.name for row in table.rows}) == len(table.rows)  # files have no groups to tell them apart


@pytest.mark.parametrize("order", ["continual", "mixed"])
def test_every_experiment_takes_orders_that_join_domains(order):
    setup = Setup(quick=True, seeds=(0,), stream=replace(EMBEDDED, order=order))
    for name in WITH_RUNS:
        assert NOT_RUN not in texts(section_of(name, setup)), name


@pytest.mark.parametrize("name", WITH_RUNS)
def test_what_was_not_run_says_so_and_nothing_is_invented(name):
    assert set(texts(section_of(name, records={}))) <= {NOT_RUN}


@pytest.mark.parametrize("name", ["fig-bias", "fig-histograms", "fig-beta"])
def test_figures_without_records_are_drawn_empty(name):
    assert 'id="environment"' in page_of(Part("", [section_of(name, records={})]))


@pytest.mark.parametrize("name", WITH_RUNS)
def test_a_run_that_diverged_says_so_and_takes_nothing_else_with_it(name):
    records = records_of(name, QUICK)
    key = next((key for key, each in records.items() if "+panda" in each.config.method.name), next(iter(records)))
    del records[key]
    found = texts(EXPERIMENTS[name].section(QUICK, records, diverged={key}))
    assert DIVERGED in found and NOT_RUN not in found
    assert len(set(found)) > 1


def test_what_an_experiment_needs_follows_from_its_runs():
    needs = {name: experiment.needs(FULL) for name, experiment in EXPERIMENTS.items()}
    assert needs["table-main"] == "15 corruptions"
    assert needs["fig-bias"] == "clean images, 15 corruptions"
    assert needs["table-time"] == "gaussian noise, an idle machine"
    assert needs["fig-theorem"] == "nothing"


def test_experiments_share_their_records():
    keys = {name: set(records_of(name, QUICK)) for name in EXPERIMENTS}
    assert keys["table-corruptions"] == keys["table-main"]
    for name in ("table-pda", "fig-histograms"):
        assert keys[name] < keys["table-main"]
    assert keys["fig-beta"] & keys["fig-ratio"] & keys["fig-ablation"] & keys["table-main"]
    shared = [each.name for each in select_experiments(["beyond"]) if keys[each.name] & keys["table-main"]]
    assert shared == ["table-streams", "fig-batch-one"]
    of_paper = [keys[each.name] for each in select_experiments(["paper"])]
    assert len(set().union(*of_paper)) < 0.55 * sum(map(len, of_paper))


def test_names_stand_for_the_papers_experiments_the_others_or_all():
    def names(*selected: str) -> list[str]:
        return [experiment.name for experiment in select_experiments(selected)]

    paper, beyond = names("paper"), names("beyond")
    assert "table-main" in paper and "table-streams" in beyond
    assert set(paper).isdisjoint(beyond)
    assert names("all") == paper + beyond == [name for name, each in EXPERIMENTS.items() if not each.defaults]
    assert names("fig-beta", "paper") == ["fig-beta", *(name for name in paper if name != "fig-beta")]
    with pytest.raises(UnknownNameError, match="table-main"):
        names("table-mian")


def test_photographs_are_seen_by_every_method_that_a_linear_head_allows():
    setup = replace(FULL)
    means, _, worst = section_of("table-photos", setup).tables
    methods = dict.fromkeys(row.name.partition(",")[0] for row in means.rows)
    assert set(ALL_METHODS) - set(methods) == {"tpt", "bat", "clipartt", "watt"}
    assert [row.name for row in worst.rows] == [row.name for row in means.rows] and len(means.rows) == 6 * len(methods)
    assert [column.title for column in means.columns] == ["plain", *(column.title for column in worst.columns)]
    few = replace(setup, methods=("tda", "tent"))
    some = section_of("table-photos", few).tables[0]
    assert some.rows == [row for row in means.rows if row.name.partition(",")[0] in few.methods]
    for name, reason in (
        ("fig-bias", "a fixed set of methods: omit --method"),
        ("table-streams", "choose from clip, tent, dmn"),
    ):
        with pytest.raises(InvalidInputError, match=reason):
            EXPERIMENTS[name].runs(replace(setup, methods=("eta",)))


def test_all_methods_are_compared_on_every_kind_of_stream():
    tables = section_of("table-all", FULL).tables
    *streams, costs = (table for table in tables if not table.of_paper)
    assert [table.title.partition(":")[0] for table in streams] == ["shuffled", "correlated", "continual", "mixed"]
    for table in (*streams, costs):
        assert [row.name for row in table.rows] == list(ALL_METHODS)
    setup = replace(FULL, methods=("clip",))
    [row] = section_of("table-all", setup).tables[3].rows
    [plain], [level] = (setup.runs(setup.series(f"clip{way}", order="mixed"), "fog") for way in ("", "+panda+level"))
    plain, level = made_up(plain), made_up(level)
    assert row.cells[4].value == pytest.approx(100 * (level.accuracy - plain.accuracy))
    assert [row.cells[index].value for index in (5, 8)] == pytest.approx([plain.bias, plain.ece])


def test_published_numbers_stand_beside_ours_where_data_and_model_are_theirs():
    setup = papers("cifar100-c-clipartt", templates="clipartt", beta="auto")
    means, corruptions = section_of("check-published", setup).tables
    clip = setup.series("clip", batch_size=128)
    fog = 100 * made_up(setup.runs(clip, "fog")[0]).accuracy
    assert corruptions.rows[0].cells[CORRUPTIONS.index("fog")].value == pytest.approx(fog - 38.00)
    ours, printed, difference = (cell.value for cell in means.rows[0].cells)
    assert printed == 29.43 and difference == pytest.approx(ours - printed)
    assert {row.name: row.cells[1].value for row in means.rows} == {"clip": 29.43, "clipartt": 41.51, "watt": 45.57}

    [means] = section_of("check-published", papers("imagenet-c")).tables
    printed = {row.name: row.cells[1].value for row in means.rows}
    assert printed["subtta"] == 32.15 and printed["bat"] == 30.06
    assert set(printed) <= set(ALL_METHODS)  # methods that are not registered are omitted
    others = [
        papers("imagenet-c", limit=5),
        papers("imagenet-c", order="continual"),
        papers("imagenet-c", templates="mint"),
        papers("imagenet-c", model="ViT-B-16:laion400m_e32"),
        papers("imagenet-c-cpu", beta="auto"),
        QUICK,
    ]
    for other in others:
        own, table = section_of("check-published", other).tables
        assert len(own.columns) == 1 and table.of_paper
        assert next(row for row in table.rows if row.name == "watt").cells[0].value == 26.18


def test_a_stream_that_joins_corruptions_is_one_run_for_each_seed():
    setup = Setup(seeds=(0, 1))
    series = setup.series("clip", order="mixed")
    assert setup.runs(series, "fog") == setup.runs(series, "snow")
    assert [config.stream.seed for config in setup.runs(series, "fog")] == [0, 1]
    runs = EXPERIMENTS["fig-continual"].runs(setup)
    assert {config.stream.corruption for config in runs} == {"all"}
    assert len(runs) == 4 * 2


def test_ways_to_debias_are_compared_with_the_plain_method_on_the_same_stream():
    setup = FULL
    means, tails, _ = section_of("table-streams", setup).tables
    results = results_of("table-streams", setup, records_of("table-streams", setup))
    row = next(row for row in means.rows if row.name == "clip, sorted")
    column = [column.title for column in means.columns].index("Δ +level")
    changes = [
        made_up(setup.runs(setup.series("clip+level", order="correlated:0"), name)[0]).accuracy
        - made_up(setup.runs(setup.series("clip", order="correlated:0"), name)[0]).accuracy
        for name in CORRUPTIONS
    ]
    assert row.cells[column].value == pytest.approx(100 * statistics.fmean(changes))
    plain = setup.series("clip", order="correlated:0")
    worst = sorted(results.cell(plain, ACCURACY, name).value for name in CORRUPTIONS)[:2]
    assert tails.rows[means.rows.index(row)].cells[0].value == pytest.approx(statistics.fmean(worst))


def test_the_worst_change_of_a_beta_is_that_of_one_corruption():
    setup = FULL
    *_, worst = section_of("table-beta", setup).tables
    plain, auto = setup.series("clip"), setup.series("clip+panda", beta="auto")
    changes = [
        made_up(setup.runs(auto, name)[0]).accuracy - made_up(setup.runs(plain, name)[0]).accuracy
        for name in CORRUPTIONS
    ]
    assert worst.rows[0].name == "clip, shuffled" and worst.columns[0].title == "Δ auto"
    assert worst.rows[0].cells[0].value == pytest.approx(100 * min(changes))


def test_betas_stand_where_their_corruption_is():
    [figure] = section_of("fig-continual").figures
    accuracies, betas = figure.panels
    assert list(accuracies.names.values())[:2] == ["gauss", "shot"]
    assert all(list(line.cells) == list(accuracies.names) for line in accuracies.lines)
    for line in betas.lines:
        places = list(line.cells)
        assert len(places) == 10 * len(CORRUPTIONS)
        assert statistics.fmean(places[:10]) == pytest.approx(0.5)  # the middle of the first corruption
        assert places[-1] < len(CORRUPTIONS)


def test_seeds_change_every_run_and_methods_share_them():
    runs = EXPERIMENTS["table-main"].runs(Setup(seeds=(3, 7)))
    by_method: dict[str, set[tuple[str, int]]] = {}
    for config in runs:
        by_method.setdefault(config.method.name, set()).add((config.stream.corruption, config.stream.seed))
    assert len(by_method) == 2 * len(METHODS)
    assert all(places == {(c, s) for c in CORRUPTIONS for s in (3, 7)} for places in by_method.values())


def test_means_and_spreads_are_over_seeds():
    setup = Setup(seeds=(0, 1, 2))
    series = setup.series("clip")
    records = records_of("fig-histograms", setup)
    found = results_of("fig-histograms", setup, records).cell(series, ACCURACY)
    by_seed = [
        100 * statistics.fmean(made_up(setup.runs(series, c)[seed]).accuracy for c in CORRUPTIONS) for seed in range(3)
    ]
    assert found.value == pytest.approx(statistics.fmean(by_seed))
    assert found.sd == pytest.approx(statistics.stdev(by_seed))
    records.pop(setup.runs(series, "fog")[2].key)
    results = results_of("fig-histograms", setup, records)
    assert results.cell(series, ACCURACY) == Cell()
    assert results.cell(series, ACCURACY, "snow").value is not None


def test_the_papers_beta_needs_a_benchmark():
    with pytest.raises(InvalidInputError, match="--preset"):
        Setup(beta="paper")
    with pytest.raises(InvalidInputError, match="number"):
        Setup(beta=math.nan)
    setup = papers()
    assert setup.method(setup.series("tent+panda")).options["beta"] == 0.6
    assert setup.benchmark == "cifar10-c"
    assert Setup(beta=0.3).method(Setup(beta=0.3).series("tent+panda")).options["beta"] == 0.3


def test_settings_go_to_every_method_that_has_them():
    setup = Setup(settings={"lr": 0.5, "ratio": 0.2})
    found = {name: setup.method(setup.series(name)).options for name in ("clip", "tent", "tent+panda")}
    assert "lr" not in found["clip"] and found["tent"]["lr"] == 0.5 and "ratio" not in found["tent"]
    assert (found["tent+panda"]["lr"], found["tent+panda"]["ratio"]) == (0.5, 0.2)
    assert setup.method(setup.series("tent", lr=0.1)).options["lr"] == 0.1  # what an experiment varies goes first
    with pytest.raises(UnknownNameError, match="'lr'"):
        Setup(settings={"lrr": 1})


def test_the_best_of_the_grid_is_the_best_and_says_on_what_it_was_chosen():
    for methods in ((), ("eta",)):
        setup = Setup(seeds=(0,), methods=methods)
        records = records_of("fig-beta", setup)
        _, choices = section_of("fig-beta", setup, records).tables
        assert "best of grid, chosen on test labels" in [column.title for column in choices.columns]
        assert [row.name for row in choices.rows] == list(methods or ("clip", "tent"))
        results = results_of("fig-beta", setup, records)
        for row in choices.rows:
            series = {beta: setup.series(f"{row.name}+panda", beta=beta) for beta in BETA_GRID}
            means = {beta: results.cell(each, ACCURACY).value for beta, each in series.items()}
            assert row.cells[3].value == max(means.values())
            assert means[row.cells[5].value] == row.cells[3].value


def test_the_papers_numbers():
    assert printed_accuracy("cifar10-c", "tent+panda") == Cell(71.1, 0.1)
    assert printed_accuracy("imagenet-c", "deyo", "elastic_transform") == Cell(2.4, 0.3)
    assert printed_accuracy("cifar100-c", "deyo+offset") == Cell(43.3, 0.1)
    assert printed_accuracy(None, "tent") is None
    for benchmark in BACKBONES:
        for method in METHODS:
            for row in (method, f"{method}+panda"):
                every = [printed_accuracy(benchmark, row, name).value for name in CORRUPTIONS]
                mean = printed_accuracy(benchmark, row, MEAN).value
                assert statistics.fmean(every) == pytest.approx(mean, abs=0.35), (benchmark, row)


def test_the_papers_numbers_stand_beside_ours_where_the_setting_is_the_papers():
    setup = papers()
    for name in ("table-main", "table-corruptions", "table-pda", "table-nda"):
        result = section_of(name, setup)
        assert not any(table.of_paper for table in result.tables)
        assert any(cell.paper for row in result.tables[0].rows for cell in row.cells)
        embedded = section_of(name)
        assert any(table.of_paper for table in embedded.tables)
        assert not any(cell.paper for table in embedded.tables for row in table.rows for cell in row.cells)
    [tent] = [row for row in section_of("table-main", setup).tables[0].rows if row.name == "tent"]
    assert [cell.paper for cell in tent.cells] == [Cell(62.8, 0.1), Cell(71.1, 0.1), Cell(8.3)]
    page = page_of(Part("", [replace(section_of("table-main", setup), figures=())]))
    assert "paper 71.1 ± 0.1" in page


@pytest.mark.parametrize(
    "change",
    [
        {"limit": 5},
        {"quick": True},
        {"protocol": "reference"},
        {"preset": PRESETS["cifar100-c"]},
        {"model": "ViT-B-16:openai"},
        {"model": "ViT-B-32-quickgelu:laion400m_e32"},
        {"data": "cifar100-c"},
        {"settings": {"lr": 1.0}},
        {"precision": "bf16"},
        {"preprocess": "exact"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_another_setting_is_not_the_papers(change):
    assert papers(model="ViT-B-32:openai").benchmark == "cifar10-c"  # with QuickGELU, since OpenAI's
    assert papers(**change).benchmark is None


def test_data_that_were_made_here_are_not_the_papers(tmp_path):
    note = {"severities": [5], "seed": 0}
    write_cifar_c(tmp_path)
    for corruption in CORRUPTIONS:
        (tmp_path / "CIFAR-10-C" / f"{corruption}.json").write_text(json.dumps(note))
    assert papers(sources=Sources(PRESETS["cifar10-c"].model, tmp_path)).benchmark is None


def test_the_papers_panda_numbers_stand_only_beside_its_way_to_choose_beta():
    for beta, expected in (("paper", [True, True]), (0.3, [True, False]), ("auto", [True, False])):
        setup = papers(beta=beta)
        row = section_of("table-main", setup).tables[0].rows[0]
        assert [cell.paper is not None for cell in row.cells[:2]] == expected


def test_passes_are_counted_by_image_whatever_the_last_batch():
    setup = Setup(seeds=(0,), stream=replace(EMBEDDED, limit=250))
    passes = {"images": 2500 / 3, "images_with_gradient": 0, "texts": 0, "texts_with_gradient": 0}
    change = {"samples": 250, "passes": passes}
    records = {key: record.model_copy(update=change) for key, record in records_of("table-pda", setup).items()}
    table = section_of("table-pda", setup, records).tables[0]
    assert table.rows[0].cells[-1].value == pytest.approx(10)


def test_batches_larger_than_the_stream_are_not_shown_twice():
    for limit, sizes in ((50, [5, 10, 20, 50]), (60, [5, 10, 20, 50, 100])):
        runs = EXPERIMENTS["fig-batch-size"].runs(Setup(seeds=(0,), stream=replace(EMBEDDED, limit=limit)))
        assert sorted({config.stream.batch_size for config in runs}) == sizes


def test_several_benchmarks_are_parts_of_one_page():
    parts = [
        Part(data, [replace(section_of("table-main", papers(data)), figures=())])
        for data in ("cifar100-c", "imagenet-c")
    ]
    page = page_of(*parts)
    for anchor in ("cifar100-c-table-main", "imagenet-c-table-main"):
        assert f'id="{anchor}"' in page and f'href="#{anchor}"' in page


TABLE = Table(
    "50 % & more",
    "method",
    [Column("plain", better="higher"), Column("Δ", 1, "higher", True)],
    [Row("a_b", [Cell(12.34, 0.56, Cell(10.0, 0.1)), Cell(-0.04)]), Row("c", [Cell(), Cell(1.0)])],
)


def test_tables_as_csv_markdown_and_latex():
    header, first, second = csv.reader(io.StringIO(to_csv(TABLE)))
    assert header == ["method", "plain", "plain s.d.", "plain (paper)", "plain (paper) s.d.", "Δ"]
    assert first == ["a_b", "12.340000", "0.560000", "10.000000", "0.100000", "-0.040000"]
    assert second == ["c", NOT_RUN, "", "", "", "1.000000"]
    markdown = to_markdown(TABLE)
    assert "| a_b | 12.3 ± 0.6 (paper 10.0 ± 0.1) | +0.0 |" in markdown
    assert "| c | not run | +1.0 |" in markdown
    latex = to_latex(TABLE)
    assert r"a\_b & 12.3 {\scriptsize $\pm$ 0.6} [10.0 {\scriptsize $\pm$ 0.1}] & +0.0 \\" in latex
    assert r"50 \% \& more" in latex and r"\toprule" in latex and "not run" in latex


def test_files_of_every_kind_of_figure(tmp_path):
    two = {1: Cell(1.0, 0.1), 10: Cell()}
    lines = [Line(kind, two, hue, kind) for hue, kind in enumerate(("line", "curve", "level", "points"))]
    panels = [Panel("x", "y", lines, log_x=True), Panel("x", "y", lines[1:], names={1: "one", 10: "ten"})]
    figures = [
        LineFigure("caption", panels),
        DotFigure("caption", "x", TABLE, ("level", 0.5)),
        HistogramFigure("caption", ["k"], ["one", "two"], {str(i): [[1, 2], [2, 1]] for i in range(5)}),
    ]

    def write(folder: str, figures: list[Figure]) -> dict[str, bytes]:
        section = Section([TABLE], figures, name="fig", title="title")
        paths = write_tables(section, tmp_path / folder) + write_figures(section, tmp_path / folder)
        return {path.name: path.read_bytes() for path in paths}

    written = write("once", figures)
    drawings = ("fig-1", "fig-2", "fig-3", "fig-4", "fig-5")
    assert written.keys() == {f"{name}.{suffix}" for name in drawings for suffix in ("svg", "png", "pdf")} | {
        "fig.csv",
        "fig.md",
        "fig.tex",
    }
    starts = {"svg": b"<?xml", "png": b"\x89PNG", "pdf": b"%PDF"}
    assert all(content.startswith(starts.get(name.split(".")[1], b"")) for name, content in written.items())
    again = write("again", figures[1:2])
    assert all(again[f"fig.{suffix}"] == written[f"fig-3.{suffix}"] for suffix in starts)


@pytest.mark.parametrize("width", [60, 80, 120, 300])
def test_narrow_terminals_cut_tables_but_no_numbers(width):
    columns = [Column(f"benchmark-c: column {index}") for index in range(16)]
    row = Row("a rather long name", [Cell(100.0 + index, 0.5, Cell(50.0 + index)) for index in range(16)])
    console = Console(width=width, record=True, file=io.StringIO())
    print_tables(console, "title", [Table("wide", "method", columns, [row])])
    shown = console.export_text().split()
    assert {f"{value}.0" for value in range(100, 116)} | {f"{value}.0" for value in range(50, 66)} <= set(shown)
    assert shown.count("rather") == shown.count("paper")  # every piece names its rows
    assert (shown.count("paper") == 1) == (width == 300)
    assert shown.count("benchmark-c:") == 16 and {str(index) for index in range(16)} <= set(shown)
    assert "…" not in "".join(shown)
