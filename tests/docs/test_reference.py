"""The generated reference: complete, and with a description of everything."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

import pytest

from air.env.config import AirHarnessConfig, ResearchEnvConfig
from air.tasks.spec import TaskSpec
from tests.docs.blocks import ROOT


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    """The package `docs/site/reference`, which is on no import path outside MkDocs."""
    folder = ROOT / "docs/site/reference"
    spec = importlib.util.spec_from_file_location(
        "docs_reference", folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["docs_reference"] = module  # its own imports look there
    spec.loader.exec_module(module)
    return module


def test_every_key_flag_and_field_has_a_description(reference: ModuleType) -> None:
    """Write a docstring below the field, or `help=` for the flag."""
    assert reference.undescribed() == []


def test_every_key_of_the_environment_is_listed(reference: ModuleType) -> None:
    page = reference.PAGES["configuration.md"]()
    for kind in (ResearchEnvConfig, AirHarnessConfig):
        for name in kind.model_fields:
            assert f"| `{name}` |" in page
    assert "| `slots_per_gpu` | integer ≥ 1 | `1` |" in page
    assert "| `reward_to_go` | true or false | `false` |" in page


def test_the_engine_of_a_key(reference: ModuleType) -> None:
    engines = {
        (section.path, row.name): row.engine
        for section in reference.configuration.run_file()
        for row in section.rows
    }
    assert engines["embedded", "threads"] == "embedded"
    assert engines["trainer.loss", "kl_tau"] == "both"
    assert engines["orchestrator.train.source[].env", "gpus"] == "both"


def test_keys_that_only_prime_rl_reads_are_apart(reference: ModuleType) -> None:
    page = reference.PAGES["prime-rl-keys.md"]()
    assert "| `deployment.num_train_gpus` |" in page
    assert "| `max_steps` |" not in page


def test_every_command_and_subcommand_is_listed(reference: ModuleType) -> None:
    page = reference.PAGES["commands.md"]()
    for name in ("air rl", "air tasks check", "air box exec", "air trajectories import"):
        assert f"`{name}`\n" in page
    assert "| `--at-once` `AT_ONCE` |" in page


def test_the_formats_are_whole(reference: ModuleType) -> None:
    page = reference.PAGES["trajectory.md"]()
    for name in ("start", "step", "validate", "end"):
        assert f'Lines with `"type": "{name}"`' in page
    assert "## Tokens of a training step" in page
    assert "trainer_logprobs  float32" in page
    page = reference.PAGES["task-toml.md"]()
    for name in TaskSpec.model_fields:
        assert f"| `{name}` |" in page
    assert "`[[data.downloads]]`" in page


def test_a_missing_description_is_seen(reference: ModuleType) -> None:
    from air.config import BaseConfig

    class Undescribed(BaseConfig):
        key: int = 1

    section = reference.models.model_section(Undescribed, "x")
    assert [row.meaning for row in section.rows] == [""]


def test_types_and_bounds(reference: ModuleType) -> None:
    text = reference.models.type_text
    assert text(int | None) == "integer or none"
    assert text(tuple[float, float]) == "list of 2: number, number"
    assert text(list[str]) == "list of strings"
