"""Replays recorded episodes, compares the results with the record, and grades recorded artefacts again."""
