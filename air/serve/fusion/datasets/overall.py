"""Computes the metrics of grading results. The endpoint `/get_metrics_function` returns the source of this
file."""

from typing import Any


def get_metrics(results: list[dict[str, Any]]) -> dict[str, float]:
    """Returns the number of accepted completions, the number of all completions, and the accepted share."""
    accepted = sum(1 for result in results if result["accepted"])
    share = accepted / len(results) if results else 0.0
    return {"accepted": accepted, "total": len(results), "accuracy": share}
