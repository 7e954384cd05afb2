"""Read the official pickles of clean CIFAR-10 and CIFAR-100 with an unpickler that allows arrays of bytes only.

Unpickling calls whatever a file asks for. These files ask for three names of numpy, and get stand-ins that do only what
an array of unsigned bytes needs: numpy's own would make arrays of forged pointers, if a file asked for them.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from tta_panda.errors import DataError
from tta_panda.pickles import RefusedPickleError, RestrictedUnpickler


def read_test_images(path: Path, label_key: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images (N, 32, 32, 3) and labels (N,) of the official test pickle."""
    content = _unpickled(path)
    key = label_key.encode()
    if not isinstance(content, dict) or b"data" not in content or key not in content:
        keys = sorted(str(k) for k in content) if isinstance(content, dict) else type(content).__name__
        raise DataError(f"{path} is not the test pickle of CIFAR: expected 'data' and {key!r}, found {keys}.")
    array, labels = content[b"data"], content[key]
    if not isinstance(labels, list) or not all(isinstance(label, int) and label.bit_length() < 32 for label in labels):
        raise DataError(f"{path}: expected a list of whole numbers as {key!r}, found {repr(labels)[:40]}.")
    found = array.pixels.shape if isinstance(array, _Array) else type(array).__name__
    if not isinstance(array, _Array) or found != (len(labels), 3072):
        raise DataError(f"{path}: expected rows of 3,072 bytes for {len(labels)} labels, found {found}.")
    images = np.ascontiguousarray(array.pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
    return images, np.array(labels, dtype=np.int64)


def _unpickled(path: Path) -> Any:
    try:
        content = io.BytesIO(path.read_bytes())
        return RestrictedUnpickler(content, lambda *name: _ALLOWED.get(name), encoding="bytes").load()
    except RefusedPickleError as error:
        raise DataError(
            f"{path}: {error}, which no CIFAR file does; it is not an official file and was not run. Download the data "
            "set again."
        ) from error
    except Exception as error:
        # A damaged pickle can fail in any way: too short, an unknown opcode, arguments of another number.
        raise DataError(f"{path} cannot be read as a pickle ({error}); download it again.") from error


class _StandIn:
    """What a pickle gets for a name: it can be called, but not changed."""

    def __init__(self, name: str, call: Callable[..., object]):
        self._name, self._call = name, call

    def __call__(self, *arguments: object) -> object:
        return self._call(*arguments)

    def __setstate__(self, state: object) -> NoReturn:
        # Without this method, a pickle could set the attributes of what it was granted.
        raise RefusedPickleError(f"it asks for a change of {self._name}")


class _UnsignedBytes:
    """The only dtype. Its state, byte order and flags, is ignored, so it cannot become another dtype."""

    def __setstate__(self, state: object) -> None:
        pass


class _Array:
    """An array: empty when a pickle makes it, filled when its state follows."""

    def __init__(self) -> None:
        self.pixels: NDArray[np.uint8] = np.empty(0, np.uint8)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _version, shape, dtype, by_columns, content = state
        if not isinstance(dtype, _UnsignedBytes) or not isinstance(content, bytes):
            raise RefusedPickleError(f"it asks for an array of {type(content).__name__}")
        self.pixels = np.frombuffer(content, np.uint8).reshape(shape, order="F" if by_columns else "C")


def _call_ndarray(*arguments: object) -> NoReturn:
    raise RefusedPickleError("it asks for a call of numpy.ndarray")


_NDARRAY = _StandIn("numpy.ndarray", _call_ndarray)


def _reconstruct(kind: object, shape: object, _code: object) -> _Array:
    if kind is not _NDARRAY or shape != (0,):
        raise RefusedPickleError(f"it asks for an array of kind {kind!r} and shape {shape!r}")
    return _Array()


def _dtype(code: object, *_align_and_copy: object) -> _UnsignedBytes:
    if _text(code) != "u1":
        raise RefusedPickleError(f"it asks for an array of {_text(code)!r}")
    return _UnsignedBytes()


def _text(item: object) -> object:
    """The official files were written by Python 2, whose strings arrive as bytes."""
    return item.decode("latin1") if isinstance(item, bytes) else item


_ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"): _StandIn("numpy's _reconstruct", _reconstruct),
    ("numpy._core.multiarray", "_reconstruct"): _StandIn("numpy's _reconstruct", _reconstruct),
    ("numpy", "ndarray"): _NDARRAY,
    ("numpy", "dtype"): _StandIn("numpy.dtype", _dtype),
}
