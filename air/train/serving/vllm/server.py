"""Runs a vLLM server for the policy (the trained model), in a separate process.

`update_weights` writes the policy's weights to a folder and makes vLLM load them (`POST /collective_rpc`,
method `reload_weights`, which needs vLLM's development mode). Every process that can reach the port on the
loopback interface can also make vLLM load weights, including a process in a box (agent's sandbox) that shares
the machine's network. `die_with_parent.py` ends vLLM when this process ends, even by SIGKILL.

If the policy has a LoRA adapter, each version of the adapter is loaded under a new name (`POST
/v1/load_lora_adapter`), because vLLM's prefix cache distinguishes adapters by name; the base model is not
loaded again. If the trainer uses the same GPU, vLLM sleeps during training (`/sleep`, `/wake_up`): its
weights are moved to the machine's main memory, and its key-value cache is discarded.

vLLM does not report which version of the weights sampled a reply. A middleware of air's in vLLM's server
records it (`middleware/reply_versions.py`).

A server that ends, or does not answer `/health` for a minute, is restarted once, with the newest weights.
Requests that were running then fail, and so do their episodes. After a second failure, `ready` raises an
error.
"""

from __future__ import annotations

import logging
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import torch

from air.errors import InferenceError, UsageError
from air.sandbox.contract import ownership
from air.train.model import checkpoint
from air.train.model.policy import Policy
from air.train.serving.vllm import die_with_parent, start_check
from air.train.serving.vllm.locate import Launch
from air.train.serving.vllm.middleware.reply_versions import digest

logger = logging.getLogger(__name__)

_POLL_SECONDS = 0.25
_HEALTH_EVERY = 5.0
_FIRST_SECONDS = 120.0
_RELOAD_SECONDS = 600.0
_GRACE_SECONDS = 10.0
_ERROR = re.compile(r"(?:^|[\s(])(\w*(?:Error|Exception): .+)$")


