"""Images in the shards of a WebDataset: tar files whose members share a key, such as `00012.jpg` and `00012.cls`.

Shards are read once to find where their images are. Images are then read from the shards one by one, in any order.
"""

from __future__ import annotations

import itertools
import os
import re
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from tta_panda.data import CLEAN
from tta_panda.data.dataset import ImageFiles
from tta_panda.data.listing import CLASS_LIST, SUFFIXES, found_in, read_classes, shortened
from tta_panda.data.source import ImageSource, published_classes
from tta_panda.errors import DataError
from tta_panda.files import open_regular
from tta_panda.images import StoredImage

_CLASS_LISTS = (CLASS_LIST, "classnames.txt")  # the latter is that of CLIP_benchmark
_BRACES = re.compile(r"\{([^{}]*)\}")
_LARGEST_LABEL = 20  # bytes
_MAX_SHARDS = 1_000_000


@dataclass(frozen=True, slots=True)
class Member(StoredImage):
    """An image in a tar file that is not compressed."""

    file: Path
    name: str
    start: int
    size: int

    def __fspath__(self) -> str:
        return f"{self.file}/{self.name}"

    def read(self) -> bytes:
        with open_regular(self.file) as file:
            file.seek(self.start)
            return file.read(self.size)


@dataclass(frozen=True, kw_only=True)
class Shards(ImageSource):
    """Shards in a folder, in one folder for each domain, or named by a pattern such as `shards/{000..009}.tar`."""

    classes: str | None = None  # list in `class_names`; None: in a file next to the shards, or above

    def load(self, root: Path | None, corruption: str, severity: int) -> ImageFiles:
        self.check_is_clean(corruption)
        shards = self._shards(self.required_root(root), corruption)
        images, labels = read_shards(shards)
        if unlabelled := [os.fspath(image) for image, label in zip(images, labels, strict=True) if label is None]:
            raise DataError(
                f"{len(unlabelled):,} of the {len(images):,} images have no label: {shortened(unlabelled)}. Expected a "
                "member .cls with the index of the class beside each image. To predict: tta-panda predict wds:SHARDS"
            )
        names = self.class_names(shards[0].parent)
        if names is None:
            raise DataError(
                f"There are no class names for {shards[0]}: write one per line to "
                f"{shards[0].with_name(CLASS_LIST)}, in the order of the labels."
            )
        return ImageFiles(tuple(images), np.array(labels, dtype=np.int64), names, self.decoding)

    def images(self, root: Path | None) -> Sequence[Member]:
        return read_shards(self._shards(self.required_root(root), CLEAN))[0]

    def class_names(self, folder: Path) -> tuple[str, ...] | None:
        """Class names in label order, if they are known."""
        if self.classes is not None:
            return tuple(published_classes(self.classes).values())
        for file in (place / name for place in (folder, folder.parent) for name in _CLASS_LISTS):
            if file.is_file():
                return tuple(read_classes(file).values())
        return None

    def available(self, root: Path | None) -> tuple[str, ...]:
        root = self.required_root(root)
        folders = sorted({path.parent.name for path in root.glob("*/*.tar")}) if not self.domains else []
        return tuple(folders) or (CLEAN,)

    def _shards(self, root: Path, corruption: str) -> list[Path]:
        """The shards of a domain, in the order of the pattern or of their numbers."""
        if root.suffix == ".tar":
            paths = list(itertools.islice(expand_braces(root), _MAX_SHARDS + 1))
        else:
            folder = root if corruption == CLEAN else root / corruption
            paths = sorted(folder.glob("*.tar"), key=lambda path: (len(path.name), path.name))
        if len(paths) > _MAX_SHARDS:
            raise DataError(f"{root} names more than {_MAX_SHARDS:,} shards.")
        if missing := [path.name for path in paths if not path.is_file()]:
            raise DataError(
                f"{len(missing)} of {len(paths)} shards are not in {paths[0].parent}: {shortened(missing)}; found "
                f"{found_in(paths[0].parent) if paths[0].parent.is_dir() else 'no such folder'}. Fetch them, or name "
                "those that exist."
            )
        if not paths:
            raise DataError(
                f"There are no shards of {corruption} in {root}; expected {self.layout}, found {found_in(root)}. Give "
                f"the folder that holds them, as in --data {self.name}:FOLDER."
            )
        return paths

    def required_root(self, root: Path | None) -> Path:
        root = super(ImageSource, self).required_root(root)
        if root.suffix != ".tar" and not root.is_dir():
            raise DataError(
                f"There is no folder {root}; expected {self.layout}, as in --data 'wds:shards/{{00..09}}.tar'."
            )
        return root


