"""Tables as CSV, Markdown and LaTeX."""

from __future__ import annotations

from tta_panda.escapes import csv_text, latex_text, markdown_text
from tta_panda.files import csv_line
from tta_panda.reporting.text import TextCell, to_text
from tta_panda.results.table import Table


def to_csv(table: Table) -> str:
    """Numbers with six decimals; beside each column its s.d. or margin and the paper's, where there are any."""
    titles = [column.title for column in table.columns]
    columns = [(table.rows_are, [csv_text(row.name) for row in table.rows])]
    for index, title in enumerate(titles):
        # Columns of differences share a title; in a file, each says what it belongs to.
        title = f"{title} {titles[index - 1]}" if titles.count(title) > 1 else title
        cells = [row.cells[index] for row in table.rows]
        columns.append((title, [cell.why_empty if cell.value is None else _six(cell.value) for cell in cells]))
        if any(cell.sd is not None for cell in cells):
            columns.append((f"{title} s.d.", [_six(cell.sd) for cell in cells]))
        if any(cell.margin is not None for cell in cells):
            columns.append((f"{title} margin", [_six(cell.margin) for cell in cells]))
        if any(cell.paper for cell in cells):
            columns.append((f"{title} (paper)", [_six(cell.paper and cell.paper.value) for cell in cells]))
            columns.append((f"{title} (paper) s.d.", [_six(cell.paper and cell.paper.sd) for cell in cells]))
    head = csv_line(csv_text(title) for title, _ in columns)
    return head + "".join(map(csv_line, zip(*(values for _, values in columns), strict=True)))


def _six(value: float | None) -> str:
    return "" if value is None else f"{round(value, 6) + 0.0:.6f}"


def to_markdown(table: Table) -> str:
    text = to_text(table)
    headers = [markdown_text(title) for title in (text.rows_are, *text.headers)]
    lines = [
        f"**{markdown_text(text.title)}**",
        "",
        "| " + " | ".join(headers) + " |",
        "|" + "|".join(["---", *("---:" for _ in text.headers)]) + "|",
    ]
    for row in text.rows:
        cells = [f"{cell.full} (paper {cell.paper.full})" if cell.paper else cell.full for cell in row.cells]
        lines.append("| " + " | ".join([markdown_text(row.name), *cells]) + " |")
    return "\n".join(lines + (["", markdown_text(table.note)] if table.note else [])) + "\n"


def to_latex(table: Table) -> str:
    """A `booktabs` table; the paper's numbers stand in brackets."""
    text = to_text(table)
    has_paper = any(cell.paper for row in text.rows for cell in row.cells)
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
    for index, row in enumerate(text.rows):
        if index and (row.group or row.is_mean):
            lines.append("\\midrule")
        lines.append(" & ".join([latex_text(row.name), *map(_latex_cell, row.cells)]) + " \\\\")
    lines += ["\\bottomrule", "\\end{tabular}", f"\\caption{{{latex_text(caption)}.}}"]
    lines += [f"\\par\\footnotesize {latex_text(table.note)}"] if table.note else []
    return "\n".join([*lines, "\\end{table}"]) + "\n"


def _latex_cell(cell: TextCell) -> str:
    shown = f"\\emph{{{latex_text(cell.text)}}}" if cell.kind == "missing" else cell.text.replace("-", "$-$")
    shown += f" {{\\scriptsize {latex_text(cell.spread)}}}" if cell.spread else ""
    return f"{shown} [{_latex_cell(cell.paper)}]" if cell.paper else shown
