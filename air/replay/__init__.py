"""Replays recorded episodes, compares the results with the record, and grades recorded artefacts (the agent's
graded files) again. Used by `air replay` and `air shell --from`."""
