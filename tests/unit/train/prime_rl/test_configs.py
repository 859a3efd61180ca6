"""Every file under `configs/` is parsed, and compared with prime-rl's schema as the table of facts has it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import verifiers.v1 as vf
from pydantic import BaseModel
from verifiers.v1.configs.cli.eval import EvalConfig

from air import paths
from air.env.config import ResearchEnvConfig
from air.errors import ConfigError
from air.train.choose_engine import choose
from air.train.coevolve.plan import plan as coevolution
from air.train.config import overrides
from air.train.config.coevolve_config import CoevolveConfig
from air.train.config.matrix_config import MatrixConfig
from air.train.config.run_config import RunConfig
from air.train.config.sft_config import SFTRunConfig
from air.train.matrix.plan import plan
from air.train.prime_rl import run_file, schema
from air.train.prime_rl.schema import Root
from air.train.prime_rl.schema.write_schema import walk
from tests.unit.train.prime_rl.checkout import checkout

CONFIGS = paths.shipped("configs")
FILES = sorted(str(path.relative_to(CONFIGS)) for path in CONFIGS.rglob("*.toml"))
ROOTS: dict[str, Root] = {
    "eval/prime_rl.toml": "evals",
    "slurm/env_server.toml": "env_server",
    "sft/warmstart.toml": "sft",
    "qwen3-0.6b/sft.toml": "sft",
}
"""Files that are not for `rl`."""
VERIFIERS = "eval/endpoint.toml"
EMBEDDED = {
    "quickstart.toml",
    "qwen3-0.6b/grpo_embedded.toml",
    "harbor/small.toml",
    "questions/small.toml",
    "agentfly/math_embedded.toml",
    "agentfly/small.toml",
    "grl/small.toml",
    "grl/sokoban.toml",
    "grl/tetris.toml",
    "agent0/small_executor.toml",
    "agent0/small_proposer.toml",
}
MATRICES = {"grl/matrix.toml", "grl/matrix_small.toml", "matrix/tiny.toml"}
"""Files of `air matrix`."""
COEVOLUTIONS = {"agent0/small.toml", "agent0/prime_rl.toml"}
"""Files of `air coevolve`."""
OVERLAYS = [name for name in FILES if name.startswith("embedded/")]
OTHERS = {*MATRICES, *COEVOLUTIONS, *OVERLAYS, VERIFIERS}
PRIME = [name for name in FILES if name not in {*ROOTS, *EMBEDDED, *OTHERS}]


def data(name: str) -> dict[str, Any]:
    return tomllib.loads((CONFIGS / name).read_text())


def test_each_kind_of_file_is_there() -> None:
    wanted = {"rl.toml", "rl_debug.toml", "rl_1gpu.toml", "rl_2gpu.toml", "rl_multinode.toml"}
    assert {f"mlgym/{name}" for name in wanted} <= set(PRIME)
    assert {*ROOTS, *EMBEDDED, VERIFIERS} <= set(FILES)


@pytest.mark.parametrize("name", [n for n in FILES if n not in OTHERS])
def test_every_key_is_prime_rls(name: str) -> None:
    assert schema.problems(data(name), ROOTS.get(name, "rl")) == []


@pytest.mark.parametrize("name", PRIME)
def test_prime_rls_files_have_a_plan_that_makes_sense(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from air.train.prime_rl.launch import make_plan

    monkeypatch.chdir(CONFIGS.parent)
    monkeypatch.setenv("AIR_GPU_INVENTORY", "none")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    plan = make_plan(overrides.read_files(["@", str(CONFIGS / name)]), None)
    assert not plan.load.ages_over_bound
    for source in plan.view.sources:
        assert isinstance(source.env, ResearchEnvConfig)


PUBLISHED: dict[str, tuple[dict[str, Any], list[str]]] = {
    # Agent-One-Lab/AgentFly at 1256586, examples/train_scripts/train_example.sh
    "agentfly/math.toml": (
        {
            "model.name": "Qwen/Qwen2.5-3B-Instruct",
            "max_steps": 100,  # total_training_steps
            "seq_len": 8192,  # max_model_len
            "inference.vllm.max_model_len": 8192,
            "trainer.optim.lr": 5e-7,
            "orchestrator.batch_size": 64 * 8,  # mini_batch_size and num_chains
            "orchestrator.group_size": 8,
            "orchestrator.algo.type": "grpo",
            "orchestrator.train.sampling.max_completion_tokens": 512,  # max_new_tokens_per_turn
            "orchestrator.eval.interval": 10,  # test_freq
            "ckpt.interval": 50,  # save_freq
        },
        ["division of advantages by σ", "KL penalty", "0.001", "entropy bonus", "max_turns = 1"],
    ),
    # aiming-lab/Agent0 at 3cf8bfe, Agent0/executor_train/examples/train/math_tir/train_qwen3_4b_adpo.sh
    "agent0/executor_prime_rl.toml": (
        {
            "model.name": "Qwen/Qwen3-4B-Base",
            "max_steps": 100,  # total_training_steps
            "seq_len": 1024 + 4096,  # max_prompt_length and max_response_length
            "trainer.optim.lr": 1e-6,
            "trainer.scheduler.warmup_steps": 10,
            "orchestrator.batch_size": 128 * 16,  # batch_size and n
            "orchestrator.group_size": 16,
            "orchestrator.train.sampling.temperature": 1.0,
            "orchestrator.train.sampling.max_completion_tokens": 2048,  # max_action_length
            "ckpt.interval": 20,  # save_freq
        },
        ["ADPO", "ε_high", "KL loss", "not divided by σ"],
    ),
    # The same, Agent0/curriculum_train: scripts/curriculum_train.sh, and examples/config.yaml
    "agent0/proposer_prime_rl.toml": (
        {
            "model.name": "Qwen/Qwen3-4B-Base",
            "max_steps": 5
            * 512
            // 128,  # 5 batches of rollout_batch_size, updates of global_batch_size
            "seq_len": 2048 + 4096,  # max_prompt_length and max_response_length
            "trainer.optim.lr": 1e-6,
            "trainer.optim.weight_decay": 0.01,
            "trainer.optim.max_norm": 1.0,
            "orchestrator.batch_size": 128 * 4,  # global_batch_size and n
            "orchestrator.group_size": 4,
            "orchestrator.algo.type": "grpo",
            "orchestrator.train.sampling.temperature": 1.0,
            "orchestrator.train.sampling.max_completion_tokens": 4096,
        },
        ["KL loss", "top_p = 0.99", "division by σ", "2048 proposals"],
    ),
}
"""For each file: settings in the original's scripts, and words about those that prime-rl cannot express."""


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_settings_are_those_of_the_originals_scripts(name: str) -> None:
    settings, words = PUBLISHED[name]
    table = data(name)
    (table["orchestrator"]["train"]["source"],) = table["orchestrator"]["train"]["source"]
    found = {key: value for key, _, value in schema.leaves(table) if key in settings}
    assert found == settings
    if name == "agent0/executor_prime_rl.toml":
        harness = table["orchestrator"]["train"]["source"]["env"]["agent"]["harness"]
        assert harness["max_observation_tokens"] == 512  # max_obs_length
    lines = (CONFIGS / name).read_text().splitlines()
    comment = " ".join(line.removeprefix("#").strip() for line in lines if line.startswith("#"))
    assert "prime-rl" in comment
    assert "cannot express" in comment
    for word in words:
        assert word in comment


