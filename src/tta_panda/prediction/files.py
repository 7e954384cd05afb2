"""Files of predictions that grow batch by batch, and can be cut back to where an interrupted job is resumed."""

from __future__ import annotations

import base64
import csv
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from tta_panda.errors import InvalidInputError, StoreError
from tta_panda.escapes import path_text
from tta_panda.files import csv_cell, csv_line, import_pyarrow, saving, writing
from tta_panda.prediction.predict import Prediction

COLUMNS = (
    "path", "label", "predicted", "probability", "margin", "top", "plain_predicted", "plain_probability", "error",
)  # fmt: skip
DIGITS = 6


def as_row(prediction: Prediction) -> dict[str, Any]:
    """A prediction as plain values under `COLUMNS`."""
    row = {name: getattr(prediction, name) for name in COLUMNS}
    row = {name: round(value, DIGITS) if isinstance(value, float) else value for name, value in row.items()}
    top = [[name, round(value, DIGITS)] for name, value in prediction.top]
    return {**row, "path": path_text(prediction.path or str(prediction.index)), "top": top}


class PredictionFile(ABC):
    """Predictions on their way to a file.

    Args:
        path: the file. Formats that cannot grow keep JSON lines in `growing`, beside it, until they are finished.
    """

    def __init__(self, path: Path):
        self.path = self.growing = path
        self._file: BinaryIO | None = None

    def open(self, size: int | None) -> None:
        """Begin anew, or, with a size in bytes, continue after that much of what is there."""
        with writing(self.growing):
            self.growing.parent.mkdir(parents=True, exist_ok=True)
            # Without a buffer: what a full disk does not take would be tried once more when the file is closed.
            self._file = self.growing.open("wb" if size is None else "rb+", buffering=0)
            if size is None:
                self._append(self.head())
            elif self._opened.seek(0, os.SEEK_END) < size:
                raise StoreError(f"{self.growing} is shorter than its checkpoint says. Delete both and begin anew.")
            else:
                self._opened.truncate(size)
                self._opened.seek(size)

    @property
    def _opened(self) -> BinaryIO:
        assert self._file is not None
        return self._file

    def head(self) -> str:
        return ""

    @abstractmethod
    def line(self, prediction: Prediction) -> str:
        """A prediction as text, with the end of the line."""

    def write(self, predictions: Iterable[Prediction]) -> None:
        """Append predictions. When this returns, a killed process does not lose them."""
        with writing(self.growing):
            self._append("".join(map(self.line, predictions)))

    def _append(self, text: str) -> None:
        left = memoryview(text.encode())
        while left:
            left = left[self._opened.write(left) :]

    def sync(self) -> int:
        """Make sure that not even a power failure loses what was written; returns the size in bytes."""
        with writing(self.growing):
            os.fsync(self._opened.fileno())
            return self._opened.tell()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def finish(self) -> None:
        """Complete the file. What it grew in stays until `clean_up`."""
        self.close()

    def clean_up(self) -> None:
        """Remove what the finished file grew in."""
        if self.growing != self.path:
            self.growing.unlink(missing_ok=True)

    def read(self, path: Path) -> Iterator[dict[str, Any]]:
        """The rows in `path` or `growing`."""
        with path.open(encoding="utf-8") as lines:
            yield from map(json.loads, lines)


class JsonLinesFile(PredictionFile):
    def line(self, prediction: Prediction) -> str:
        return json.dumps(as_row(prediction)) + "\n"


class CsvFile(PredictionFile):
    def head(self) -> str:
        return csv_line(COLUMNS)

    def line(self, prediction: Prediction) -> str:
        return csv_line(map(csv_cell, as_row(prediction).values()))

    def read(self, path: Path) -> Iterator[dict[str, Any]]:
        with path.open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                yield {name: _from_csv(name, value) for name, value in row.items()}


def _from_csv(name: str, value: str) -> Any:
    if name == "top":
        return json.loads(value or "[]")
    if value == "":
        return None
    return float(value) if name.endswith(("probability", "margin")) else value.removeprefix("'")


class ParquetFile(JsonLinesFile):
    """A Parquet file, which cannot be read before its end is written."""

    ROWS_AT_ONCE = 10_000

    def __init__(self, path: Path):
        super().__init__(path)
        self._arrow = import_pyarrow()
        self.growing = path.with_name(f"{path.name}.jsonl")

    def finish(self) -> None:
        super().finish()
        pa = self._arrow
        text, number = pa.string(), pa.float64()
        top = pa.list_(pa.struct([("class", text), ("probability", number)]))
        types = {"probability": number, "margin": number, "plain_probability": number, "top": top}
        schema = pa.schema([(name, types.get(name, text)) for name in COLUMNS])
        rows = super().read(self.growing)
        with saving(self.path) as part, pa.parquet.ParquetWriter(part, schema) as writer:
            while some := [_with_structs(row) for row in islice(rows, self.ROWS_AT_ONCE)]:
                writer.write_table(pa.Table.from_pylist(some, schema))

    def read(self, path: Path) -> Iterator[dict[str, Any]]:
        if path == self.growing:
            yield from super().read(path)
            return
        for batch in self._arrow.parquet.ParquetFile(path).iter_batches():
            for row in batch.to_pylist():
                yield {**row, "top": [[each["class"], each["probability"]] for each in row["top"]]}


def _with_structs(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "top": [{"class": name, "probability": value} for name, value in row["top"]]}


class PageFile(JsonLinesFile):
    """A page with thumbnails.

    Args:
        path: the page.
        render: writes the page, given its path and the rows one by one, each with its `thumbnail` in base64.
    """

    def __init__(self, path: Path, render: Callable[[Path, Iterable[dict[str, Any]]], object]):
        super().__init__(path)
        self.growing = path.with_name(f"{path.name}.jsonl")
        self._render = render

    def line(self, prediction: Prediction) -> str:
        thumbnail = base64.b64encode(prediction.thumbnail or b"").decode()
        return json.dumps({**as_row(prediction), "thumbnail": thumbnail}) + "\n"

    def finish(self) -> None:
        super().finish()
        self._render(self.path, self.read(self.growing))


FORMATS: dict[str, type[PredictionFile]] = {".csv": CsvFile, ".jsonl": JsonLinesFile, ".parquet": ParquetFile}


def prediction_file(path: Path) -> PredictionFile:
    """A file of predictions in the format of its suffix."""
    if path.suffix.lower() not in FORMATS:
        raise InvalidInputError(f"Predictions are written to {', '.join(FORMATS)} files, by suffix; got {path}.")
    return FORMATS[path.suffix.lower()](path)


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a finished file of predictions; top classes as pairs of name and probability."""
    return prediction_file(path).read(path)


def read_predictions(file: PredictionFile, path: Path) -> Iterator[Prediction]:
    """The predictions in `path`, which is the file itself or what it grows in."""
    for index, row in enumerate(file.read(path)):
        yield Prediction(index, **{**row, "top": tuple(map(tuple, row["top"]))})
