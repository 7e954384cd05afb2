"""The file that predictions are written to: it grows batch by batch, and an interrupted job can cut it back."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from tta_panda.errors import InvalidInputError, StoreError
from tta_panda.escapes import path_text
from tta_panda.files import csv_cell, csv_line, import_pyarrow, open_regular, saving, writing
from tta_panda.prediction.predict import Prediction

COLUMNS = (
    "path", "label", "predicted", "probability", "margin", "top", "plain_predicted", "plain_probability", "error",
)  # fmt: skip
DIGITS = 6
FORMATS = (".csv", ".jsonl", ".parquet")
_ROWS_AT_ONCE = 10_000


def as_row(prediction: Prediction) -> dict[str, Any]:
    """A prediction as plain values under `COLUMNS`."""
    row = {name: getattr(prediction, name) for name in COLUMNS}
    row = {name: round(value, DIGITS) if isinstance(value, float) else value for name, value in row.items()}
    top = [[name, round(value, DIGITS)] for name, value in prediction.top]
    return {**row, "path": path_text(prediction.path or str(prediction.index)), "top": top}


def csv_row(prediction: Prediction) -> str:
    """A prediction as a line of CSV."""
    return csv_line(map(csv_cell, as_row(prediction).values()))


class PredictionFile:
    """Predictions on their way to a file, in the format of its suffix.

    Args:
        path: the file. Parquet, which cannot grow, is JSON lines in `growing`, beside it, until it is finished.
    """

    def __init__(self, path: Path):
        if path.suffix.lower() not in FORMATS:
            raise InvalidInputError(f"Predictions are written to {', '.join(FORMATS)} files, by suffix; got {path}.")
        self.path = self.growing = path
        self._is_csv = path.suffix.lower() == ".csv"
        if path.suffix.lower() == ".parquet":
            import_pyarrow()  # before there is something to lose
            self.growing = path.with_name(f"{path.name}.jsonl")

    def open(self, size: int | None) -> None:
        """Begin anew, or, with a size in bytes, continue after that much of what is there."""
        with writing(self.growing):
            self.growing.parent.mkdir(parents=True, exist_ok=True)
            # Without a buffer: what a full disk does not take would be tried once more when the file is closed.
            self._file = self.growing.open("wb" if size is None else "rb+", buffering=0)
            if size is None:
                self._append(csv_line(COLUMNS) if self._is_csv else "")
            elif self._file.seek(0, os.SEEK_END) < size:
                raise StoreError(f"{self.growing} is shorter than its checkpoint says. Delete both and begin anew.")
            else:
                self._file.truncate(size)
                self._file.seek(size)

    def write(self, predictions: Iterable[Prediction]) -> None:
        """Append predictions. When this returns, a killed process does not lose them."""
        lines = (csv_row(each) if self._is_csv else f"{json.dumps(as_row(each))}\n" for each in predictions)
        with writing(self.growing):
            self._append("".join(lines))

    def _append(self, text: str) -> None:
        left = memoryview(text.encode())
        while left:
            left = left[self._file.write(left) :]

    def sync(self) -> int:
        """Make sure that not even a power failure loses what was written; returns the size in bytes."""
        with writing(self.growing):
            os.fsync(self._file.fileno())
            return self._file.tell()

    def close(self) -> None:
        if hasattr(self, "_file"):
            self._file.close()

    def finish(self) -> None:
        """Complete the file. What it grew in stays until `clean_up`."""
        self.close()
        if self.growing != self.path:
            _write_parquet(self.path, read_rows(self.growing))

    def clean_up(self) -> None:
        """Remove what the finished file grew in."""
        if self.growing != self.path:
            self.growing.unlink(missing_ok=True)


def _write_parquet(path: Path, rows: Iterator[dict[str, Any]]) -> None:
    pa = import_pyarrow()
    text, number = pa.string(), pa.float64()
    top = pa.list_(pa.struct([("class", text), ("probability", number)]))
    types = {"probability": number, "margin": number, "plain_probability": number, "top": top}
    schema = pa.schema([(name, types.get(name, text)) for name in COLUMNS])
    with saving(path) as part, pa.parquet.ParquetWriter(part, schema) as writer:
        while some := list(islice(rows, _ROWS_AT_ONCE)):
            for row in some:
                row["top"] = [{"class": name, "probability": value} for name, value in row["top"]]
            writer.write_table(pa.Table.from_pylist(some, schema))


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a file of predictions; top classes as pairs of name and probability."""
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
    return float(value) if name.endswith(("probability", "margin")) else value.removeprefix("'")
