"""A cache of encoder passes on disk.

An entry is named by a hash of its pixels and its model, so names and settings of data sets need not be trusted.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import re
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
    """What came out of an encoder (N, D), and the seconds that this took when it was made."""

    features: Tensor
    seconds: float


class FeatureCache:
    """A folder of encoder passes, one file each, which several processes may fill at the same time.

    Args:
        folder: where the files are; it is made if there is none.
        model: whose passes these are. Its weights, its structure, its precision and its preprocessing are part of every
            name, and so are the device, the number of threads and the versions that its last bits depend on.
    """

    def __init__(self, folder: Path | str, model: ImageModel):
        self.folder = Path(folder)
        self.model = model
        self._identity = _identity(model)
        make_writable(self.folder, "keep features in", "Choose a folder that you may write to.")

    def load(self, key: str) -> Pass | None:
        """The pass with this key; None where there is none, or where its file is damaged."""
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
        """Write a pass, whole or not at all."""
        path, made = self._path(key), made._replace(features=made.features.detach().cpu().contiguous())
        with saving(path) as part:
            save_file({_FEATURES: made.features}, part, {"seconds": str(made.seconds), "digest": _digest(path, made)})

    def _path(self, key: str) -> Path:
        threads = torch.get_num_threads()
        name = hashlib.sha256(f"{self._identity} {threads} {key}".encode()).hexdigest()
        return self.folder / name[:2] / f"{name[2:]}{_SUFFIX}"  # a folder of very many files is slow to list


def _digest(path: Path, made: Pass) -> str:
    """Of all that a file holds, and of its name: a copy under another one is not taken."""
    return tensors_hash({f"{path.name} {made.seconds}": made.features})


def folder_size(folder: Path) -> int:
    """Bytes of the features in a cache; hidden files are still being written."""
    return sum(path.stat().st_size for path in folder.glob(f"*/[!.]*{_SUFFIX}"))


def _identity(model: ImageModel) -> str:
    """What a model makes of the same pixels depends on nothing else, except for the number of threads."""
    network = cast(nn.Module, model)
    tensors = {**dict(network.named_parameters()), **dict(network.named_buffers())}  # also those that are not saved
    structure = re.sub(r" at 0x[0-9a-f]+", "", nn.Module.__repr__(network))  # activations are no weights
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
