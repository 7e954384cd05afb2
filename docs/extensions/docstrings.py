"""The API reference from docstrings as they are written here, with `code` in single backticks."""

from __future__ import annotations

import re
from typing import Any

from sphinx.application import Sphinx
from sphinx.util.inspect import signature, stringify_signature

from tta_panda.methods.base import Method

CODE = re.compile(r"(?<!`)`([^`]+)`(?!`)(\w?)")


def _mark_code(app: Sphinx, what: str, name: str, it: object, options: object, lines: list[str]) -> None:
    text = CODE.sub(lambda found: f"``{found[1]}``" + (f"\\ {found[2]}" if found[2] else ""), "\n".join(lines))
    lines[:] = text.split("\n")


def _show_constructor(app: Sphinx, what: str, name: str, it: Any, *_: Any) -> tuple[str, str] | None:
    """What methods are made with: their `__new__` takes anything, to note the options that were given."""
    if not (isinstance(it, type) and issubclass(it, Method)):
        return None
    return stringify_signature(signature(it.__init__, bound_method=True), unqualified_typehints=True), ""


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("autodoc-process-docstring", _mark_code)
    app.connect("autodoc-process-signature", _show_constructor)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
