"""A co-evolution whose models are trained by prime-rl."""

from __future__ import annotations

import json
import tomllib
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from air import paths
from air.errors import ConfigError, MissingError, UsageError
from air.sandbox.pool import gpus
from air.train.coevolve import report
from air.train.coevolve.coevolve_run import CoevolveRun
from air.train.coevolve.files import FILE
from air.train.coevolve.plan import Plan, plan
from air.train.config import overrides
from air.train.config.coevolve_config import CoevolveConfig
from air.train.devices import device
from air.train.prime_rl import schema, shared_keys
from air.train.prime_rl.training import PrimeTraining
from tests.e2e.train.test_coevolve import PROPOSALS, coevolve_toml, policies
from tests.unit.train.coevolve.test_plan import config
from tests.unit.train.prime_rl.checkout import checkout

LAUNCHER = Path(__file__).parents[1] / "prime_rl" / "training_launcher.py"
PRIME_RL = {"inference": {}, "deployment": {"num_infer_gpus": 1, "num_train_gpus": 1}}


@pytest.fixture
def prime_rl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A launcher that trains in truth, by the embedded engine, on a machine with eight GPUs."""
    variables = checkout(tmp_path / "checkout", LAUNCHER.read_text(), forked=True)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("CALLED", str(tmp_path / "called"))
    monkeypatch.setenv("TRAINS", "yes")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def by_prime_rl(tmp_path: Path, **of_side: Any) -> CoevolveConfig:
    """A co-evolution of one round, whose sides have the further settings `of_side`."""
    file = "configs/agent0/{}_prime_rl.toml"
    sides = {
        name: {"model": name, "run_files": [file.format(name)], **of_side}
        for name in ("proposer", "executor")
    }
    return config(tmp_path, rounds=1, **sides)


@pytest.mark.slow
async def test_both_models_are_trained_and_handed_on(
    prime_rl: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = {name: tmp_path / name / "warm" for name in ("proposer", "executor")}
    policies(tmp_path)
    data = tomllib.loads(coevolve_toml(tmp_path, models).read_text())
    for name in ("proposer", "executor"):
        data[name]["compute"] = {"device": "cpu", "threads": 1}
        settings = data[name]["settings"] | PRIME_RL
        del settings["embedded"]
        settings["orchestrator"] |= {"concurrency": {"max_inflight": 4}}
        settings["orchestrator"].pop("algo", None)
        settings.pop("trainer", None)
        data[name]["settings"] = settings
    planned = plan(CoevolveConfig.model_validate(data))
    assert planned.proposer.engine == planned.executor.engine == "prime-rl"
    planned.check()
    planned.claim()
    said: list[str] = []
    await run(planned, said)
    folder = tmp_path / "c" / "round1"
    argv = [json.loads(line)["argv"] for line in (tmp_path / "called").read_text().splitlines()]
    assert argv == [
        ["@", str(folder / "proposer_prime_rl.json")],
        ["@", str(folder / "executor_prime_rl.json")],
    ]
    content = report.report(planned)
    assert [one["proposals"] for one in content["rounds"]] == [PROPOSALS, PROPOSALS]
    assert len(content["rounds"][1]["proposer_reward_by_step"]) == 1
    # The evaluation of round 1 was played with the weights that the stand-in trained.
    identity = json.loads((folder / "held_out" / "evaluation.json").read_text())
    assert str(folder / "executor" / "merged") in json.dumps(identity)
    assert planned.is_finished()
    monkeypatch.delenv("AIR_PRIME_RL")
    monkeypatch.setenv("AIR_GPU_INVENTORY", "none")
    planned.check()  # only the report remains to be written
    said.clear()
    await run(planned, said)
    assert not any("proposals" in line or "answers" in line for line in said)
    assert len((tmp_path / "called").read_text().splitlines()) == 2
    further = plan(CoevolveConfig.model_validate(data | {"rounds": 2}))
    assert not further.is_finished()
    with pytest.raises(MissingError, match="prime-rl is not installed here"):
        further.check()
    (folder / "held_out" / "trajectories").rename(folder / "elsewhere")
    assert not planned.is_finished()
    planned.check()  # no training remains


async def run(planned: Plan, said: list[str]) -> None:
    await CoevolveRun(planned, said.append, lambda _: nullcontext(lambda: None)).run()


def test_the_shipped_files_of_prime_rl_are_trainings_of_a_round(
    prime_rl: None, tmp_path: Path
) -> None:
    planned = plan(by_prime_rl(tmp_path))
    training = planned.executor_run(2, "model", 17)
    assert isinstance(training, PrimeTraining)
    assert training.folder == tmp_path / "c" / "round2" / "executor"
    taskset = training.settings["orchestrator"]["train"]["source"][0]["env"]["taskset"]
    assert taskset["tasks"] == [f"posed:{tmp_path}/c/round2/posed.json"]
    assert taskset["examples_per_task"] == 17
    assert training.settings["model"] == {"name": "model"}
    proposer = planned.proposer_run(1, "other")
    assert isinstance(proposer, PrimeTraining)
    taskset = proposer.settings["orchestrator"]["train"]["source"][0]["env"]["taskset"]
    assert taskset["examples_per_task"] == 20 * 512
    settings = planned.settings(planned.executor, "posed:x", 0.5)
    assert (settings.context, settings.max_tokens, settings.temperature) == (5120, 2048, 0.5)


def test_the_shipped_coevolution_has_agent0s_numbers() -> None:
    """aiming-lab/Agent0 at 3cf8bfe, Agent0/curriculum_train."""
    merged = overrides.read_files(["@", "configs/agent0/prime_rl.toml"])
    shipped = overrides.build(CoevolveConfig, merged)
    answers, payment, generation = shipped.answers, shipped.payment, shipped.generation
    assert (answers.k, answers.max_turns, answers.tools) == (10, 4, ("code_interpreter",))
    assert (answers.temperature, answers.max_tokens) == (0.7, 2048)
    assert (payment.reward, payment.least_valid, payment.window) == ("as_coded", 0.0, 512)
    assert (generation.least, generation.most) == (0.3, 0.8)
    assert generation.definition_with(payment) == "published"


def test_the_folder_belongs_to_its_engine_and_settings(prime_rl: None, tmp_path: Path) -> None:
    plan(by_prime_rl(tmp_path)).claim()
    plan(by_prime_rl(tmp_path)).claim()
    with pytest.raises(UsageError, match="begun with another `proposer`"):
        plan(by_prime_rl(tmp_path, settings={"max_steps": 3})).claim()
    plan(by_prime_rl(tmp_path, compute={"device": "cpu"})).claim()  # may change
    plan(by_prime_rl(tmp_path, engine="prime-rl")).claim()
    content = json.loads((tmp_path / "c" / FILE).read_text())
    assert content["executor run"]["engine"] == "prime-rl"
    with pytest.raises(UsageError, match="begun with another"):
        plan(config(tmp_path, rounds=1)).claim()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"slurm": {}}, "slurm.*SLURM starts a run and does not wait"),
        ({"inference": "None"}, "inference: without this table, prime-rl starts no server"),
        ({"orchestrator": {"renderer": {"name": "auto"}}}, r"renderer\.name: must be named"),
        ({"dry_run": True}, "dry_run: trains nothing"),
        ({"inference": {"vllm": {"model": "x"}}}, "sets this key for each training — remove it"),
        ({"max_steps": "None"}, "max_steps: must be set"),
        (
            {"trainer": {"model": {"lora": {"rank": 8}}}},
            "adapters .* cannot be handed to the next stage",
        ),
        ({"ckpt": {"output_dir": "x"}}, "sets this key for each training — remove it"),
        ({"run": {"dir": "x"}}, "sets this key for each training — remove it"),
        ({"clean": True}, "sets this key for each training — remove it"),
        ({"trainer": {"optim": {"rate": 1}}}, r"`trainer\.optim\.rate`.*prime-rl 0\.8"),
        ({"trainer": {"resume": {"step": 3}}}, "sets this key for each training — remove it"),
        ({"trainer": {"ckpt": "None"}}, r"trainer\.ckpt: must not be unset.* — remove it"),
        ({"orchestrator": {"ckpt": "None"}}, r"orchestrator\.ckpt: must not be unset"),
        (
            {"trainer": {"max_steps": 7}},
            r"proposer\.settings: trainer\.max_steps: differs from `max_steps`, which prime-rl refuses — "
            "remove it, or make them equal",
        ),
        ({"orchestrator": {"max_steps": 7}}, r"orchestrator\.max_steps: differs from `max_steps`"),
        ({"trainer": {"ckpt": {"interval": 3}}}, "differs from `ckpt.interval`"),
        (
            {"trainer": {"model": {"seq_len": 16}}},
            r"trainer\.model\.seq_len: differs from `seq_len`",
        ),
        (
            {
                "ckpt": {"interval": "None"},
                "trainer": {"ckpt": {"interval": 3}},
                "orchestrator": {"ckpt": {"interval": 4}},
            },
            r"trainer\.ckpt\.interval: differs from `orchestrator\.ckpt\.interval`",
        ),
        (
            {"trainer": {"max_steps": "None"}},
            r"trainer\.max_steps: differs from `max_steps`",
        ),
        (
            {"ckpt": "None", "orchestrator": {"ckpt": {"interval": 4}}},
            r"orchestrator\.ckpt\.interval: differs from `trainer\.ckpt\.interval`",
        ),
    ],
)
def test_what_a_round_cannot_hand_to_prime_rl_is_refused(
    settings: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=words):
        plan(by_prime_rl(tmp_path, settings=settings))


@pytest.mark.parametrize(
    "settings",
    [
        {"trainer": {"max_steps": 7}, "max_steps": 7},
        {"orchestrator": {"ckpt": {"keep_last": 2}}},
        {
            "ckpt": {"interval": "None"},
            "trainer": {"ckpt": {"interval": "None"}},
        },
        {
            "ckpt": "None",
            "trainer": {"ckpt": {"interval": 3, "keep_last": 1}},
            "orchestrator": {"ckpt": {"interval": 3}},
        },
    ],
)
def test_the_same_setting_in_several_tables_is_accepted(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    assert plan(by_prime_rl(tmp_path, settings=settings)).executor.engine == "prime-rl"


def test_a_run_file_that_contradicts_itself_is_named(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("trainer.max_steps = 3\n")
    side = {"model": "m", "run_files": ["configs/agent0/executor_prime_rl.toml", str(file)]}
    with pytest.raises(ConfigError) as error:
        plan(config(tmp_path, executor=side))
    assert str(error.value).startswith(f"{file}: trainer.max_steps: differs from `max_steps`")


@pytest.mark.parametrize("part", ["trainer", "orchestrator"])
def test_a_single_run_file_that_unsets_checkpoints_is_refused(tmp_path: Path, part: str) -> None:
    text = (paths.shipped("configs") / "agent0" / "executor_prime_rl.toml").read_text()
    before, after = {
        "trainer": ("[trainer.optim]", '[trainer]\nckpt = "None"\n[trainer.optim]'),
        "orchestrator": ("[orchestrator]", '[orchestrator]\nckpt = "None"'),
    }[part]
    assert before in text
    file = tmp_path / "mine.toml"
    file.write_text(text.replace(before, after, 1))
    with pytest.raises(ConfigError, match=rf"{part}\.ckpt: must not be unset"):
        plan(config(tmp_path, executor={"model": "m", "run_files": [str(file)]}))


def test_the_keys_that_prime_rl_copies_are_in_its_schema() -> None:
    known = schema.keys("rl")
    for key, copies in shared_keys.SHARED.items():
        assert {key, *copies} <= set(known), key


def test_compute_is_for_models_of_prime_rl(tmp_path: Path) -> None:
    small = {"model": "m", "run_files": ["configs/agent0/small_executor.toml"]}
    with pytest.raises(ConfigError, match=r"executor.compute: is for models that prime-rl trains"):
        plan(config(tmp_path, executor={**small, "compute": {"device": "cpu"}}))


def test_a_missing_prime_rl_is_said_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AIR_PRIME_RL", raising=False)
    planned = plan(by_prime_rl(tmp_path, frozen=True))
    planned.check()
    with pytest.raises(MissingError, match="prime-rl is not installed here"):
        plan(by_prime_rl(tmp_path)).check()


def indices(planned: Plan, side: str) -> list[int] | None:
    chosen = planned.gpus(getattr(planned, side))
    return None if chosen is None else [gpu.index for gpu in chosen]


def test_the_executor_answers_on_a_gpu_that_prime_rl_leaves(
    prime_rl: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def of(side: str, given: str | None = None) -> list[int] | None:
        compute = {} if given is None else {"compute": {"device": given}}
        return indices(plan(by_prime_rl(tmp_path, **compute)), side)

    # Inference has two GPUs, and the trainer two. The proposer does not play during its training.
    assert of("executor") == of("proposer") == [4, 5, 6, 7]
    assert of("executor", "cpu") is of("executor", "cuda:7") is None
    with pytest.raises(
        ConfigError, match=r"executor.compute.device: .* leaves cuda:4, .*cuda:7 for it"
    ):
        of("executor", "cuda:1")
    assert of("proposer", "cuda:1") is None
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3,6")
    assert of("executor") == [6]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    with pytest.raises(
        ConfigError, match=r"leaves no GPU for it .* set it to cpu, or train on fewer"
    ):
        of("executor")
    assert of("proposer") is None
    assert indices(plan(config(tmp_path)), "executor") is None


def test_a_model_plays_on_any_gpu_that_prime_rl_leaves(prime_rl: None, tmp_path: Path) -> None:
    """If the first one is leased, for example by another co-evolution, the next one is used."""
    planned = plan(by_prime_rl(tmp_path))
    run = CoevolveRun(planned, print, lambda _: nullcontext(lambda: None))
    settings = run._placed(planned.settings(planned.executor, "posed:later", 1.0), planned.executor)
    (env,) = settings.envs
    assert settings.compute.device == "cuda"
    candidates = device.free_for_training(
        settings.compute.device, gpus.inventory(), boxes=(), trainer=env.trainer_gpus
    )
    assert [gpu.index for gpu in candidates] == [4, 5, 6, 7]


def test_without_trainings_no_gpu_is_kept_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIR_GPU_INVENTORY", "none")
    planned = plan(by_prime_rl(tmp_path).model_copy(update={"rounds": 0}))
    assert indices(planned, "executor") is None
