"""Read weights from files without running code, load them into a network, and hash them.

open_clip and timm can read safetensors and pickles of tensors themselves. Reading them here has advantages:
TorchScript archives load without their code, files cannot make the process allocate much more memory than their size,
and errors name the keys that do not match. `torch.load` with `weights_only` lets a file of 32 bytes allocate any amount
of memory.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import pickle
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import huggingface_hub
import torch
from huggingface_hub.errors import HfHubHTTPError
from safetensors.torch import load_file
from torch import Tensor, nn

from tta_panda.errors import ModelLoadError, TtaPandaError
from tta_panda.files import MAX_GROWTH, open_archive, open_regular, read_member
from tta_panda.pickles import RestrictedUnpickler, hashable, make_dict, make_set

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
"""Files in a model directory, other than its weights, that determine what the model computes."""

_WRAPPERS = ("state_dict", "model_state_dict", "model")
_SHOWN_KEYS = 12
_MAX_MODULES = 10_000
_MAX_RESIZED = 2  # ratio of a network's size to its weights: only position embeddings may be resized
_MAX_NAME = 1_000
_FROM_TRANSFORMERS = " These are weights of the transformers library: load their directory as transformers:DIRECTORY."


def read_state_dict(path: Path) -> dict[str, Tensor]:
    """Read the tensors of a checkpoint by name. No code in the file is run."""
    if not path.is_file():
        raise ModelLoadError(f"There is no checkpoint file {path}. Check the path, or use published weights instead.")
    with failures_explained(f"{path} cannot be read as weights"):  # a damaged file can fail in any way
        content = _read(path)
    wrapped = (content.get(wrapper) for wrapper in _WRAPPERS) if isinstance(content, Mapping) else ()
    state = next((inner for inner in wrapped if isinstance(inner, Mapping)), content)
    if not isinstance(state, Mapping) or not state or not all(isinstance(value, Tensor) for value in state.values()):
        found = ", ".join(map(str, list(state)[:5])) if isinstance(state, Mapping) else type(state).__name__
        raise ModelLoadError(f"{path} is not a dictionary of weights; found {found or 'nothing'}.")
    described, held = sum(tensor.numel() * tensor.element_size() for tensor in state.values()), path.stat().st_size
    if described > MAX_GROWTH * held:  # many tensors may share a storage, and strides of 0 repeat one number
        raise ModelLoadError(f"{path} cannot be read as weights: its {held:,} bytes describe tensors of {described:,}.")
    # DataParallel adds this prefix to every name.
    return {name.removeprefix("module."): value for name, value in state.items()}


def _read(path: Path) -> Any:
    if path.suffix == ".safetensors":
        return load_file(path)
    with open_regular(path) as file:
        content = _read_archive(file) if zipfile.is_zipfile(file) else _read_legacy(file)
    return _tensors(content) if isinstance(content, _Module) else content


# --- files of torch ---------------------------------------------------------------------------------------------------

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


def _read_archive(file: IO[bytes]) -> Any:
    """Read a zip file of `torch.save` or `torch.jit.save`: a pickle, which refers to one file for each storage.

    `torch.jit.load` would compile the code in an archive. Here, only the pickle is read, and its modules become plain
    objects with attributes.
    """
    with open_archive(file) as archive:
        (tree,) = (name for name in archive.namelist() if name.count("/") == 1 and name.endswith("/data.pkl"))
        folder = tree.removesuffix("data.pkl")
        if f"{folder}byteorder" in archive.namelist() and read_member(archive, f"{folder}byteorder") != b"little":
            raise ValueError("its numbers are big-endian.")
        storages: dict[str, Tensor] = {}

        def load_storage(reference: Any) -> Tensor:
            _, dtype, key, _, count = reference
            if hashable(key) not in storages:
                content = bytearray(read_member(archive, f"{folder}data/{key}"))
                storages[key] = torch.frombuffer(content, dtype=dtype) if count else torch.empty(0, dtype=dtype)
            return storages[key]

        pickled = io.BytesIO(read_member(archive, tree))
        return RestrictedUnpickler(pickled, _allowed, load_persistent=load_storage).load()


def _read_legacy(file: IO[bytes]) -> Any:
    """Read the format that `torch.save` used before zip files: pickles, followed by the content of all storages."""
    available, taken = file.seek(0, os.SEEK_END), 0
    file.seek(0)
    storages: dict[str, Tensor] = {}

    def load_storage(reference: Any) -> Tensor:
        nonlocal taken
        _, dtype, key, _, count, view = reference
        if hashable(key) not in storages:
            taken += count * dtype.itemsize
            if view is not None or not 0 <= taken <= available:
                raise ValueError("its tensors are larger than the file.")
            storages[key] = torch.empty(count, dtype=dtype)
        return storages[key]

    def unpickle() -> Any:
        return RestrictedUnpickler(file, _allowed, load_persistent=load_storage).load()

    if unpickle() != torch.serialization.MAGIC_NUMBER:
        raise ValueError("it was not written by torch.save.")
    _version, _system, content, keys = unpickle(), unpickle(), unpickle(), unpickle()
    for key in keys:
        storage = storages[key].view(torch.uint8).numpy()
        file.seek(8, os.SEEK_CUR)  # the number of elements
        if file.readinto(storage) != len(storage):  # type: ignore[attr-defined]
            raise ValueError("it is truncated: its tensors are incomplete.")
    return content


class _Module:
    """An object in a file, such as a module of a TorchScript archive, with attributes but without code."""


def _allowed(module: str, name: str) -> Any:
    """Return the object for a name in a pickle of torch."""
    if module == "__torch__" or module.startswith("__torch__."):
        return _Module
    if module == "torch.jit._pickle" and name.startswith("build_"):
        return list  # of numbers or tensors that are not weights
    if module.startswith(("torch.optim.", "dassl.")):
        return _Module  # the optimizer in a checkpoint of CoOp
    if module in ("torch", "torch.cuda") and name in _STORAGES:
        return _STORAGES[name]
    return _BUILDERS.get(f"{module}.{name}")


def _rebuild_tensor(storage: Tensor, offset: int, size: tuple[int, ...], stride: tuple[int, ...], *_: object) -> Tensor:
    return torch.as_strided(storage, size, stride, offset)  # torch checks that this stays within the storage


def _rebuild_parameter(data: Tensor, *_: object) -> Tensor:
    return data


_BUILDERS: dict[str, Any] = {
    "torch._utils._rebuild_tensor_v2": _rebuild_tensor,
    "torch._utils._rebuild_parameter": _rebuild_parameter,
    "torch.Size": tuple,
    "collections.OrderedDict": make_dict,
    "collections.defaultdict": lambda *_: {},
    "builtins.dict": make_dict,
    "__builtin__.dict": make_dict,
    "collections.Counter": make_dict,  # in the states of learning rate schedulers
    "builtins.set": make_set,
}


def _tensors(root: _Module) -> dict[str, Tensor]:
    """Collect the tensors in a tree of modules by name."""
    found, modules = {}, [("", root)]
    for prefix, module in modules:  # the list grows in the loop
        if len(modules) > _MAX_MODULES or len(prefix) > _MAX_NAME:
            raise ValueError("its modules contain each other.")
        for name, value in vars(module).items():
            if isinstance(value, Tensor):
                found[prefix + name] = value
            elif isinstance(value, _Module):
                modules.append((f"{prefix}{name}.", value))
    return found


# --- weights into networks --------------------------------------------------------------------------------------------


def load_weights(network: nn.Module, state: Mapping[str, Tensor], label: str) -> None:
    """Set every weight of the network from `state`, or raise an error that names the keys that do not match."""
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


def check_size(
    label: str, state: Mapping[str, Tensor], layers: Iterable[Any], create: Callable[[], nn.Module]
) -> nn.Module:
    """Return a network without memory, or raise if its configuration describes a far larger one than the weights.

    Args:
        label: name of the model.
        state: its weights.
        layers: the numbers of layers in the configuration.
        create: creates the network.
    """
    depth = max((count for count in layers if isinstance(count, int)), default=0)
    described, held = f"{depth:,} layers", sum(tensor.numel() for tensor in state.values())
    if depth <= len(state):
        with torch.device("meta"):
            network = create()
        size = sum(tensor.numel() for tensor in (*network.parameters(), *network.buffers()))
        if size <= _MAX_RESIZED * held:
            return network
        described = f"{size:,} parameters"
    raise ModelLoadError(
        f"The weights do not fit {label}: its configuration describes a network of {described}, and the weights are "
        f"{len(state)} tensors of {held:,} numbers."
    )


def check_keys(label: str, *, missing: list[str], unknown: list[str], misshapen: list[str], hint: str = "") -> None:
    """Raise `ModelLoadError` unless all these lists of names are empty."""
    problems = {"missing": missing, "unexpected": unknown, "of another shape": misshapen}
    found = []
    for kind, keys in problems.items():
        more = f" and {len(keys) - _SHOWN_KEYS} more" if len(keys) > _SHOWN_KEYS else ""
        found += [f"{kind}: {', '.join(keys[:_SHOWN_KEYS])}{more}"] if keys else []
    if found:
        raise ModelLoadError(f"The weights do not fit {label}. {'; '.join(found)}.{hint}")


# --- files and hashes -------------------------------------------------------------------------------------------------


def find_weights(directory: Path, patterns: Sequence[str]) -> list[Path]:
    """Return the files that match the first of these wildcards with any match."""
    return next(filter(None, (_matching(directory, pattern) for pattern in patterns)), [])


def check_directory(directory: Path) -> None:
    """Raise if a directory contains pipes or devices, which could block."""
    for path in directory.iterdir():
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise ModelLoadError(f"{path} is neither a file nor a folder. Remove it from the model's directory.")


def model_files(directory: Path, patterns: Sequence[str]) -> list[Path]:
    """Return the files of a model directory that determine what it computes: weights, configuration, tokenizer."""
    found = {path for pattern in _DESCRIPTIONS for path in _matching(directory, pattern)}
    return sorted(found.union(find_weights(directory, patterns)))


def _matching(directory: Path, pattern: str) -> list[Path]:
    """Return the files in a directory that match a wildcard, sorted, without hidden files."""
    return sorted(path for path in directory.glob(pattern) if path.is_file() and not path.name.startswith("."))


def file_digest(files: Iterable[Path]) -> str:
    """Return a short hash of the content of files."""
    digests = []
    for file in files:
        with open_regular(file) as content:
            digests.append(hashlib.file_digest(content, "sha256").hexdigest())
    return hashlib.sha256("".join(digests).encode()).hexdigest()[:12]


def weights_hash(network: nn.Module) -> str:
    """Return a hash of a network's weights, independent of the file, tag or seed that they come from."""
    return tensors_hash(network.state_dict())


