"""prime-rl's own orchestrator, on verifiers 0.3.1 to 0.4.0: `python -m tests.prime_rl.orchestrator @ FILE`.

This prime-rl reads `Branch.multi_modal_data`, which verifiers 0.4.0 no longer has. Text has none, so None
stands in for it. Nothing else differs from `python -m prime_rl.entrypoints.orchestrator`.
"""

from __future__ import annotations

import verifiers.v1 as vf


def main() -> None:
    """Runs the orchestrator."""
    if not hasattr(vf.Branch, "multi_modal_data"):
        vf.Branch.multi_modal_data = None
    from prime_rl.orchestrator.orchestrator import main as orchestrate

    orchestrate()


if __name__ == "__main__":
    main()
