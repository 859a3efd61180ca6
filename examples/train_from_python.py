"""Trains a model from Python, without the command line.

    python examples/train_from_python.py Qwen/Qwen3-0.6B
    python examples/train_from_python.py outputs/warm --steps 5 --runtime subprocess

The settings are the same as in a run file. `train.load` validates them as the command `rl` does.
"""

from __future__ import annotations

import argparse

from air import train


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="a hub id or a folder")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--episodes", type=int, default=16, help="episodes of one step")
    parser.add_argument("--tokens", type=int, default=512, help="longest reply")
    parser.add_argument("--runtime", choices=("docker", "subprocess"), default="docker")
    parser.add_argument("--output-dir", default="outputs")
    args = parser.parse_args()

    environment = {
        "delta": "best",
        "format_penalty": 0.1,
        "taskset": {"id": "air", "tasks": ["titanic", "digits"]},
        "agent": {"max_turns": 4, "runtime": {"type": args.runtime}},
    }
    config = train.load(
        {
            "max_steps": args.steps,
            "seq_len": 4096,
            "output_dir": args.output_dir,
            "model": {"name": args.model},
            "trainer": {"optim": {"type": "adamw", "lr": 1e-6}},
            "orchestrator": {
                "batch_size": args.episodes,
                "group_size": 4,
                "train": {
                    "sampling": {"max_completion_tokens": args.tokens},
                    "source": [{"env": environment}],
                },
            },
        }
    )
    outcome = train.run(config)
    for row in outcome.rows:
        print(f"step {row['step']}: reward {row['reward']:+.3f}, {row['episodes']} episodes")
    print("checkpoint:", outcome.checkpoint)
    print("look at it: air view", outcome.folder)


if __name__ == "__main__":
    main()
