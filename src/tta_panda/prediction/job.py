"""Predict a stream of pictures into a file. A job that was killed can be resumed, and gives the same file.

Beside the file stands a checkpoint: the method's state after a batch, how much of the file was written then, and the
sums of the summary. A resumed job cuts the file to that size and goes on from there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tta_panda.data.dataset import UNLABELLED
from tta_panda.files import make_writable, remove_parts
from tta_panda.methods.base import Method
from tta_panda.methods.state import read_state, write_state
from tta_panda.prediction.files import PredictionFile, Row, as_row, file_format, read_rows
from tta_panda.prediction.predict import PredictedBatch, predict_batches
from tta_panda.prediction.reading import Decoder, Pause
from tta_panda.prediction.resuming import CHECKPOINT, chained, check_pictures, check_settings, has_work, unfinished
from tta_panda.prediction.summary import Summary

SHARE_OF_TIME = 0.05
"""What checkpoints may take of the time: it decides how often they are made."""


@dataclass
class PredictionJob:
    """Paths to rows, in order.

    Args:
        method: what predicts.
        decoder: what reads the pictures.
        batch_size: pictures that the method adapts to at a time.
        settings: what decides the predictions besides the pictures; a job is resumed with equal ones only.
        label_of: the class index of a path, or `UNLABELLED`.
        output: file for the rows; None where they are only handed on.
        state: file of the method's state, which the job goes on from if it is there, and writes at the end.
    """

    method: Method
    decoder: Decoder
    batch_size: int
    settings: Mapping[str, Any]
    label_of: Callable[[str], int] = lambda _path: UNLABELLED
    output: Path | None = None
    state: Path | None = None

    def __post_init__(self) -> None:
        self.summary = Summary.of(self.method.classifier.class_names)
        self._digest = ""  # of the paths so far
        self._file: PredictionFile | None = None
        self._checkpoint_after = 0.0

    @property
    def checkpoint(self) -> Path | None:
        """Exists while the job is not finished."""
        return None if self.output is None else unfinished(self.output, CHECKPOINT)

    def start(self, *, resume: bool = False) -> None:
        """Open the output, anew or where an interrupted job stopped, unless it is complete already."""
        if self.state is not None:
            make_writable(self.state.parent, "write the state to", "Choose another --state.")
            if self.state.exists():
                self.method.load_state_dict(read_state(self.state)[0])
        if self.output is None or self.checkpoint is None:
            return
        make_file = file_format(self.output)
        if not has_work(self.output, CHECKPOINT, resume=resume):
            self._remove_growing(make_file)
            return
        for path in filter(None, (self.output, self.checkpoint, self.state)):
            remove_parts(path.parent, path)
        if self.checkpoint.exists():
            self._file = make_file(self.output, self._load(self.checkpoint))
        else:
            self._save(None)  # before the file: one without a checkpoint is complete
            self._file = make_file(self.output)

    @property
    def is_open(self) -> bool:
        """Whether there is anything to do: False where the output was complete already."""
        return self.output is None or self._file is not None

    def predicted(self) -> set[str]:
        """Paths that the file has rows for, as these spell them."""
        return {row["path"] for row in read_rows(self._file.growing)} if self._file else set()

    def run(self, paths: Iterable[str | Pause], *, from_start: bool = True) -> Iterator[list[Row]]:
        """Predict, batch by batch; rows are in the file when they are handed on.

        Args:
            paths: all pictures of the job, also those that a resumed one has predicted already.
            from_start: False where `paths` has only what is left to do.
        """
        left = self._left_of(iter(paths)) if from_start else paths
        since = time.perf_counter()
        for batch in predict_batches(self.method, left, self.decoder, self.batch_size, self.summary.pictures):
            rows = self._take(batch)
            size = self._file.write(rows) if self._file else 0
            self.summary.seconds += time.perf_counter() - since
            since = time.perf_counter()
            if since >= self._checkpoint_after:
                self._save(size)
            yield rows
        self._finish()

    def _take(self, batch: PredictedBatch) -> list[Row]:
        paths = [prediction.path or "" for prediction in batch.predictions]
        labels = [self.label_of(path) for path in paths]
        self.summary.add(batch, labels)
        for path in paths:
            self._digest = chained(self._digest, path)
        names = self.method.classifier.class_names
        return [
            as_row(prediction, None if label == UNLABELLED else names[label])
            for prediction, label in zip(batch.predictions, labels, strict=True)
        ]

    def _left_of(self, paths: Iterator[str | Pause]) -> Iterator[str | Pause]:
        """What comes after the pictures of the checkpoint, if these are the same as they were."""
        digest = ""
        for _ in range(self.summary.pictures):
            digest = chained(digest, str(next(paths, "")))
        check_pictures(self.output, self._digest, digest)
        return paths

    def _save(self, size: int | None) -> None:
        if self.checkpoint is None:
            return
        start = time.perf_counter()
        if self._file is not None:
            self._file.sync()
        facts = {"size": size, "digest": self._digest, "summary": self.summary.to_json()}
        write_state(self.checkpoint, self.method, {**facts, "settings": self.settings})
        now = time.perf_counter()
        self._checkpoint_after = now + (now - start) / SHARE_OF_TIME

    def _load(self, checkpoint: Path) -> int | None:
        """Go on from a checkpoint; returns the size of the file at that time, or None if it was not begun."""
        state, facts = read_state(checkpoint)
        check_settings(self.output, facts["settings"], self.settings)
        self.method.load_state_dict(state)
        self.summary = Summary.from_json(facts["summary"])
        self._digest = facts["digest"]
        size: int | None = facts["size"]
        return size

    def _finish(self) -> None:
        """The checkpoint is removed when all else is written: until then, the job can be resumed."""
        if self._file is not None:
            self._file.finish()
        if self.state is not None:
            write_state(self.state, self.method)
        if self._file is not None and self.checkpoint is not None:
            self.checkpoint.unlink()
            self._remove_growing(type(self._file))

    def _remove_growing(self, kind: type[PredictionFile]) -> None:
        assert self.output is not None
        if (growing := kind.growing_of(self.output)) != self.output:
            growing.unlink(missing_ok=True)
