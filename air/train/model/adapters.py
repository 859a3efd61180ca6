"""Loads, adds and merges LoRA adapters: small trained matrices beside the frozen weights of a base model.

An adapter is saved in the format of the package `peft`: a folder with `adapter_config.json`,
`adapter_model.safetensors` and the tokenizer. `adapter_config.json` names the base model by path or Hugging
Face id. A model whose adapter is switched off computes the same as its base model. The adapter's weights are
float32, whatever the data type of the base model.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from air import json_lines
from air.errors import MissingError, UsageError
from air.train.config.model_options import LoRAConfig

ADAPTER_CONFIG = "adapter_config.json"
_WEIGHTS = "adapter_model.safetensors"
_KEY = "lora"
_OTHER = "use the adapter's value, or merge it with `air merge` and add a new one"


def is_adapter(name: str | Path) -> bool:
    """Returns whether `name` is the path of a folder that contains an adapter (a file
    `adapter_config.json`)."""
    return (Path(name).expanduser() / ADAPTER_CONFIG).is_file()


def settings(folder: str | Path) -> dict[str, Any]:
    """Returns the content of `adapter_config.json` in an adapter's folder. Raises UsageError if the file is
    invalid or the adapter is not a LoRA adapter, and MissingError if the base model was a folder that no
    longer exists."""
    path = Path(folder).expanduser() / ADAPTER_CONFIG
    try:
        read: dict[str, Any] = json_lines.decode(path.read_text())
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
    """Adds a new adapter with the settings `config` to the loaded model. `name` is the model's path or
    Hugging Face id. A new adapter does not change the model's outputs.

    Raises UsageError unless the model has layers of all names in `config.target_modules`; if this is the
    default list, one of its names suffices."""
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
    """Freezes the base model's weights, and converts the adapter's weights to float32. The adapter's weights
    become trainable if `trained` is true, and are frozen otherwise."""
    model.requires_grad_(False)
    for weights in parameters(model):
        weights.requires_grad_(trained)
        weights.data = weights.data.float()


def read_weights(model: Any, folder: str | Path) -> None:
    """Copies the weights of the adapter in `folder` into the model. The model must already have this adapter,
    with float32 weights. Needed because transformers rounds an adapter's weights to the base model's data
    type, such as bfloat16, and a resumed training would continue from the rounded weights. Does nothing if
    the folder has no `adapter_model.safetensors`, because other programs may use another name for this
    file."""
    from safetensors.torch import load_file

    path = Path(folder).expanduser() / _WEIGHTS
    if not path.is_file():
        return
    saved = load_file(path)
    for name, weights in model.named_parameters():
        key = "base_model.model." + name.replace(".default.", ".")
        if ".lora_" in name and key in saved:
            weights.data.copy_(saved[key])


def parameters(model: Any) -> Iterator[torch.nn.Parameter]:
    """Yields the weights of the model's adapter, but not those of the base model."""
    yield from (weights for name, weights in model.named_parameters() if ".lora_" in name)


def check_same(model: Any, folder: str | Path, config: LoRAConfig) -> None:
    """Raises UsageError if the adapter in `folder` does not have the rank, alpha and layers that the settings
    `config` state. The adapter must already be loaded into `model`."""
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
    """Context manager that switches the model's adapter off, so that the model computes the same as its base
    model. Does nothing for a model without an adapter. No other thread may use the model during the `with`
    block."""
    if not has_adapter(model):
        yield
        return
    model.disable_adapters()
    try:
        yield
    finally:
        model.enable_adapters()


def lasting_name(name: str) -> str:
    """Returns the name under which an adapter records its base model `name`: the absolute path if `name` is a
    folder, otherwise `name` itself (a Hugging Face id)."""
    base = Path(name).expanduser()
    return str(base.resolve()) if base.is_dir() else name


def base_name(model: Any) -> str:
    """Returns the folder or Hugging Face id of the base model of a model with an adapter."""
    (config,) = model.peft_config.values()
    return str(config.base_model_name_or_path)


def rank(model: Any) -> int:
    """Returns the rank of the model's adapter, or 0 if the model has no adapter."""
    return next(iter(model.peft_config.values())).r if has_adapter(model) else 0


def has_adapter(model: Any) -> bool:
    """Returns whether the model has an adapter."""
    return bool(getattr(model, "_hf_peft_config_loaded", False))


def merged(folder: str | Path) -> Any:
    """Loads the adapter in `folder`, and returns a new float32 model without an adapter: the base model with
    the adapter's matrices added to its weights. Apart from rounding, this model computes the same as the base
    model with the adapter. Raises UsageError if `folder` has no valid LoRA adapter, and MissingError if the
    base model was a folder that no longer exists."""
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
    """Returns whether `config.target_modules` is the default list of layer names. This list is for several
    model families, so a model may lack some of its names."""
    return config.target_modules == LoRAConfig().target_modules


def _layer_names(model: Any) -> set[str]:
    """Returns the names of the model's layers to which an adapter can be applied or already is applied:
    linear layers."""
    paths = [
        path.removesuffix(".base_layer") for path, part in model.named_modules() if _takes(part)
    ]
    return {path.rpartition(".")[2] for path in paths if ".lora_" not in path}


def _takes(part: Any) -> bool:
    from transformers.pytorch_utils import Conv1D

    return isinstance(part, (torch.nn.Linear, Conv1D))
