"""Escape names for formats in which some characters have a special meaning."""

from __future__ import annotations

import os
import re

# Characters that move the cursor or change the text direction, and lone surrogates. Joiners are kept for emoji.
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "'")
_MARKDOWN = re.compile(r"[\\`*\[\]<>&|~$]|(?<![^\W_])_|_(?![^\W_])")  # underscores within a word need no escaping

_LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
_LATEX |= {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", "±": r"$\pm$", "Δ": r"$\Delta$"}
_LATEX |= {character: f"\\{character}" for character in "&%$#_{}"}
_LATEX |= {character: f"{{{character}}}" for character in "[]*"}  # after \\ they would be parsed as its arguments


def printable(text: str) -> str:
    """Return the text on one line, with control characters escaped as in Python, such as `\\n`."""
    return _UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def path_text(path: str | os.PathLike[str]) -> str:
    """Return a path as valid text: bytes that are not UTF-8 are escaped, as in `\\xe9`."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def csv_text(text: str) -> str:
    """Prefix text that a spreadsheet would run as a formula with an apostrophe, as OWASP advises. Not for numbers."""
    return f"'{text}" if text.startswith(_FORMULA) else text


def markdown_text(text: str) -> str:
    return _MARKDOWN.sub(r"\\\g<0>", printable(text))


def latex_text(text: str) -> str:
    escaped = "".join(_LATEX.get(character, character) for character in printable(text))
    return re.sub("-(?=-)", "-{}", escaped)  # two hyphens would become a dash
