"""Links to what the package exports, which is documented as `tta_panda.Name` wherever it is defined."""

from __future__ import annotations

from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

import tta_panda


def _link_public_name(
    app: Sphinx, env: BuildEnvironment, node: addnodes.pending_xref, shown: nodes.TextElement
) -> nodes.reference | None:
    name = node.get("reftarget", "").rpartition(".")[2]
    if node.get("refdomain") != "py" or name not in tta_panda.__all__:
        return None
    python = env.domains.python_domain
    return python.resolve_xref(env, node["refdoc"], app.builder, "obj", f"tta_panda.{name}", node, shown)


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("missing-reference", _link_public_name)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
