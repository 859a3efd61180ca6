"""Computes the metrics of grading results. The endpoint `/get_metrics_function` returns the source of this
file."""

from typing import Any


def get_metrics(results: list[Any]) -> dict[str, float]:
    """Returns the number of accepted completions, the number of all completions, and the accepted share.
    `results` are dicts, or objects of SandboxFusion's class EvalResult."""
    values = [each["accepted"] if isinstance(each, dict) else each.accepted for each in results]
    accepted = sum(map(bool, values))
    share = accepted / len(results) if results else 0.0
    return {"accepted": accepted, "total": len(results), "accuracy": share}
