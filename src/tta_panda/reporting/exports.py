"""Write the files of a section: tables as CSV, Markdown and LaTeX, figures as SVG, PNG and PDF."""

from __future__ import annotations

from pathlib import Path

from tta_panda.escapes import csv_text, latex_text, markdown_text
from tta_panda.files import csv_line, save_file
from tta_panda.reporting.cells import Cell
from tta_panda.reporting.figures import FORMATS, to_bytes
from tta_panda.reporting.page import Section
from tta_panda.reporting.tables import Column, Table, spread_notes


def to_csv(table: Table) -> str:
    """Format a table as CSV with six decimals; s.d., margins and the paper's numbers, if any, are extra columns."""
    titles = [column.title for column in table.columns]
    columns = [(table.rows_are, [csv_text(row.name) for row in table.rows])]
    for index, title in enumerate(titles):
        # Columns of differences share a title, so the title of the column before is added.
        title = f"{title} {titles[index - 1]}" if titles.count(title) > 1 else title
        cells = [row.cells[index] for row in table.rows]
        columns.append((title, [cell.why_empty if cell.value is None else _six_decimals(cell.value) for cell in cells]))
        if any(cell.sd is not None for cell in cells):
            columns.append((f"{title} s.d.", [_six_decimals(cell.sd) for cell in cells]))
        if any(cell.margin is not None for cell in cells):
            columns.append((f"{title} margin", [_six_decimals(cell.margin) for cell in cells]))
        if any(cell.paper for cell in cells):
            printed = [cell.paper or Cell() for cell in cells]
            columns.append((f"{title} (paper)", [_six_decimals(cell.value) for cell in printed]))
            columns.append((f"{title} (paper) s.d.", [_six_decimals(cell.sd) for cell in printed]))
    head = csv_line(csv_text(title) for title, _ in columns)
    return head + "".join(map(csv_line, zip(*(values for _, values in columns), strict=True)))


def _six_decimals(value: float | None) -> str:
    return "" if value is None else f"{round(value, 6) + 0.0:.6f}"


def to_markdown(table: Table, notes: bool = True) -> str:
    headers = [markdown_text(title) for title in (table.rows_are, *(column.title for column in table.columns))]
    lines = [
        f"**{markdown_text(table.title)}**",
        "",
        "| " + " | ".join(headers) + " |",
        "|" + "|".join(["---", *("---:" for _ in table.columns)]) + "|",
    ]
    for row in table.rows:
        cells = [_markdown_cell(column, cell) for column, cell in table.items(row)]
        lines.append("| " + " | ".join([markdown_text(row.name), *cells]) + " |")
    for note in _notes(table) if notes else []:
        lines += ["", markdown_text(note)]
    return "\n".join(lines) + "\n"


def _markdown_cell(column: Column, cell: Cell) -> str:
    text = column.full_text(cell)
    return f"{text} (paper {column.full_text(cell.paper)})" if cell.paper else text


def to_latex(table: Table) -> str:
    """Format a table as LaTeX with `booktabs`; the paper's numbers are in brackets."""
    has_paper = any(cell.paper for row in table.rows for cell in row.cells)
    caption = table.title + (". In brackets: the paper's numbers" if has_paper else "")
    lines = [
        "% \\usepackage{booktabs}",
        "\\begin{table}",
        "\\centering",
        f"\\begin{{tabular}}{{l{'r' * len(table.columns)}}}",
        "\\toprule",
        " & ".join(map(latex_text, [table.rows_are, *(column.title for column in table.columns)])) + " \\\\",
        "\\midrule",
    ]
    for index, row in enumerate(table.rows):
        if index and (row.group or row.is_mean):
            lines.append("\\midrule")
        cells = [_latex_cell(column, cell) for column, cell in table.items(row)]
        lines.append(" & ".join([latex_text(row.name), *cells]) + " \\\\")
    lines += ["\\bottomrule", "\\end{tabular}", f"\\caption{{{latex_text(caption)}.}}"]
    lines += [f"\\par\\footnotesize {latex_text(note)}" for note in _notes(table)]
    return "\n".join([*lines, "\\end{table}"]) + "\n"


def _latex_cell(column: Column, cell: Cell) -> str:
    text, spread = column.text(cell), column.spread(cell)
    shown = f"\\emph{{{latex_text(text)}}}" if cell.value is None else text.replace("-", "$-$")
    shown += f" {{\\scriptsize {latex_text(spread)}}}" if spread else ""
    return f"{shown} [{_latex_cell(column, cell.paper)}]" if cell.paper else shown


def _notes(table: Table) -> list[str]:
    return [note for note in (table.note, " ".join(spread_notes([table]))) if note]


def write_tables(section: Section, folder: Path) -> list[Path]:
    """Write tables as CSV, Markdown and LaTeX."""
    writers = {"csv": to_csv, "md": to_markdown, "tex": to_latex}
    return [
        save_file(folder / f"{section.name}{table.name and f'-{table.name}'}.{suffix}", write(table))
        for table in section.tables
        for suffix, write in writers.items()
    ]


def write_figures(section: Section, folder: Path) -> list[Path]:
    """Write figures as SVG, PNG and PDF, numbered if there are several drawings."""
    drawings = [drawing for _, several in section.drawings for drawing in several]
    return [
        save_file(folder / f"{section.name}{f'-{number}' if drawings[1:] else ''}.{suffix}", to_bytes(drawing, suffix))
        for number, drawing in enumerate(drawings, 1)
        for suffix in FORMATS
    ]
