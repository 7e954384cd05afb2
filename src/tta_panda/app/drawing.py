"""Tables with bars, sheets of pictures and charts as HTML, which takes its ink and background from the page around."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from tta_panda.reporting.figures import REFERENCE_COLOUR

TILE = 64
"""Side of a picture in pixels, which explorer.css knows, too."""
_ACROSS = 10  # pictures in a row of a sheet
_MAX_CLASSES = 15
_LEFT, _TOP, _WIDTH, _HEIGHT = 44, 10, 346, 150  # of a chart, in its own units


def table(caption: str, headers: Sequence[str], rows: Mapping[str, Sequence[str]]) -> str:
    """Rows of cells, which are `<td>` elements, by name."""
    head = "".join(f'<th scope="col">{escape(header)}</th>' for header in ("", *headers))
    body = "".join(f'<tr><th scope="row">{escape(name)}</th>{"".join(cells)}</tr>' for name, cells in rows.items())
    return (
        f'<div class="scroll"><table class="facts"><caption>{escape(caption)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def cell(text: str) -> str:
    return f"<td>{escape(text)}</td>"


class Series(NamedTuple):
    """A number for each class, or for each batch of a stream, where it may be None."""

    values: Sequence[Any]
    colour: str = REFERENCE_COLOUR
    form: str = "g"
    """How class tables write the numbers; series of the same form have the same scale."""


def class_table(caption: str, class_names: Sequence[str], columns: Mapping[str, Series]) -> str:
    """Classes down, and numbers over bars across; of many classes, those with the longest bars."""
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


def sheet(name: str, images: NDArray[np.uint8]) -> str:
    """Pictures (B, H, W, 3) that tiles of this name show: sent once, while captions change."""
    down = -(-len(images) // _ACROSS)
    canvas = Image.new("RGB", (_ACROSS * TILE, down * TILE))
    for index, image in enumerate(images):
        row, column = divmod(index, _ACROSS)
        small = image.shape[0] < TILE
        filtered = Image.Resampling.NEAREST if small else Image.Resampling.BICUBIC
        canvas.paste(Image.fromarray(image).resize((TILE, TILE), filtered), (column * TILE, row * TILE))
    content = io.BytesIO()
    canvas.save(content, "WEBP", quality=85)
    data = base64.b64encode(content.getvalue()).decode()
    return f"<style>.{name} figure > div {{ background-image: url(data:image/webp;base64,{data}) }}</style>"


def tiles(name: str, captions: Iterable[tuple[str, bool]]) -> str:
    """The pictures of the sheet of this name, each with its caption, and marked where that is True."""
    figures = []
    for index, (caption, is_marked) in enumerate(captions):
        row, column = divmod(index, _ACROSS)
        text = escape(caption)
        marked = ' class="marked"' if is_marked else ""
        place = f"background-position: {-column * TILE}px {-row * TILE}px"
        picture = f'<div role="img" aria-label="picture {index + 1}: {text}" style="{place}"></div>'
        figures.append(f"<figure{marked}>{picture}<figcaption>{text}</figcaption></figure>")
    return f'<div class="tiles {name}">{"".join(figures)}</div>'


def chart(
    title: str, xs: Sequence[float], curves: Mapping[str, Series], form: str, changes: Mapping[float, str]
) -> str:
    """Curves from zero up, with their latest values in the legend.

    Args:
        form: of the numbers, as in `.0%`.
        changes: where something new begins, and its name.
    """
    top = _round_number_above([y for curve in curves.values() for y in curve.values if y is not None])
    right = max(xs)

    def place(x: float, y: float) -> tuple[float, float]:
        return round(_LEFT + _WIDTH * x / right, 1), round(_TOP + _HEIGHT * (1 - y / top), 1)

    drawn = []
    for y in (0, top / 2, top):
        drawn += [_rule(place(0, y), place(right, y)), _text(f"{y:{form}}", place(0, y), (-4, 5), "end")]
    for index, (x, name) in enumerate(changes.items()):
        drawn += [_rule(place(x, 0), place(x, top)), _text(name, place(x, 0), (3, -4 - 14 * (index % 3)))]
    drawn.append(_text(f"{right:,} pictures", place(right, 0), (0, 17), "end"))
    for curve in curves.values():
        points = (place(x, y) for x, y in zip(xs, curve.values, strict=True) if y is not None)
        drawn.append(f'<polyline stroke="{curve.colour}" points="{" ".join(f"{x},{y}" for x, y in points)}"/>')
    latest = {name: next(y for y in reversed(curve.values) if y is not None) for name, curve in curves.items()}
    legend = "".join(
        f'<span class="key" style="--colour: {curves[name].colour}">{escape(name)} <b>{y:{form}}</b></span>'
        for name, y in latest.items()
    )
    spoken = escape(f"{title}, at last {', '.join(f'{name} {y:{form}}' for name, y in latest.items())}")
    box = f"0 0 {_LEFT + _WIDTH + 10} {_TOP + _HEIGHT + 20}"
    svg = f'<svg class="chart" viewBox="{box}" role="img" aria-label="{spoken}">{"".join(drawn)}</svg>'
    return f"<div><b>{escape(title)}</b><div>{legend}</div>{svg}</div>"


def _round_number_above(values: Sequence[float]) -> float:
    highest = max([*values, 1e-3])
    power = 10.0 ** math.floor(math.log10(highest))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= highest)


def _rule(start: tuple[float, float], end: tuple[float, float]) -> str:
    return f'<line x1="{start[0]}" y1="{start[1]}" x2="{end[0]}" y2="{end[1]}"/>'


def _text(text: str, place: tuple[float, float], offset: tuple[float, float], anchor: str = "start") -> str:
    x, y = place[0] + offset[0], place[1] + offset[1]
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
