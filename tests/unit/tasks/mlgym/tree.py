"""A small tree of our own in the form of an MLGym checkout: one task of every kind, and broken ones."""

from __future__ import annotations

import csv
import json
import pickle
from pathlib import Path
from typing import Any

SECONDS = 600
"""`training_timeout` of the tasks that work, unless a test asks for less."""
ANSWERS = {str(number): str(number * 7 % 3) for number in range(1, 41)}

LAMPS_EVALUATE = """
import argparse, csv, json, time
from pathlib import Path

HERE = Path("/home/agent/workspace")
parser = argparse.ArgumentParser()
parser.add_argument("--submission_file")
given = parser.parse_args().submission_file

def table(path):
    with open(path, newline="") as file:
        return {row["lamp"]: row["colour"] for row in csv.DictReader(file)}

answers, found = table(HERE / "data" / "answers.csv"), table(given)
if found.get("1") == "wait":
    time.sleep(600)
if found.get("1") == "chatter":
    print("something else")
if set(found) != set(answers):
    raise SystemExit("a lamp is missing")
hits = sum(found[lamp] == colour for lamp, colour in answers.items())
print(json.dumps({"rows": len(answers), "hits": hits / len(answers)}))
"""
COIN_EVALUATE = """
import json
import random

from strategy import row_strategy
from target import column_strategy

total = 0
for _ in range(300):
    past = []
    for _ in range(5):
        mine, theirs = row_strategy(past), column_strategy(past)
        if mine not in (0, 1):
            raise ValueError("a side of the coin is 0 or 1")
        past.append((mine, theirs))
    total += sum(mine == theirs for mine, theirs in past)
print(json.dumps({"Rounds": 1500, "Score": total / 1500 * random.uniform(0.999, 1.001)}))
"""
COIN_TARGET = """
import random

def column_strategy(past):
    return int(random.random() < 0.7)
"""
COIN_STRATEGY = """
import random

def row_strategy(history):
    return random.randrange(2)
"""
ORDER_EVALUATE = """
import json
from heuristic import pick

left, taken, cost = list(range(1, 21)), {}, 0
while left:
    item, early = pick(left, taken)
    left.remove(item)
    taken[item] = early
    cost += item * len(taken) + (not early)
print(json.dumps({"Taken": len(taken), "Cost": cost}))
"""
ORDER_HEURISTIC = """
def pick(left, taken):
    return left[0], len(taken) < 10
"""
STEPS_EVALUATE = """
import json
from heuristic import steps

print(json.dumps({"Correct": 3, "Steps": sum(steps(n) for n in range(10))}))
"""
POLICY_EVALUATE = """
import argparse, json, pickle
from pathlib import Path
from src.net import value

parser = argparse.ArgumentParser()
parser.add_argument("--config_fname")
config = Path(parser.parse_args().config_fname)
found = sorted(Path("checkpoints").glob(config.stem + "*.pkl"))
assert len(found) == 5, f"expected five checkpoints, not {len(found)}"
print("evaluating", config.read_text().strip())
rewards = [value(pickle.loads(path.read_bytes())) for path in found]
print(json.dumps({"Reward Std": 1.5, "Reward Mean": sum(rewards) / 5}))
"""
WORDS_EVALUATE = """
import json, os
from baseline import loss

mine = loss(float(open("model.txt").read()))
if os.environ["RANK"] == "0":
    print("processes", os.environ["WORLD_SIZE"])
    print(json.dumps({"val_loss": mine}))
"""
TABLE = """
[lamps]
metric = "hits"
direction = "higher"
baseline = 0.3
target = 0.9
artefact = ["submission.csv"]
data = ["train.csv", "test.csv"]
probe = "data/answers.csv"

[coin]
metric = "Score"
direction = "higher"
baseline = 0.5
target = 0.7
noise_floor = 0.1
artefact = ["strategy.py"]
player = "strategy:row_strategy"
probe = "strategy.py"

[steps]
metric = "Steps"
direction = "lower"
baseline = 45
target = 10
artefact = ["heuristic.py"]

[order]
metric = "Cost"
direction = "lower"
baseline = 2880
target = 1540
artefact = ["heuristic.py"]
player = "heuristic:pick"
probe = "heuristic.py"
note = "It runs apart."

[policy]
metric = "Reward Mean"
direction = "higher"
baseline = 1
target = 9
artefact = ["src/", "checkpoints/"]
caveat = "a toy"

[words]
metric = "val_loss"
direction = "lower"
baseline = 4.0
target = 2.0
own_baseline = true
artefact = ["baseline.py", "model.txt"]

[houses]
metric = "r2"
direction = "higher"
baseline = 0.5
target = 0.9
artefact = ["submission.csv"]
split = "house-prices"
data = ["train.csv", "validation.csv", "test.csv"]

[hub]
like = "lamps"
image = "air-own"
gpus = 2
[hub.downloads]
"some/set/train.csv" = "http://127.0.0.1:9/some/set/train.csv"

[unlisted]
like = "lamps"

[formulas]
metric = "Steps"
direction = "lower"
baseline = 45
target = 10
artefact = ["heuristic.py"]
generate = "3-sat"

[anywhere]
like = "lamps"
gpus = 1
without_gpu = "Train small networks."
"""
BROKEN = ("nodata", "nodataset", "noclass", "noscript", "nostarter", "outside", "holes", "noentry")


