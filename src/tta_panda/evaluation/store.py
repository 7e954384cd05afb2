"""A folder of records: one JSON file per run, named by the hash of its configuration, written in one step."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

from pydantic import ValidationError

from tta_panda.errors import StoreError
from tta_panda.evaluation.record import RunConfig, RunRecord

logger = logging.getLogger(__name__)


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
        """The record of a configuration; None where there is none, or none that can be read."""
        return self._read(self.path(config))

    def existing(self, configs: Iterable[RunConfig]) -> dict[str, RunRecord]:
        """The records that are there, by the key of their configuration."""
        return {config.key: record for config in configs if (record := self.load(config)) is not None}

    def save(self, record: RunRecord) -> Path:
        """Write a record so that a reader, or a crash, never meets half of it."""
        target = self.path(record.config)
        try:
            with tempfile.NamedTemporaryFile("w", dir=self.root, suffix=".tmp", delete=False, encoding="utf-8") as file:
                file.write(record.model_dump_json(indent=1))
                file.flush()
                os.fsync(file.fileno())
            os.replace(file.name, target)
        except OSError as error:
            raise StoreError(f"Cannot write {target} ({error.strerror or error}).") from error
        return target

    def records(self) -> list[RunRecord]:
        """Every readable record of the folder, in a stable order."""
        if not self.root.is_dir():
            raise StoreError(f"There is no folder {self.root}. Make records with: tta-panda bench -o {self.root}")
        found = (self._read(path) for path in sorted(self.root.glob("*.json")))
        return [record for record in found if record is not None]

    def _read(self, path: Path) -> RunRecord | None:
        """A damaged record is set aside, so that its run is made again and nothing is lost silently."""
        try:
            return RunRecord.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreError(f"Cannot read {path} ({error.strerror or error}).") from error
        except ValidationError:
            aside = path.with_suffix(".damaged")
            logger.warning("%s is not a valid record; it is kept as %s and its run counts as missing", path, aside.name)
            path.replace(aside)
            return None
