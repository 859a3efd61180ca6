"""Replays recorded episodes, compares the results with the record, and grades recorded artefacts (the agent's
graded files) again. Used by the commands `air replay` and `air shell --from`."""
