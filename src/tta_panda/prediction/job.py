"""Predict a stream of pictures into files. A job that was killed can be resumed, and writes the same files.

The checkpoint beside the first file holds the method's state after a batch, the sizes of the files at that time, and
the sums of the summary. A resumed job cuts the files to these sizes and continues from there.
"""

from __future__ import annotations

import hashlib
import reprlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any, cast

from tta_panda.errors import DataError, InvalidInputError
from tta_panda.executors import Executor
from tta_panda.files import locked, make_writable, remove_parts
from tta_panda.images import AS_SHOWN, Decoding
from tta_panda.methods import METHODS, create_method, parse_method
from tta_panda.methods.base import Method
from tta_panda.methods.state import read_state, write_state
from tta_panda.models import load_model, make_classifier, recorded_name, weights_digest
from tta_panda.models.base import framing_of
from tta_panda.models.devices import Backend, Precision, resolve_device
from tta_panda.prediction.files import PredictionFile, read_predictions
from tta_panda.prediction.predict import Prediction, predict_batches
from tta_panda.prediction.reading import THUMBNAIL, Decoder, Pause, find_classes, labels_by_folder, read_batches
from tta_panda.prediction.summary import Summary

CHECKPOINT_SHARE = 0.05
"""Share of the time that checkpoints may take, which decides how often they are written."""

_NOT_COMPARED = {"places", "device", "thumbnails"}

LabelOf = Callable[[str], str | None]
"""The true class of a path, if its folder tells it."""


