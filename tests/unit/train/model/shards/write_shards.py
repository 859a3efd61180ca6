"""Writes checkpoints by real distributed processes (gloo, on the CPU) in the formats of verl and prime-rl.

    python write_shards.py MODEL FOLDER

FOLDER/NAME/shards has the shards of a model, and FOLDER/NAME/expected the same model as one folder.
"""

from __future__ import annotations

import importlib
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    FullyShardedDataParallel,
    ShardedStateDictConfig,
    StateDictType,
    fully_shard,
)
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

Write = Callable[[Any, Path, int, int], None]


def as_verl(state: Any, folder: Path, rank: int, world: int) -> None:
    torch.save(state, folder / f"model_world_size_{world}_rank_{rank}.pt")


def fsdp2(model: Any, folder: Path, rank: int, world: int) -> None:
    mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("fsdp",))
    as_verl(fully_shard(model, mesh=mesh).state_dict(), folder, rank, world)


def hybrid(model: Any, folder: Path, rank: int, world: int) -> None:
    """Weights that are copied over one dimension of the mesh, and sharded over the other."""
    mesh = init_device_mesh("cpu", (world, 1), mesh_dim_names=("ddp", "fsdp"))
    as_verl(fully_shard(model, mesh=mesh).state_dict(), folder, rank, world)


def fsdp1(model: Any, folder: Path, rank: int, world: int, **options: Any) -> None:
    """FSDP 1, whose shards are ShardedTensors."""
    cpu = torch.device("cpu")
    sharded = FullyShardedDataParallel(model, device_id=cpu, use_orig_params=True, **options)
    kind, config = StateDictType.SHARDED_STATE_DICT, ShardedStateDictConfig(offload_to_cpu=False)
    with FullyShardedDataParallel.state_dict_type(sharded, kind, config):
        as_verl(sharded.state_dict(), folder, rank, world)


def fsdp1_mesh(model: Any, folder: Path, rank: int, world: int) -> None:
    """FSDP 1 with a device mesh, whose shards are DTensors."""
    mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("fsdp",))
    fsdp1(model, folder, rank, world, device_mesh=mesh)


def placements(model: Any, folder: Path, rank: int, world: int) -> None:
    """Tensors that are sharded by rows or columns, replicated, and not distributed, in turn."""
    mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("fsdp",))
    state = {}
    for number, (name, tensor) in enumerate(model.state_dict().items()):
        ways = [Shard(0), Shard(tensor.dim() - 1), Replicate(), None]
        way = ways[number % len(ways)]
        state[name] = tensor if way is None else distribute_tensor(tensor, mesh, [way])
    as_verl(state, folder, rank, world)


def prime_rl(model: Any, folder: Path, rank: int, world: int) -> None:
    """A checkpoint of prime-rl's trainer, with the state of the optimiser."""
    mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("dp_shard",))
    sharded = fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(sharded.parameters(), lr=0.0, weight_decay=0.0)
    sharded(input_ids=torch.arange(4)[None]).logits.sum().backward()
    optimizer.step()
    weights, states = get_state_dict(sharded, [optimizer])
    app = {"model": weights, "optimizers": states, "progress": {"step": 3}}
    save({"app": app}, checkpoint_id=folder / "trainer")


KINDS: dict[str, tuple[int, bool, torch.dtype, Write]] = {
    "fsdp2": (3, True, torch.float32, fsdp2),
    "fsdp1": (3, False, torch.float32, fsdp1),
    "placements": (3, False, torch.bfloat16, placements),
    "prime-rl": (3, True, torch.float32, prime_rl),
    "fsdp1-mesh": (2, True, torch.float32, fsdp1_mesh),
    "hybrid": (2, False, torch.bfloat16, hybrid),
}
"""World size, whether the embeddings are tied, type of the weights, and how they are written."""


def model_of(source: str, tied: bool, dtype: torch.dtype) -> Any:
    """The model of every rank: random weights; untied ones have a matrix of their own for the logits."""
    model = AutoModelForCausalLM.from_pretrained(source, dtype=dtype, tie_word_embeddings=tied)
    torch.manual_seed(7)
    with torch.no_grad():
        for weights in model.parameters():
            weights.copy_(torch.randn(weights.shape) / 8)
    return model


def work(rank: int, world: int, source: str, root: Path) -> None:
    """One rank: it takes part in all checkpoints of its world size."""
    store = f"file://{root}/store-{world}"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world)
    for name, (size, tied, dtype, write) in KINDS.items():
        if size != world:
            continue
        model, shards = model_of(source, tied, dtype), root / name / "shards"
        if rank == 0:
            beside = root / name / ("expected" if name == "prime-rl" else "shards/huggingface")
            shards.mkdir(parents=True)
            model.save_pretrained(root / name / "expected")
            AutoTokenizer.from_pretrained(source).save_pretrained(root / name / "expected")
            if not beside.exists():  # verl writes all but the weights there
                weights = shutil.ignore_patterns("*.safetensors")
                shutil.copytree(root / name / "expected", beside, ignore=weights)
        dist.barrier()
        write(model, shards, rank, world)
        dist.barrier()
    dist.destroy_process_group()


def main(source: str, root: Path) -> int:
    torch.set_num_threads(1)
    importlib.import_module("transformers.models.qwen3.modeling_qwen3")  # else by each rank
    failed = 0
    for world in sorted({size for size, *_ in KINDS.values()}):
        ranks = []
        for rank in range(world):
            if not (child := os.fork()):
                status = 1
                try:
                    work(rank, world, source, root)
                    status = 0
                finally:
                    os._exit(status)
            ranks.append(child)
        failed += sum(os.waitpid(child, 0)[1] != 0 for child in ranks)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
