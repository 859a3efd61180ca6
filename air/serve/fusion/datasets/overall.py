"""Computes the metrics of grading results. The server's endpoint `/get_metrics_function` returns the source
of this file to clients."""

from typing import Any


def get_metrics(results: list[Any]) -> dict[str, float]:
    """Returns three numbers: `accepted`, how many completions (a model's answers) passed; `total`, how many
    there are; and `accuracy`, the share of accepted ones (0 if there are none). `results` are dicts with the
    key `accepted`, or objects of SandboxFusion's class EvalResult."""
    values = [each["accepted"] if isinstance(each, dict) else each.accepted for each in results]
    accepted = sum(map(bool, values))
    share = accepted / len(results) if results else 0.0
    return {"accepted": accepted, "total": len(results), "accuracy": share}
