"""Files of predictions, written batch by batch; a resumed job truncates its file to the last checkpoint."""

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
    """Convert a prediction to plain values, by the names in `COLUMNS`."""
    row = {name: getattr(prediction, name) for name in COLUMNS}
    row = {name: round(value, DIGITS) if isinstance(value, float) else value for name, value in row.items()}
    top = [[name, round(value, DIGITS)] for name, value in prediction.top]
    return {**row, "path": path_text(prediction.path or str(prediction.index)), "top": top}


def csv_row(prediction: Prediction) -> str:
    """Format a prediction as a line of CSV."""
    return csv_line(map(csv_cell, as_row(prediction).values()))


class PredictionFile:
    """Write predictions to a file, in the format that its suffix names.

    Args:
        path: the file. Parquet files cannot be appended to, so until all predictions are made, they are JSON lines in
            the file `work_path` in the same folder.
    """

    def __init__(self, path: Path):
        if path.suffix.lower() not in FORMATS:
            raise InvalidInputError(f"Predictions are written to {', '.join(FORMATS)} files, by suffix; got {path}.")
        self.path = self.work_path = path
        self._is_csv = path.suffix.lower() == ".csv"
        if path.suffix.lower() == ".parquet":
            import_pyarrow()  # fail before anything is predicted
            self.work_path = path.with_name(f"{path.name}.jsonl")

    def open(self, size: int | None) -> None:
        """Start a new file, or, if a size in bytes is given, truncate the existing one and append to it."""
        with writing(self.work_path):
            self.work_path.parent.mkdir(parents=True, exist_ok=True)
            # Unbuffered: on a full disk, a buffer would be written once more when the file is closed.
            self._file = self.work_path.open("wb" if size is None else "rb+", buffering=0)
            if size is None:
                self._append(csv_line(COLUMNS) if self._is_csv else "")
            elif self._file.seek(0, os.SEEK_END) < size:
                raise StoreError(f"{self.work_path} is shorter than its checkpoint says. Delete both and start again.")
            else:
                self._file.truncate(size)
                self._file.seek(size)

    def write(self, predictions: Iterable[Prediction]) -> None:
        """Append predictions. Once this returns, they survive even if the process is killed."""
        lines = (csv_row(each) if self._is_csv else f"{json.dumps(as_row(each))}\n" for each in predictions)
        with writing(self.work_path):
            self._append("".join(lines))

    def _append(self, text: str) -> None:
        left = memoryview(text.encode())
        while left:
            left = left[self._file.write(left) :]

    def sync(self) -> int:
        """Flush the file to disk, so that it survives a power failure, and return its size in bytes."""
        with writing(self.work_path):
            os.fsync(self._file.fileno())
            return self._file.tell()

    def close(self) -> None:
        if hasattr(self, "_file"):
            self._file.close()

    def finish(self) -> None:
        """Complete the file. `work_path` stays until `clean_up`."""
        self.close()
        if self.work_path != self.path:
            _write_parquet(self.path, read_rows(self.work_path))

    def clean_up(self) -> None:
        """Remove the temporary file of a finished Parquet file."""
        if self.work_path != self.path:
            self.work_path.unlink(missing_ok=True)


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
    return float(value) if name.endswith(("probability", "margin")) else value.removeprefix("'")
