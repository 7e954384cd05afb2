"""Weights from files: read without running anything, fitted into a network key by key, named by their content.

open_clip and timm could read safetensors and pickles of tensors themselves. Read here, TorchScript archives load
without their program, files cannot ask for more memory than they hold, and an error names the keys that do not fit.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import zipfile
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from tta_panda.errors import ModelLoadError
from tta_panda.files import open_regular, read_regular
from tta_panda.models.loading import failures_explained
from tta_panda.pickles import RefusedPickleError, RestrictedUnpickler

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
_MAX_GROWTH = 10  # of an archive that is unpacked
_FROM_TRANSFORMERS = " These are weights of the transformers library: load their directory as transformers:DIRECTORY."


def read_state_dict(path: Path) -> dict[str, Tensor]:
    """Names and tensors of a checkpoint. Nothing in the file is ever run."""
    if not path.is_file():
        raise ModelLoadError(f"There is no checkpoint file {path}. Check the path, or name published weights instead.")
    with failures_explained(f"{path} cannot be read as weights"):  # a damaged file can fail in any way
        content = _read(path)
    wrapped = (content.get(wrapper) for wrapper in _WRAPPERS) if isinstance(content, Mapping) else ()
    state = next((inner for inner in wrapped if isinstance(inner, Mapping)), content)
    if not isinstance(state, Mapping) or not state or not all(isinstance(value, Tensor) for value in state.values()):
        found = ", ".join(map(str, list(state)[:5])) if isinstance(state, Mapping) else type(state).__name__
        raise ModelLoadError(f"{path} holds no weights by name; found {found or 'nothing'}.")
    # Training on several devices puts one more level around every name.
    return {name.removeprefix("module."): value for name, value in state.items()}


def _read(path: Path) -> Any:
    if path.suffix == ".safetensors":
        return load_file(path)
    _check_memory(path)
    return read_torchscript(path) if is_torchscript(path) else torch.load(path, map_location="cpu", weights_only=True)


def _check_memory(path: Path) -> None:
    """Raise where reading a small file would take a lot of memory."""
    with open_regular(path) as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        asks_for_memory = content.find(b"bytearray") >= 0
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            # Archives of torch hold tensors as they are, and only the programs beside them compressed.
            unpacked, packed = sum(member.file_size for member in archive.infolist()), path.stat().st_size
            if unpacked > _MAX_GROWTH * packed:
                raise ValueError(f"its {packed:,} bytes would become {unpacked:,}; archives of torch hardly grow.")
            pickles = [name for name in archive.namelist() if name.endswith(".pkl")]
            asks_for_memory |= any(b"bytearray" in archive.read(name) for name in pickles)
    if asks_for_memory:  # of any size, which torch would allow; no weights need it
        raise RefusedPickleError("it asks for builtins.bytearray")


# --- TorchScript ------------------------------------------------------------------------------------------------------

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
    """Whether a file is an archive with a program in it, as OpenAI published CLIP's; a plain checkpoint has none."""
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return any(name.endswith("/constants.pkl") for name in archive.namelist())


def read_torchscript(path: Path) -> dict[str, Tensor]:
    """Every tensor of a TorchScript archive by its name, as `state_dict` would name it.

    `torch.jit.load` would compile and later run the program in the archive. The tensors are named by a pickle of the
    module tree, which is read here for tensors and inert modules.
    """
    with zipfile.ZipFile(path) as archive:
        (tree,) = (name for name in archive.namelist() if name.count("/") == 1 and name.endswith("/data.pkl"))
        storages: dict[str, Tensor] = {}

        def load_storage(reference: Any) -> Tensor:
            _, dtype, key, _, count = reference
            if key not in storages:
                content = bytearray(archive.read(f"{tree.removesuffix('data.pkl')}data/{key}"))
                storages[key] = torch.frombuffer(content, dtype=dtype) if count else torch.empty(0, dtype=dtype)
            return storages[key]

        with archive.open(tree) as file:
            root = RestrictedUnpickler(file, _allowed_in_torchscript, load_persistent=load_storage).load()
    return dict(_tensors(root, ""))


class _Module:
    """Stands for a module of the archive: attributes, and no code."""


def _allowed_in_torchscript(module: str, name: str) -> Any:
    if module == "__torch__" or module.startswith("__torch__."):
        return _Module
    if module == "torch.jit._pickle" and name.startswith("build_"):
        return list  # of numbers or tensors, which are no weights
    if module == "torch":
        return _STORAGES.get(name)
    allowed = {"torch._utils._rebuild_tensor_v2": _rebuild_tensor, "collections.OrderedDict": OrderedDict}
    return allowed.get(f"{module}.{name}")


def _rebuild_tensor(storage: Tensor, offset: int, size: tuple[int, ...], stride: tuple[int, ...], *_: object) -> Tensor:
    return torch.as_strided(storage, size, stride, offset)  # torch checks that this stays within the storage


def _tensors(module: object, prefix: str) -> Iterator[tuple[str, Tensor]]:
    for name, value in vars(module).items() if isinstance(module, _Module) else ():
        if isinstance(value, Tensor):
            yield prefix + name, value
        else:
            yield from _tensors(value, f"{prefix}{name}.")


# --- weights into networks --------------------------------------------------------------------------------------------


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


# --- files and hashes -------------------------------------------------------------------------------------------------


def find_weights(directory: Path, patterns: Sequence[str]) -> list[Path]:
    """The files in a directory that match the first of these wildcards that any file matches."""
    return next(filter(None, (_matching(directory, pattern) for pattern in patterns)), [])


def check_directory(directory: Path) -> None:
    """Refuse pipes and devices, which libraries would wait for, and lists of weights that lead out of a directory."""
    for path in directory.iterdir():
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise ModelLoadError(f"{path} is neither a file nor a folder. Remove it from the model's directory.")
    for path in _matching(directory, "*.index.json"):
        with failures_explained(f"{path} is not a list of weights by name"):
            outside = [
                file for file in json.loads(read_regular(path))["weight_map"].values() if Path(file).name != file
            ]
        if outside:
            raise ModelLoadError(f"{path} names {outside[0]!r}; expected files beside it.")


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
        with open_regular(file) as content:
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
