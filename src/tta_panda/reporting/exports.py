"""Tables as CSV, Markdown and LaTeX."""

from __future__ import annotations

import csv
import io

from tta_panda.reporting.text import number, spread, to_text
from tta_panda.results.table import Cell, Column, Table

_LATEX = {"\\": r"\textbackslash{}", "±": r"$\pm$", "Δ": r"$\Delta$", "~": r"\textasciitilde{}", "^": r"\^{}"}
_LATEX |= {character: f"\\{character}" for character in "&%$#_{}"}


def to_csv(table: Table) -> str:
    """Numbers with six decimals; beside each column its s.d. and the paper's numbers, where there are any."""
    titles = [column.title for column in table.columns]
    columns = [(table.rows_are, [row.name for row in table.rows])]
    for index, title in enumerate(titles):
        # Columns of differences share a title; in a file, each says what it belongs to.
        title = f"{title} {titles[index - 1]}" if titles.count(title) > 1 else title
        cells = [row.cells[index] for row in table.rows]
        columns.append((title, [cell.why_empty if cell.value is None else _six(cell.value) for cell in cells]))
        if any(cell.sd is not None for cell in cells):
            columns.append((f"{title} s.d.", [_six(cell.sd) for cell in cells]))
        if any(cell.paper for cell in cells):
            columns.append((f"{title} (paper)", [_six(cell.paper and cell.paper.value) for cell in cells]))
            columns.append((f"{title} (paper) s.d.", [_six(cell.paper and cell.paper.sd) for cell in cells]))
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([title for title, _ in columns])
    writer.writerows(zip(*(values for _, values in columns), strict=True))
    return out.getvalue()


def _six(value: float | None) -> str:
    return "" if value is None else f"{round(value, 6) + 0.0:.6f}"


def to_markdown(table: Table) -> str:
    text = to_text(table)
    lines = [
        f"**{text.title}**",
        "",
        "| " + " | ".join([text.rows_are, *text.headers]) + " |",
        "|" + "|".join(["---", *("---:" for _ in text.headers)]) + "|",
    ]
    for row in text.rows:
        cells = [f"{cell.full} (paper {cell.paper.full})" if cell.paper else cell.full for cell in row.cells]
        lines.append("| " + " | ".join(shown.replace("|", "\\|") for shown in [row.name, *cells]) + " |")
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
    text = f"\\emph{{{cell.why_empty}}}" if cell.value is None else _latex_number(cell.value, cell.sd, column)
    if cell.paper is None:
        return text
    return f"{text} [{_latex_number(cell.paper.value, cell.paper.sd, column)}]"


def _latex_number(value: float, sd: float | None, column: Column) -> str:
    shown = number(value, column).replace("-", "$-$")
    return shown + (f" {{\\scriptsize {latex_text(spread(sd, column))}}}" if sd is not None else "")


def latex_text(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in text)
