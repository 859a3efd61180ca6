"""Lists the commands of the program `air`, for its main function, its help text and its shell completion."""

COMMANDS = {
    "quickstart": "air.cli.runs.quickstart",
    "setup": "air.cli.boxes.setup",
    "rl": "air.cli.runs.rl",
    "sft": "air.cli.runs.sft",
    "eval": "air.cli.runs.eval",
    "matrix": "air.cli.runs.matrix",
    "coevolve": "air.cli.runs.coevolve",
    "demos": "air.cli.runs.demos",
    "report": "air.cli.runs.report",
    "merge": "air.cli.runs.merge",
    "view": "air.cli.episodes.view",
    "show": "air.cli.episodes.show",
    "export": "air.cli.episodes.export",
    "replay": "air.cli.episodes.replay",
    "shell": "air.cli.episodes.shell",
    "trajectories": "air.cli.episodes.trajectories",
    "tasks": "air.cli.tasks",
    "images": "air.cli.boxes.images",
    "box": "air.cli.boxes.box",
    "doctor": "air.cli.boxes.doctor",
    "serve": "air.cli.boxes.serve",
    "gpus": "air.cli.boxes.gpus",
    "completion": "air.cli.completion",
}
"""Maps the name of each command to the Python module that implements it. A module has `HELP` (one line of
help text), `EXAMPLES` (command lines), `add_arguments(parser)`, and `run(args)`, which returns the exit
code."""
