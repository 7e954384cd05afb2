"""The published archives of the data sets: where they are, their md5 sums, and what is in them."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from tta_panda.data.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS, GROUPS


class Archive(NamedTuple):
    url: str
    md5: str
    size: str
    """About, for people; the server says it exactly."""
    folder: str
    """Below the root, what the archive is unpacked into."""
    holds: tuple[str, ...]
    """Paths in `folder` that are there when all of the archive is."""
    group: str = ""
    """A folder that may be around them: the archives of ImageNet-C can be unpacked together or one by one."""

    @property
    def file(self) -> str:
        return self.url.rpartition("/")[2]

    def is_whole(self, folder: Path) -> bool:
        return all((folder / path).exists() or (folder / self.group / path).exists() for path in self.holds)


_ZENODO = "https://zenodo.org/records/{}/files/{}"
_TORONTO = "https://www.cs.toronto.edu/~kriz/{}"


def _cifar(folder: str, record: int, md5: str) -> Archive:
    holds = tuple(f"{folder}/{name}.npy" for name in ("labels", *CORRUPTIONS))
    return Archive(_ZENODO.format(record, f"{folder}.tar"), md5, "2.9 GB", "", holds)


def _imagenet(group: str, md5: str, size: str) -> Archive:
    names = EXTRA_CORRUPTIONS if group == "extra" else GROUPS[group]
    holds = tuple(f"{name}/{severity}" for name in names for severity in range(1, 6))
    return Archive(_ZENODO.format(2235448, f"{group}.tar"), md5, size, "ImageNet-C", holds, group)


ARCHIVES: dict[str, tuple[Archive, ...]] = {
    "cifar10-c": (_cifar("CIFAR-10-C", 2535967, "56bf5dcef84df0e2308c6dcbcbbd8499"),),
    "cifar100-c": (_cifar("CIFAR-100-C", 3555552, "11f0ed0f1191edbf9fa23466ae6021d3"),),
    "imagenet-c": (
        _imagenet("noise", "e80562d7f6c3f8834afb1ecf27252745", "22 GB"),
        _imagenet("blur", "2d8e81fdd8e07fef67b9334fa635e45c", "7 GB"),
        _imagenet("weather", "33ffea4db4d93fe4a428c40a6ce0c25d", "13 GB"),
        _imagenet("digital", "89157860d7b10d5797849337ca2e5c03", "8 GB"),
        _imagenet("extra", "d492dfba5fc162d8ec2c3cd8ee672984", "16 GB"),
    ),
    "cifar10": (
        Archive(
            _TORONTO.format("cifar-10-python.tar.gz"),
            "c58f30108f718f92721af3b95e74349a",
            "170 MB",
            "",
            ("cifar-10-batches-py/test_batch",),
        ),
    ),
    "cifar100": (
        Archive(
            _TORONTO.format("cifar-100-python.tar.gz"),
            "eb9058c3a382ffc7106e4002c42a8d85",
            "169 MB",
            "",
            ("cifar-100-python/test",),
        ),
    ),
}
