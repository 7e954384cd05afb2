"""Rows of a table, as dictionaries, in files: CSV, JSON lines or Parquet."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tta_panda.atomic import save_file
from tta_panda.errors import UnknownNameError, missing_extra
from tta_panda.escapes import csv_text

Row = Mapping[str, Any]


def flat(row: Row) -> dict[str, Any]:
    """The row without nesting: `{"options": {"lr": 1}}` as `{"options.lr": 1}`, and lists as JSON."""
    cells: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, Mapping):
            cells |= {f"{name}.{key}": inner for key, inner in flat(value).items()}
        else:
            cells[name] = json.dumps(value) if isinstance(value, list | tuple) else value
    return cells


def write_rows(path: Path, rows: Sequence[Row], kind: str | None = None) -> Path:
    """Write flat rows as the path's suffix says, or as `kind`: csv, jsonl or parquet."""
    kind = kind or path.suffix.removeprefix(".")
    if kind not in _ENCODERS:
        raise UnknownNameError("kind of file", kind, _ENCODERS)
    return save_file(path, _ENCODERS[kind](rows))


def _columns(rows: Sequence[Row]) -> list[str]:
    """Of all rows, which need not have the same."""
    return list(dict.fromkeys(name for row in rows for name in row))


def csv_line(cells: Iterable[Any]) -> str:
    """One line of a CSV file, with the cells as they are; `csv_cell` makes them safe."""
    line = io.StringIO()
    # This end of lines, which is replaced below, makes the writer quote carriage returns.
    csv.writer(line, lineterminator="\r\n").writerow(list(cells))
    return line.getvalue().removesuffix("\r\n") + "\n"


def csv_cell(cell: Any) -> Any:
    """Text that no spreadsheet takes for a formula, lists as JSON, numbers as they are."""
    if isinstance(cell, list):
        return json.dumps(cell) if cell else ""
    return csv_text(cell) if isinstance(cell, str) else cell


def _csv(rows: Sequence[Row]) -> str:
    columns = _columns(rows)
    lines: list[list[Any]] = [list(columns), *([row.get(name) for name in columns] for row in rows)]
    return "".join(csv_line(map(csv_cell, line)) for line in lines)


def _jsonl(rows: Sequence[Row]) -> str:
    return "".join(f"{json.dumps(row)}\n" for row in rows)


def import_pyarrow() -> Any:
    """pyarrow with its `parquet`; the extra that has it is named where it is absent."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise missing_extra("Parquet needs", "parquet") from error
    return pyarrow


def _parquet(rows: Sequence[Row]) -> bytes:
    pyarrow = import_pyarrow()
    columns = {name: _of_one_type([row.get(name) for row in rows]) for name in _columns(rows)}
    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(pyarrow.table(columns), sink)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def _of_one_type(values: list[Any]) -> list[Any]:
    """As they are, or as text where they differ in kind, as beta does, which is a number or "auto"."""
    kinds = {float if type(value) is int else type(value) for value in values if value is not None}
    if len(kinds) <= 1 and str not in kinds:
        return values
    return [None if value is None else str(value).encode(errors="backslashreplace").decode() for value in values]


_ENCODERS: dict[str, Callable[[Sequence[Row]], str | bytes]] = {"csv": _csv, "jsonl": _jsonl, "parquet": _parquet}
