"""Compare methods on one stream from Python: a table, a DataFrame and a plot of their results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from tta_panda.errors import InvalidInputError, NumericalError
from tta_panda.evaluation.loop import run_stream
from tta_panda.evaluation.record import EvaluationResult
from tta_panda.files import to_dataframe
from tta_panda.methods import create_method
from tta_panda.methods.base import Method
from tta_panda.models.base import Classifier
from tta_panda.reporting.cells import ACCURACY, BIAS, CALIBRATION, DIVERGED, LIKELIHOOD, Cell, Metric, over_seeds
from tta_panda.reporting.exports import to_markdown
from tta_panda.reporting.figures import DotFigure, draw, to_bytes
from tta_panda.reporting.page import templates
from tta_panda.reporting.tables import Column, Row, Table

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure


class MethodComparison(dict[str, EvaluationResult | None]):
    """The results of methods on one stream, by name; None for a method that diverged.

    Notebooks display it as a table.
    """

    @property
    def table(self) -> Table:
        """Table with a row per method: its metrics, and its difference in accuracy from the first method."""
        metrics = (ACCURACY, BIAS, CALIBRATION, LIKELIHOOD)

        def cell(result: EvaluationResult | None, metric: Metric) -> Cell:
            return over_seeds({0: metric.of(result)}) if result else Cell(why_empty=DIVERGED)

        plain, rows = cell(next(iter(self.values())), ACCURACY), []
        for name, result in self.items():
            accuracy, *cells = (cell(result, metric) for metric in metrics)
            rows.append(Row(name, [accuracy, accuracy - plain, *cells]))
        first, *others = (Column.of(metric, metric.title) for metric in metrics)
        samples = next((result.samples for result in self.values() if result), 0)
        return Table(f"{samples:,} images", "method", [first, Column.delta(ACCURACY), *others], rows)

    def to_dataframe(self) -> pandas.DataFrame:
        """A row for each method and domain: `pip install "tta-panda[pandas]"`."""
        found = [(name, result) for name, result in self.items() if result]
        return to_dataframe({"method": name, **row} for name, result in found for row in result.rows())

    def plot(self) -> Figure:
        """Plot the accuracies of the methods as a matplotlib figure."""
        [drawing] = draw(DotFigure(self.table.title, ACCURACY.title, self.table.cut(slice(1))))
        drawing._repr_png_ = partial(to_bytes, drawing, "png")  # type: ignore[attr-defined]  # shown without pyplot
        return drawing

    def __repr__(self) -> str:
        return to_markdown(self.table, notes=False)

    def _repr_html_(self) -> str:
        return str(templates().get_template("table.html.j2").make_module().numbers(self.table))  # type: ignore[attr-defined]


def compare(
    methods: Sequence[Method | str] | Mapping[str, Method | str],
    data: Any,
    *,
    batch_size: int = 100,
    classifier: Classifier | None = None,
    seed: int = 0,
) -> MethodComparison:
    """Evaluate several methods on the same labelled stream, as `evaluate` does for one.

    Frozen methods share their encoder passes, so five of them take hardly longer than one.

    Args:
        methods: names, as in `["clip", "clip+panda"]`, or methods; a mapping sets their names in the results.
        data, batch_size: as for `evaluate`, but it must be possible to iterate over the data several times.
        classifier: the classifier of methods given by name.
        seed: random seed of methods given by name.
    """
    if isinstance(data, Iterator):
        raise InvalidInputError("The data can be read only once, but methods read them in turns: use list(data).")
    named = _named(methods, classifier, seed)
    results: dict[str, EvaluationResult | None] = {}
    evaluations = run_stream(list(named.values()), data, batch_size=batch_size)
    for name, evaluation in zip(named, evaluations, strict=True):
        if evaluation.error and not isinstance(evaluation.error, NumericalError):
            raise evaluation.error
        results[name] = None if evaluation.error else evaluation.result()
    return MethodComparison(results)


def _named(
    methods: Sequence[Method | str] | Mapping[str, Method | str], classifier: Classifier | None, seed: int
) -> dict[str, Method]:
    """Methods by name; those given as registered names are created for the classifier."""
    if isinstance(methods, str) or not methods:
        raise InvalidInputError(f"methods must be a list of names or methods, got {methods!r}.")
    given = list(methods.items()) if isinstance(methods, Mapping) else [("", method) for method in methods]
    named: dict[str, Method] = {}
    for name, method in given:
        if isinstance(method, str):
            if classifier is None:
                raise InvalidInputError(f"The method {method!r} needs a classifier: add classifier=classifier.")
            name, method = name or method, create_method(method, classifier, seed=seed)
        elif not isinstance(method, Method):
            raise InvalidInputError(f"A method is a name or a tta_panda.Method, got {method!r}.")
        name = name or method.name
        if name in named:
            raise InvalidInputError(f"Two methods are called {name!r}: name them, as in {{'low lr': method, ...}}.")
        if any(method is other for other in named.values()):
            raise InvalidInputError(f"{name!r} is the same object as another method: create one for each.")
        named[name] = method
    if len({id(method.classifier) for method in named.values()}) > 1:
        raise InvalidInputError("Methods on one stream must have the same classifier: create all with the same one.")
    return named
