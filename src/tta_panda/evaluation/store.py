"""A folder of records: one JSON file per run, named by the key of its configuration and written atomically."""

from __future__ import annotations

import contextlib
import json
import logging
import re
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tta_panda import __version__
from tta_panda.errors import StoreError
from tta_panda.escapes import printable
from tta_panda.evaluation.config import RunConfig
from tta_panda.evaluation.record import SCHEMA, FailedRun, RunRecord
from tta_panda.files import flat, make_writable, read_regular, save_file

logger = logging.getLogger(__name__)

RECORD_NAME = re.compile(r"[0-9a-f]{20}\.json")  # other JSON files in the folder are ignored


class RunStore:
    """Save and load records. A run that is in the store need not be run again."""

    def __init__(self, root: Path | str):
        self.root = Path(root)

    def prepare(self) -> None:
        """Create the folder, and check that it is writable before the first run."""
        make_writable(self.root, "write results to", "Choose a folder that you may write to with -o PATH.")

    def path(self, config: RunConfig) -> Path:
        return self.root / f"{config.key}.json"

    def divergence_path(self, config: RunConfig) -> Path:
        return self.path(config).with_suffix(".diverged")

    def load(self, config: RunConfig) -> RunRecord | None:
        """Load the record of a run; None if there is none. A damaged record is set aside, and its run is repeated."""
        path = self.path(config)
        record = self.read(path, config.key)
        return self._set_aside(path) if record is None and path.exists() else record

    def _set_aside(self, path: Path) -> RunRecord | None:
        """Rename a damaged record, unless another process has replaced it with a valid one, which is returned."""
        aside = path.with_suffix(".damaged")
        try:
            path.replace(aside)
            record = self.read(aside, path.stem)
            if record is not None:
                aside.replace(path)
                return record
        except FileNotFoundError:
            return None  # another process has set it aside
        except OSError as error:
            raise StoreError(f"Cannot set aside the damaged {path} ({error.strerror or error}).") from error
        logger.warning(
            "%s is not a valid record for its name; it is kept as %s, and the run is repeated",
            printable(str(path)),
            aside.name,
        )
        return None

    def existing(self, configs: Iterable[RunConfig]) -> dict[str, RunRecord]:
        """Load the records that exist, by key."""
        return {config.key: record for config in configs if (record := self.load(config)) is not None}

    def save(self, record: RunRecord) -> Path:
        """Write a record atomically."""
        return save_file(self.path(record.config), record.model_dump_json(indent=1))

    def save_divergence(self, run: FailedRun) -> None:
        """Store a run that diverged, so that it is not repeated."""
        save_file(self.divergence_path(run.config), run.model_dump_json(indent=1))

    def divergences(self, configs: Iterable[RunConfig] | None = None) -> dict[str, FailedRun]:
        """Load the stored divergences of these runs, or of all, by key. Files that cannot be read are ignored."""
        paths = self.root.glob("[!.]*.diverged") if configs is None else map(self.divergence_path, configs)
        found = {}
        for path in paths:
            with contextlib.suppress(OSError, ValidationError):
                found[path.stem] = FailedRun.model_validate_json(read_regular(path))
        return found

    def records(self, except_for: Collection[str] = ()) -> list[RunRecord]:
        """Load all readable records of the folder in a stable order, except for those with the given keys."""
        if not self.root.is_dir():
            raise StoreError(f"There is no folder {self.root}. Make records with: tta-panda bench -o {self.root}")
        records = []
        for path in sorted(path for path in self.root.glob("*.json") if RECORD_NAME.fullmatch(path.name)):
            if path.stem in except_for:
                continue
            record = self.read(path, path.stem)
            if record is None:
                logger.warning("%s is not a valid record for its name and is skipped", printable(str(path)))
            else:
                records.append(record)
        return records

    @staticmethod
    def read(path: Path, key: str) -> RunRecord | None:
        """Read the record of the run with this key from a file; None if it is missing or not a valid one."""
        try:
            content = read_regular(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreError(f"Cannot read {path} ({error.strerror or error}).") from error
        try:
            record = RunRecord.model_validate_json(content)
        except ValidationError:
            _refuse_other_schemas(path, content)
            return None
        return record if record.config.key == key else None  # a copy under another name


def _refuse_other_schemas(path: Path, content: bytes) -> None:
    """Raise `StoreError` for a record with another schema number: it is not damaged, but cannot be used."""
    with contextlib.suppress(ValueError, RecursionError):
        found = json.loads(content)
        if not isinstance(found, dict) or "version" not in found or found.get("schema_number") == SCHEMA:
            return
        number = found.get("schema_number", "none")
        raise StoreError(
            f"{path} was written by tta-panda {found['version']} (record schema {number}), and this version, "
            f"{__version__}, reads schema {SCHEMA}. Choose another folder with -o PATH, or install that version."
        )


def load_records(folder: Path | str) -> list[dict[str, Any]]:
    """Load all readable records of a folder as flat rows, ready for `pandas.DataFrame(rows)`."""
    return [flat(row) for record in RunStore(folder).records() for row in record.rows()]
