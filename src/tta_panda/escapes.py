"""Names as they are, in formats in which some characters mean something."""

from __future__ import annotations

import os
import re
from pathlib import Path

# What moves a cursor, turns text around or belongs to no encoding; joiners stay, since emoji are made of them.
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "'")
_MARKDOWN = re.compile(r"[\\`*\[\]<>&|~$]|(?<![^\W_])_|_(?![^\W_])")  # an underscore within a word means nothing

_LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
_LATEX |= {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", "±": r"$\pm$", "Δ": r"$\Delta$"}
_LATEX |= {character: f"\\{character}" for character in "&%$#_{}"}
_LATEX |= {character: f"{{{character}}}" for character in "[]*"}  # after \\ they would be its arguments


def printable(text: str) -> str:
    """Text on one line: control characters as Python writes them, a line break as `\\n`."""
    return _UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def path_text(path: str | Path) -> str:
    """A path as text that can be written anywhere: bytes that are not UTF-8 become `\\xe9`."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def csv_text(text: str) -> str:
    """Text that a spreadsheet does not take for a formula, behind an apostrophe as OWASP advises. Not for numbers."""
    return f"'{text}" if text.startswith(_FORMULA) else text


def markdown_text(text: str) -> str:
    return _MARKDOWN.sub(r"\\\g<0>", printable(text))


def latex_text(text: str) -> str:
    escaped = "".join(_LATEX.get(character, character) for character in printable(text))
    return re.sub("-(?=-)", "-{}", escaped)  # two hyphens would become a dash
