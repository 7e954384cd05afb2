"""Tables of experiments as CSV, Markdown and LaTeX."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable

from tta_panda.experiments.results import Cell, Column, Table
from tta_panda.reporting.cells import NOT_RUN, grid_of, number, spread

_LATEX = {"\\": r"\textbackslash{}", "±": r"$\pm$", "Δ": r"$\Delta$", "~": r"\textasciitilde{}", "^": r"\^{}"}
_LATEX |= {character: f"\\{character}" for character in "&%$#_{}"}


def to_csv(table: Table) -> str:
    """Numbers as they were computed, six decimals; beside each column its s.d. and the paper's, where there are any."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    parts: list[tuple[str, int, Callable[[Cell], float | None]]] = []
    for index, column in enumerate(table.columns):
        title = _unique(column.title, table.columns[:index])
        cells = [row.cells[index] for row in table.rows]
        parts.append((title, index, lambda cell: cell.value))
        if any(cell.sd is not None for cell in cells):
            parts.append((f"{title} s.d.", index, lambda cell: cell.sd))
        if any(cell.paper is not None for cell in cells):
            parts.append((f"{title} (paper)", index, lambda cell: cell.paper.value if cell.paper else None))
            parts.append((f"{title} (paper) s.d.", index, lambda cell: cell.paper.sd if cell.paper else None))
    writer.writerow([table.rows_are, *(title for title, _, _ in parts)])
    for row in table.rows:
        writer.writerow([row.name, *(_csv_number(row.cells[index], get) for _, index, get in parts)])
    return out.getvalue()


def _unique(title: str, before: object) -> str:
    """Columns of differences share a title; in a file each says what it follows."""
    columns = [column for column in before if isinstance(column, Column)] if isinstance(before, (list, tuple)) else []
    return f"{title} {columns[-1].title}" if any(column.title == title for column in columns) else title


def _csv_number(cell: Cell, get: Callable[[Cell], float | None]) -> str:
    value = get(cell)
    if value is None:
        return NOT_RUN if cell.value is None and get(Cell(1.0, 1.0)) is not None else ""
    return f"{round(value, 6) + 0.0:g}" if abs(value) < 1e-4 else f"{value:.6f}"


def to_markdown(table: Table) -> str:
    grid = grid_of(table)
    lines = [
        f"**{grid.title}**",
        "",
        "| " + " | ".join([grid.rows_are, *grid.headers]) + " |",
        "|" + "|".join(["---", *("---:" for _ in grid.headers)]) + "|",
    ]
    for row in grid.rows:
        cells = [f"{cell.text} ({cell.paper})" if cell.paper else cell.text for cell in row.cells]
        lines.append("| " + " | ".join(text.replace("|", "\\|") for text in [row.name, *cells]) + " |")
    return "\n".join(lines + (["", table.note] if table.note else [])) + "\n"


def to_latex(table: Table) -> str:
    """A `booktabs` table; the paper's numbers stand in brackets."""
    has_paper = any(cell.paper for row in table.rows for cell in row.cells)
    caption = table.title + (". In brackets: the paper's own numbers" if has_paper else "")
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
        cells = [_latex_cell(cell, column) for cell, column in zip(row.cells, table.columns, strict=True)]
        lines.append(" & ".join([latex_text(row.name), *cells]) + " \\\\")
    lines += ["\\bottomrule", "\\end{tabular}", f"\\caption{{{latex_text(caption)}.}}"]
    lines += [f"\\par\\footnotesize {latex_text(table.note)}"] if table.note else []
    return "\n".join([*lines, "\\end{table}"]) + "\n"


def _latex_cell(cell: Cell, column: Column) -> str:
    text = f"\\emph{{{NOT_RUN}}}" if cell.value is None else _latex_number(cell.value, cell.sd, column)
    if cell.paper is None:
        return text
    return f"{text} [{_latex_number(cell.paper.value, cell.paper.sd, column)}]"


def _latex_number(value: float, sd: float | None, column: Column) -> str:
    shown = number(value, column).replace("-", "$-$")
    return shown + (f" {{\\scriptsize {latex_text(spread(sd, column).strip())}}}" if sd is not None else "")


def latex_text(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in text)
