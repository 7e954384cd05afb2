"""A cache of encoder passes on disk.

An entry is named by a hash of its pixels and its model, so it does not depend on names and settings of data sets.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, cast

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from tta_panda import __version__
from tta_panda.escapes import printable
from tta_panda.files import make_writable, saving
from tta_panda.models.base import ImageModel, framing_of
from tta_panda.models.checkpoints import tensors_hash
from tta_panda.models.devices import backend_of

logger = logging.getLogger(__name__)

_FEATURES = "features"
_SUFFIX = ".safetensors"


class Pass(NamedTuple):
    """The output of an encoder (N, D), and the seconds that it took to compute."""

    features: Tensor
    seconds: float


class FeatureCache:
    """A folder of encoder passes, one file each, which several processes may fill at the same time.

    Args:
        folder: folder of the files; it is created if it does not exist.
        model: the model that encodes. Its weights, structure, precision and preprocessing are part of each name, and so
            are device, number of threads and versions, on which the last bits depend.
    """

    def __init__(self, folder: Path | str, model: ImageModel):
        self.folder = Path(folder)
        self.model = model
        self._identity = _identity(model)
        make_writable(self.folder, "keep features in", "Choose a folder that you may write to.")

    def load(self, key: str) -> Pass | None:
        """Return the pass with this key; None if there is none or its file is damaged."""
        path = self._path(key)
        if not path.is_file():
            return None
        with (
            contextlib.suppress(SafetensorError, OSError, KeyError, TypeError, ValueError),
            safe_open(path, "pt") as file,
        ):
            facts = file.metadata()
            found = Pass(file.get_tensor(_FEATURES), float(facts["seconds"]))
            if facts["digest"] == _digest(path, found):
                return found._replace(features=found.features.to(self.model.device))
        logger.warning("%s is damaged, so its images are encoded again", printable(str(path)))
        return None

    def save(self, key: str, made: Pass) -> None:
        """Write a pass atomically."""
        path, made = self._path(key), made._replace(features=made.features.detach().cpu().contiguous())
        with saving(path) as part:
            save_file({_FEATURES: made.features}, part, {"seconds": str(made.seconds), "digest": _digest(path, made)})

    def compute(self, key: str, function: Callable[[], Tensor]) -> Tensor:
        """Return the features with this key, computed by the function unless they are in the cache."""
        found = self.load(key)
        if found is None:
            start = time.perf_counter()
            found = Pass(function(), time.perf_counter() - start)
            self.save(key, found)
        return found.features

    def _path(self, key: str) -> Path:
        threads = torch.get_num_threads()
        name = hashlib.sha256(f"{self._identity} {threads} {key}".encode()).hexdigest()
        return self.folder / name[:2] / f"{name[2:]}{_SUFFIX}"  # large folders are slow to list


def _digest(path: Path, made: Pass) -> str:
    """Return a hash of a file's content and name, so that a renamed copy is not accepted."""
    return tensors_hash({f"{path.name} {made.seconds}": made.features})


def folder_size(folder: Path) -> int:
    """Return the size of a cache in bytes, without hidden files, which are still being written."""
    return sum(path.stat().st_size for path in folder.glob(f"*/[!.]*{_SUFFIX}"))


def _identity(model: ImageModel) -> str:
    """Return a hash of all that the features of given pixels depend on, except for the number of threads."""
    network = cast(nn.Module, model)
    tensors = {**dict(network.named_parameters()), **dict(network.named_buffers())}  # also non-persistent buffers
    structure = re.sub(r" at 0x[0-9a-f]+", "", nn.Module.__repr__(network))  # such as activations
    device = torch.cuda.get_device_name(model.device) if model.device.type == "cuda" else model.device.type
    facts = [
        __version__,
        torch.__version__,
        device,
        torch.backends.cpu.get_cpu_capability(),
        torch.get_float32_matmul_precision(),
        backend_of(model),
        model.name,
        repr(model),
        structure,
        framing_of(model),
        tensors_hash(tensors),
    ]
    return hashlib.sha256(str(facts).encode()).hexdigest()