@dataclass(frozen=True, kw_only=True)
class PredictionConfig:
    """What decides predictions, by name, so that every process makes the same method of it.

    Args:
        places: where pictures are. Sub-folders label them, and name the classes if `classes` is None.
        templates: prompts for the classes; None for the default.
        options: those of the method and of Panda.
        thumbnails: whether predictions have thumbnails.
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
    thumbnails: bool = False

    @cached_property
    def loaded(self) -> tuple[Method, LabelOf]:
        """The method with its model, and the labels of its pictures."""
        device = resolve_device(self.device)
        model = load_model(self.model, device, cast(Precision, self.precision), cast(Backend, self.backend))
        names, folders = find_classes(self.places, self.classes, model)
        classifier = make_classifier(model, names, list(self.templates) if self.templates else "photo")
        method = create_method(self.method, classifier, preset=self.preset, seed=self.seed, **self.options)
        return method, labels_by_folder(folders, classifier.class_names)

    def predict(self, pictures: Iterable[str | Pause], summary: Summary, first: int = 0) -> Iterator[list[Prediction]]:
        """Predict pictures batch by batch, and count them in a summary; the first has the index `first`."""
        method, label_of = self.loaded
        decoder = Decoder(framing_of(method.classifier.model), self.decoding, thumbnails=self.thumbnails)
        return predict_batches(method, pictures, decoder, self.batch_size, summary, label_of, first)

    def settings(self) -> dict[str, Any]:
        """What must not differ where a job is resumed. Devices and the sizes of passes do not change predictions."""
        compared = {each.name: getattr(self, each.name) for each in fields(self) if each.name not in _NOT_COMPARED}
        ignored = METHODS.get(parse_method(self.method).base).memory_options
        options = {name: value for name, value in self.options.items() if name not in ignored}
        model = {"model": recorded_name(self.model), "weights": weights_digest(self.model)}
        return {name.replace("_", " "): str(value) for name, value in (compared | model | {"options": options}).items()}


def predict_shard(config: PredictionConfig, shard: tuple[int, Sequence[str]]) -> tuple[list[Prediction], Summary]:
    """Predict pictures as a stream of their own, from the method's initial state.

    A shard has the index of its first picture, and the paths.
    """
    first, paths = shard
    method, _ = config.loaded
    method.reset()
    summary = Summary.empty(method.classifier.class_names)
    return list(chain.from_iterable(config.predict(paths, summary, first))), summary


class PredictionJob:
    """Predicts pictures into files, in order.

    Args:
        config: what predicts.
        files: where predictions are written; the first one is the output that the checkpoint belongs to.
        state: file of the method's state: loaded first if it exists, and written at the end.
        executor: runs shards of the pictures, each a stream of its own; None predicts a single stream here.
        shard_size: pictures of a shard.
    """

    def __init__(
        self,
        config: PredictionConfig,
        files: Sequence[PredictionFile] = (),
        state: Path | None = None,
        executor: Executor | None = None,
        shard_size: int = 1000,
    ):
        self.config = config
        # Shards are predicted elsewhere: here, the method only has names for a summary and a state for checkpoints.
        self._here = replace(config, device="cpu", precision="fp32", backend="torch") if executor else config
        self.files = files
        self.state = state
        self.executor = executor
        self.shard_size = shard_size
        self.summary = Summary.empty(())
        self._digest = ""  # of the paths so far
        self._checkpoint_after = 0.0
        written = [path for file in files for path in dict.fromkeys((file.path, file.growing))]
        written += filter(None, (self.checkpoint, state))
        if len({path.resolve() for path in written}) < len(written):
            raise InvalidInputError(
                f"Two outputs would be written to the same file: {', '.join(map(str, written))}. Give --output, "
                "--html and --state names of their own."
            )

    @property
    def checkpoint(self) -> Path | None:
        """Exists while the job is not finished."""
        return self._beside(".checkpoint") if self.files else None

    def _beside(self, suffix: str) -> Path:
        output = self.files[0].path
        return output.with_name(f"{output.name}{suffix}")

    @contextmanager
    def open(self, *, resume: bool = False) -> Iterator[bool]:
        """Open the files, anew or where an interrupted job stopped; False if they are complete already."""
        if self.state is not None:
            make_writable(self.state.parent, "write the state to", "Choose another --state.")
        with ExitStack() as stack:
            if self.files:
                stack.enter_context(self._locked())
            for file in self.files:
                stack.callback(file.close)
            is_open = self._has_work(resume)
            if is_open:
                self._open()
            else:
                self._add_pages()
            yield is_open

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep other processes from the output while this job has it open."""
        lock = self._beside(".lock")
        with locked(self.files[0].path, "another --output", lock):
            try:
                yield
            finally:
                if not self._beside(".checkpoint").exists():
                    lock.unlink(missing_ok=True)

    def _has_work(self, resume: bool) -> bool:
        """Whether anything is left to predict; what exists already must be wanted."""
        if self.checkpoint is None:
            return True
        output = self.files[0].path
        if self.checkpoint.exists():
            if not resume:
                raise InvalidInputError(
                    f"{output} is unfinished: add --resume to continue, or delete {self.checkpoint} to begin anew."
                )
            return True
        if output.exists() and not resume:
            raise InvalidInputError(f"{output} exists; choose another --output, or delete it.")
        return not output.exists()

    def _open(self) -> None:
        method, _ = self._here.loaded  # before anything is written
        self.summary = Summary.empty(method.classifier.class_names)
        if self.state is not None and self.state.exists():
            method.load_state_dict(read_state(self.state)[0])
        if self.checkpoint is None:
            return
        for path in filter(None, (self.checkpoint, self.state, *(file.path for file in self.files))):
            remove_parts(path.parent, path)
        sizes: dict[str, int] = {}
        if self.checkpoint.exists():
            sizes = self._load(self.checkpoint)
        else:
            self._save(None)  # before the files: an output without a checkpoint is complete
        output, *pages = self.files
        output.open(sizes.get(output.growing.name))
        for page in pages:
            if page.growing.name in sizes and page.growing.exists():
                page.open(sizes[page.growing.name])
            else:
                self._copy(output, output.growing, page)

    def _add_pages(self) -> None:
        """Complete the pages of an output that is complete."""
        output, *pages = self.files
        for page in pages:
            self._copy(output, output.path, page)
            page.finish()
        for file in self.files:
            file.clean_up()

    def _copy(self, output: PredictionFile, source: Path, page: PredictionFile) -> None:
        """Begin a page with what was predicted without it, for which pictures are read once more."""
        page.open(None)
        decoder = Decoder(THUMBNAIL, self.config.decoding, thumbnails=True)
        paths = (each.path or "" for each in read_predictions(output, source))
        decoded = chain.from_iterable(read_batches(paths, decoder, 100))
        for prediction, picture in zip(read_predictions(output, source), decoded, strict=True):
            page.write([replace(prediction, thumbnail=picture.thumbnail)])

    def predicted_paths(self) -> set[str]:
        """Paths of what was predicted before this job was resumed, as `path_text` writes them."""
        output = self.files[0] if self.files else None
        return {row["path"] for row in output.read(output.growing)} if output else set()

    def run(self, paths: Iterable[str | Pause], *, from_start: bool = True) -> Iterator[list[Prediction]]:
        """Predict, batch by batch; predictions are in the files when they are yielded.

        Args:
            paths: all pictures of the job, also those that a resumed one has predicted already.
            from_start: False if `paths` has only those that are left.
        """
        left = self._left_of(iter(paths)) if from_start else paths
        for predictions in self._predict(left):
            for prediction in predictions:
                self._digest = _chained(self._digest, prediction.path or "")
            for file in self.files:
                file.write(predictions)
            if self.executor or time.perf_counter() >= self._checkpoint_after:
                self._save(self.files)
            yield predictions
        self._finish()

    def _predict(self, paths: Iterable[str | Pause]) -> Iterator[list[Prediction]]:
        first = self.summary.pictures
        if self.executor is None:
            yield from self.config.predict(paths, self.summary, first)
            return
        left = [path for path in paths if isinstance(path, str)]
        starts = range(0, len(left), self.shard_size)
        shards = [(first + start, left[start : start + self.shard_size]) for start in starts]
        for predictions, part in self.executor.map(partial(predict_shard, self.config), shards):
            self.summary.add(part)
            yield predictions

    def _left_of(self, paths: Iterator[str | Pause]) -> Iterator[str | Pause]:
        """What follows the pictures of the checkpoint, if these are the same as they were."""
        digest = ""
        for _ in range(self.summary.pictures):
            digest = _chained(digest, str(next(paths, "")))
        if digest != self._digest:
            raise DataError(
                f"The pictures are not those that {self.files[0].path} was begun with. Give the same ones in the same "
                "order, or begin anew with another --output."
            )
        return paths

    def _settings(self) -> dict[str, Any]:
        return {**self.config.settings(), "shard size": str(self.shard_size if self.executor else None)}

    def _save(self, files: Sequence[PredictionFile] | None) -> None:
        """Write a checkpoint; without files, one of a job that has predicted nothing yet."""
        if self.checkpoint is None:
            return
        start = time.perf_counter()
        facts = {
            "sizes": {file.growing.name: file.sync() for file in files or ()},
            "digest": self._digest,
            "summary": self.summary.to_json(),
            "settings": self._settings(),
        }
        write_state(self.checkpoint, self._here.loaded[0], facts)
        now = time.perf_counter()
        self._checkpoint_after = now + (now - start) / CHECKPOINT_SHARE

    def _load(self, checkpoint: Path) -> dict[str, int]:
        """Continue from a checkpoint; returns the sizes that the files had."""
        state, facts = read_state(checkpoint)
        self._check_settings(facts["settings"])
        self._here.loaded[0].load_state_dict(state)
        self.summary = Summary.from_json(facts["summary"])
        self._digest = facts["digest"]
        sizes: dict[str, int] = facts["sizes"]
        return sizes

    def _check_settings(self, before: Mapping[str, Any]) -> None:
        now = self._settings()
        if differing := [name for name in now if before.get(name) != now[name]]:
            was, is_now = (reprlib.repr(each.get(differing[0], "")).strip("'") for each in (before, now))
            raise InvalidInputError(
                f"{self.files[0].path} was begun with another {differing[0]}: {was}, not {is_now}. Resume it with the "
                "same options, or begin anew with another --output."
            )

    def _finish(self) -> None:
        """Complete all files. The checkpoint is removed last: until then, the job can be resumed."""
        for file in self.files:
            file.finish()
        if self.state is not None:
            write_state(self.state, self._here.loaded[0])
        if self.checkpoint is not None:
            self.checkpoint.unlink()
        for file in self.files:
            file.clean_up()


def _chained(digest: str, path: str) -> str:
    """The digest of some paths, with one more."""
    return hashlib.sha256(f"{digest}\n{path}".encode(errors="surrogateescape")).hexdigest()
