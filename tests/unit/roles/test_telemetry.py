"""What GET metrics shows."""

from __future__ import annotations

from sdcp.roles.telemetry import Metrics


def test_steps_counts_and_levels_are_shown() -> None:
    metrics = Metrics()
    metrics.took("append", 0.003)
    metrics.count("rounds", 2)
    metrics.watch("sessions", lambda: 7)
    text = metrics.render().decode()
    assert 'sdcp_step_seconds_sum{step="append"} 0.003' in text
    assert 'sdcp_events_total{event="rounds"} 2.0' in text
    assert 'sdcp_level{level="sessions"} 7.0' in text


def test_a_step_that_fails_is_measured_too() -> None:
    metrics = Metrics()
    try:
        with metrics.time("score"):
            raise KeyError
    except KeyError:
        pass
    assert 'sdcp_step_seconds_count{step="score"} 1.0' in metrics.render().decode()