def task(name: str, entrypoint: str, starter: list[str], **more: Any) -> dict[str, Any]:
    """A task's config."""
    return {
        "id": f"{name}Task",
        "name": f"The {name}",
        "description": f"Do well at {name}.",
        "task_entrypoint": entrypoint,
        "training_timeout": SECONDS,
        "starter_code": [f"data/{name}/{file}" for file in starter],
        "evaluation_paths": ["evaluate.py"],
        "evaluation_read_only": True,
        "memory_path": f"data/{name}/memory.json",
        **more,
    }


def make_tree(root: Path) -> Path:
    """Writes the tree and returns its root."""
    lamps = {"dataset_configs": ["datasets/lamps.yaml"]}
    csv_task, python = "CSVSubmissionTasks", "PythonSubmissionTasks"
    tasks: dict[str, dict[str, Any]] = {
        "lamps": task("lamps", csv_task, ["evaluate.py"], **lamps)
        | {"description": "Guess colours.\n{dataset_docs}Write submission.csv."}
        | {"baseline_scores": [{"Rows": 40, "Hits": 0.35}, {"hits": 0.1}]},
        "coin": task("coin", python, ["evaluate.py", "target.py", "strategy.py"]),
        "steps": task("steps", python, ["evaluate.py", "heuristic.py"]),
        "order": task("order", python, ["evaluate.py", "heuristic.py"]),
        "policy": task("policy", "ModelSubmissionTasks", ["src", "evaluate.py"]),
        "words": task("words", "LMSubmissionTasks", ["baseline.py", "evaluate.py"])
        | {"baseline_scores": [{"val_loss": 99.0}]},
        "houses": task("houses", csv_task, [], dataset_configs=["datasets/houses.yaml"])
        | {"starter_code": ["data/lamps/evaluate.py"]},
        "hub": task("lamps", csv_task, ["evaluate.py"], dataset_configs=["datasets/hub.yaml"]),
        "unlisted": task("lamps", csv_task, ["evaluate.py"], dataset_configs=["datasets/hub.yaml"]),
        "formulas": task("steps", python, ["evaluate.py"], dataset_configs=["datasets/gone.yaml"]),
        "anywhere": task("lamps", csv_task, ["evaluate.py"], **lamps),
        "noentry": task("lamps", csv_task, ["evaluate.py"]),
        "nodata": task("lamps", csv_task, ["evaluate.py"], dataset_configs=["datasets/gone.yaml"]),
        "nodataset": task("lamps", csv_task, ["evaluate.py"], dataset_configs=["datasets/no.yaml"]),
        "noclass": task("lamps", "BaseMLTask", ["evaluate.py"]),
        "noscript": task("lamps", csv_task, ["evaluate.py"], evaluation_paths=["other.py"]),
        "nostarter": task("lamps", csv_task, ["evaluate.py", "none.py"]),
        "outside": task("lamps", csv_task, ["evaluate.py", "../../../x.py"]),
        "holes": task("lamps", csv_task, ["evaluate.py"], description="{dataset_docs} {more}"),
    }
    datasets = {
        "lamps": ("Lamps", "data/lamps/data", True),
        "houses": ("Houses", "data/houses/data", True),
        "gone": ("Gone", "data/gone/data", True),
        "hub": ("Hub", "some/set", False),
    }
    for name, config in tasks.items():
        _write(root, f"configs/tasks/{name}.yaml", json.dumps(config))  # JSON is YAML
    for name, (title, path, local) in datasets.items():
        told = {
            "name": title,
            "description": f"About {name}.",
            "data_path": path,
            "is_local": local,
        }
        _write(root, f"configs/datasets/{name}.yaml", json.dumps(told))
    likes = "".join(f'\n[{name}]\nlike = "lamps"\n' for name in BROKEN if name != "noentry")
    _write(root, "configs/air.toml", TABLE + likes)
    _files(root)
    return root


