"""Files of predictions that grow batch by batch, and can be cut back to where a run that was killed is resumed."""

from __future__ import annotations

import csv
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from tta_panda.errors import InvalidInputError, StoreError
from tta_panda.escapes import path_text
from tta_panda.files import csv_cell, csv_line, import_pyarrow, saving, writing
from tta_panda.prediction.predict import Prediction

Row = dict[str, Any]

COLUMNS = (
    "path", "label", "predicted", "probability", "margin", "top", "plain_predicted", "plain_probability", "status",
)  # fmt: skip
OK = "ok"
DIGITS = 6


def as_row(prediction: Prediction, label: str | None = None) -> Row:
    """A prediction as plain values under `COLUMNS`, with the label of the picture where it is known."""
    own = prediction
    values = (
        path_text(own.path or str(own.index)), label, own.predicted, _rounded(own.probability), _rounded(own.margin),
        [[name, _rounded(value)] for name, value in own.top], own.plain_predicted, _rounded(own.plain_probability),
        own.error or OK,
    )  # fmt: skip
    return dict(zip(COLUMNS, values, strict=True))


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, DIGITS)


class PredictionFile(ABC):
    """Rows on their way to a file.

    Args:
        path: the file.
        size: bytes to keep of what is there; None starts anew.
    """

    def __init__(self, path: Path, size: int | None = None):
        self.path = path
        self.growing = self.growing_of(path)
        with writing(self.growing):
            self.growing.parent.mkdir(parents=True, exist_ok=True)
            # Without a buffer: what a full disk does not take would be tried once more when the file is closed.
            self._file = self.growing.open("wb" if size is None else "rb+", buffering=0)
            if size is None:
                self._append(self.head())
            elif self._file.seek(0, os.SEEK_END) < size:
                raise StoreError(f"{self.growing} is shorter than its checkpoint says. Delete both and begin anew.")
            else:
                self._file.truncate(size)
                self._file.seek(size)

    @classmethod
    def growing_of(cls, path: Path) -> Path:
        """Where rows are written while there are more to come."""
        return path

    def head(self) -> str:
        return ""

    @abstractmethod
    def line(self, row: Row) -> str:
        """A row as text, with the end of the line."""

    def write(self, rows: Iterable[Row]) -> int:
        """Append rows. When this returns, a killed process does not lose them; the size of the file is returned."""
        with writing(self.growing):
            self._append("".join(map(self.line, rows)))
            return self._file.tell()

    def _append(self, text: str) -> None:
        left = memoryview(text.encode())
        while left:
            left = left[self._file.write(left) :]

    def sync(self) -> None:
        """Not even a power failure loses what was written."""
        with writing(self.growing):
            os.fsync(self._file.fileno())

    def finish(self) -> None:
        """Complete the file: there are no more rows."""
        self._file.close()


class JsonLinesFile(PredictionFile):
    def line(self, row: Row) -> str:
        return json.dumps(row) + "\n"


class CsvFile(PredictionFile):
    def head(self) -> str:
        return csv_line(COLUMNS)

    def line(self, row: Row) -> str:
        return csv_line(map(csv_cell, row.values()))


class ParquetFile(JsonLinesFile):
    """A Parquet file is of no use before its end is written, so rows are kept as JSON lines until then."""

    ROWS_AT_ONCE = 10_000

    def __init__(self, path: Path, size: int | None = None):
        self._arrow = import_pyarrow()
        super().__init__(path, size)

    @classmethod
    def growing_of(cls, path: Path) -> Path:
        return path.with_name(f"{path.name}.jsonl")

    def finish(self) -> None:
        super().finish()
        pa = self._arrow
        text, number = pa.string(), pa.float64()
        top = pa.list_(pa.struct([("class", text), ("probability", number)]))
        types = {"probability": number, "margin": number, "plain_probability": number, "top": top}
        schema = pa.schema([(name, types.get(name, text)) for name in COLUMNS])
        with (
            saving(self.path) as part,
            pa.parquet.ParquetWriter(part, schema) as writer,
            self.growing.open() as lines,
        ):
            while rows := [_with_structs(json.loads(line)) for line in islice(lines, self.ROWS_AT_ONCE)]:
                writer.write_table(pa.Table.from_pylist(rows, schema))


def _with_structs(row: Row) -> Row:
    return {**row, "top": [{"class": name, "probability": value} for name, value in row["top"]]}


FORMATS: dict[str, type[PredictionFile]] = {".csv": CsvFile, ".jsonl": JsonLinesFile, ".parquet": ParquetFile}


def file_format(path: Path) -> type[PredictionFile]:
    """What writes a file of this suffix."""
    if path.suffix.lower() not in FORMATS:
        raise InvalidInputError(f"Predictions are written to {', '.join(FORMATS)} files, by suffix; got {path}.")
    return FORMATS[path.suffix.lower()]


def read_rows(path: Path) -> Iterator[Row]:
    """The rows of a finished file of predictions; top classes as pairs of name and probability."""
    if path.suffix.lower() == ".parquet":
        for batch in import_pyarrow().parquet.ParquetFile(path).iter_batches():
            for row in batch.to_pylist():
                yield {**row, "top": [[each["class"], each["probability"]] for each in row["top"]]}
        return
    with path.open(encoding="utf-8", newline="") as file:
        if path.suffix.lower() == ".jsonl":
            yield from map(json.loads, file)
            return
        for row in csv.DictReader(file):
            yield {name: _from_csv(name, value) for name, value in row.items()}


def _from_csv(name: str, value: str) -> Any:
    if name == "top":
        return json.loads(value or "[]")
    if value == "":
        return None
    return float(value) if name.endswith(("probability", "margin")) else value.removeprefix("'")
