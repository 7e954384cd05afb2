"""Methods hold no more memory after more batches. `benchmarks/soak.py` measures the same over a long stream."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable

import pytest
import torch
from conftest import TINY_OPTIONS
from torch import Tensor

from tta_panda import create_method

BATCHES = 8
FILLED_SOON = {"dmn": {"slots": 2}}
"""So that a memory is full after a few batches."""


class MallInfo(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "mapped", "usmblks", "fsmblks", "used", "fordblks", "keepcost",
        )
    ]  # fmt: skip


def bytes_in_use() -> int:
    """What was taken of the C library and not given back: exact, unlike the memory of the process."""
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallinfo2"):
        pytest.skip("only glibc counts what is in use")
    libc.mallinfo2.restype = MallInfo
    gc.collect()
    info = libc.mallinfo2()
    return info.used + info.mapped


def batch(generator: torch.Generator) -> Tensor:
    return torch.randint(0, 256, (8, 3, 32, 32), generator=generator, dtype=torch.uint8)


def growth(work: Callable[[Tensor], object]) -> int:
    """Bytes that some batches leave behind, when as many have gone before."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(BATCHES):
        work(batch(generator))
    before = bytes_in_use()
    for _ in range(BATCHES):
        work(batch(generator))
    return bytes_in_use() - before


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tent+panda", "deyo+panda", "dmn+panda", "tda+panda", "clip+panda+level"])
def test_batches_leave_nothing_behind(name, tiny_classifier):
    base = name.partition("+")[0]
    method = create_method(name, tiny_classifier, **TINY_OPTIONS.get(base, {}), **FILLED_SOON.get(base, {}))
    assert growth(method.adapt) < batch(torch.Generator()).nbytes  # less than one of all the batches


def test_a_leak_is_found():
    kept: list[Tensor] = []
    assert growth(kept.append) >= 0.9 * BATCHES * kept[-1].nbytes  # something else may be freed meanwhile
