"""Collects the metrics of a server (counters, gauges and histograms), and writes them in the text format of
Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Mapping

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_Labels = tuple[tuple[str, str], ...]


class Metrics:
    """All metrics of one server. In each method, `name` is the name of a metric, and `text` is its help
    text."""

    def __init__(self) -> None:
        self._help: dict[str, tuple[str, str]] = {}
        self._counts: dict[str, dict[_Labels, float]] = {}
        self._histograms: dict[str, dict[_Labels, list[float]]] = {}
        self._gauges: dict[str, Callable[[], float]] = {}

    def add(self, name: str, text: str, value: float = 1, **labels: str) -> None:
        """Adds `value` to the counter `name` with the labels `labels`. The counter is created if needed."""
        self._help.setdefault(name, ("counter", text))
        series = self._counts.setdefault(name, {})
        key = tuple(sorted(labels.items()))
        series[key] = series.get(key, 0) + value

    def observe(self, name: str, text: str, seconds: float, **labels: str) -> None:
        """Adds a duration in seconds to the histogram `name`. The upper bounds of the histogram's buckets are
        `BUCKETS`."""
        self._help.setdefault(name, ("histogram", text))
        series = self._histograms.setdefault(name, {})
        # The counts of the buckets, then the sum and the number of all durations.
        row = series.setdefault(tuple(sorted(labels.items())), [0.0] * (len(BUCKETS) + 2))
        for number, bound in enumerate(BUCKETS):
            row[number] += seconds <= bound
        row[-2] += seconds
        row[-1] += 1

    def gauge(self, name: str, text: str, read: Callable[[], float]) -> None:
        """Registers the gauge `name`. Whenever a client requests the metrics, `read` is called, and must
        return the gauge's value."""
        self._help[name] = ("gauge", text)
        self._gauges[name] = read

    def text(self) -> str:
        """Returns all metrics in the text format of Prometheus, sorted by name."""
        lines = []
        for name, (kind, text) in sorted(self._help.items()):
            lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
            if kind == "gauge":
                lines.append(f"{name} {self._gauges[name]():g}")
            for labels, value in self._counts.get(name, {}).items():
                lines.append(f"{name}{_braces(labels)} {value:g}")
            for labels, row in self._histograms.get(name, {}).items():
                lines += _histogram(name, labels, row)
        return "\n".join([*lines, ""])


def _histogram(name: str, labels: _Labels, row: list[float]) -> list[str]:
    lines = []
    for bound, count in zip([*map(str, BUCKETS), "+Inf"], [*row[:-2], row[-1]], strict=True):
        lines.append(f"{name}_bucket{_braces((*labels, ('le', bound)))} {count:g}")
    return [
        *lines,
        f"{name}_sum{_braces(labels)} {row[-2]:g}",
        f"{name}_count{_braces(labels)} {row[-1]:g}",
    ]


def _braces(labels: _Labels) -> str:
    texts = [f'{name}="{_escaped(value)}"' for name, value in labels]
    return "{" + ",".join(texts) + "}" if texts else ""


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def parse(text: str) -> Mapping[str, float]:
    """Parses metrics in Prometheus's text format, and returns their values by name. The name includes the
    labels, exactly as in the text: `name{label="value"}`."""
    pairs = (line.rsplit(" ", 1) for line in text.splitlines() if line and line[0] != "#")
    return {name: float(value) for name, value in pairs}
