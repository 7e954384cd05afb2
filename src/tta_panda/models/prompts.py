"""Prompts of classes: templates, descriptions of each class, and learned contexts; by name or from a file."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from torch import Tensor

from tta_panda.errors import DataError, InvalidInputError
from tta_panda.files import expand, read_regular
from tta_panda.models.checkpoints import file_digest, read_state_dict, tensors_hash
from tta_panda.registry import Registry

Template = str | Callable[[str], str]
"""A prompt with `{}` for the class name, or a function from the class name to the prompt."""

DEFAULT_TEMPLATE = "a photo of a {}."
PHOTO = (DEFAULT_TEMPLATE,)
CLIPARTT = ("a photo of a {}",)
"""Without full stop, as in the code of CLIPArTT and WATT."""

MINT = (
    "itap of a {}.",
    "a bad photo of the {}.",
    "a origami {}.",
    "a photo of the large {}.",
    "a {} in a video game.",
    "art of the {}.",
    "a photo of the small {}.",
)
"""Seven templates that OpenAI selected for ImageNet; Mint uses them for all data sets."""

WATT = (*CLIPARTT, "itap of a {}", *MINT[1:])
"""Eight templates, one after the other, as in the code of WATT."""

TEMPLATES: Registry[Sequence[Template]] = Registry(
    "set of templates",
    {
        "photo": f"{__name__}:PHOTO",
        "clipartt": f"{__name__}:CLIPARTT",
        "mint": f"{__name__}:MINT",
        "openai": "open_clip:OPENAI_IMAGENET_TEMPLATES",
    },
)
"""Sets of templates by name. The embeddings of several templates are averaged."""

FILES = (".json", ".txt", ".safetensors", ".pt", ".pth", ".tar")
"""Suffixes of files of prompts; CoOp's checkpoints are called `model.pth.tar-50`."""


@dataclass(frozen=True, eq=False)
class Context:
    """Input embeddings that take the place of the words before a class name, as CoOp learns them.

    Args:
        vectors: (n, W), or (K, n, W) with a context for each class.
    """

    vectors: Tensor

    def __str__(self) -> str:
        return f"context {tensors_hash({'ctx': self.vectors})}"


Templates = Template | Sequence[Template] | Mapping[str, Sequence[str]] | Context
"""Templates; or the prompts of each class by its name; or a learned context."""


def prompts_of(class_names: Sequence[str], templates: Templates) -> list[list[str]]:
    """Return the prompts of every class."""
    if isinstance(templates, Context):
        vectors = templates.vectors
        if vectors.ndim not in (2, 3) or (vectors.ndim == 3 and len(vectors) != len(class_names)):
            raise InvalidInputError(
                f"A context must be (n, W), or ({len(class_names)}, n, W) for these classes; "
                f"got {tuple(vectors.shape)}."
            )
        placeholders = " ".join("X" for _ in range(vectors.shape[-2]))
        return [[f"{placeholders} {name}."] for name in class_names]
    if isinstance(templates, Mapping):
        found = {name.replace("_", " ").strip(): texts for name, texts in templates.items()}
        if absent := [name for name in class_names if not found.get(name)]:
            raise InvalidInputError(
                f"{len(absent)} of {len(class_names)} classes have no descriptions: {', '.join(absent[:5])}. Expected "
                "a list of texts for every class name."
            )
        return [[_checked(text, name) for text in found[name]] for name in class_names]
    given = (templates,) if isinstance(templates, str) or callable(templates) else tuple(templates)
    usable = [callable(each) or (isinstance(each, str) and "{}" in each) for each in given]
    if not all(usable) or not given:
        raise InvalidInputError(
            f"A template must be a string with {{}} for the class name, as in {DEFAULT_TEMPLATE!r}, or a function "
            f"from the class name to the prompt; got {list(given)}."
        )
    return [
        [_checked(each.replace("{}", name) if isinstance(each, str) else each(name), name, each) for each in given]
        for name in class_names
    ]


def _checked(prompt: object, name: str, template: object = None) -> str:
    if not isinstance(prompt, str):
        raise InvalidInputError(f"A template must turn {name!r} into a string, got {prompt!r} from {template!r}.")
    return prompt


def find_templates(name: str) -> Templates:
    """Return the templates with a name, or those in a file."""
    path = expand(name)
    if name in TEMPLATES or not (path.is_file() or path.suffix in FILES):
        return TEMPLATES.get(name)
    if not path.is_file():
        raise DataError(f"There is no file of prompts {path}.")
    if path.suffix not in (".json", ".txt"):
        vectors = read_state_dict(path).get("ctx")
        if vectors is None or not vectors.is_floating_point() or not vectors.isfinite().all():
            raise DataError(f"{path} has no tensor 'ctx' of finite floats; expected a context of CoOp.")
        return Context(vectors.float())
    try:
        text = read_regular(path).decode("utf-8")
        if path.suffix == ".txt":
            # CLIP_benchmark writes {c}.
            return [line.strip().replace("{c}", "{}") for line in text.splitlines() if line.strip()]
        content = json.loads(text)
        lists = list(content.values()) if isinstance(content, dict) else [content]
        if not lists or not all(isinstance(each, list) and all(isinstance(t, str) for t in each) for each in lists):
            raise ValueError("it does not map names to lists of texts")
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(
            f"{path} is not a file of prompts ({error}); expected one template per line in a .txt file, or JSON as "
            '{"cat": ["a cat has whiskers", ...], ...}.'
        ) from error
    return content  # type: ignore[no-any-return]


def recorded_templates(name: str) -> str:
    """Return the name for records: that of a set of templates, or the name and a digest of a file."""
    if name in TEMPLATES or not expand(name).is_file():
        return name
    return f"{expand(name).name} {file_digest([expand(name)])}"


def count_prompts(name: str) -> int:
    """Return the number of prompts for each class, rounded up."""
    templates = find_templates(name)
    if isinstance(templates, Context):
        return 1
    if isinstance(templates, Mapping):
        return -(-sum(map(len, templates.values())) // len(templates))
    return len(cast(Sequence[Template], templates))
