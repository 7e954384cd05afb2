"""A file of predictions that is written batch by batch, and continued after an interruption.

The checkpoint next to the file holds the method's state after a batch, the size of the file at that time, and the sums
of the summary. A resumed command truncates the file to this size and continues from there; the finished file is the
same as that of an uninterrupted one.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar, cast

from tta_panda.errors import DataError, InvalidInputError, StoreError
from tta_panda.escapes import path_text
from tta_panda.files import csv_line, import_pyarrow, locked, remove_parts, writing
from tta_panda.methods.base import Method
from tta_panda.methods.state import read_state, write_state
from tta_panda.prediction.files import COLUMNS, FORMATS, as_row, csv_row, read_rows, write_parquet
from tta_panda.prediction.predict import Prediction
from tta_panda.prediction.summary import Summary

CHECKPOINT_SHARE = 0.05
"""Largest share of the time to spend on writing checkpoints."""

T = TypeVar("T")


class PredictionFile:
    """A file of predictions, with a checkpoint next to it until it is complete.

    Args:
        path: the file, in the format that its suffix names. Parquet files cannot be appended to, so until all
            predictions are made, they are JSON lines in the file `work_path` in the same folder.
    """

    def __init__(self, path: Path):
        if path.suffix.lower() not in FORMATS:
            raise InvalidInputError(f"Predictions are written to {', '.join(FORMATS)} files, by suffix; got {path}.")
        self.path = self.work_path = path
        if path.suffix.lower() == ".parquet":
            import_pyarrow()  # fail before anything is predicted
            self.work_path = path.with_name(f"{path.name}.jsonl")
        self.checkpoint = path.with_name(f"{path.name}.checkpoint")
        self._checkpoint_after = 0.0

    @contextmanager
    def open(
        self, method: Method, summary: Summary, settings: Mapping[str, object], *, resume: bool = False
    ) -> Iterator[bool]:
        """Open a new file or continue an interrupted one, which is complete when the block ends without an error.

        Yields False if the file was complete before. Otherwise, the state of the method and the summary are those at
        the last checkpoint.

        Args:
            settings: everything else that must be the same when the file is continued, by name.
        """
        self._method, self._summary = method, summary
        self._settings = {name: str(value) for name, value in settings.items()}
        lock = self.path.with_name(f"{self.path.name}.lock")
        with locked(self.path, "another --output", lock):
            try:
                if self.is_complete(resume=resume):
                    yield False
                    return
                size = self._load_checkpoint()
                with writing(self.work_path):
                    self.work_path.parent.mkdir(parents=True, exist_ok=True)
                    # Unbuffered: on a full disk, a buffer would be written once more when the file is closed.
                    self._file = self.work_path.open("wb" if size is None else "rb+", buffering=0)
                with self._file:
                    self._start_at(size)
                    yield True
                self._finish()
            finally:
                if not self.checkpoint.exists():
                    lock.unlink(missing_ok=True)

    def is_complete(self, *, resume: bool) -> bool:
        """Whether nothing is left to predict; existing files are an error unless `resume` is set."""
        if self.checkpoint.exists() and not resume:
            raise InvalidInputError(
                f"{self.path} is unfinished: add --resume to continue, or delete {self.checkpoint} to start again."
            )
        if self.path.exists() and not resume:
            raise InvalidInputError(f"{self.path} exists; choose another --output, or delete it.")
        return self.path.exists() and not self.checkpoint.exists()

    def _load_checkpoint(self) -> int | None:
        """Load the checkpoint and return the size of the file in bytes; None if the file has to be started."""
        for path in (self.path, self.checkpoint):
            remove_parts(path.parent, path)
        if not self.checkpoint.exists():
            self._save_checkpoint(None)  # before the output: a file without a checkpoint counts as complete
            return None
        state, facts = read_state(self.checkpoint)
        advice = "Resume it with the same options, or start again with another --output."
        for name, value in self._settings.items():
            if (before := facts["settings"].get(name)) != value:
                raise InvalidInputError(f"{self.path} was started with another {name}: {before}, not {value}. {advice}")
        try:
            self._method.load_state_dict(state)
        except InvalidInputError as error:
            raise InvalidInputError(f"{self.path} was started with other options. {error} {advice}") from error
        vars(self._summary).update(facts["summary"])
        size: int | None = facts["size"]
        return size

    def _save_checkpoint(self, size: int | None) -> None:
        start = time.perf_counter()
        facts = {"size": size, "summary": vars(self._summary), "settings": self._settings}
        write_state(self.checkpoint, self._method, facts)
        now = time.perf_counter()
        self._checkpoint_after = now + (now - start) / CHECKPOINT_SHARE

    def _start_at(self, size: int | None) -> None:
        """Write the heading of a new file, or truncate the existing one to its size at the checkpoint."""
        with writing(self.work_path):
            if size is None:
                self._append(csv_line(COLUMNS) if self._is_csv else "")
            elif self._file.seek(0, os.SEEK_END) < size:
                raise StoreError(f"{self.work_path} is shorter than its checkpoint says. Delete both and start again.")
            else:
                self._file.truncate(size)
                self._file.seek(size)

    @property
    def _is_csv(self) -> bool:
        return self.work_path.suffix.lower() == ".csv"

    def predicted_paths(self) -> Iterator[str]:
        """Paths of the pictures predicted before the file was continued, as `path_text` writes them."""
        return (row["path"] for row in read_rows(self.work_path))

    def skip_predicted(self, paths: Iterable[T]) -> Iterator[T]:
        """Skip the pictures that were predicted before, and check that they are the same."""
        remaining = iter(paths)
        for path in self.predicted_paths():
            if path_text(cast(str, next(remaining, ""))) != path:
                raise DataError(
                    "The pictures are not the ones that the output was started with. Give the same ones in the same "
                    f"order, or start again with another --output. The first that differs is {path}."
                )
        return remaining

    def write(self, predictions: Sequence[Prediction]) -> None:
        """Append predictions, after which they survive even if the process is killed; save a checkpoint if due."""
        lines = (csv_row(each) if self._is_csv else f"{json.dumps(as_row(each))}\n" for each in predictions)
        with writing(self.work_path):
            self._append("".join(lines))
            if time.perf_counter() >= self._checkpoint_after:
                os.fsync(self._file.fileno())  # so that it survives a power failure, too
                self._save_checkpoint(self._file.tell())

    def _append(self, text: str) -> None:
        left = memoryview(text.encode())
        while left:
            left = left[self._file.write(left) :]

    def _finish(self) -> None:
        """Complete the file. The checkpoint is removed last: until then, the command can be resumed."""
        if self.work_path != self.path:
            write_parquet(self.path, read_rows(self.work_path))
        self.checkpoint.unlink()
        if self.work_path != self.path:
            self.work_path.unlink(missing_ok=True)
