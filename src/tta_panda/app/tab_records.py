"""The tab of results: tables of a folder of records, or of what differs between two."""

from __future__ import annotations

from typing import Any

import gradio as gr

from tta_panda.app.handlers import NO_PROGRESS, sentences
from tta_panda.app.records import Folder, as_grid, difference
from tta_panda.app.shown import record_classes
from tta_panda.errors import DataError
from tta_panda.reporting.tables import Table

Folders = tuple[Folder, ...]
"""One, or two that are compared."""


def add_records_tab() -> None:
    """Fields and tables, and what happens when they are used."""
    folders = gr.State(())
    with gr.Row():
        path = gr.Textbox("runs", label="Folder of records", min_width=200)
        other = gr.Textbox("", label="Compare with another folder", placeholder="none", min_width=200)
        read = gr.Button("Open", variant="primary", min_width=90, scale=0)
    with gr.Row():
        title = gr.Dropdown([], label="Setting", min_width=200)
        table = gr.Dropdown([], label="Table", min_width=200)
    grid = gr.Dataframe(
        label="Click a header, then ⋮, to sort; click a cell to see its record",
        interactive=False,
        type="array",
        pinned_columns=1,
        max_height=800,
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


@sentences
def _open(path: str, other: str) -> tuple[Any, ...]:
    folders = tuple(Folder.read(each.strip()) for each in (path, other) if each.strip())
    if not folders:
        raise DataError("Name a folder of records, as tta-panda bench writes it: runs.")
    titles = [title for title in folders[0].comparisons if all(title in folder.comparisons for folder in folders)]
    if not titles:
        raise DataError(f"{path} and {other} have no setting in common, so that there is nothing to compare.")
    return folders, gr.update(choices=titles, value=titles[0]), *_choose_setting(folders, titles[0])


def _choose_setting(folders: Folders, title: str) -> tuple[Any, Any]:
    tables = [folder.tables(title) for folder in folders]
    names = [name for name in tables[0] if all(name in each for each in tables)]
    return gr.update(choices=names, value=names[0]), _choose_table(folders, title, names[0])


def _choose_table(folders: Folders, title: str, name: str) -> Any:
    return as_grid(_table(folders, title, name))


def _table(folders: Folders, title: str, name: str) -> Table:
    """As it is, or, of two folders, what differs."""
    found = [folder.tables(title)[name] for folder in folders]
    return found[0] if len(found) == 1 else difference(*found)


def _choose_cell(folders: Folders, title: str, name: str, chosen: gr.SelectData) -> tuple[str, Any]:
    """The histograms and records behind a cell."""
    place = chosen.index[1] - 1
    label = _table(folders, title, name).columns[place].title if place >= 0 else ""
    corruption = str(chosen.row_value[0])
    records = [record for folder in folders for record in folder.records(title, corruption, label)]
    if not records:
        return "<p>A cell of one corruption and one method has a record; this one has none.</p>", gr.update(
            visible=False
        )
    shown = "".join(record_classes(record, corruption) for record in records)
    return shown, gr.update(value=[row for record in records for row in record.rows()], visible=True)