def test_the_executor_of_the_example_answers_as_agent0s() -> None:
    """aiming-lab/Agent0 at 3cf8bfe, Agent0/curriculum_train/vllm_service_init/start_vllm_server_tool.py."""
    example = json.loads((CONFIGS / "agent0/example_proposal.json").read_text())
    assert (example["k"], example["max_turns"]) == (10, 4)
    assert example["sampling"] == {"temperature": 0.7, "top_p": 0.9, "max_tokens": 2048}


def test_the_embedded_engine_has_what_prime_rl_cannot_express_of_agentfly() -> None:
    """With the same script's estimator, loss, KL penalty and entropy bonus."""
    names = ("agentfly/math_embedded.toml", "embedded/agentfly.toml")
    files = [arg for name in names for arg in ("@", str(CONFIGS / name))]
    config = overrides.build(RunConfig, overrides.read_files(files))
    assert config.orchestrator.algo.type == "grpo_std"
    assert config.trainer.loss.model_dump()["entropy_coefficient"] == 1e-3
    kl = config.embedded.kl
    assert kl is not None
    assert (kl.place, kl.estimator, kl.coefficient) == ("loss", "mse", 1e-3)


def test_agentflys_file_for_the_embedded_engine_only_lacks_prime_rls_keys() -> None:
    whole, embedded = data("agentfly/math.toml"), data("agentfly/math_embedded.toml")
    for table in ("deployment", "inference"):
        del whole[table]
    del whole["orchestrator"]["renderer"]  # None: the embedded engine chooses the same one
    (source,) = whole["orchestrator"]["train"]["source"]
    del (
        source["serve"],
        source["env"]["record_dir"],
    )  # the embedded engine records into the run's folder
    assert embedded == whole


