"""What an operator sees of a role: how long its steps take and what it has counted, in Prometheus's text format.

`GET metrics` below a role's base URI serves it to any peer whose certificate has a role. A *step* is one part of a
round or request (draft, write, verdict, score, append, …); its seconds go into one histogram per step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from time import perf_counter

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# From a hop on loopback to a long prompt.
_BUCKETS = (0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.0, 4.0, 16.0)

_STORE_FIGURES = {
    "limit": (GaugeMetricFamily, "Octets that the level may hold; -1: no limit."),
    "octets": (GaugeMetricFamily, "Octets of objects in the level."),
    "objects": (GaugeMetricFamily, "Objects in the level."),
    "leased_octets": (GaugeMetricFamily, "Octets of objects in the level that a lease holds."),
    "hits": (CounterMetricFamily, "Reads that found the object here."),
    "misses": (CounterMetricFamily, "Reads that had to go on to a lower level."),
    "evictions": (CounterMetricFamily, "Objects whose last copy went from here."),
    "demotions": (CounterMetricFamily, "Copies that left for a lower level."),
    "promotions": (CounterMetricFamily, "Copies that came up because they were used."),
}


class Metrics:
    """One process's metrics. Names are few and the same for every role; a label says which."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._steps = Histogram(
            "sdcp_step_seconds", "Seconds of one step.", ["step"], buckets=_BUCKETS, registry=self._registry
        )
        self._step: dict[str, Histogram] = {}  # by label: to look one up in the registry's way takes a lock
        self._counts = Counter("sdcp_events", "Things that happened.", ["event"], registry=self._registry)
        self._levels = Gauge("sdcp_level", "Things as they are now.", ["level"], registry=self._registry)

    def time(self, step: str) -> Timing:
        """Measure one step, whether it ends well or not."""
        return Timing(self, step)

    def took(self, step: str, seconds: float) -> None:
        """Record a step measured elsewhere."""
        histogram = self._step.get(step)
        if histogram is None:
            histogram = self._step[step] = self._steps.labels(step)
        histogram.observe(seconds)

    def count(self, event: str, amount: int = 1) -> None:
        """Count something that happened."""
        self._counts.labels(event).inc(amount)

    def watch(self, level: str, read: Callable[[], float]) -> None:
        """Show `read()` whenever somebody looks."""
        self._levels.labels(level).set_function(read)

    def watch_levels(self, read: Callable[[], Mapping[str, Mapping[str, int]]]) -> None:
        """Show `read()`, the figures of a store by level (`Store.level_figures`), whenever somebody looks."""
        self._registry.register(_StoreLevels(read))

    def render(self) -> bytes:
        """Return everything in the text format."""
        return bytes(generate_latest(self._registry))


class _StoreLevels(Collector):
    """`sdcp_store_<figure>{level="memory"}` and so on."""

    def __init__(self, read: Callable[[], Mapping[str, Mapping[str, int]]]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        levels = self._read()
        for name, (kind, what) in _STORE_FIGURES.items():
            family = kind(f"sdcp_store_{name}", what, labels=["level"])
            for level, figures in levels.items():
                if name in figures:
                    family.add_metric([level], figures[name])
            yield family


class Timing:
    """One step under way, as a `with` block."""

    __slots__ = ("_began", "_metrics", "_step")

    def __init__(self, metrics: Metrics, step: str) -> None:
        self._metrics = metrics
        self._step = step

    def __enter__(self) -> None:
        self._began = perf_counter()

    def __exit__(self, *_: object) -> None:
        self._metrics.took(self._step, perf_counter() - self._began)
