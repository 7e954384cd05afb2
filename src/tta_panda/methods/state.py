"""Save and load the states of methods, and check that a state and a method match.

A file contains the tensors as safetensors, named by their paths, and everything else as JSON in its metadata, so
loading it cannot run code.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import operator
import reprlib
from collections.abc import Callable, Mapping
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any

import safetensors.torch
from torch import Tensor

from tta_panda.errors import InvalidInputError, StoreError
from tta_panda.files import read_regular, save_file
from tta_panda.methods import METHODS
from tta_panda.models.checkpoints import tensors_hash
from tta_panda.panda import Centering, Debias, Level, Panda

if TYPE_CHECKING:
    from tta_panda.methods.base import Method
    from tta_panda.models.base import Classifier

_SHOWN_DIFFERENCES = 3
_FORMAT = "tta-panda state 4"
_PARTS: dict[str, type | tuple[type, ...]] = {
    "name": (str, NoneType),
    "options": dict,
    "debias": (list, NoneType),
    "seed": int,
    "state": dict,
    "facts": dict,
}


def describe(method: Method) -> dict[str, Any]:
    """Return the properties, as plain values, in which two methods must agree to exchange their states."""
    options = {name: value for name, value in method.options.items() if name not in method.memory_options}
    return {
        "method": type(method).__name__,
        "class_names": list(method.classifier.class_names),
        "embedding_size": method.classifier.class_embeddings.shape[1],
        "model": method.classifier.digest,
        **options,
        "debias": repr(method.debias),
        **{name: list(parameter.shape) for name, parameter in getattr(method, "adapted", {}).items()},
    }


def check_state(state: Any, method: Method) -> None:
    """Raise `InvalidInputError` with the differences if the method cannot continue from this state."""
    if not isinstance(state, dict) or not isinstance(state.get("made_by"), dict) or "state" not in state:
        raise InvalidInputError(f"This is not what a method's state_dict() returns: {str(state)[:100]}")
    saved, own = state["made_by"], describe(method)
    differing = [key for key in {**own, **saved} if _plain(saved.get(key)) != _plain(own.get(key))]
    if differing:
        shown = [
            f"{key} is {_short(saved.get(key))} in the state, {_short(own.get(key))} here"
            for key in differing[:_SHOWN_DIFFERENCES]
        ]
        raise InvalidInputError(
            f"This state does not fit this {type(method).__name__}: {'; '.join(shown)}. Create the method with the "
            "settings of the saved one."
        )


def _plain(value: Any) -> str:
    """Convert a value to text for comparison: a forged state may contain tensors, which have no truth value."""
    return json.dumps(value, default=str, skipkeys=True, sort_keys=True)


def _short(value: Any) -> str:
    return value if isinstance(value, str) else reprlib.repr(value)


def write_state(path: str | Path, method: Method, facts: Mapping[str, Any] | None = None) -> None:
    """Write a method's state to a file atomically, together with the caller's own `facts`.

    Like states, these may be nested dictionaries, with strings as keys, of tensors and values that JSON supports.
    """
    debias = method.debias
    content = {
        "name": METHODS.name_of(type(method)),
        "options": method.options,
        "debias": None if debias is None else [type(debias).__name__, dataclasses.asdict(debias)],
        "seed": method.seed,
        "state": method.state_dict(),
        "facts": dict(facts or {}),
    }
    tensors: dict[str, Tensor] = {}
    try:
        text = json.dumps(_without_tensors(content, tensors))
    except TypeError as error:
        raise InvalidInputError(
            f"The state cannot be saved: {error}. It may contain dictionaries of tensors, numbers, strings and None."
        ) from error
    metadata = {"format": _FORMAT, "content": text, "digest": _digest(text, tensors)}
    save_file(Path(path), safetensors.torch.save(tensors, metadata))


def read_state(path: str | Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read the `state_dict` and the facts that `write_state` wrote."""
    content = _read(Path(path))
    return content["state"], content["facts"]


def load_method(path: str | Path, classifier: Classifier) -> Method:
    """Load the method that `method.save(path)` wrote, to continue its stream.

    Args:
        path: the file.
        classifier: a classifier with the same weights and classes as the method's.

    Raises:
        InvalidInputError: if the classifier does not match. The message names the differences.
        StoreError: if the file is not a saved method state, or is damaged.
    """
    content = _read(Path(path))
    if content["name"] is None:
        made_by = content["state"].get("made_by")
        kind = made_by.get("method") if isinstance(made_by, dict) else "a method"
        raise StoreError(
            f"{path} is the state of {kind}, which was not registered as a method. "
            "Create the method, and call method.load_state_dict(tta_panda.methods.state.read_state(path)[0])."
        )
    try:
        debias = content["debias"] and _debias_of(*content["debias"])
        method = METHODS.get(content["name"])(classifier, debias=debias, seed=content["seed"], **content["options"])
    except (TypeError, KeyError, AttributeError) as error:
        raise StoreError(f"{path} is not a saved method state: it does not describe a method.") from error
    method.load_state_dict(content["state"])
    return method


def _debias_of(kind: str, settings: dict[str, Any]) -> Debias:
    kinds: dict[str, Callable[..., Debias]] = {cls.__name__: cls for cls in (Panda, Centering, Level)}
    gate = settings.get("gate")
    return kinds[kind](**settings if gate is None else {**settings, "gate": Panda(**gate)})


def _read(path: Path) -> dict[str, Any]:
    try:
        data = read_regular(path)
    except OSError as error:
        raise StoreError(f"Cannot read the state {path}: {error.strerror}.") from error
    try:
        tensors = safetensors.torch.load(data)
        metadata = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
        is_state = metadata["format"] == _FORMAT
    except (safetensors.SafetensorError, ValueError, KeyError) as error:
        raise StoreError(f"{path} is not a saved method state, or it is truncated.") from error
    if not is_state:
        raise StoreError(f"{path} is a {metadata['format']!r}; expected {_FORMAT!r}. Save the state again.")
    if metadata.get("digest") != _digest(metadata.get("content", ""), tensors):
        raise StoreError(f"The state {path} is damaged: its content does not match its digest. Use another copy.")
    try:
        content = _with_tensors(json.loads(metadata["content"]), tensors)
        if not all(isinstance(content[part], kind) for part, kind in _PARTS.items()):
            raise TypeError("a part of another type")
        return {part: content[part] for part in _PARTS}
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise StoreError(f"{path} is not a saved method state.") from error


def _digest(text: str, tensors: Mapping[str, Tensor]) -> str:
    return hashlib.sha256(f"{text} {tensors_hash(tensors)}".encode()).hexdigest()


def _without_tensors(value: Any, tensors: dict[str, Tensor], *path: str) -> Any:
    """Replace tensors in nested dictionaries by None, and add them to `tensors` under their paths as JSON."""
    if isinstance(value, Tensor):
        tensors[json.dumps(path)] = value.detach().cpu().contiguous().clone()
        return None
    if isinstance(value, dict):
        return {name: _without_tensors(each, tensors, *path, name) for name, each in value.items()}
    return value


def _with_tensors(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Put tensors back at their paths."""
    for path, tensor in tensors.items():
        *parents, name = json.loads(path)
        functools.reduce(operator.getitem, parents, value)[name] = tensor
    return value