@pytest.mark.parametrize("name", ["mlgym/rl.toml", "mlgym/rl_debug.toml"])
def test_eight_gpus_are_placed_as_the_files_say(name: str) -> None:
    from air.train.prime_rl.gpu_placement import assumed, place

    view = run_file.read(overrides.read_files(["@", str(CONFIGS / name)]))
    placed = place(run_file.gpu_request(view), assumed(8))
    assert [gpu.index for gpu in placed.inference] == [0]
    assert [gpu.index for gpu in placed.trainer] == [2, 3, 4, 5, 6]
    assert [gpu.index for gpu in placed.boxes] == [7]
    assert [gpu.index for gpu in placed.unused] == [1]


@pytest.mark.parametrize(
    ("taskset", "named"),
    [
        ({"tasks": ["game:sokoban6"]}, ["held-out"]),
        ({"tasks": ["game:sokoban6"], "purpose": "evaluation"}, []),
        ({"tasks": ["titanic"]}, []),
    ],
)
def test_an_evaluation_of_worlds_with_training_seeds_is_named(
    taskset: dict[str, Any], named: list[str]
) -> None:
    sources = overrides.read_files(["@", str(CONFIGS / "mlgym/rl_debug.toml")])
    env = {"taskset": {"id": "air", **taskset}}
    sources.data["orchestrator"]["eval"] = {"source": [{"name": "held-out", "env": env}]}
    assert run_file.read(sources).eval_sources_with_training_seeds == named


def test_the_debug_run_is_ten_steps_of_titanic() -> None:
    view = run_file.read(overrides.read_files(["@", str(CONFIGS / "mlgym/rl_debug.toml")]))
    assert data("mlgym/rl_debug.toml")["max_steps"] == 10
    assert [source.env.taskset.tasks for source in view.sources] == [["titanic"]]
    assert view.orchestrator.batch_size == 8


@pytest.mark.parametrize("name", sorted(EMBEDDED))
def test_the_embedded_engine_reads_its_files(name: str) -> None:
    overrides.build(RunConfig, overrides.read_files(["@", str(CONFIGS / name)]))


@pytest.mark.parametrize("name", sorted(MATRICES))
def test_every_training_and_task_of_a_matrix_is_there(name: str) -> None:
    sources = overrides.read_files(["@", str(CONFIGS / name)])
    planned = plan(overrides.build(MatrixConfig, sources))
    planned.check_tasks()
    assert len(planned.trained) == 1 + len(planned.config.rows) * len(planned.config.seeds)


def read_coevolution(name: str, **changes: Any) -> CoevolveConfig:
    sources = overrides.read_files(["@", str(CONFIGS / name)])
    overrides.put(sources, changes, "test")
    return overrides.build(CoevolveConfig, sources)


def test_both_trainings_of_a_coevolution_can_be_read() -> None:
    planned = coevolution(read_coevolution("agent0/small.toml"))
    run, other = planned.executor_run(1, "model", 7), planned.proposer_run(1, "model")
    assert isinstance(run, RunConfig)
    assert isinstance(other, RunConfig)
    assert (run.orchestrator.algo.type, other.model.name) == ("adpo", "model")
    assert list(planned.tools.tools) == ["calculator"]


