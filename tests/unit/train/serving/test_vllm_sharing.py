"""What air asks of vLLM for adapters and for a shared GPU, with a server in vLLM's place.

The server is a process that answers these HTTP requests as vLLM's documentation says, and writes them down.
It has no model, and calls all tokens equally probable: `tests/vllm` uses a real vLLM.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from air.errors import InferenceError, UsageError
from air.train.config.model_options import LoRAConfig
from air.train.model import policy
from air.train.model.policy import Policy
from air.train.serving.vllm.locate import Launch, Vllm
from air.train.serving.vllm.middleware import reply_versions
from air.train.serving.vllm.middleware.reply_versions import digest
from air.train.serving.vllm.server import VllmServer

SERVER = """
import json, math, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

def argument(name):
    return sys.argv[sys.argv.index(name) + 1]

names = [argument("--served-model-name")]
vocab = json.loads(Path(argument("--model"), "config.json").read_text())["vocab_size"]
log = Path("requests.jsonl")

class Handler(BaseHTTPRequestHandler):
    def answer(self, body, status=200):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        self.answer({"data": [{"id": name} for name in names]})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"null")
        with log.open("a") as file:
            file.write(json.dumps([self.path, body]) + "\\n")
        if self.path == "/v1/load_lora_adapter":
            folder = Path(body["lora_path"])
            if body["lora_name"] in names or not (folder / "adapter_config.json").is_file():
                return self.answer({"error": "cannot load"}, 400)
            names.append(body["lora_name"])
        if self.path == "/v1/unload_lora_adapter":
            names.remove(body["lora_name"])
        if self.path.startswith("/sleep") and "--enable-sleep-mode" not in sys.argv:
            return self.answer({"error": "no sleep mode"}, 500)
        entry = {"token": "token_id:5", "logprob": -math.log(vocab)}
        self.answer({"choices": [{"token_ids": [5], "logprobs": {"content": [entry]}}]})

    def log_message(self, *_):
        pass

Path("command.json").write_text(json.dumps(sys.argv[1:]))
ThreadingHTTPServer(("127.0.0.1", int(argument("--port"))), Handler).serve_forever()
"""


@pytest.fixture
def vllm(tmp_path: Path) -> Vllm:
    """An interpreter that starts the server above in the place of vLLM's."""
    package = tmp_path / "packages" / "vllm" / "entrypoints" / "openai"
    package.mkdir(parents=True)
    (package / "api_server.py").write_text(SERVER)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path}/packages exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return Vllm(python, "0.27.0", cpu=False)


@pytest.fixture
def uniform(folder: Path, tmp_path: Path) -> Path:
    """The folder of a policy to which all tokens are equally probable."""
    model = policy.load(folder)
    with torch.no_grad():
        model.model.get_input_embeddings().weight.zero_()
    model.save(tmp_path / "uniform")
    return tmp_path / "uniform"


