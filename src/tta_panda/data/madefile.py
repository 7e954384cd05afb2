"""One made file of CIFAR-C: `<corruption>.npy` in the published shape, and a note of what is in it.

The array is written under another name and renamed when it is whole, so that no reader, and no second run, takes half
a file for a whole one. The note lists the severities whose rows are filled, and never more than the file holds: it is
there, empty, before the file first appears, and is extended after the file. A crash in between costs time, not truth.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.format import open_memmap
from numpy.typing import NDArray

from tta_panda import __version__
from tta_panda.data.cifar import SEVERITIES, note_path, open_array, read_note
from tta_panda.errors import DataError

Images = NDArray[np.uint8]


class MadeFile:
    """A file that is made severity by severity from `rows` clean images, with settings that must not change."""

    def __init__(self, path: Path, rows: int, settings: dict[str, Any]):
        self.path, self.rows, self.settings = path, rows, settings

    def severities(self) -> tuple[int, ...]:
        """Severities that the file holds. A file without a note is a published one and holds all."""
        if not self.path.is_file():
            return ()
        found = open_array(self.path).shape
        if found != self._shape:
            raise DataError(
                f"{self.path} should have the shape {self._shape}, found {found}. Delete it to make it anew."
            )
        note = read_note(self.path)
        if note is None:
            return tuple(range(1, SEVERITIES + 1))
        self._check_settings(note)
        return tuple(note["severities"])

    def write(self, severities: Iterable[int], parts: Iterable[tuple[int, int, Images]]) -> None:
        """Add severities, given as parts (severity, index of the first image, images), and keep those it holds."""
        kept = self.severities()
        if not kept:
            self._write_note([])
        part_path = self.path.with_name(f"{self.path.name}.part")
        array = open_memmap(part_path, mode="w+", dtype=np.uint8, shape=self._shape)
        for severity in kept:
            first = self.rows * (severity - 1)
            array[first : first + self.rows] = open_array(self.path)[first : first + self.rows]
        for severity, index, images in parts:
            first = self.rows * (severity - 1) + index
            array[first : first + len(images)] = images
        array.flush()
        del array
        replace_durably(part_path, self.path)
        self._write_note(sorted({*kept, *severities}))

    @property
    def _shape(self) -> tuple[int, ...]:
        return (SEVERITIES * self.rows, 32, 32, 3)

    def _check_settings(self, note: dict[str, Any]) -> None:
        for key, value in self.settings.items():
            if note.get(key) != value:
                raise DataError(
                    f"{self.path} was made with {key} {note.get(key)!r}, not {value!r}, and a file holds one of them "
                    "only. Choose another --to PATH, or delete the file to make it anew."
                )

    def _write_note(self, severities: list[int]) -> None:
        note = {"severities": severities, **self.settings, "made_by": f"tta-panda {__version__}"}
        write_durably(note_path(self.path), (json.dumps(note, indent=1) + "\n").encode())


def write_durably(path: Path, content: bytes) -> None:
    """All of a small file or nothing."""
    part = path.with_name(f"{path.name}.part")
    part.write_bytes(content)
    replace_durably(part, path)


def replace_durably(part: Path, target: Path) -> None:
    """Rename, once the content is on the disk: some systems would otherwise rename first and lose the content."""
    with part.open("rb+") as file:
        os.fsync(file.fileno())
    os.replace(part, target)
