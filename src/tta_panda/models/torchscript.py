"""The weights in a TorchScript archive, as OpenAI published CLIP's, read without running any of its code.

`torch.jit.load` would compile and later run the program in the archive. Only its tensors are wanted: they are named by
a pickle of the module tree, read here by an unpickler that knows tensors and inert modules and nothing else.
"""

from __future__ import annotations

import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

_STORAGES = {
    "DoubleStorage": torch.float64,
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
}


def is_torchscript(path: Path) -> bool:
    """Whether a file is an archive with a program in it; a plain checkpoint has none."""
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return any(name.endswith("/constants.pkl") for name in archive.namelist())


def read_torchscript(path: Path) -> dict[str, Tensor]:
    """Every tensor of the module tree by its name, as `state_dict` would name it."""
    with zipfile.ZipFile(path) as archive:
        (tree,) = (name for name in archive.namelist() if name.count("/") == 1 and name.endswith("/data.pkl"))
        with archive.open(tree) as file:
            root = _TensorsOnly(file, archive, tree.removesuffix("data.pkl")).load()
    return dict(_tensors(root, ""))


def _tensors(module: object, prefix: str) -> Iterator[tuple[str, Tensor]]:
    for name, value in vars(module).items() if isinstance(module, _Module) else ():
        if isinstance(value, Tensor):
            yield prefix + name, value
        else:
            yield from _tensors(value, f"{prefix}{name}.")


class _Module:
    """Stands for a module of the archive: attributes, and no code."""


class _TensorsOnly(pickle._Unpickler):  # the one in C takes as much memory as a file asks for
    def __init__(self, file: Any, archive: zipfile.ZipFile, prefix: str):
        super().__init__(file)
        self._archive, self._prefix = archive, prefix

    def find_class(self, module: str, name: str) -> Any:
        if module == "__torch__" or module.startswith("__torch__."):
            return _Module
        if module == "torch" and name in _STORAGES:
            return _STORAGES[name]
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _rebuild
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if module == "torch.jit._pickle" and name.startswith("build_"):
            return list  # of numbers or tensors, which are no weights
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")

    def persistent_load(self, reference: Any) -> Tensor:
        _, dtype, key, _, count = reference
        content = bytearray(self._archive.read(f"{self._prefix}data/{key}"))
        return torch.frombuffer(content, dtype=dtype, count=count) if count else torch.empty(0, dtype=dtype)


def _rebuild(storage: Tensor, offset: int, size: tuple[int, ...], stride: tuple[int, ...], *_: object) -> Tensor:
    return torch.as_strided(storage, size, stride, offset)  # torch checks that this stays within the storage