def tensors_hash(tensors: Mapping[str, Tensor]) -> str:
    """Return a hash of tensors and their names."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        if tensor.numel():
            digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()[:16]


# --- other libraries that read weights ------------------------------------------------------------------------------


@contextlib.contextmanager
def failures_explained(failure: str, advice: str = "") -> Iterator[None]:
    """Turn any exception of a library into a `ModelLoadError` with the failure, the reason's first line, and advice."""
    try:
        yield
    except TtaPandaError:
        raise
    except pickle.UnpicklingError as error:  # torch's message would advise to disable the protection
        requested = re.search(r"(?<=GLOBAL )[\w.]+|(?<=asks for ).+", str(error))
        problem = f"a pickle asks for {requested[0]}" if requested else "a file is not a pickle of weights only"
        raise ModelLoadError(
            f"{failure}: {problem}, and was not run. If you trust it, save the weights where it came from: "
            "safetensors.torch.save_file(model.state_dict(), 'weights.safetensors')."
        ) from error
    except Exception as error:  # each library has exceptions of its own
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        reason = f"{reason.rstrip('.')}." if advice else reason
        raise ModelLoadError(f"{failure}: {reason}{advice}") from error


def check_hub(repository: str, *files: str) -> None:
    """Raise at once if the hub cannot be reached and no file is cached; libraries would retry for half a minute."""
    if not any(isinstance(huggingface_hub.try_to_load_from_cache(repository, file), str) for file in files):
        with contextlib.suppress(HfHubHTTPError):  # an error response means that the hub can be reached
            huggingface_hub.get_hf_file_metadata(huggingface_hub.hf_hub_url(repository, files[0]))


@contextlib.contextmanager
def weights_only() -> Iterator[None]:
    """Make every `torch.load` read weights only, even if a library calls it with `weights_only=False`."""
    variables = ("TORCH_FORCE_WEIGHTS_ONLY_LOAD", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD")
    before = {name: value for name in variables if (value := os.environ.pop(name, None)) is not None}
    os.environ[variables[0]] = "1"
    try:
        yield
    finally:
        os.environ.pop(variables[0], None)
        os.environ.update(before)
