"""Checkpoints that real distributed processes have written are merged exactly, or refused in one line."""

from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from air.cli.main import main
from air.errors import MissingError, UsageError
from air.train.model import policy
from air.train.model.shards.blocks import Block, Sharded
from air.train.model.shards.merge import merge, shards_folder
from air.train.model.shards.safe_unpickle import SHARDED_TENSOR_NAMES
from tests.unit.train.model.shards.write_shards import KINDS


@pytest.fixture
def copied(written: Path, tmp_path: Path) -> Callable[[str], Path]:
    """Copies the shards of a kind, free to be changed."""

    def copy(kind: str) -> Path:
        return Path(shutil.copytree(written / kind / "shards", tmp_path / kind))

    return copy


def base(written: Path, kind: str) -> str | None:
    """The folder with config and tokenizer, if they are not beside the shards."""
    return str(written / kind / "expected") if kind == "prime-rl" else None


def loaded(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype="auto")


@pytest.mark.parametrize("kind", KINDS)
def test_the_merged_model_is_the_one_that_was_sharded(
    written: Path, tmp_path: Path, kind: str
) -> None:
    folder, expected = tmp_path / "merged", loaded(written / kind / "expected")
    shards = shards_folder(written / kind / "shards")
    assert shards is not None
    counts = merge(shards, folder, base=base(written, kind))
    model = loaded(folder)
    tensors, originals = model.state_dict(), expected.state_dict()
    assert tensors.keys() == originals.keys()
    for name, original in originals.items():
        assert tensors[name].dtype == original.dtype == KINDS[kind][2]
        assert torch.equal(tensors[name], original), name
    tokens = torch.arange(5, 25)[None]
    assert torch.equal(model(input_ids=tokens).logits, expected(input_ids=tokens).logits)
    assert model.config.to_dict() == expected.config.to_dict() | {
        "_name_or_path": model.config._name_or_path
    }
    assert model.generation_config.to_dict() == expected.generation_config.to_dict()
    assert counts.parameters == sum(p.numel() for p in expected.parameters())
    text = AutoTokenizer.from_pretrained(folder)("some text")
    assert text == AutoTokenizer.from_pretrained(written / kind / "expected")("some text")
    assert [path.name for path in tmp_path.iterdir()] == ["merged"]


def test_shards_are_uneven_and_of_all_placements(written: Path) -> None:
    def local(kind: str, rank: int, world: int = 3) -> dict[str, Any]:
        path = written / kind / "shards" / f"model_world_size_{world}_rank_{rank}.pt"
        with torch.serialization.safe_globals(SHARDED_TENSOR_NAMES):
            return dict(torch.load(path, weights_only=True))

    rows = [local("fsdp2", rank)["model.norm.weight"].to_local().shape[0] for rank in range(3)]
    assert rows == [7, 7, 6]
    names = {type(one).__name__ for one in local("placements", 0).values()}
    assert names == {"DTensor", "Tensor"}
    ways = {
        str(one.placements)
        for one in local("placements", 0).values()
        if hasattr(one, r"placements")
    }
    assert ways == {"(Shard(dim=0),)", "(Shard(dim=1),)", "(Replicate(),)"}
    assert str(local("hybrid", 1, 2)["lm_head.weight"].placements) == "(Replicate(), Shard(dim=0))"
    assert type(local("fsdp1", 0)["lm_head.weight"]).__name__ == "ShardedTensorRecord"


def test_weights_are_rounded_if_a_type_is_given(written: Path, tmp_path: Path) -> None:
    merge(written / "fsdp2" / "shards", tmp_path / "m", dtype=torch.bfloat16)
    original = loaded(written / "fsdp2" / "expected").state_dict()
    model = loaded(tmp_path / "m")
    assert model.config.dtype == torch.bfloat16
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, original[name].bfloat16())


def test_a_large_model_is_written_to_several_files(written: Path, tmp_path: Path) -> None:
    merge(written / "fsdp1" / "shards", tmp_path / "m", file_bytes=20_000)
    files = sorted(path.name for path in (tmp_path / "m").glob("*.safetensors"))
    assert len(files) > 2
    assert files[0] == f"model-00001-of-{len(files):05}.safetensors"
    expected = loaded(written / "fsdp1" / "expected").state_dict()
    merged = loaded(tmp_path / "m").state_dict()
    assert all(torch.equal(merged[name], tensor) for name, tensor in expected.items())


def rank_file(folder: Path, rank: int, world: int = 3) -> Path:
    return folder / f"model_world_size_{world}_rank_{rank}.pt"


