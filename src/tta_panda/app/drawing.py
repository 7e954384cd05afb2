"""Tables with bars and sheets of pictures as HTML, in the colours of the surrounding page."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from tta_panda.reporting.figures import REFERENCE_COLOUR

TILE = 64
"""Side of a picture in pixels; explorer.css has the same number."""
_ACROSS = 10  # pictures in a row of a sheet
_MAX_CLASSES = 15
_CLASSES_OF_PANEL = 5


def table(caption: str, headers: Sequence[str], rows: Mapping[str, Sequence[str]]) -> str:
    """Render a table; `rows` are `<td>` elements by the name of the row."""
    head = "".join(f'<th scope="col">{escape(header)}</th>' for header in ("", *headers))
    body = "".join(f'<tr><th scope="row">{escape(name)}</th>{"".join(cells)}</tr>' for name, cells in rows.items())
    return (
        f'<div class="scroll"><table class="facts"><caption>{escape(caption)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def cell(text: str) -> str:
    return f"<td>{escape(text)}</td>"


class Series(NamedTuple):
    """A number for each class."""

    values: Sequence[float]
    colour: str = REFERENCE_COLOUR
    form: str = "g"
    """Format specification of the numbers; series of the same form share a scale."""


def class_table(caption: str, class_names: Sequence[str], columns: Mapping[str, Series]) -> str:
    """Render a row per class and a column of bars per series; of many classes, only those with the longest bars."""
    longest: dict[str, float] = {}
    for values, _, form in columns.values():
        longest[form] = max(longest.get(form, 1e-9), *values)
    shares = [[value / longest[each.form] for value in each.values] for each in columns.values()]
    longest_of = [max(of_class) for of_class in zip(*shares, strict=True)]
    shown = sorted(sorted(range(len(longest_of)), key=lambda k: -longest_of[k])[:_MAX_CLASSES])
    rows = {
        class_names[k]: [
            f'<td class="bar" style="--colour: {colour}; --share: {share[k]:.0%}">{values[k]:{form}}</td>'
            for (values, colour, form), share in zip(columns.values(), shares, strict=True)
        ]
        for k in shown
    }
    return table(caption, list(columns), rows)


def panel(title: str, image: NDArray[np.uint8] | None, class_names: Sequence[str], probabilities: list[float]) -> str:
    """Render a picture (H, W, 3) at the model's size, next to the most probable classes as bars."""
    best = sorted(range(len(probabilities)), key=lambda k: -probabilities[k])[:_CLASSES_OF_PANEL]
    bars = "".join(
        f'<div class="bar" style="--colour: {REFERENCE_COLOUR}; --share: {probabilities[k]:.0%}">'
        f"{escape(class_names[k])} <b>{probabilities[k]:.0%}</b></div>"
        for k in best
    )
    picture = ""
    if image is not None:
        data = _webp(Image.fromarray(image), lossless=image.shape[0] < TILE)
        picture = f'<img src="data:image/webp;base64,{data}" alt="{escape(title)}">'
    return f"<figure>{picture}<figcaption><b>{escape(title)}</b>{bars}</figcaption></figure>"


def _webp(image: Image.Image, *, lossless: bool = False) -> str:
    content = io.BytesIO()
    image.save(content, "WEBP", quality=85, lossless=lossless)
    return base64.b64encode(content.getvalue()).decode()


def sheet(name: str, images: NDArray[np.uint8]) -> str:
    """Render pictures (B, H, W, 3) as the background of tiles of the same name: sent once, while captions change."""
    down = -(-len(images) // _ACROSS)
    canvas = Image.new("RGB", (_ACROSS * TILE, down * TILE))
    for index, image in enumerate(images):
        row, column = divmod(index, _ACROSS)
        small = image.shape[0] < TILE
        filtered = Image.Resampling.NEAREST if small else Image.Resampling.BICUBIC
        canvas.paste(Image.fromarray(image).resize((TILE, TILE), filtered), (column * TILE, row * TILE))
    return f"<style>.{name} figure > div {{ background-image: url(data:image/webp;base64,{_webp(canvas)}) }}</style>"


def tiles(name: str, captions: Iterable[tuple[str, bool]]) -> str:
    """Render the pictures of the sheet of this name, each with a caption and whether it is marked."""
    figures = []
    for index, (caption, is_marked) in enumerate(captions):
        row, column = divmod(index, _ACROSS)
        text = escape(caption)
        marked = ' class="marked"' if is_marked else ""
        place = f"background-position: {-column * TILE}px {-row * TILE}px"
        picture = f'<div role="img" aria-label="picture {index + 1}: {text}" style="{place}"></div>'
        figures.append(f"<figure{marked}>{picture}<figcaption>{text}</figcaption></figure>")
    return f'<div class="tiles {name}">{"".join(figures)}</div>'