def _files(root: Path) -> None:
    files = {
        "lamps/evaluate.py": LAMPS_EVALUATE,
        "lamps/data/train.csv": "lamp,colour\n100,0\n101,2\n",
        "lamps/data/test.csv": "lamp\n" + "".join(f"{lamp}\n" for lamp in ANSWERS),
        "lamps/data/answers.csv": submission(ANSWERS),
        "lamps/data/extra/notes.txt": "the colour is the number times seven, modulo three",
        "coin/evaluate.py": COIN_EVALUATE,
        "coin/target.py": COIN_TARGET,
        "coin/strategy.py": COIN_STRATEGY,
        "coin/memory.json": '{"someone": "else wrote this"}',
        "steps/evaluate.py": STEPS_EVALUATE,
        "steps/heuristic.py": "def steps(n):\n    return n\n",
        "order/evaluate.py": ORDER_EVALUATE,
        "order/heuristic.py": ORDER_HEURISTIC,
        "policy/evaluate.py": POLICY_EVALUATE,
        "policy/src/net.py": "def value(weights):\n    return weights\n",
        "policy/src/old.py": "",
        "policy/src/config.yaml": "size: 1\n",
        "words/evaluate.py": WORDS_EVALUATE,
        "words/baseline.py": "def loss(weight):\n    return 4.0 - weight\n",
        "houses/_helpers/train.csv": houses(),
    }
    for name, text in files.items():
        _write(root, f"data/{name}", text)


def submission(colours: dict[str, str]) -> str:
    """A submission for `lamps`."""
    return "lamp,colour\n" + "".join(f"{lamp},{colour}\n" for lamp, colour in colours.items())


def guesses(right: int) -> bytes:
    """A submission for `lamps` with so many of the 40 right."""
    lamps = enumerate(ANSWERS.items())
    told = {lamp: colour if place < right else "9" for place, (lamp, colour) in lamps}
    return submission(told).encode()


def checkpoints(weights: list[float]) -> dict[str, bytes]:
    """The artefact of `policy`."""
    files = {"src/net.py": b"def value(weights):\n    return weights\n"}
    files["src/config.yaml"] = b"size: 1\n"
    for number, weight in enumerate(weights):
        files[f"checkpoints/config-{number}.pkl"] = pickle.dumps(weight)
    return files


def houses() -> str:
    """A table with holes, written in different ways."""
    rows = [[n, ("NA", "None", "", "brick")[n % 4], n * n, 1000 + 7 * n] for n in range(1, 102)]
    lines = [",".join(map(str, row)) for row in rows]
    return "Id,Walls,Area,SalePrice\n" + "".join(f"{line}\n" for line in lines)


def rows(path: Path) -> list[dict[str, str]]:
    """A CSV file's rows."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _write(root: Path, name: str, text: str) -> None:
    file = root / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