def resaved(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Changes the state dict in a file."""
    state = dict(torch.load(path, weights_only=True))
    change(state)
    torch.save(state, path)


def drop_rank(folder: Path) -> None:
    rank_file(folder, 1).unlink()


def add_world(folder: Path) -> None:
    shutil.copy(rank_file(folder, 0), rank_file(folder, 0, 2))


def truncate(folder: Path) -> None:
    path = rank_file(folder, 2)
    path.write_bytes(path.read_bytes()[:-700])


def other_local(folder: Path) -> None:
    def change(state: dict[str, Any]) -> None:
        norm = state["model.norm.weight"]
        norm._local_tensor = norm._local_tensor[:-1].clone()

    resaved(rank_file(folder, 1), change)


def other_dtype(folder: Path) -> None:
    def change(state: dict[str, Any]) -> None:
        norm = state["model.norm.weight"]
        norm._local_tensor = norm._local_tensor.double()

    resaved(rank_file(folder, 1), change)


def without_key(folder: Path) -> None:
    resaved(rank_file(folder, 1), lambda state: state.pop("model.norm.weight"))


def partial(folder: Path) -> None:
    def change(state: dict[str, Any]) -> None:
        from torch.distributed.tensor import Partial

        state["model.norm.weight"]._spec.placements = (Partial(),)

    for rank in range(3):
        resaved(rank_file(folder, rank), change)


def same_rank_twice(folder: Path) -> None:
    shutil.copy(rank_file(folder, 0), rank_file(folder, 1))


def extra_key(folder: Path) -> None:
    def change(state: dict[str, Any]) -> None:
        state["base_model.model.q_proj.lora_A.weight"] = torch.zeros(2)

    for rank in range(3):
        resaved(rank_file(folder, rank), change)


def untied(folder: Path) -> None:
    def change(state: dict[str, Any]) -> None:
        head = state["lm_head.weight"]
        head._local_tensor = head._local_tensor + 1

    resaved(rank_file(folder, 1), change)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (drop_rank, r"1 of the 3 ranks' files are missing, such as model_world_size_3_rank_1.pt"),
        (add_world, r"has files of several world sizes: 2, 3"),
        (truncate, r"rank_2.pt: cannot be read"),
        (other_local, r"rank_1.pt: model.norm.weight: has the shape \(6,\)"),
        (
            other_dtype,
            "model.norm.weight: has the shape .* type torch.float64, not .* torch.float32",
        ),
        (
            without_key,
            "only one of this file and model_world_size_3_rank_0.pt has model.norm.weight",
        ),
        (partial, r"weight: unknown layout: its placement is P"),
        (same_rank_twice, r"rank_0.pt: .*weight: only 3540 of 5320 elements are there"),
        (extra_key, r"the checkpoint has base_model.*lora_A.weight, the model has not — adapters"),
        (untied, r"lm_head.weight: differs from model.embed_tokens.weight, but the config ties"),
    ],
)
def test_what_does_not_make_up_the_model_is_refused_in_one_line(
    copied: Callable[[str], Path],
    tmp_path: Path,
    damage: Callable[[Path], None],
    message: str,
) -> None:
    shards = copied("fsdp2")
    damage(shards)
    with pytest.raises(UsageError, match=message) as error:
        merge(shards, tmp_path / "m")
    assert "\n" not in str(error.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fsdp2"]


def test_device_meshes_of_older_versions_of_torch_are_read(
    copied: Callable[[str], Path], written: Path, tmp_path: Path
) -> None:
    """Until torch 2.8, a mesh kept its ranks in the attribute `mesh`, and a shard's spec had no order."""
    shards = copied("hybrid")

    def change(state: dict[str, Any]) -> None:
        for spec in {id(one._spec): one._spec for one in state.values()}.values():
            for new in ("shard_order", "use_strided_shard_as_shard_order"):
                spec.__dict__.pop(new, None)
        mesh = next(iter(state.values()))._spec.mesh
        old = {
            "device_type": "cuda",
            "mesh": torch.arange(2).view(2, 1),
            "mesh_dim_names": ("ddp", "fsdp"),
            "_flatten_mesh_list": (0, 1),
            "_coordinate_on_dim": list(mesh._coordinate_on_dim),
            "_thread_id": None,
        }
        mesh.__dict__.clear()
        mesh.__dict__.update(old)

    for rank in range(2):
        resaved(rank_file(shards, rank, 2), change)
    merge(shards, tmp_path / "m")
    expected = loaded(written / "hybrid" / "expected").state_dict()
    merged = loaded(tmp_path / "m").state_dict()
    assert all(torch.equal(merged[name], tensor) for name, tensor in expected.items())


@pytest.mark.parametrize("kind", ["placements", "hybrid"])
def test_copies_that_differ_are_refused(
    copied: Callable[[str], Path], tmp_path: Path, kind: str
) -> None:
    shards, world = copied(kind), KINDS[kind][0]

    def change(state: dict[str, Any]) -> None:
        for tensor in state.values():
            local = getattr(tensor, r"_local_tensor", tensor)
            if str(getattr(tensor, r"placements", "")) != "(Shard(dim=0),)":
                local.view(-1)[-1:].add_(1)

    resaved(rank_file(shards, 1, world), change)
    with pytest.raises(UsageError, match=r"rank_1.pt: .*: differs from its copy in .*rank_0.pt"):
        merge(shards, tmp_path / "m")


class Attack:
    """A pickle that runs a command when it is loaded."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.mark),)


class Getattr:
    """A pickle that reaches a function through getattr, which files of FSDP 1 may name."""

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (torch.Size, "__reduce__")


def test_pickles_run_nothing(copied: Callable[[str], Path], written: Path, tmp_path: Path) -> None:
    mark = tmp_path / "attacked"
    for number, attack in enumerate((Attack(mark), Getattr())):
        shards = Path(shutil.copytree(copied("fsdp1"), tmp_path / f"attack-{number}"))
        shutil.rmtree(tmp_path / "fsdp1")
        torch.save({"model.norm.weight": attack}, rank_file(shards, 1))
        with pytest.raises(UsageError, match=r"has contents that a checkpoint of weights has not"):
            merge(shards, tmp_path / "m")
    trainer = copied("prime-rl") / "trainer"
    (trainer / ".metadata").write_bytes(pickle.dumps(Attack(mark)))
    with pytest.raises(UsageError, match=r"posix.mkdir is not allowed — nothing of it was run"):
        merge(trainer, tmp_path / "m", base=base(written, r"prime-rl"))
    assert not mark.exists()


def test_a_folder_of_prime_rl_needs_a_base_all_files_and_the_right_model(
    copied: Callable[[str], Path], written: Path, tmp_path: Path
) -> None:
    trainer, config = copied("prime-rl") / "trainer", base(written, r"prime-rl")
    with pytest.raises(UsageError, match=r"no config.json beside the shards — .* with --base"):
        merge(trainer, tmp_path / "m")
    untied = str(written / "fsdp1" / "expected")
    merge(trainer, tmp_path / "untied", base=untied)  # prime-rl writes both of the tied tensors
    other = policy.build(
        tmp_path / "other", ["a"], hidden=24, layers=1, heads=2, kv_heads=1, vocab=280
    )
    with pytest.raises(
        UsageError, match=r"has the shape .*, in the model .* is .* that was trained"
    ):
        merge(trainer, tmp_path / "m", base=str(other))
    deeper = policy.build(tmp_path / "deeper", ["a"], hidden=20, layers=2, vocab=280)
    with pytest.raises(UsageError, match=r"the checkpoint has no model.layers.1"):
        merge(trainer, tmp_path / "m", base=str(deeper))
    path = trainer / "__2_0.distcp"
    whole = path.read_bytes()
    path.write_bytes(whole[:100])
    with pytest.raises(UsageError, match=r"__2_0.distcp: .*: the file ends too early"):
        merge(trainer, tmp_path / "m", base=config)
    path.write_bytes(bytes(len(whole)))
    with pytest.raises(UsageError, match=r"__2_0.distcp: .*: cannot be read"):
        merge(trainer, tmp_path / "m", base=config)
    path.unlink()
    with pytest.raises(MissingError, match=r"the file __2_0.distcp is missing"):
        merge(trainer, tmp_path / "m", base=config)
    (trainer / ".metadata").write_bytes(b"\x80\x04nothing")
    with pytest.raises(UsageError, match=r"is no metadata of a checkpoint"):
        merge(trainer, tmp_path / "m", base=config)
    assert not (tmp_path / "m").exists()


def block(offsets: tuple[int, ...], *values: float) -> Block:
    tensor = torch.tensor(values, dtype=torch.float32)
    return Block("file", offsets, tuple(tensor.shape), lambda: tensor)


def test_blocks_that_overlap_leave_a_gap_or_stick_out_are_refused() -> None:
    def whole(*blocks: Block) -> list[float]:
        result: list[float] = Sharded("w", (4,), torch.float32, blocks).whole().tolist()
        return result

    assert whole(block((2,), 3, 4), block((0,), 1, 2), block((2,), 3, 4)) == [1, 2, 3, 4]
    assert whole(block((0,), 1, float("nan"), 3, 4), block((4,)))[2:] == [3, 4]
    for blocks, message in (
        ([block((0,), 1, 2)], "only 2 of 4 elements"),
        ([], "only 0 of 4 elements"),
        ([block((0,), 1, 2, 3), block((2,), 3, 4)], "overlaps"),
        ([block((3,), 1, 2)], "is not inside"),
        ([block((-1,), 1, 2)], "is not inside"),
        ([block((0, 0), 1, 2)], "is not inside"),
        ([block((0,), 1, 2, 3, 4), block((0,), 1, 2, 3, 5)], "differs from its copy"),
    ):
        with pytest.raises(UsageError, match=message):
            whole(*blocks)


def test_the_command_merges_shards_and_refuses_what_has_none(
    written: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    step = Path(shutil.copytree(written / "fsdp2" / "shards", tmp_path / "global_step_5" / "actor"))
    target = str(tmp_path / "merged")
    assert main(["merge", str(step.parent), target]) == 0
    count = len(loaded(Path(target)).state_dict()) - 1  # the tied matrix is written once
    assert f"merged {step} into {target}: {count} tensors, " in capsys.readouterr().out
    assert main(["merge", str(step.parent), target]) == 2
    assert "already exists" in capsys.readouterr().err
    assert main(["merge", str(step / "huggingface"), str(tmp_path / "m")]) == 2
    assert "holds neither a LoRA adapter (no adapter_config.json) nor shards" in (
        capsys.readouterr().err
    )