def expand_braces(path: Path) -> Iterator[Path]:
    """Expand `{000..009}` and `{a,b}` in a path, as a shell does."""
    found = _BRACES.search(str(path))
    if found is None:
        yield path
        return
    first, dots, last = found[1].partition("..")
    words: Iterable[str] = found[1].split(",")
    if dots and first.isdecimal() and last.isdecimal():
        words = (str(number).zfill(len(first)) for number in range(int(first), int(last) + 1))
    start, end = found.span()
    for word in words:
        yield from expand_braces(Path(f"{str(path)[:start]}{word}{str(path)[end:]}"))


def read_shards(paths: list[Path]) -> tuple[list[Member], list[int | None]]:
    """Find the images in tar files, one file after another, with their labels; None for those without."""
    images: list[Member] = []
    labels: list[int | None] = []
    for path in paths:
        try:
            found, numbers = _read_shard(path)
        except OSError as error:
            raise DataError(f"Cannot read {path} ({error.strerror or error}).") from error
        except (tarfile.TarError, ValueError, MemoryError) as error:  # forged headers make tarfile raise all of these
            raise DataError(
                f"{path} cannot be read as a shard ({error}): it is cut short, compressed or no tar file. Fetch it "
                "again, or unpack it with gunzip."
            ) from error
        images += found.values()
        labels += map(numbers.get, found)
    if not images:
        raise DataError(f"There are no images in {shortened([path.name for path in paths])}; expected .jpg or .png.")
    return images, labels


def _read_shard(path: Path) -> tuple[dict[str, Member], dict[str, int]]:
    """Find images and labels by key."""
    images: dict[str, Member] = {}
    labels: dict[str, int] = {}
    with open_regular(path) as file, tarfile.open(fileobj=file, mode="r:") as tar:
        for member in tar:
            if member.size < 0:  # tarfile would go back, and find the same members forever
                raise tarfile.ReadError("a member of negative size")
            folder, _, name = member.name.rpartition("/")
            stem, _, kind = name.partition(".")
            key, suffix = f"{folder}/{stem}", f".{kind.rpartition('.')[2].lower()}"
            if not member.isreg() or suffix not in (*SUFFIXES, ".cls"):
                continue
            if member.offset_data + member.size > os.fstat(file.fileno()).st_size:
                raise tarfile.ReadError(f"unexpected end of data after {len(images):,} images")
            if suffix == ".cls":
                labels[key] = _label(path, member, tar)
            else:
                images[key] = Member(path, member.name, member.offset_data, member.size)
        file.seek(tar.offset)
        if file.read(tarfile.BLOCKSIZE) != tarfile.NUL * tarfile.BLOCKSIZE:  # tarfile ignores a missing end
            raise tarfile.ReadError(f"unexpected end of data after {len(images):,} images")
    return images, labels


def _label(path: Path, member: tarfile.TarInfo, tar: tarfile.TarFile) -> int:
    content = tar.extractfile(member)
    assert content is not None  # it is a regular file
    text = content.read(_LARGEST_LABEL + 1).strip()
    if not text.isdigit() or len(text) > _LARGEST_LABEL - 2:
        raise DataError(f"{path}: {member.name} holds {text!r}; expected the index of a class, as in b'7'.")
    return int(text)


WEBDATASET = Shards(
    name="wds",
    about="Shards of a WebDataset, on disk: --data wds:shards/{000..009}.tar.",
    layout="<number>.tar with <key>.jpg and <key>.cls, and classes.txt",
    domains=(CLEAN,),
)
CCC = replace(
    WEBDATASET,
    name="ccc",
    about="CCC, continuously changing corruptions: shards on disk, to be run with --order sequential.",
    layout="<setting>/serial_<number>.tar or serial_<number>.tar",
    domains=(),
    has_severities=False,
    classes="imagenet",
)
