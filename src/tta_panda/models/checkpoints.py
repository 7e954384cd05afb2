"""Weights from files, safely, and fitted into a network with every key accounted for."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from tta_panda.errors import ModelLoadError
from tta_panda.models.loading import reason_of, wanted_by
from tta_panda.models.torchscript import is_torchscript, read_torchscript

_DESCRIPTIONS = (
    "open_clip_config.json",
    "config.json",
    "*processor_config.json",
    "tokenizer*.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "*.model",
)
"""Files of a model directory, beside its weights, that decide what the model computes."""

_WRAPPERS = ("state_dict", "model_state_dict", "model")
_SHOWN_KEYS = 12
_MOST_GROWTH = 10  # of an archive that is unpacked
_FROM_TRANSFORMERS = " These are weights of the transformers library: load their directory as transformers:DIRECTORY."


def read_state_dict(path: Path) -> dict[str, Tensor]:
    """Names and tensors of a checkpoint. Nothing in the file is ever run."""
    if not path.is_file():
        raise ModelLoadError(f"There is no checkpoint file {path}. Check the path, or name published weights instead.")
    try:
        content = _read(path)
    except Exception as error:  # a damaged file can fail in any way
        if asked := wanted_by(error):
            raise ModelLoadError(
                f"{path} holds more than weights, and was not run (it asks for {asked}). If you trust it, save the "
                "weights where it came from: safetensors.torch.save_file(model.state_dict(), 'weights.safetensors')."
            ) from error
        raise ModelLoadError(f"{path} cannot be read as weights: {reason_of(error)}") from error
    state = _unwrapped(content)
    if not state or not all(isinstance(value, Tensor) for value in state.values()):
        found = ", ".join(map(str, list(state)[:5])) or type(content).__name__
        raise ModelLoadError(f"{path} holds no weights by name; found {found}.")
    # Training on several devices puts one more level around every name.
    return {name.removeprefix("module."): value for name, value in state.items()}


def _read(path: Path) -> Any:
    if path.suffix == ".safetensors":
        return load_file(path)
    if zipfile.is_zipfile(path):
        _refuse_bombs(path)
    if is_torchscript(path):
        return read_torchscript(path)
    return torch.load(path, map_location="cpu", weights_only=True)


def _refuse_bombs(path: Path) -> None:
    """Archives of torch hold tensors as they are, and only the programs beside them compressed."""
    with zipfile.ZipFile(path) as archive:
        unpacked, packed = sum(member.file_size for member in archive.infolist()), path.stat().st_size
    if unpacked > _MOST_GROWTH * packed:
        raise ValueError(f"its {packed:,} bytes would become {unpacked:,}; archives of torch hardly grow.")


def _unwrapped(content: Any) -> dict[str, Any]:
    for wrapper in _WRAPPERS:
        if isinstance(content, Mapping) and isinstance(content.get(wrapper), Mapping):
            return dict(content[wrapper])
    return dict(content) if isinstance(content, Mapping) else {}


def load_weights(network: nn.Module, state: Mapping[str, Tensor], label: str) -> None:
    """Set every weight of the network from `state`, or raise with the names of what does not fit."""
    own = network.state_dict()
    wrong_shape = [key for key in own if key in state and state[key].shape != own[key].shape]
    is_foreign = any(key.startswith("vision_model.") for key in state)
    check_keys(
        label,
        missing=[key for key in own if key not in state],
        unknown=[key for key in state if key not in own],
        misshapen=[f"{key} {tuple(state[key].shape)} instead of {tuple(own[key].shape)}" for key in wrong_shape],
        hint=_FROM_TRANSFORMERS if is_foreign else "",
    )
    network.load_state_dict(state)


def check_keys(label: str, *, missing: list[str], unknown: list[str], misshapen: list[str], hint: str = "") -> None:
    """Raise unless all these lists of names are empty."""
    problems = {"missing": missing, "not known to this architecture": unknown, "of another shape": misshapen}
    found = []
    for kind, keys in problems.items():
        more = f" and {len(keys) - _SHOWN_KEYS} more" if len(keys) > _SHOWN_KEYS else ""
        found += [f"{kind}: {', '.join(keys[:_SHOWN_KEYS])}{more}"] if keys else []
    if found:
        raise ModelLoadError(f"The weights do not fit {label}. {'; '.join(found)}.{hint}")


def find_weights(directory: Path, patterns: Sequence[str]) -> list[Path]:
    """The files in a directory that match the first of these wildcards that any file matches."""
    return next(filter(None, (_matching(directory, pattern) for pattern in patterns)), [])


def model_files(directory: Path, patterns: Sequence[str]) -> list[Path]:
    """The files in a model directory that decide what the model computes: weights, configuration, tokenizer."""
    found = {path for pattern in _DESCRIPTIONS for path in _matching(directory, pattern)}
    return sorted(found.union(find_weights(directory, patterns)))


def _matching(directory: Path, pattern: str) -> list[Path]:
    """Files in a directory by wildcard, sorted, without hidden ones, which some systems leave behind."""
    return sorted(path for path in directory.glob(pattern) if path.is_file() and not path.name.startswith("."))


def file_digest(files: Iterable[Path]) -> str:
    """A short hash of the content of files."""
    digests = []
    for file in files:
        with file.open("rb") as content:
            digests.append(hashlib.file_digest(content, "sha256").hexdigest())
    return hashlib.sha256("".join(digests).encode()).hexdigest()[:12]


def weights_hash(network: nn.Module) -> str:
    """A hash of the weights in memory, whatever file, tag or seed they came from."""
    return tensors_hash(network.state_dict())


def tensors_hash(tensors: Mapping[str, Tensor]) -> str:
    """A hash of tensors and their names."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        if tensor.numel():
            digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()[:16]
