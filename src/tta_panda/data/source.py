"""Registry entries of data sets: what they are, how they are read, and where they are published."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from tta_panda.data import CLEAN
from tta_panda.data.corruptions import CORRUPTIONS
from tta_panda.errors import DataError

if TYPE_CHECKING:
    from tta_panda.data.dataset import Dataset


class Archive(NamedTuple):
    """A published archive: where it is, its md5 sum, and what is in it."""

    url: str
    md5: str
    gigabytes: float  # about
    holds: tuple[str, ...]  # paths that must exist in `folder` when the archive is unpacked
    folder: str = ""  # where the archive is unpacked, below the root
    group: str = ""  # a folder that may be around the paths: each archive of ImageNet-C can be unpacked into its own

    @property
    def file(self) -> str:
        return self.url.rpartition("/")[2]

    def is_whole(self, folder: Path) -> bool:
        return all((folder / path).exists() or (folder / self.group / path).exists() for path in self.holds)


class Size(NamedTuple):
    """How many images each domain of a data set has, and how many classes."""

    images: int
    classes: int


@dataclass(frozen=True, kw_only=True)
class DataSource(ABC):
    """A data set that can be loaded, one domain at a time."""

    name: str
    about: str
    archives: tuple[Archive, ...] = ()  # what `tta-panda data download` fetches
    size: Size | None = None  # where it is known without looking

    embedded: ClassVar[bool] = False
    """Whether it comes with the package; others are read from a root folder."""
    image_files: ClassVar[bool] = False
    """Whether its images are files of any size, each decoded and fitted to the model."""

    clean_only: ClassVar[bool] = False

    @abstractmethod
    def load(self, root: Path | None, corruption: str, severity: int) -> Dataset:
        """The images of one domain."""

    def available(self, root: Path | None) -> tuple[str, ...]:
        """The corruptions, and `clean`, that runs use unless others are named."""
        return (CLEAN,) if self.clean_only else (CLEAN, *CORRUPTIONS)

    def fingerprint(
        self, root: Path | None, corruption: str, severity: int, *, skip_broken: bool = False
    ) -> str | None:
        """Identifies the data in records; None if the name is enough, or nothing can be read.

        Without its broken files, a data set has the fingerprint that it would have if they were removed.
        """
        return None

    def given(self, root: Path | None, layout: str) -> Path:
        """The root folder; it is a `DataError` if there is none."""
        if root is None:
            raise DataError(
                f"{self.name} has to be on disk ({layout}): give the folder that holds it with --data-root PATH."
            )
        return root.expanduser().absolute()
