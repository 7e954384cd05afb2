"""The tab for results: tables of a folder of records to sort, or to compare with another folder."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import gradio as gr

from tta_panda.app.common import LABELS, NO_PROGRESS, errors_shown
from tta_panda.app.drawing import Series, class_table
from tta_panda.errors import DataError
from tta_panda.evaluation.record import RunRecord
from tta_panda.evaluation.store import RunStore
from tta_panda.files import expand
from tta_panda.reporting.cells import ACCURACY, BIAS, CALIBRATION, LIKELIHOOD, Cell
from tta_panda.reporting.comparison import Comparison, corruption_table, read_comparisons
from tta_panda.reporting.figures import PANDA_COLOUR
from tta_panda.reporting.tables import Column, Row, Table

HEAT = "0, 114, 178"
COLOURS = {"better": "0, 158, 115", "worse": "213, 94, 0"}
Folders = tuple[dict[str, Comparison], ...]
"""The comparisons of a folder by setting; two folders if they are compared."""


def read_folder(folder: str) -> dict[str, Comparison]:
    """Read the comparisons of a folder of records, by setting."""
    _, comparisons = read_comparisons(RunStore(expand(folder)))
    return {each.title: each for each in comparisons}


@lru_cache(maxsize=8)
def tables_of(comparison: Comparison) -> dict[str, Table]:
    """The tables of a setting by title, those with a row per corruption first."""
    by_corruption = [corruption_table(comparison, each) for each in (ACCURACY, BIAS, CALIBRATION, LIKELIHOOD)]
    others = [table for table in comparison.tables() if table.rows_are != "corruption"]
    return {table.title: table for table in (*by_corruption, *others)}


def records_of(comparison: Comparison, corruption: str, label: str) -> list[RunRecord]:
    """The records behind a cell, one per seed."""
    found = (method for method in comparison.methods if comparison.label(method) == label)
    return [record for method in found for record in comparison.records(method, corruption)]


def difference(table: Table, other: Table) -> Table:
    """Subtract `other` from `table`, for the rows and columns that both have."""
    places = {column.title: place for place, column in enumerate(other.columns)}
    rows = {row.name: row for row in other.rows}
    shared = [place for place, column in enumerate(table.columns) if column.title in places and not column.is_delta]
    columns = [replace(table.columns[place], is_delta=True) for place in shared]

    def subtracted(row: Row) -> Row:
        theirs = rows[row.name].cells
        return row._replace(cells=[row.cells[p] - theirs[places[table.columns[p].title]] for p in shared])

    return replace(table, columns=columns, rows=[subtracted(row) for row in table.rows if row.name in rows])


def as_grid(table: Table) -> dict[str, Any]:
    """Convert a table to the value of a `gr.Dataframe`: headers, numbers to sort by, and their texts and colours."""
    cells = [item for row in table.rows for item in table.items(row)]
    levels = [cell.value for column, cell in cells if cell.value is not None and not column.is_delta]
    span = min(levels, default=0.0), max(levels, default=0.0)
    texts = [[row.name, *(column.full_text(cell) for column, cell in table.items(row))] for row in table.rows]
    styling = [["", *(_style(column, cell, table, span) for column, cell in table.items(row))] for row in table.rows]
    return {
        "headers": [table.rows_are, *(column.title for column in table.columns)],
        "data": [[row.name, *(cell.value for cell in row.cells)] for row in table.rows],
        "metadata": {"display_value": texts, "styling": styling},
    }


def _style(column: Column, cell: Cell, table: Table, span: tuple[float, float]) -> str:
    """CSS for a cell: differences by whether they are better, numbers of a corruption by their size."""
    if column.is_delta:
        kind = column.kind(cell)
        return f"background-color: rgba({COLOURS[kind]}, 0.35)" if kind in COLOURS else ""
    low, high = span
    if table.rows_are != "corruption" or cell.value is None or high == low:
        return ""
    return f"background-color: rgba({HEAT}, {0.6 * (cell.value - low) / (high - low):.2f})"


def render_record(record: RunRecord, corruption: str) -> str:
    """Render how often each class was predicted in a run, and how often it occurred."""
    measured = record.by_corruption[corruption]
    columns = {
        record.config.method.name: Series(measured.predicted_counts, PANDA_COLOUR),
        LABELS: Series(measured.label_counts),
    }
    title = f"{record.config.method.name} on {corruption}, seed {record.config.stream.seed}"
    return class_table(title, record.class_names, columns)


def add_records_tab() -> None:
    """Build the tab for results."""
    folders = gr.State(())
    with gr.Row():
        path = gr.Textbox("runs", label="Folder of records", min_width=200)
        other = gr.Textbox("", label="Compare with another folder", placeholder="none", min_width=200)
        read = gr.Button("Open", variant="primary", min_width=90, scale=0)
    with gr.Row():
        title = gr.Dropdown([], label="Setting", min_width=200, visible=False)
        table = gr.Dropdown([], label="Table", min_width=200, visible=False)
    grid = gr.Dataframe(
        label="Click a header, then ⋮, to sort; click a cell to see its record",
        interactive=False,
        type="array",
        pinned_columns=1,
        max_height=800,
        visible=False,  # until there is a table
    )
    with gr.Row():
        classes = gr.HTML(min_width=300, elem_id="record-classes")
        record = gr.JSON(label="Record", min_width=300, visible=False)

    gr.on(
        [read.click, path.submit, other.submit],
        _open,
        [path, other],
        [folders, title, table, grid],
        show_progress_on=[grid],
    )
    title.input(_choose_setting, [folders, title], [table, grid], **NO_PROGRESS)
    table.input(_choose_table, [folders, title, table], grid, **NO_PROGRESS)
    grid.select(_choose_cell, [folders, title, table], [classes, record], **NO_PROGRESS)


@errors_shown()
def _open(path: str, other: str) -> tuple[Any, ...]:
    folders = tuple(read_folder(each.strip()) for each in (path, other) if each.strip())
    if not folders:
        raise DataError("Enter a folder of records that tta-panda bench wrote, such as runs.")
    titles = [title for title in folders[0] if all(title in folder for folder in folders)]
    if not titles:
        raise DataError(f"{path} and {other} have no setting in common: there is nothing to compare.")
    return folders, gr.update(choices=titles, value=titles[0], visible=True), *_choose_setting(folders, titles[0])


def _choose_setting(folders: Folders, title: str) -> tuple[Any, Any]:
    tables = [tables_of(folder[title]) for folder in folders]
    names = [name for name in tables[0] if all(name in each for each in tables)]
    return gr.update(choices=names, value=names[0], visible=True), _choose_table(folders, title, names[0])


def _choose_table(folders: Folders, title: str, name: str) -> Any:
    return gr.update(value=as_grid(_table(folders, title, name)), visible=True)


def _table(folders: Folders, title: str, name: str) -> Table:
    """The table of one folder, or the difference between two folders."""
    found = [tables_of(folder[title])[name] for folder in folders]
    return found[0] if len(found) == 1 else difference(*found)


def _choose_cell(folders: Folders, title: str, name: str, chosen: gr.SelectData) -> tuple[str, Any]:
    """Show the histograms and records behind a cell."""
    place = chosen.index[1] - 1
    label = _table(folders, title, name).columns[place].title if place >= 0 else ""
    corruption = str(chosen.row_value[0])
    records = [record for folder in folders for record in records_of(folder[title], corruption, label)]
    if not records:
        return "<p>This cell has no record of its own: click one for a single corruption and method.</p>", gr.update(
            visible=False
        )
    shown = "".join(render_record(record, corruption) for record in records)
    return shown, gr.update(value=[row for record in records for row in record.rows()], visible=True)
