"""Write the predictions for a stream of pictures to a file; a job that was killed can be resumed.

The checkpoint next to the file holds the method's state after a batch, the size of the file at that time, and the sums
of the summary. A resumed job truncates the file to this size and continues from there; the finished file is the same
as that of an uninterrupted job.
"""

from __future__ import annotations

import reprlib
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any, cast

from tta_panda.errors import DataError, InvalidInputError
from tta_panda.escapes import path_text
from tta_panda.executors import Executor
from tta_panda.files import locked, make_writable, remove_parts
from tta_panda.images import AS_SHOWN, Decoding
from tta_panda.methods import METHODS, parse_method
from tta_panda.methods.base import Method
from tta_panda.methods.state import read_state, write_state
from tta_panda.models import recorded_name, weights_digest
from tta_panda.prediction.files import PredictionFile, read_rows
from tta_panda.prediction.predict import Prediction, make_method, predict_batches
from tta_panda.prediction.reading import LabelOf, Pause
from tta_panda.prediction.summary import Summary

CHECKPOINT_SHARE = 0.05
"""Largest share of the time to spend on writing checkpoints."""

_NOT_COMPARED = {"places", "device"}


@dataclass(frozen=True, kw_only=True)
class PredictionConfig:
    """All settings of a prediction job, as plain values from which any process can build the same method.

    Args:
        places: files and folders of pictures. Sub-folders label them, and name the classes if `classes` is None.
        templates: prompts for the classes; None for the default.
        options: options of the method and of Panda.
    """

    model: str
    method: str
    places: Sequence[Path] = ()
    classes: Sequence[str] | None = None
    templates: Sequence[str] | None = None
    preset: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    device: str = "auto"
    precision: str = "fp32"
    backend: str = "torch"
    decoding: Decoding = AS_SHOWN
    batch_size: int = 100

    @cached_property
    def loaded(self) -> tuple[Method, LabelOf]:
        """The method, and a function from the path of a picture to its label."""
        if taken := sorted({"name", "classifier", "preset", "seed"}.intersection(self.options)):
            raise InvalidInputError(
                f"{taken[0]} is not an option of a method; --{taken[0]} sets it, if the command has it."
            )
        return make_method(
            self.places,
            self.classes,
            self.model,
            self.method,
            device=self.device,
            precision=self.precision,
            backend=self.backend,
            templates=self.templates,
            preset=self.preset,
            seed=self.seed,
            options=self.options,
        )

    def predict(self, pictures: Iterable[str | Pause], summary: Summary, first: int = 0) -> Iterator[list[Prediction]]:
        """Predict pictures batch by batch and update the summary; the first picture has the index `first`."""
        method, label_of = self.loaded
        return predict_batches(method, pictures, self.batch_size, summary, self.decoding, label_of, first)

    def settings(self) -> dict[str, Any]:
        """The settings that must be the same when a job is resumed. Device and pass sizes may differ."""
        compared = {each.name: getattr(self, each.name) for each in fields(self) if each.name not in _NOT_COMPARED}
        ignored = METHODS.get(parse_method(self.method).base).memory_options
        options = {name: value for name, value in self.options.items() if name not in ignored}
        model = {"model": recorded_name(self.model), "weights": weights_digest(self.model)}
        return {name.replace("_", " "): str(value) for name, value in (compared | model | {"options": options}).items()}


def predict_shard(config: PredictionConfig, shard: tuple[int, Sequence[str]]) -> tuple[list[Prediction], Summary]:
    """Predict a shard of the pictures as a separate stream, starting from the method's initial state.

    A shard is the index of its first picture, and the paths.
    """
    first, paths = shard
    method, _ = config.loaded
    method.reset()
    summary = Summary.empty(method.classifier.class_names)
    return list(chain.from_iterable(config.predict(paths, summary, first))), summary


