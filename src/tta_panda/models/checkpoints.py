"""Weights from files, safely, and fitted into a network with every key accounted for."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from tta_panda.errors import ModelLoadError
from tta_panda.models.torchscript import is_torchscript, read_torchscript

SUFFIXES = (".safetensors", ".bin", ".pt", ".pth")
"""Of checkpoint files, the preferred one first: safetensors cannot hold code."""

_WRAPPERS = ("state_dict", "model_state_dict", "model")
_SHOWN_KEYS = 12


def read_state_dict(path: Path) -> dict[str, Tensor]:
    """Names and tensors of a checkpoint. Nothing in the file is ever run."""
    try:
        content = _read(path)
    except (OSError, RuntimeError, ValueError, KeyError, EOFError, SafetensorError, pickle.UnpicklingError) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        refused = next((line.strip() for line in lines if "GLOBAL" in line or "asks for" in line), "")
        if refused:
            raise ModelLoadError(
                f"{path} holds more than weights, and was not run ({refused[:200]}). If you trust it, save its weights "
                "where it came from with safetensors.torch.save_file(model.state_dict(), 'weights.safetensors')."
            ) from error
        raise ModelLoadError(f"{path} cannot be read as weights: {lines[0]}") from error
    state = _unwrapped(content)
    if not state or not all(isinstance(value, Tensor) for value in state.values()):
        found = ", ".join(map(str, list(state)[:5])) or type(content).__name__
        raise ModelLoadError(f"{path} holds no weights by name; found {found}.")
    # Training on several devices puts one more level around every name.
    return {name.removeprefix("module."): value for name, value in state.items()}


def _read(path: Path) -> Any:
    if path.suffix == ".safetensors":
        return load_file(path)
    if is_torchscript(path):
        return read_torchscript(path)
    return torch.load(path, map_location="cpu", weights_only=True)


def _unwrapped(content: Any) -> dict[str, Any]:
    for wrapper in _WRAPPERS:
        if isinstance(content, Mapping) and isinstance(content.get(wrapper), Mapping):
            return dict(content[wrapper])
    return dict(content) if isinstance(content, Mapping) else {}


def load_weights(network: nn.Module, state: Mapping[str, Tensor], label: str) -> None:
    """Every weight of the network from `state`, and nothing left over; what does not fit is named."""
    own = network.state_dict()
    shapes = [
        f"{key} {tuple(state[key].shape)} instead of {tuple(own[key].shape)}"
        for key in own
        if key in state and state[key].shape != own[key].shape
    ]
    problems = {
        "missing": [key for key in own if key not in state],
        "not known to this architecture": [key for key in state if key not in own],
        "of another shape": shapes,
    }
    if any(problems.values()):
        found = "; ".join(f"{kind}: {_listed(keys)}" for kind, keys in problems.items() if keys)
        raise ModelLoadError(f"The weights do not fit {label}. {found}.{_hint(state)}")
    network.load_state_dict(state)


def _listed(keys: list[str]) -> str:
    more = f" and {len(keys) - _SHOWN_KEYS} more" if len(keys) > _SHOWN_KEYS else ""
    return ", ".join(keys[:_SHOWN_KEYS]) + more


def _hint(state: Iterable[str]) -> str:
    if any(key.startswith("vision_model.") for key in state):
        return " These are weights of the transformers library: load their directory as transformers:DIRECTORY."
    return ""


def find_weights(directory: Path, preferred: str) -> Path:
    """The checkpoint in a directory: safetensors before others, names that begin with `preferred` before others."""
    found = [path for path in sorted(directory.iterdir()) if path.suffix in SUFFIXES]
    if not found:
        raise ModelLoadError(
            f"{directory} holds no weights ({', '.join(SUFFIXES)}); put them beside the configuration."
        )
    return min(found, key=lambda path: (SUFFIXES.index(path.suffix), not path.name.startswith(preferred)))


def file_digest(files: Iterable[Path]) -> str:
    """A short hash of the content of files."""
    digests = []
    for file in files:
        with file.open("rb") as content:
            digests.append(hashlib.file_digest(content, "sha256").hexdigest())
    return hashlib.sha256("".join(digests).encode()).hexdigest()[:12]


def weights_hash(network: nn.Module) -> str:
    """A hash of the weights in memory, whatever file, tag or seed they came from."""
    digest = hashlib.sha256()
    for name, tensor in sorted(network.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()[:16]
