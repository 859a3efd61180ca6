"""The names of the files and folders in the folder of a co-evolution, and how rounds lie in it.

    coevolve.json, report.json, report.txt      what the content depends on, and what is recorded
    round0/    answered.jsonl, rows.jsonl       the models before any training, measured
               held_out/                        an evaluation, as `air eval` records it
    round1/    proposer/                        an ordinary run of `rl`
               proposals.jsonl                  the sampled proposals, as they were written
               answered.jsonl, rows.jsonl       the answers to them; those that are kept, with their labels
               executor/                        an ordinary run of `rl`
               held_out/

A file is written whole, or not at all: what is there is complete, and is not made again.
"""

from __future__ import annotations

FILE = "coevolve.json"
JSON_FILE, TEXT_FILE = "report.json", "report.txt"
ROUND = "round"
"""The beginning of a round's folder."""
PROPOSALS, ANSWERED, ROWS = "proposals.jsonl", "answered.jsonl", "rows.jsonl"
PROPOSER, EXECUTOR, HELD_OUT = "proposer", "executor", "held_out"
"""The folders of runs in a round."""
PAYMENT_FILE, SAMPLING_FILE = "payment.json", "sampling.json"
POSED_FILE, HELD_OUT_FILE = "posed.json", "held_out.json"
"""With tools: the settings of the tasks that the executor is trained on, and measured on."""
