"""Predictions as rows of CSV, JSON lines and Parquet."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from tta_panda.escapes import path_text
from tta_panda.files import csv_cell, csv_line, import_pyarrow, open_regular, saving
from tta_panda.prediction.predict import Prediction

COLUMNS = (
    "path", "label", "predicted", "probability", "margin", "top", "plain_predicted", "plain_probability", "p_value",
    "rejected", "error",
)  # fmt: skip
DIGITS = 6
FORMATS = (".csv", ".jsonl", ".parquet")
_ROWS_AT_ONCE = 10_000


def as_row(prediction: Prediction) -> dict[str, Any]:
    """Convert a prediction to plain values, by the names in `COLUMNS`."""
    row = {name: getattr(prediction, name) for name in COLUMNS}
    row = {name: round(value, DIGITS) if isinstance(value, float) else value for name, value in row.items()}
    top = [[name, round(value, DIGITS)] for name, value in prediction.top]
    return {**row, "path": path_text(prediction.path or str(prediction.index)), "top": top}


def csv_row(prediction: Prediction) -> str:
    """Format a prediction as a line of CSV."""
    return csv_line(map(csv_cell, as_row(prediction).values()))


def write_parquet(path: Path, rows: Iterator[dict[str, Any]]) -> None:
    """Write rows to a Parquet file."""
    pa = import_pyarrow()
    text, number = pa.string(), pa.float64()
    top = pa.list_(pa.struct([("class", text), ("probability", number)]))
    types = {"probability": number, "margin": number, "plain_probability": number, "top": top}
    types |= {"p_value": number, "rejected": pa.bool_()}
    schema = pa.schema([(name, types.get(name, text)) for name in COLUMNS])
    with saving(path) as part, pa.parquet.ParquetWriter(part, schema) as writer:
        while some := list(islice(rows, _ROWS_AT_ONCE)):
            for row in some:
                row["top"] = [{"class": name, "probability": value} for name, value in row["top"]]
            writer.write_table(pa.Table.from_pylist(some, schema))


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Read the rows of a file of predictions, with the top classes as pairs of name and probability."""
    if path.suffix.lower() == ".parquet":
        for batch in import_pyarrow().parquet.ParquetFile(path).iter_batches():
            for row in batch.to_pylist():
                yield {**row, "top": [[each["class"], each["probability"]] for each in row["top"]]}
        return
    with io.TextIOWrapper(open_regular(path), "utf-8", newline="") as file:
        if path.suffix.lower() == ".csv":
            for row in csv.DictReader(file):
                yield {name: _from_csv(name, value) for name, value in row.items()}
        else:
            yield from map(json.loads, file)


def _from_csv(name: str, value: str) -> Any:
    if name == "top":
        return json.loads(value or "[]")
    if value == "":
        return None
    if name == "rejected":
        return value == "True"
    return float(value) if name.endswith(("probability", "margin", "p_value")) else value.removeprefix("'")
