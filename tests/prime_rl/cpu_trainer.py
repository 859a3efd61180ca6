"""prime-rl's own trainer on a machine without a GPU: `python -m tests.prime_rl.cpu_trainer @ trainer.json`.

Everything that the trainer computes, reads and writes is its own code: FSDP, loss, optimizer, scheduler, the
broadcast of weights, checkpoints and metrics. Replaced is what a machine without a GPU cannot do:

- The device `cuda` is the CPU, the backend of torch.distributed is gloo, and functions of `torch.cuda` that
  ask for or free memory do nothing.
- Attention is torch's (`sdpa`), as packages with flash attention exist for CUDA only.
- Packages for CUDA, which the trainer imports for other models than ours, are placeholders.
- The share of the hardware's peak (MFU) is 0, because the peak of a CPU is unknown.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch._utils
import torch.distributed as dist
import transformers.modeling_utils  # noqa: F401 — asks which packages are installed: before placeholders
from torch.overrides import TorchFunctionMode

PACKAGES = frozenset(
    ("deep_ep", "deep_gemm", "dion", "fla", "flash_attn", "flash_attn_interface", "mamba_ssm")
) | frozenset(("nixl", "prime_kernels", "quack", "tilelang", "torchao", "vllm"))
MODULES = ("torchtitan.distributed.expert_parallel", "torchtitan.experiments.kernels")
"""Modules for mixtures of experts, which the release of torchtitan on PyPI lacks."""


class Placeholder(type):
    """A class whose attributes are such classes, too. As a decorator, it returns what it decorates."""

    def __getattr__(cls, name: str) -> Any:
        return _placeholder(name)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return args[0] if args and callable(args[0]) else cls


def _placeholder(name: str) -> Placeholder:
    if name.startswith("__"):
        raise AttributeError(name)
    return Placeholder(name, (), {})


class _Module(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        return _placeholder(name)


class Placeholders(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds a placeholder for each package that exists for CUDA only."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        """See importlib. None if the caller is `importlib.util.find_spec`, which asks what is installed."""
        asks = sys._getframe(2).f_code.co_name == "find_spec"
        if asks or not (name.partition(".")[0] in PACKAGES or name.startswith(MODULES)):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        """See importlib."""
        return _Module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """See importlib."""


class OnCPU(TorchFunctionMode):
    """Within this context, the device `cuda` of each torch function is the CPU."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """See torch."""
        if func is torch.Tensor.cuda:
            return args[0]
        return func(*map(_cpu, args), **{key: _cpu(x) for key, x in (kwargs or {}).items()})


def _cpu(value: Any) -> Any:
    if isinstance(value, str | torch.device) and str(value).partition(":")[0] == "cuda":
        return "cpu"
    return value


def _replace_cuda() -> None:
    begin = dist.init_process_group

    def gloo(backend: str | None, timeout: timedelta, device_id: int) -> None:
        begin("gloo", timeout=timeout)

    dist.init_process_group = gloo
    torch._utils._get_available_device_type = lambda: "cpu"
    for name in ("set_device", "reset_peak_memory_stats", "empty_cache", "synchronize"):
        setattr(torch.cuda, name, lambda *_: None)
    torch.cuda.max_memory_reserved = lambda: 0


def main() -> None:
    """Runs the trainer."""
    _replace_cuda()
    sys.meta_path.insert(0, Placeholders())
    from prime_rl.trainer import model, perf
    from prime_rl.trainer.rl import train

    model.resolve_auto_attn = lambda config: setattr(config, "attn", "sdpa")
    perf.PerfCounter._mfu_from_tps = lambda *_: 0.0
    with OnCPU():
        train.main()


if __name__ == "__main__":
    main()