class VllmServer:
    """A vLLM server for one policy (the trained model), in a separate process. `launch` has the settings with
    which vLLM is started. Call `start` once, and `stop` at the end.

    vLLM's log (`vllm.log`) and its copy of the weights are written into `folder`, which must exist. Port 0
    selects a free port. `start` fails if the server is not ready after `start_seconds` seconds. A server that
    does not answer `GET /health` for `unhealthy_seconds` seconds is restarted; `say` is then called with a
    one-line message.
    """

    def __init__(
        self,
        policy: Policy,
        launch: Launch,
        *,
        folder: Path,
        port: int = 0,
        start_seconds: float = 600.0,
        unhealthy_seconds: float = 60.0,
        say: Callable[[str], None] = logger.warning,
    ) -> None:
        self.policy, self.launch, self.port = policy, launch, port
        self.log = folder / "vllm.log"
        self.version = 0
        self._sampled_by: dict[str, int] = {}
        """The version of the weights that sampled each reply of the last two versions, by the reply's
        digest."""
        self._oldest = -1
        """The oldest version in `_sampled_by`."""
        self._replies_offset = 0
        """The number of bytes of vLLM's records of replies that are already in `_sampled_by`."""
        self._folder, self._say = folder, say
        self._start_seconds, self._unhealthy_seconds = start_seconds, unhealthy_seconds
        self._lock = threading.Lock()  # after `stop` has held it, no process is started
        self._stopping = threading.Event()
        self._serving = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._starts = 0
        self._log_offset = 0
        self._weights: Path | None = None
        self._lost = ""
        self._watcher = threading.Thread(target=self._watch, name="air-vllm", daemon=True)

    @property
    def url(self) -> str:
        """The root address (URL) of the server. An OpenAI client needs this address with `/v1` appended."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def name(self) -> str:
        """The model's name, which requests must state. If the policy has a LoRA adapter, the name includes
        the version number of the weights."""
        return f"{self.launch.name}:{self.version}" if self.policy.has_adapter else self.launch.name

    def start(self) -> None:
        """Starts the server. Returns when the server answers requests. Raises UsageError if the port cannot
        be used, if the disk is full, or if vLLM computes other log-probabilities than the trainer. Raises
        InferenceError if the server does not become ready, or if its responses lack fields that training
        needs."""
        self.port = _free_port(self.port)
        ownership.mark_children()
        try:
            self._weights = Path(tempfile.mkdtemp(prefix=".weights-", dir=self._folder.absolute()))
            self._write()
            self._spawn()
            self._await_ready()
            start_check.check_agreement(self._generate, self.launch, self.policy, self.name)
        except BaseException:  # Ctrl-C too: no process of vLLM may remain
            self.stop()
            raise
        self._serving.set()
        self._watcher.start()

    def stop(self) -> None:
        """Stops the server and removes its copy of the weights, but not its log. Any thread may call this
        method."""
        with self._lock:
            self._stopping.set()
        if self._watcher.is_alive():
            self._watcher.join()
        self._end()
        if self._weights is not None:
            shutil.rmtree(self._weights, ignore_errors=True)

    def ready(self) -> None:
        """Waits until the server answers requests: returns at once, unless the server is restarting. Raises
        InferenceError if the server was stopped, or if it has failed and will not be restarted."""
        while True:
            if self._lost:
                raise InferenceError(self._lost)
            if self._stopping.is_set():
                raise InferenceError("the inference server was stopped")
            if self._serving.is_set() and self._running():
                return
            time.sleep(_POLL_SECONDS)

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Context manager around the trainer's work. If vLLM shares its GPU with the trainer, vLLM sleeps
        during the `with` block and frees its GPU memory; no request may be running then. Otherwise does
        nothing, because vLLM has its own copy of the weights. Raises InferenceError if vLLM cannot be put to
        sleep or woken up."""
        if self.launch.gpu_share is None:
            yield
            return
        self._change_memory("/sleep?level=1")
        try:
            yield
        finally:
            if torch.cuda.is_available():
                torch.cuda.empty_cache()  # gives the memory that training used to vLLM
            self._change_memory("/wake_up")

    def _change_memory(self, path: str) -> None:
        try:
            self._ask(path)
        except httpx.HTTPError as error:
            problem = str(error).splitlines()[0] if str(error) else repr(error)
            raise InferenceError(f"vLLM failed at {path} ({problem}) — see {self.log}") from error

    def step_metrics(self) -> Mapping[str, float]:
        """Returns an empty dict, because this class has no metrics; vLLM's own metrics are at the path
        `/metrics` of the server."""
        return {}

    def update_weights(self) -> int:
        """Makes the server load the present weights of the policy, and returns their version number. The
        weights at the start have version 0, so the first call returns 1.

        Requests that are already running finish with the old weights; later requests get the new ones. If the
        server fails during the update, it is restarted with the new weights. Raises UsageError if the weights
        cannot be written because the disk is full. Raises InferenceError if the server refuses the weights,
        or has failed and will not be restarted.
        """
        self.version += 1
        self._write()
        while True:
            self.ready()
            starts = self._starts
            try:
                self._reload()
                self._ask(f"/resume?version={self.version}")
                return self.version
            except httpx.HTTPStatusError as error:
                text = " ".join(error.response.text.split())[:300]
                raise InferenceError(
                    f"vLLM did not take the new weights ({error.response.status_code}: {text}) — "
                    f"see {self.log}"
                ) from error
            except httpx.TransportError as error:
                self._await_restart(starts, error)

    def version_of(self, token_ids: Sequence[int], logprobs: Sequence[float]) -> int | None:
        """Returns the version number of the weights that sampled a reply. The reply is recognised by the ids
        of its tokens and their log-probabilities. Returns None if neither of the last two versions sampled
        such a reply. The middleware in vLLM's server records the versions (see `reply_versions`)."""
        self._read_replies()
        return self._sampled_by.get(digest(token_ids, logprobs))

    def _read_replies(self) -> None:
        """Reads the records that were appended since the last call. Forgets versions before the last two."""
        if self._replies.exists():  # there was a reply
            with self._replies.open("rb") as file:
                file.seek(self._replies_offset)
                text = file.read()
            complete = text[: text.rfind(b"\n") + 1]
            self._replies_offset += len(complete)
            for line in complete.decode("ascii").splitlines():
                key, *version = line.split(" ")
                if len(version) == 1 and version[0].isdigit():  # else a full disk has cut a record
                    self._sampled_by[key] = int(version[0])
        if self._oldest != (oldest := self.version - 1):
            self._oldest = oldest
            every = self._sampled_by.items()
            self._sampled_by = {key: version for key, version in every if version >= oldest}

    @property
    def _replies(self) -> Path:
        """The file with the middleware's records."""
        assert self._weights is not None
        return self._weights / "replies"

    def _reload(self) -> None:
        if self.policy.has_adapter:
            self._serve_adapter()
            return
        reload = {"method": "reload_weights", "kwargs": {"weights_path": str(self._model)}}
        self._ask("/pause?mode=wait")  # running requests end with the old weights
        self._ask("/collective_rpc", reload)
        self._ask("/reset_prefix_cache")

    def _serve_adapter(self) -> None:
        """Makes vLLM load the newest version of the LoRA adapter, unless vLLM has already loaded it, and
        unload older versions."""
        listed = self._ask("/v1/models", method="GET").json()["data"]
        served = {card["id"] for card in listed}
        if self.name not in served:
            adapter = {"lora_name": self.name, "lora_path": str(self._model)}
            self._ask("/v1/load_lora_adapter", adapter)
        for old in served - {self.name, self.launch.name}:
            self._ask("/v1/unload_lora_adapter", {"lora_name": old})

    def _ask(
        self, path: str, body: Any = None, *, method: str = "POST", timeout: float = _RELOAD_SECONDS
    ) -> httpx.Response:
        # Plain HTTP on loopback: needs no proxy, and no certificates.
        with httpx.Client(timeout=timeout, trust_env=False, verify=False) as http:
            return http.request(method, f"{self.url}{path}", json=body).raise_for_status()

    def _await_restart(self, starts: int, error: Exception) -> None:
        """Waits until the watcher thread has restarted the server or has given up. `starts` is the number of
        starts of the server before its failure. Raises InferenceError, which contains `error`, if the thread
        does neither within twice `unhealthy_seconds`."""
        deadline = time.monotonic() + 2 * self._unhealthy_seconds
        while self._starts == starts and not self._lost and not self._stopping.is_set():
            if time.monotonic() > deadline:
                raise InferenceError(f"vLLM could not be given the new weights: {error!r}")
            time.sleep(_POLL_SECONDS)

    def _write(self) -> None:
        assert self._weights is not None
        # Two versions remain, because a server that is starting may still read the older one.
        self._model = checkpoint.save(self._weights, self.version, self.policy, keep_last=2)

    def _spawn(self) -> None:
        """Starts vLLM's process with the newest weights. The script `die_with_parent.py` ends vLLM when this
        process ends. Raises InferenceError if `stop` was called before."""
        with self._lock, self.log.open("ab") as log:
            if self._stopping.is_set():
                raise InferenceError("the inference server was stopped")
            self._log_offset = log.tell()
            parent = [sys.executable, "-I", die_with_parent.__file__]
            parent += [str(_GRACE_SECONDS), str(self._weights)]
            self._process = subprocess.Popen(
                parent + self.launch.command(self.policy.base or self._model, self.port),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self.launch.environment(self.version, self._replies),
                cwd=self._folder,
                start_new_session=True,  # Ctrl-C in the terminal does not reach vLLM
            )
            self._starts += 1

    def _running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def _await_ready(self) -> None:
        deadline = time.monotonic() + self._start_seconds
        while not self._healthy():
            if self._stopping.wait(_POLL_SECONDS):
                raise InferenceError("the inference server was stopped")
            if not self._running():
                raise InferenceError(f"vLLM did not start: {self._last_words()} — see {self.log}")
            if time.monotonic() > deadline:
                raise InferenceError(
                    f"vLLM was not ready after {self._start_seconds:g} s — see {self.log}; "
                    "embedded.inference_start_seconds gives it more time"
                )
        start_check.check_form(self._generate, self.launch, min(self.policy.eos_ids, default=0))
        if self.policy.has_adapter:
            try:
                self._serve_adapter()
            except httpx.HTTPError as error:
                raise InferenceError(
                    f"vLLM did not load the LoRA adapter ({error}) — see {self.log}"
                ) from error

    def _generate(self, body: Any) -> Any:
        return self._ask("/inference/v1/generate", body, timeout=_FIRST_SECONDS).json()

    def _healthy(self) -> bool:
        try:
            self._ask("/health", method="GET", timeout=_HEALTH_EVERY)
        except httpx.HTTPError:
            return False
        return True

    def _watch(self) -> None:
        """The main function of the watcher thread: waits until the server fails, restarts the server once,
        and gives up if the restart fails or the server fails a second time. Returns then, or after a call of
        `stop`."""
        while problem := self._next_problem():
            self._serving.clear()
            if self._starts > 1:
                self._lost = f"vLLM went away a second time: {problem} — see {self.log}"
                return
            self._say(f"vLLM went away: {problem}; it is started again, once (log: {self.log})")
            try:
                self._end(keep_weights=True)
                self._spawn()
                self._await_ready()
            except (InferenceError, OSError) as error:
                self._lost = f"vLLM went away: {problem}; then: {error}"
                return
            self._serving.set()

    def _next_problem(self) -> str:
        """Waits until the server fails, and returns the reason in words; returns an empty string after a call
        of `stop`."""
        healthy = time.monotonic()
        checked = healthy
        while not self._stopping.wait(_POLL_SECONDS):
            if not self._running():
                return self._last_words()
            now = time.monotonic()
            if now - checked < _HEALTH_EVERY:
                continue
            if self._healthy():
                healthy = time.monotonic()
            elif time.monotonic() - healthy > self._unhealthy_seconds:
                return f"it did not answer for {self._unhealthy_seconds:g} s"
            checked = time.monotonic()
        return ""

    def _end(self, *, keep_weights: bool = False) -> None:
        """Ends vLLM's process and all its descendants. Also removes vLLM's copy of the weights, unless
        `keep_weights` is set."""
        process = self._process
        if process is None:
            return
        assert process.stdin is not None
        if keep_weights:
            process.terminate()
        else:
            process.stdin.close()
        try:
            process.wait(2 * _GRACE_SECONDS + 10)
        except subprocess.TimeoutExpired:
            logger.error("the parent of vLLM (process %d) does not end; it is killed", process.pid)
            process.kill()
            process.wait()
        process.stdin.close()

    def _last_words(self) -> str:
        """Returns a description of the end of vLLM's process, for an error message: the exit code and, if
        there is one, the last informative error in the log."""
        assert self._process is not None
        with self.log.open("rb") as file:
            file.seek(self._log_offset)
            lines = file.read().decode("utf-8", "replace").splitlines()
        errors = [match[1] for line in lines if (match := _ERROR.search(line))]
        informative = [e for e in errors if "root cause" not in e]
        code = f"exit code {self._process.returncode}"
        return f"{code}, {informative[-1][:200]}" if informative else code


def _free_port(port: int) -> int:
    """Returns the port on which the server shall listen: `port`, or a free port of the loopback interface if
    `port` is 0. Raises UsageError if this process cannot listen there."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
        except OSError as error:
            raise UsageError(
                f"cannot listen there ({error.strerror})",
                where=f"127.0.0.1:{port}",
                remedy="choose another embedded.port, or 0 for a free one",
            ) from None
        return int(listener.getsockname()[1])
