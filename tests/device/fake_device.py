"""A torch device without hardware, `fake:0` and `fake:1`: tensors on it behave as on a GPU, in the memory of the CPU.

`load()` compiles fake_device.cpp once, into torch's folder of extensions. It must run before the first backward pass of
a process, which decides for which devices torch has threads: tests on the device have a process of their own.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.machinery
import importlib.util
import os
import shutil
import sys
import sysconfig
import traceback
import types
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import filelock
import torch
from torch.utils import cpp_extension

SOURCE = Path(__file__).with_suffix(".cpp")


def missing() -> str | None:
    """Return what is missing to compile the device, if anything."""
    os.environ["PATH"] = os.pathsep.join([os.environ.get("PATH", ""), sysconfig.get_path("scripts")])  # ninja of PyPI
    compiler = os.environ.get("CXX", "c++")
    if shutil.which(compiler) is None:
        return f"the device needs a C++ compiler; there is no {compiler}"
    if not cpp_extension.is_ninja_available():
        return "the device needs ninja"
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        return "the device needs the headers of Python"
    return None


def load() -> types.ModuleType:
    """Register the device and return `torch.fake`."""
    if hasattr(torch, "fake"):
        return torch.fake
    extension = _compiled()
    extension.register_hooks()
    torch.utils.rename_privateuse1_backend("fake")
    module = types.ModuleType("torch.fake")
    module.extension = extension
    module.is_available = module.is_initialized = lambda: True
    module.device_count = extension.device_count
    module.current_device = extension.current_device
    module.set_device = extension.set_device
    module.device = _current
    module.get_amp_supported_dtype = lambda: [torch.float16, torch.bfloat16]
    module._is_in_bad_fork = lambda: False
    module.manual_seed_all = lambda seed: None  # the operators draw with the generator of the CPU
    torch._register_device_module("fake", module)
    torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)
    return module


@contextlib.contextmanager
def _current(device: torch.device | int) -> Iterator[None]:
    extension = torch.fake.extension
    before = extension.current_device()
    extension.set_device(device.index if isinstance(device, torch.device) else device)
    yield
    extension.set_device(before)


def _compiled() -> types.ModuleType:
    digest = hashlib.sha256(SOURCE.read_bytes() + f"{sys.version}{torch.__version__}".encode()).hexdigest()[:16]
    name = f"fake_device_{digest}"
    folder = Path(os.environ.get("TORCH_EXTENSIONS_DIR") or cpp_extension.get_default_build_root()) / name
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / f"{name}.so"
    with filelock.FileLock(folder / "finished.lock"):
        if not (folder / "finished").exists():
            options = {"extra_cflags": ["-O1"], "build_directory": str(folder), "with_cuda": False}
            cpp_extension.load(name, str(SOURCE), is_python_module=False, **options)
            (folder / "finished").touch()
    loader = importlib.machinery.ExtensionFileLoader(name, str(library))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))
    loader.exec_module(module)
    return module


@dataclass
class Log:
    """What a GPU would have done.

    Attributes:
        waits: how often the host would have waited, by operation and by the line of `tta_panda` that asked for it.
        launches: how many operators were launched.
        peak_memory: the largest number of bytes on all devices at a time, without those in use before.
    """

    waits: Counter[tuple[str, str]] = field(default_factory=Counter)
    launches: int = 0
    peak_memory: int = 0


@contextlib.contextmanager
def watch() -> Iterator[Log]:
    """Log waits, launches and memory of the block."""
    extension, log = torch.fake.extension, Log()
    before = extension.launches()
    extension.reset_peak_memory()
    in_use = extension.peak_memory()
    extension.listen(lambda operation: log.waits.update([(operation, _caller())]))
    try:
        yield log
    finally:
        extension.listen(None)
        log.launches = extension.launches() - before
        log.peak_memory = extension.peak_memory() - in_use


def _caller() -> str:
    """Return the innermost line of the package; a backward pass has none."""
    package = f"{os.sep}tta_panda{os.sep}"
    for frame in reversed(traceback.extract_stack()):
        if package in frame.filename:
            return f"{frame.filename.rpartition(package)[2]}:{frame.lineno}"
    return "elsewhere"
