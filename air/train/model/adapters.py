"""LoRA adapters: small trained matrices beside the frozen weights of a base model.

An adapter's folder is an ordinary one of the package `peft` (`adapter_config.json` and
`adapter_model.safetensors`) with the tokenizer. The folder names its base model by path or hub id. While the
adapter is switched off, the model predicts as its base model. Adapters are float32, whatever the base model's
type.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from air.errors import MissingError, UsageError
from air.train.config.model_options import LoRAConfig

ADAPTER_CONFIG = "adapter_config.json"
_KEY = "lora"
_OTHER = "use the adapter's value, or merge it with `air merge` and add a new one"


def is_adapter(name: str | Path) -> bool:
    """Whether `name` is the path of an adapter's folder."""
    return (Path(name).expanduser() / ADAPTER_CONFIG).is_file()


def settings(folder: str | Path) -> dict[str, Any]:
    """Returns the contents of an adapter's `adapter_config.json`. Raises UsageError if the adapter is no LoRA
    adapter, and MissingError if its base model was a folder that does not exist any more."""
    path = Path(folder).expanduser() / ADAPTER_CONFIG
    try:
        read: dict[str, Any] = json.loads(path.read_text())
        kind, base = read["peft_type"], str(read["base_model_name_or_path"])
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"cannot be read ({error!r})", where=str(path)) from None
    if kind != "LORA":
        raise UsageError(f"is an adapter of type {kind}, not LORA", where=str(path))
    if base.startswith("/") and not Path(base).is_dir():
        raise MissingError(
            f"the adapter's base model is not at {base}",
            where=str(path),
            remedy="put it back, or correct base_model_name_or_path in this file",
        )
    return read


def add(model: Any, config: LoRAConfig, name: str) -> None:
    """Adds a new adapter to a loaded model. At first the model's predictions do not change. `name` is the
    path or hub id of the base model. Raises UsageError if no layer of the model has one of the names in
    `config.target_modules`, or if some names are absent and the list is not the default one."""
    from peft import LoraConfig

    layers = _layer_names(model)
    targets = [target for target in config.target_modules if target in layers]
    missing = [target for target in config.target_modules if target not in layers]
    if missing and not (targets and _is_default(config)):
        raise UsageError(
            f"no layer is named {', '.join(missing)}",
            where=f"{_KEY}.target_modules",
            remedy=f"{name} has: {', '.join(sorted(layers))}",
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # the same run always makes the same adapter
        model.add_adapter(
            LoraConfig(
                r=config.rank,
                lora_alpha=config.alpha,  # type: ignore[arg-type]  # peft takes any number
                lora_dropout=config.dropout,
                target_modules=targets,
                task_type="CAUSAL_LM",
            )
        )
    model.peft_config["default"].base_model_name_or_path = lasting_name(name)
    set_trained(model, True)


def set_trained(model: Any, trained: bool) -> None:
    """Freezes the base model, and also the adapter unless `trained`. Adapters become float32."""
    model.requires_grad_(False)
    for weights in parameters(model):
        weights.requires_grad_(trained)
        weights.data = weights.data.float()


def parameters(model: Any) -> Iterator[torch.nn.Parameter]:
    """Yields the weights of a model's adapter, without the base model's."""
    yield from (weights for name, weights in model.named_parameters() if ".lora_" in name)


def check_same(model: Any, folder: str | Path, config: LoRAConfig) -> None:
    """Raises UsageError if the adapter in `folder`, with which `model` was loaded, differs from `config` in
    its rank, alpha or layers."""
    saved = settings(folder)
    for key, name in (("rank", "r"), ("alpha", "lora_alpha")):
        if saved.get(name) != getattr(config, key):
            raise UsageError(
                f"{getattr(config, key)} does not fit the adapter in {folder}, which has {saved.get(name)}",
                where=f"{_KEY}.{key}",
                remedy=_OTHER,
            )
    listed = saved.get("target_modules") or []
    has = {listed} if isinstance(listed, str) else set(listed)
    wanted = set(config.target_modules)
    if has != (wanted & _layer_names(model) if _is_default(config) else wanted):
        raise UsageError(
            f"{', '.join(sorted(wanted))} does not fit the adapter in {folder}, which has "
            f"{', '.join(sorted(has))}",
            where=f"{_KEY}.target_modules",
            remedy=_OTHER,
        )


@contextmanager
def switched_off(model: Any) -> Iterator[None]:
    """Context manager: the model predicts as its base model does. A model without an adapter stays as it is.
    No other thread may use the model meanwhile."""
    if not has_adapter(model):
        yield
        return
    model.disable_adapters()
    try:
        yield
    finally:
        model.enable_adapters()


def lasting_name(name: str) -> str:
    """Returns the name by which an adapter refers to its base model: a folder's absolute path, or a hub
    id."""
    base = Path(name).expanduser()
    return str(base.resolve()) if base.is_dir() else name


def base_name(model: Any) -> str:
    """Returns the folder or hub id of the base model to which an adapter was added."""
    (config,) = model.peft_config.values()
    return str(config.base_model_name_or_path)


def rank(model: Any) -> int:
    """Returns the rank of a model's adapter; 0 without an adapter."""
    return next(iter(model.peft_config.values())).r if has_adapter(model) else 0


def has_adapter(model: Any) -> bool:
    """Whether an adapter was added to the model, or loaded with it."""
    return bool(getattr(model, "_hf_peft_config_loaded", False))


def merged(folder: str | Path) -> Any:
    """Returns a new float32 model: the adapter's base model, with the adapter added into its weights. Apart
    from rounding, it predicts as the base model with the adapter. Raises the same errors as `settings`."""
    from peft.tuners.tuners_utils import BaseTunerLayer
    from transformers import AutoModelForCausalLM

    base = settings(folder)["base_model_name_or_path"]
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    layers = [
        (path, part) for path, part in model.named_modules() if isinstance(part, BaseTunerLayer)
    ]
    for path, layer in layers:
        layer.merge()
        parent, _, child = path.rpartition(".")
        setattr(model.get_submodule(parent), child, layer.get_base_layer())
    whole: Any = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    whole.load_state_dict(model.state_dict())
    return whole.eval()


def _is_default(config: LoRAConfig) -> bool:
    """Whether the names of layers are the default ones. A model may lack some of the default layers."""
    return config.target_modules == LoRAConfig().target_modules


def _layer_names(model: Any) -> set[str]:
    """Returns the names of the layers for which an adapter can have, or already has, matrices."""
    paths = [
        path.removesuffix(".base_layer") for path, part in model.named_modules() if _takes(part)
    ]
    return {path.rpartition(".")[2] for path in paths if ".lora_" not in path}


def _takes(part: Any) -> bool:
    from transformers.pytorch_utils import Conv1D

    return isinstance(part, (torch.nn.Linear, Conv1D))
