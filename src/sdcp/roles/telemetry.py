"""What an operator sees of a role: how long its steps take and what it has counted, in Prometheus's text format.

`GET metrics` below a role's base URI serves it to any peer whose certificate has a role. A *step* is one part of a
round or request (draft, write, verdict, score, append, …); its seconds go into one histogram per step.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# From a hop on loopback to a long prompt.
_BUCKETS = (0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.0, 4.0, 16.0)


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

    def render(self) -> bytes:
        """Return everything in the text format."""
        return bytes(generate_latest(self._registry))


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