class PredictionJob:
    """A resumable prediction of pictures, in order.

    Args:
        config: model, method and all other settings.
        output: file to write predictions to, next to which a checkpoint is kept; None to write no file.
        state: file of the method's state: loaded first if it exists, and written at the end.
        executor: runs shards of the pictures as separate streams; None predicts a single stream in this process.
        shard_size: number of pictures in a shard.
    """

    def __init__(
        self,
        config: PredictionConfig,
        output: Path | None = None,
        state: Path | None = None,
        executor: Executor | None = None,
        shard_size: int = 1000,
    ):
        self.config = config
        # Workers predict shards; the method in this process only provides class names and the state of checkpoints.
        self._local = replace(config, device="cpu", precision="fp32", backend="torch") if executor else config
        self.output = None if output is None else PredictionFile(output)
        self.checkpoint = None if output is None else output.with_name(f"{output.name}.checkpoint")
        """Exists while the job is not finished."""
        self.state = state
        self.executor = executor
        self.shard_size = shard_size
        self.summary = Summary.empty(())
        self._checkpoint_after = 0.0

    @contextmanager
    def open(self, *, resume: bool = False) -> Iterator[bool]:
        """Open the files, new or where an interrupted job stopped; yield False if they are complete already."""
        if self.state is not None:
            make_writable(self.state.parent, "write the state to", "Choose another --state.")
        if self.output is None or self.checkpoint is None:
            self._start()
            yield True
            return
        path, lock = self.output.path, self.output.path.with_name(f"{self.output.path.name}.lock")
        with locked(path, "another --output", lock):
            try:
                is_open = self._is_unfinished(path, self.checkpoint, resume)
                if is_open:
                    self._start()
                    self._open(self.output, self.checkpoint)
                yield is_open
            finally:
                self.output.close()
                if not self.checkpoint.exists():
                    lock.unlink(missing_ok=True)

    def _is_unfinished(self, path: Path, checkpoint: Path, resume: bool) -> bool:
        """Whether anything is left to predict; existing files are an error unless `resume` is set."""
        if checkpoint.exists() and not resume:
            raise InvalidInputError(
                f"{path} is unfinished: add --resume to continue, or delete {checkpoint} to start again."
            )
        if path.exists() and not resume:
            raise InvalidInputError(f"{path} exists; choose another --output, or delete it.")
        return checkpoint.exists() or not path.exists()

    def _start(self) -> None:
        method, _ = self._local.loaded  # before anything is written
        method.reset()  # another job may have used it
        self.summary = Summary.empty(method.classifier.class_names)
        if self.state is not None and self.state.exists():
            method.load_state_dict(read_state(self.state)[0])

    def _open(self, output: PredictionFile, checkpoint: Path) -> None:
        for path in filter(None, (output.path, checkpoint, self.state)):
            remove_parts(path.parent, path)
        size = None
        if checkpoint.exists():
            state, facts = read_state(checkpoint)
            self._check_settings(facts["settings"], output.path)
            self._local.loaded[0].load_state_dict(state)
            self.summary = Summary(**facts["summary"])
            size = facts["size"]
        else:
            self._save(None)  # before the output: a file without a checkpoint counts as complete
        output.open(size)

    def predicted_paths(self) -> Iterator[str]:
        """Paths of the pictures predicted before this job was resumed, as `path_text` writes them."""
        return (row["path"] for row in read_rows(self.output.work_path)) if self.output else iter(())

    def run(self, paths: Iterable[str | Pause], *, from_start: bool = True) -> Iterator[list[Prediction]]:
        """Predict batch by batch; predictions are written to the output before they are yielded.

        Args:
            paths: all pictures of the job, including those that were predicted before it was resumed.
            from_start: False if `paths` omits the pictures that were predicted before.
        """
        remaining = self._skip_predicted(iter(paths)) if from_start else paths
        for predictions in self._predict(remaining):
            if self.output is not None:
                self.output.write(predictions)
                if self.executor or time.perf_counter() >= self._checkpoint_after:
                    self._save(self.output.sync())
            yield predictions
        self._finish()

    def _predict(self, paths: Iterable[str | Pause]) -> Iterator[list[Prediction]]:
        first = self.summary.pictures
        if self.executor is None:
            yield from self.config.predict(paths, self.summary, first)
            return
        remaining = [path for path in paths if isinstance(path, str)]
        starts = range(0, len(remaining), self.shard_size)
        shards = [(first + start, remaining[start : start + self.shard_size]) for start in starts]
        for predictions, part in self.executor.map(partial(predict_shard, self.config), shards):
            self.summary.add(part)
            yield predictions

    def _skip_predicted(self, paths: Iterator[str | Pause]) -> Iterator[str | Pause]:
        """Skip the pictures that were predicted already, and check that they are the same."""
        for path in self.predicted_paths():
            if path_text(str(next(paths, ""))) != path:
                raise DataError(
                    "The pictures are not the ones that the output was started with. Give the same ones in the same "
                    f"order, or start again with another --output. The first that differs is {path}."
                )
        return paths

    def _settings(self) -> dict[str, Any]:
        return {**self.config.settings(), "shard size": str(self.shard_size if self.executor else None)}

    def _save(self, size: int | None) -> None:
        """Write a checkpoint with the size of the output in bytes, or None if it has not been opened."""
        start = time.perf_counter()
        facts = {"size": size, "summary": vars(self.summary), "settings": self._settings()}
        write_state(cast(Path, self.checkpoint), self._local.loaded[0], facts)
        now = time.perf_counter()
        self._checkpoint_after = now + (now - start) / CHECKPOINT_SHARE

    def _check_settings(self, before: Mapping[str, Any], output: Path) -> None:
        now = self._settings()
        if differing := [name for name in now if before.get(name) != now[name]]:
            was, is_now = (reprlib.repr(each.get(differing[0], "")).strip("'") for each in (before, now))
            raise InvalidInputError(
                f"{output} was started with another {differing[0]}: {was}, not {is_now}. Resume it with the same "
                "options, or start again with another --output."
            )

    def _finish(self) -> None:
        """Complete all files. The checkpoint is removed last: until then, the job can be resumed."""
        if self.output is not None:
            self.output.finish()
        if self.state is not None:
            write_state(self.state, self._local.loaded[0])
        if self.output is not None and self.checkpoint is not None:
            self.checkpoint.unlink()
            self.output.clean_up()
