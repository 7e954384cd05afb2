"""A folder of records: one JSON file per run, named by the hash of its configuration, written in one step."""

from __future__ import annotations

import logging
import os
import re
import tempfile
from collections.abc import Iterable
from pathlib import Path

from pydantic import ValidationError

from tta_panda.errors import StoreError
from tta_panda.evaluation.record import RunConfig, RunRecord

logger = logging.getLogger(__name__)

_RECORD_NAME = re.compile(r"[0-9a-f]{20}\.json")  # a folder may hold other JSON files, which are none of our business
_DIVERGED = ".diverged"


class RunStore:
    """Save and find records. A run that is in the store need not be run again."""

    def __init__(self, root: Path | str):
        self.root = Path(root)

    def prepare(self) -> None:
        """Create the folder, and find out now rather than after the first run whether it can be written."""
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.root):
                pass
        except OSError as error:
            raise StoreError(
                f"Cannot write results to {self.root} ({error.strerror or error}). Choose a folder that you may write "
                "to with -o PATH."
            ) from error

    def path(self, config: RunConfig) -> Path:
        return self.root / f"{config.key}.json"

    def load(self, config: RunConfig) -> RunRecord | None:
        """The record of a configuration; None where there is none. A damaged one is set aside, to be made again."""
        path = self.path(config)
        record = self._read(path)
        if record is None and path.exists():
            aside = path.with_suffix(".damaged")
            logger.warning("%s is not a valid record; it is kept as %s and its run is made again", path, aside.name)
            try:
                path.replace(aside)
            except OSError as error:
                raise StoreError(f"Cannot set aside the damaged {path} ({error.strerror or error}).") from error
        return record

    def existing(self, configs: Iterable[RunConfig]) -> dict[str, RunRecord]:
        """The records that are there, by the key of their configuration."""
        return {config.key: record for config in configs if (record := self.load(config)) is not None}

    def save(self, record: RunRecord) -> Path:
        """Write a record so that a reader, or a crash, never meets half of it."""
        target = self.path(record.config)
        part = target.with_suffix(f".{os.getpid()}.tmp")
        try:
            with part.open("w", encoding="utf-8") as file:
                file.write(record.model_dump_json(indent=1))
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, target)
        except OSError as error:
            part.unlink(missing_ok=True)
            raise StoreError(f"Cannot write {target} ({error.strerror or error}).") from error
        return target

    def save_divergence(self, config: RunConfig, message: str) -> None:
        """Remember that a run gave no numbers, so that it is not made again for nothing."""
        path = self.path(config).with_suffix(_DIVERGED)
        try:
            path.write_text(f"{message}\n", encoding="utf-8")
        except OSError as error:
            raise StoreError(f"Cannot write {path} ({error.strerror or error}).") from error

    def diverged(self, configs: Iterable[RunConfig]) -> dict[str, RunConfig]:
        """The configurations whose runs gave no numbers, by their keys."""
        return {config.key: config for config in configs if self.path(config).with_suffix(_DIVERGED).exists()}

    def records(self) -> list[RunRecord]:
        """Every readable record of the folder, in a stable order."""
        if not self.root.is_dir():
            raise StoreError(f"There is no folder {self.root}. Make records with: tta-panda bench -o {self.root}")
        records = []
        for path in sorted(path for path in self.root.glob("*.json") if _RECORD_NAME.fullmatch(path.name)):
            record = self._read(path)
            if record is None:
                logger.warning("%s is not a valid record and is left out", path)
            else:
                records.append(record)
        return records

    def _read(self, path: Path) -> RunRecord | None:
        try:
            return RunRecord.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreError(f"Cannot read {path} ({error.strerror or error}).") from error
        except ValidationError:
            return None