class Started:
    """A running server, with what it was asked."""

    def __init__(self, model: Policy, launch: Launch, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.server = VllmServer(model, launch, folder=folder)
        self.server.start()

    @property
    def command(self) -> list[str]:
        return list(json.loads((self.folder / "command.json").read_text()))

    def requests(self) -> list[tuple[str, Any]]:
        lines = (self.folder / "requests.jsonl").read_text().splitlines()
        pairs = [tuple(json.loads(line)) for line in lines]
        hidden = ("/inference/v1/generate", "/resume")
        return [one for one in pairs if not one[0].startswith(hidden)]


@pytest.fixture
def starts(tmp_path: Path, vllm: Vllm) -> Iterator[list[Started]]:
    running: list[Started] = []
    yield running
    for one in running:
        one.server.stop()


def test_each_version_of_an_adapter_has_a_name_of_its_own(
    uniform: Path, tmp_path: Path, vllm: Vllm, starts: list[Started]
) -> None:
    model = policy.load(uniform, lora=LoRAConfig(rank=12, alpha=8))
    launch = Launch(vllm, "GPU-aaaa", "m", 256, 8, 1, lora_rank=12)
    started = Started(model, launch, tmp_path / "run")
    starts.append(started)
    command = started.command
    assert command[command.index("--model") + 1] == str(uniform)  # the base model
    assert command[command.index("--max-lora-rank") + 1] == "16"  # the least that fits 12
    assert started.server.name == "m:0"
    assert started.server.update_weights() == 1
    assert started.server.name == "m:1"
    loaded, again, removed = started.requests()
    assert [loaded[0], again[0], removed[0]] == [
        "/v1/load_lora_adapter",
        "/v1/load_lora_adapter",
        "/v1/unload_lora_adapter",
    ]
    assert [body["lora_name"] for _, body in (loaded, again, removed)] == ["m:0", "m:1", "m:0"]
    assert loaded[1]["lora_path"] != again[1]["lora_path"]


def test_the_version_of_a_reply_is_read_from_the_middlewares_records(
    uniform: Path, tmp_path: Path, vllm: Vllm, starts: list[Started]
) -> None:
    launch = Launch(vllm, None, "m", 256, 8, 1)
    started = Started(policy.load(uniform), launch, tmp_path / "run")
    starts.append(started)
    assert started.command[started.command.index("--middleware") + 1] == reply_versions.CLASS
    server = started.server
    assert server.version_of([5], [-1.5]) is None
    (folder,) = started.folder.glob(".weights-*")
    first, second = (f"{digest([n], [-1.5])} {n - 5}\n" for n in (5, 6))
    with (folder / "replies").open("a") as file:
        file.write(first + second[:20])
        file.flush()
        assert (server.version_of([5], [-1.5]), server.version_of([6], [-1.5])) == (0, None)
        file.write(second[20:])
    assert (server.version_of([5], [-1.5]), server.version_of([6], [-1.5])) == (0, 1)
    assert [server.update_weights(), server.update_weights()] == [1, 2]
    assert (server.version_of([5], [-1.5]), server.version_of([6], [-1.5])) == (None, 1)
    everything = (started.folder / "requests.jsonl").read_text()
    assert [f"/resume?version={n}" in everything for n in (0, 1, 2, 3)] == [
        False,
        True,
        True,
        False,
    ]


def test_vllm_sleeps_while_weights_are_trained_on_its_gpu(
    uniform: Path, tmp_path: Path, vllm: Vllm, starts: list[Started]
) -> None:
    launch = Launch(vllm, "GPU-aaaa", "m", 256, 8, 1, gpu_share=0.4567)
    started = Started(policy.load(uniform), launch, tmp_path / "run")
    starts.append(started)
    command = started.command
    assert command[command.index("--gpu-memory-utilization") + 1] == "0.457"
    with started.server.exclusive():
        assert [path for path, _ in started.requests()] == ["/sleep?level=1"]
    assert [path for path, _ in started.requests()] == ["/sleep?level=1", "/wake_up"]
    with pytest.raises(RuntimeError, match="training failed"), started.server.exclusive():
        raise RuntimeError("training failed")
    assert [path for path, _ in started.requests()][2:] == ["/sleep?level=1", "/wake_up"]
    assert started.server.name == "m"


def test_a_vllm_that_cannot_sleep_is_an_error_that_names_the_log(
    uniform: Path, tmp_path: Path, vllm: Vllm, starts: list[Started]
) -> None:
    started = Started(
        policy.load(uniform), Launch(vllm, "GPU-aaaa", "m", 256, 8, 1), tmp_path / "run"
    )
    starts.append(started)
    assert "--enable-sleep-mode" not in started.command
    with started.server.exclusive():  # its GPU is its own
        pass
    assert not (tmp_path / "run" / "requests.jsonl").read_text().count("/sleep")
    started.server.launch = Launch(vllm, "GPU-aaaa", "m", 256, 8, 1, gpu_share=0.5)
    with (
        pytest.raises(InferenceError, match=r"failed at /sleep\?level=1 .*500.*vllm\.log"),
        started.server.exclusive(),
    ):
        pass


@pytest.mark.parametrize("lora", [None, LoRAConfig(rank=8)])
def test_a_vllm_that_computes_other_probabilities_is_refused_at_its_start(
    lora: LoRAConfig | None, folder: Path, tmp_path: Path, vllm: Vllm
) -> None:
    model = policy.load(folder, lora=lora)
    with torch.no_grad():
        for weights in model.model.parameters():
            weights.mul_(3)  # so that it is far from calling all tokens equally probable
    launch = Launch(vllm, "GPU-aaaa", "m", 256, 8, 1, lora_rank=8 if lora else 0)
    server = VllmServer(model, launch, folder=tmp_path)
    with pytest.raises(UsageError, match=r"vLLM's log-probabilities differ .* by \d.*transformers"):
        server.start()
    asked = [json.loads(line) for line in (tmp_path / "requests.jsonl").read_text().splitlines()]
    assert asked[-1][1]["model"] == ("m:0" if lora else "m")  # what rollouts will ask for
