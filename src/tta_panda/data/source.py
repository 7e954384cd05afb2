"""Registry entries of data sets: what they are, how they are read, and where they are published."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

from tta_panda.data import AVAILABLE, CLEAN, DATASETS
from tta_panda.data.corruptions import ALL_CORRUPTIONS, CORRUPTIONS
from tta_panda.data.listing import parse_classes
from tta_panda.errors import DataError, UnknownNameError
from tta_panda.files import expand, open_regular
from tta_panda.images import AS_SHOWN, Decoding, StoredImage

if TYPE_CHECKING:
    from tta_panda.data.dataset import Dataset, ImageFiles


class Archive(NamedTuple):
    """A published archive: its address, md5 sum and content."""

    url: str
    md5: str
    gigabytes: float  # approximate
    holds: tuple[str, ...]  # paths that must exist in `folder` once the archive is unpacked
    folder: str = ""  # where the archive is unpacked, below the root
    group: str = ""  # optional parent of the paths: archives of ImageNet-C may be in a folder each

    @property
    def file(self) -> str:
        return self.url.rpartition("/")[2]

    def is_complete(self, folder: Path) -> bool:
        return all((folder / path).exists() or (folder / self.group / path).exists() for path in self.holds)


Status = Literal["ok", "partial", "missing", "damaged"]


class Finding(NamedTuple):
    """The result of checking one file or folder of a data set."""

    data: str
    item: str
    status: Status
    detail: str


@dataclass(frozen=True, kw_only=True)
class DataSource(ABC):
    """A data set that can be loaded, one domain at a time.

    A subclass implements a layout on disk; an instance describes one data set with that layout.
    """

    name: str
    about: str
    layout: str = ""  # of the files below the root, for messages
    domains: tuple[str, ...] = (CLEAN, *CORRUPTIONS)  # used by runs unless others are named; empty: those on disk
    archives: tuple[Archive, ...] = ()  # what `tta-panda data download` fetches
    has_severities: bool = True  # whether its domains are corruptions, not photographs of several kinds
    size: tuple[int, int] | None = None  # numbers of images per domain and of classes, if known in advance

    embedded: ClassVar[bool] = False
    """Whether it comes with the package; others are read from a root folder."""
    image_files: ClassVar[bool] = False
    """Whether its images are files of any size, each decoded and fitted to the model."""

    @abstractmethod
    def load(self, root: Path | None, corruption: str, severity: int) -> Dataset:
        """Load one domain."""

    def available(self, root: Path | None) -> tuple[str, ...]:
        """The domains that runs use unless others are named: corruptions and `clean`."""
        return self.domains

    def expand(self, names: Sequence[str], root: Path | None) -> tuple[str, ...]:
        """Replace `available` and `all` by the domains that they stand for; raise if another is unknown."""
        of_all = tuple(name for name in self.domains if name != CLEAN)
        if not self.has_severities:
            of_all = self.available(root)
        elif not of_all:
            of_all = CORRUPTIONS
        known = (*of_all, *ALL_CORRUPTIONS) if of_all == CORRUPTIONS else of_all
        chosen: list[str] = []
        for name in names:
            if name not in (AVAILABLE, "all", CLEAN, *known):
                raise UnknownNameError("corruption" if self.has_severities else "domain", name, ("all", *known))
            chosen += self.available(root) if name == AVAILABLE else of_all if name == "all" else [name]
        return tuple(dict.fromkeys(chosen))

    def fingerprint(
        self, root: Path | None, corruption: str, severity: int, *, skip_broken: bool = False
    ) -> str | None:
        """Identify the data in records; None if the name suffices, or if the data cannot be read.

        With `skip_broken`, it is the fingerprint that the data set would have without its broken files.
        """
        return None

    def check(self, root: Path) -> Iterator[Finding]:
        """Check which parts are present, missing or damaged; yield nothing if no part of the data set is present."""
        return iter(())

    def check_domains(self, root: Path) -> Iterator[Finding]:
        """Check whether each domain can be loaded, for data whose images and classes are not known in advance."""
        for name in self.available(root):
            try:
                data = self.load(root, name, 5)  # the severity that runs use unless others are named
            except DataError as error:
                yield Finding(self.name, name, "damaged", str(error))
            else:
                found = f"{len(data):,} images of {len(data.class_names):,} classes"
                yield Finding(self.name, name, "ok" if len(data) else "partial", found)

    def check_path(self, path: Path, check: Callable[[Path], tuple[Status, str]], if_missing: str = "") -> Finding:
        """Check a file or folder, if it exists, with a function that returns its status and a detail."""
        if not path.exists():
            return Finding(self.name, path.name, "missing", if_missing)
        try:
            return Finding(self.name, path.name, *check(path))
        except DataError as error:
            return Finding(self.name, path.name, "damaged", str(error))

    def required_root(self, root: Path | None) -> Path:
        """Return the absolute root folder; raise `DataError` if none was given."""
        if root is None:
            raise DataError(
                f"{self.name} is read from disk ({self.layout}): give the folder that holds it with --data-root PATH."
            )
        return expand(root).absolute()

    def check_is_clean(self, corruption: str) -> None:
        """Raise `DataError` if a corruption is requested of a data set that has none."""
        if corruption != CLEAN and self.domains == (CLEAN,):
            other = f", or use --data {self.name}-c" if f"{self.name}-c" in DATASETS else ""
            raise DataError(f"{self.name} holds clean images only, not {corruption}: add --corruption clean{other}.")


@dataclass(frozen=True, kw_only=True)
class ImageSource(DataSource):
    """A data set of image files of any size, identified in records by their content."""

    image_files: ClassVar[bool] = True

    decoding: Decoding = AS_SHOWN

    @abstractmethod
    def load(self, root: Path | None, corruption: str, severity: int) -> ImageFiles: ...

    def images(self, root: Path | None) -> Sequence[Path | StoredImage]:
        """Find the images without requiring labels."""
        return self.load(root, CLEAN, 0).paths

    def fingerprint(
        self, root: Path | None, corruption: str, severity: int, *, skip_broken: bool = False
    ) -> str | None:
        """Digest of the class names, and of the names, labels and bytes of the images."""
        if root is None:
            return None
        try:
            files = self.load(root, corruption, severity)
            return (files.without_broken() if skip_broken else files).fingerprint()
        except (DataError, OSError):  # raised again, and reported, when the data are loaded
            return None

    def required_root(self, root: Path | None) -> Path:
        root = super().required_root(root)
        if not root.is_dir():
            raise DataError(
                f"There is no folder {root}. Give the folder that holds {self.name} ({self.layout}) with --data-root "
                "PATH."
            )
        return root


@cache
def published_classes(name: str) -> dict[str, str]:
    """Class names of a published data set by folder, in label order, as used in prompts."""
    text = resources.files("tta_panda.data").joinpath("class_names", f"{name}.txt").read_text("utf-8")
    return parse_classes(text.splitlines())


def file_md5(path: Path) -> str:
    with open_regular(path) as file:
        return hashlib.file_digest(file, "md5").hexdigest()
