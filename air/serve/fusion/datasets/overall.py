"""The metrics of a dataset, over all results. Its text is what `/get_metrics_function` returns."""

from typing import Any


def get_metrics(results: list[dict[str, Any]]) -> dict[str, float]:
    """Returns how many completions were accepted, of how many, and the share of these."""
    accepted = sum(1 for result in results if result["accepted"])
    share = accepted / len(results) if results else 0.0
    return {"accepted": accepted, "total": len(results), "accuracy": share}