def test_a_coevolution_with_prime_rl_has_a_plan_that_makes_sense(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key, value in checkout(tmp_path / "checkout", "").items():
        monkeypatch.setenv(key, value)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.chdir(CONFIGS.parent)
    rows = tmp_path / "held_out.jsonl"
    rows.write_text('{"question": "What is 1 + 1?", "answer": "2"}\n')
    planned = coevolution(read_coevolution("agent0/prime_rl.toml", held_out={"data": str(rows)}))
    planned.check()
    assert list(planned.tools.tools) == ["code_interpreter"]
    chosen = planned.gpus(planned.executor)
    assert chosen is not None
    assert [gpu.index for gpu in chosen] == [4, 5, 6, 7]


@pytest.mark.parametrize("name", OVERLAYS)
def test_an_overlay_lies_over_the_quickstart_and_is_embedded_alone(name: str) -> None:
    files = ["@", str(CONFIGS / "quickstart.toml"), "@", str(CONFIGS / name)]
    overrides.build(RunConfig, overrides.read_files(files))
    keys = [key for key, _, value in schema.leaves(data(name)) if not isinstance(value, dict)]
    assert [key for key in keys if not key.startswith(("embedded.", *OPEN))] == []


COMMANDS = sorted(
    {
        tuple(re.findall(r"@ (configs/\S+\.toml)", line))
        for name in FILES
        for line in (CONFIGS / name).read_text().splitlines()
        if line.startswith("#     rl @") and "@ configs/embedded/" in line
    }
)
"""The files of each command with an overlay that a file's comment shows."""


def test_comments_show_a_command_for_every_overlay() -> None:
    assert {f"configs/{name}" for name in OVERLAYS} == {name for _, name in COMMANDS}


@pytest.mark.parametrize("files", COMMANDS, ids=" ".join)
def test_a_command_with_an_overlay_is_one_of_the_embedded_engine(files: tuple[str, ...]) -> None:
    args = [arg for file in files for arg in ("@", str(CONFIGS.parent / file))]
    merged = overrides.read_files(args)
    assert choose("auto", merged, dry_run=True) == "embedded"
    overrides.build(RunConfig, merged)


@pytest.mark.parametrize("name", [n for n, root in ROOTS.items() if root == "sft"])
def test_the_warm_start_reads_its_files(name: str) -> None:
    overrides.build(SFTRunConfig, overrides.read_files(["@", str(CONFIGS / name)]))


def test_files_of_evaluation_and_env_server_hold_our_environment() -> None:
    ours = [EvalConfig.model_validate(data(VERIFIERS)).env]
    assert not EvalConfig.model_validate(data(VERIFIERS)).push
    ours.append(_env(data("slurm/env_server.toml")))
    ours += [_env(source) for source in data("eval/prime_rl.toml")["eval"]["source"]]
    assert all(isinstance(env, ResearchEnvConfig) for env in ours)


def test_the_remote_env_server_and_the_run_say_the_same() -> None:
    sources = data("mlgym/rl_multinode.toml")["orchestrator"]["train"]["source"]
    remote = next(source for source in sources if "address" in source["serve"])
    assert remote["env"] == data("slurm/env_server.toml")["env"]


OPEN = ("orchestrator.algo.", "trainer.loss.")
"""Tables in which the embedded engine has more types, and more keys. prime-rl refuses these by name."""


def test_the_embedded_schema_is_a_strict_subset() -> None:
    for model, root in ((RunConfig, "rl"), (SFTRunConfig, "sft")):
        ours, theirs = accepted(model), schema.keys(root)
        assert {key for key in ours if not key.startswith(OPEN)} < set(theirs)
        for key, types in ours.items():
            literals = {kind for kind in types if kind.startswith("'")}
            if not key.startswith(OPEN) and "str" not in theirs[key]:
                assert literals <= set(theirs[key]), key


@pytest.mark.parametrize(
    ("toml", "key"),
    [
        ("[orchestrator.algo]\ntype = 'rloo'", "orchestrator.algo.type"),
        ("[trainer.loss]\ntype = 'ppo_clip'", "trainer.loss.type"),
        ("[trainer.loss]\nentropy_coefficient = 0.1", "trainer.loss.entropy_coefficient"),
        ("[embedded]\nduration_weight_cap = 4.0", "embedded"),
    ],
)
def test_prime_rl_refuses_what_only_the_embedded_engine_has(toml: str, key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        schema.check(tomllib.loads(toml), "rl", where="run.toml")
    assert key in str(caught.value)


def accepted(model: type[BaseModel]) -> dict[str, list[str]]:
    """What the embedded engine accepts, without its own table."""
    return {k: v for k, v in walk(model).items() if k.partition(".")[0] != "embedded"}


@pytest.mark.parametrize(
    ("toml", "words"),
    [
        (
            "[trainer]\nlr = 1",
            ["no key `trainer.lr` in prime-rl 0.8", "did you mean `trainer.optim.lr`?"],
        ),
        ("inference_gpu_ids = [0]", ["`inference_gpu_ids`"]),
        ("[[orchestrator.env]]\nid = 'x'", ["`orchestrator.env`"]),
        ("seq_len = '8k'", ["`seq_len`", "int", "'8k'"]),
        ("[trainer.optim]\ntype = 'lion'", ["`trainer.optim.type`", "'adamw'", "'lion'"]),
        (
            "[[orchestrator.train.source]]\nratoi = 1",
            ["`orchestrator.train.source.0.ratoi`"],
        ),
    ],
)
def test_what_prime_rl_does_not_know_is_named(toml: str, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        schema.check(tomllib.loads(toml), "rl", where="run.toml")
    for word in ["run.toml", *words]:
        assert word in str(caught.value)


def test_free_tables_take_any_key() -> None:
    free = "env_vars = { A = 'b' }\n[orchestrator.train.sampling.extra_body]\nx = { y = 1 }\n"
    assert schema.problems(tomllib.loads(free + "[orchestrator.eval]\nsource = []"), "rl") == []
    assert schema.problems({"env_vars": {"A": 1}}, "rl") != []
    assert schema.problems({"ckpt": "None", "max_steps": "None"}, "rl") == []


@pytest.mark.parametrize("given", ["", "/nowhere"])
def test_make_schema_needs_a_checkout(given: str) -> None:
    argv = [sys.executable, "-m", "air.train.prime_rl.schema.write_schema", given]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "PRIME_RL" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def _env(holder: dict[str, Any]) -> vf.EnvConfig:
    return run_file.SourceView.model_validate({"env": holder["env"]}).env
