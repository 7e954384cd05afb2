"""A file of CIFAR-C that is made here: `<corruption>.npy` in the published shape, and a note of what is in it.

The note lists the severities whose rows are filled, and never more than the file holds: an empty note is written before
the file, and extended after it. A crash in between costs time, but the note stays true.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.format import write_array_header_1_0
from numpy.typing import NDArray

from tta_panda import __version__
from tta_panda.data.read.cifar import SEVERITIES, note_path, open_array, read_note
from tta_panda.errors import DataError
from tta_panda.files import atomic_path, write_atomically

Images = NDArray[np.uint8]


class CorruptionFile:
    """A file that is made severity by severity from `rows` clean images, with settings that must not change."""

    def __init__(self, path: Path, rows: int, settings: dict[str, Any]):
        self.path, self.rows, self.settings = path, rows, settings
        self._shape = (SEVERITIES * rows, 32, 32, 3)

    def severities(self) -> list[int]:
        """Severities that the file holds. A file without a note is a published one and holds all of them."""
        if not self.path.is_file():
            return []
        found = open_array(self.path).shape
        if found != self._shape:
            raise DataError(
                f"{self.path} should have the shape {self._shape}, found {found}. Delete it to make it again."
            )
        note = read_note(self.path)
        if note is None:
            return list(range(1, SEVERITIES + 1))
        for key, value in self.settings.items():
            if note.get(key) != value:
                raise DataError(
                    f"{self.path} was made with {key} {note.get(key)!r}, not {value!r}, and a file holds only one of "
                    "them. Choose another folder with -o PATH, or delete the file to make it again."
                )
        return list(note["severities"])

    def write(
        self, severities: Iterable[int], parts: Iterable[tuple[int, int, Images]], advance: Callable[[], None]
    ) -> None:
        """Add severities, given as parts (severity, index of the first image, images), and keep those it holds."""
        kept = self.severities()
        if not kept:
            self._write_note([])
        with atomic_path(self.path) as part, part.open("wb") as file:
            # Not a memory map: where the disk is full, writing to one ends the process without a word.
            write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": self._shape})
            start = file.tell()
            file.truncate(start + math.prod(self._shape))

            def put(severity: int, index: int, images: Images) -> None:
                file.seek(start + (self.rows * (severity - 1) + index) * math.prod(self._shape[1:]))
                file.write(images.tobytes())

            for severity in kept:
                first = self.rows * (severity - 1)
                put(severity, 0, open_array(self.path)[first : first + self.rows])
            for severity, index, images in parts:
                put(severity, index, images)
                advance()
        self._write_note(sorted({*kept, *severities}))

    def _write_note(self, severities: list[int]) -> None:
        note = {"severities": severities, **self.settings, "made_by": f"tta-panda {__version__}"}
        write_atomically(note_path(self.path), json.dumps(note, indent=1) + "\n")
