"""The scheduler of air's own inference server: collects requests from many threads, and generates their
replies together, as one batch, in a worker thread.

Any thread may submit requests; a new request joins the batch before the next token is sampled. When a request
arrives at an idle scheduler, the worker first waits a few milliseconds for further requests. The model's
weights change only while no request is running, so all tokens of a reply are sampled with the same version of
the weights.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from air.errors import InferenceError
from air.train.serving.sampler import Completion, Row, Sampler, SamplingParams


class ServerStoppedError(InferenceError):
    """Raised if the inference server is stopped before a request has got its reply."""

    def __init__(self) -> None:
        super().__init__("the inference server was stopped")


@dataclass(frozen=True)
class Reply:
    """A complete sampled reply, with the version of the weights that sampled the reply, and its timings."""

    completion: Completion
    version: int
    queue_seconds: float
    """Seconds from the submission of the request to its first forward pass."""
    seconds: float
    """Seconds from the submission of the request to the end of its reply."""


@dataclass
class Metrics:
    """Counters of requests, tokens and times since the scheduler was created."""

    requests: int = 0
    """The number of requests that got a complete reply."""
    failed: int = 0
    """The number of requests that failed because sampling raised an exception."""
    prompt_tokens: int = 0
    """The number of tokens in the prompts of the completed requests, cached ones included."""
    cached_tokens: int = 0
    """The number of tokens in the prompts of the completed requests whose keys and values came from the
    prefix cache."""
    prefix_cache_bytes: int = 0
    """The largest size of the prefix cache so far, in bytes."""
    completion_tokens: int = 0
    """The number of sampled tokens in the completed replies."""
    busy_seconds: float = 0.0
    """The seconds (wall time) in which the worker thread sampled."""
    queue_seconds: float = 0.0
    """The sum, over the completed requests, of the seconds between submission and the first forward pass."""


@dataclass(eq=False)
class _Job:
    row: Row
    future: Future[Reply] = field(default_factory=Future)
    submitted: float = field(default_factory=time.monotonic)
    started: float = 0.0


class Scheduler:
    """Accepts requests from any thread, and generates (samples) the replies in a worker thread of its own.

    Once the scheduler exists, only its worker may use `sampler`. When a request arrives at an idle scheduler,
    the worker waits `window` seconds for further requests. If `alone` is true, requests are sampled one at a
    time with an empty prefix cache, so that rounding errors in a reply do not depend on other requests.
    """

    def __init__(self, sampler: Sampler, *, window: float = 0.003, alone: bool = False) -> None:
        self.sampler = sampler
        self.window = window
        self.alone = alone
        self.version = 0
        self._sampled_by: dict[int, int] = {}
        """The version of the weights that sampled each reply; the key is a hash of the reply. Only replies of
        the last two versions are kept."""
        self._metrics = Metrics()
        self._waiting: deque[_Job] = deque()
        self._running: dict[Row, _Job] = {}
        self._changed = threading.Condition()
        self._paused = 0
        self._busy = False
        self._stopping = False
        self._thread = threading.Thread(target=self._work, name="air-sampler", daemon=True)

    def start(self) -> None:
        """Starts the worker thread, which from then on generates the replies to all requests that `submit`
        has queued or will queue."""
        self._thread.start()

    def stop(self) -> None:
        """Ends the worker thread after the present forward pass. Unfinished requests fail with
        ServerStoppedError."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join()
        with self._changed:
            self._busy = False
            self._changed.notify_all()
        for job in [*self._waiting, *self._running.values()]:
            _fail(job, ServerStoppedError())
        self._waiting.clear()
        self._running.clear()

    def submit(self, prompt: Sequence[int], params: SamplingParams) -> Future[Reply]:
        """Queues a request with the prompt `prompt` (token ids), and returns a future of its reply.
        Cancelling the future cancels the request. Raises ServerStoppedError if the scheduler has been
        stopped."""
        job = _Job(Row(list(prompt), params))
        with self._changed:
            if self._stopping:
                raise ServerStoppedError()
            self._waiting.append(job)
            self._changed.notify_all()
        return job.future

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Context manager: during the `with` block, the model's weights may be changed. Before the block,
        waits until no request is running, and frees all cached keys and values. Requests that arrive during
        the block wait until its end. Raises ServerStoppedError if the scheduler has been stopped."""
        with self._changed:
            self._paused += 1
            while self._busy and not self._stopping:
                self._changed.wait()
            if self._stopping:
                self._paused -= 1
                raise ServerStoppedError()
            # The worker uses the sampler only while it is busy.
            self.sampler.release()
        try:
            yield
        finally:
            with self._changed:
                self._paused -= 1
                self._changed.notify_all()

    def next_version(self) -> int:
        """Records that the model's weights were changed, and returns the version number of the new weights.
        Must be called inside a `with` block of `exclusive`."""
        self.version += 1
        with self._changed:
            recent = self._sampled_by.items()
            self._sampled_by = {key: one for key, one in recent if one >= self.version - 1}
        return self.version

    def version_of(self, token_ids: Sequence[int], logprobs: Sequence[float]) -> int | None:
        """Returns the version number of the weights that sampled a reply. The reply is recognised by the ids
        of its tokens and their log-probabilities. Returns None if neither of the last two versions sampled
        such a reply."""
        with self._changed:
            return self._sampled_by.get(hash((tuple(token_ids), tuple(logprobs))))

    def metrics(self) -> Metrics:
        """Returns a copy of the counters of requests, tokens and times since the scheduler was created."""
        with self._changed:
            peak = self.sampler.prefixes.peak_bytes
            return replace(self._metrics, prefix_cache_bytes=peak)

    def _work(self) -> None:
        while self._await_work():
            began = time.monotonic()
            try:
                for row in self._advance():
                    self._deliver(self._running.pop(row))
            except Exception as error:
                # Broad on purpose: any exception of the model fails the running requests, but not the worker.
                self._fail_running(error)
                continue
            with self._changed:
                self._metrics.busy_seconds += time.monotonic() - began
                self._busy = bool(self._running)
                self._changed.notify_all()

    def _await_work(self) -> bool:
        """Waits until a request is running or may be added to the batch, and then returns true. Returns false
        when `stop` has been called."""
        with self._changed:
            while not (self._stopping or self._running or (self._waiting and not self._paused)):
                self._changed.wait()
            if not (self._stopping or self._running):
                deadline = time.monotonic() + self.window
                while len(self._waiting) < self.sampler.max_batch and not self._stopping:
                    if not self._changed.wait(max(0.0, deadline - time.monotonic())):
                        break
            return not self._stopping

    def _advance(self) -> list[Row]:
        """Does one unit of work. If requests wait and can be added to the batch, adds them and samples the
        first token of their replies; otherwise samples one token for each running request. Removes cancelled
        requests before. Returns the requests whose replies have ended."""
        for row, job in list(self._running.items()):
            if job.future.cancelled():
                self.sampler.drop(row)
                del self._running[row]
        joining: list[_Job] = []
        with self._changed:
            room = 1 - len(self._running) if self.alone else self.sampler.room
            while self._waiting and not self._paused and len(joining) < room:
                job = self._waiting.popleft()
                if not job.future.cancelled():
                    joining.append(job)
            self._busy = bool(self._running or joining)
        if not joining:
            return self.sampler.step()
        if self.alone:
            self.sampler.clear()
        for job in joining:
            job.started = time.monotonic()
            self._running[job.row] = job
        return self.sampler.add([job.row for job in joining])

    def _deliver(self, job: _Job) -> None:
        if not job.future.set_running_or_notify_cancel():
            return
        now = time.monotonic()
        queued = job.started - job.submitted
        with self._changed:
            self._metrics.requests += 1
            self._metrics.prompt_tokens += len(job.row.prompt)
            self._metrics.cached_tokens += job.row.cached
            self._metrics.completion_tokens += len(job.row.token_ids)
            self._metrics.queue_seconds += queued
            reply_key = hash((tuple(job.row.token_ids), tuple(job.row.logprobs)))
            self._sampled_by[reply_key] = self.version
        reply = Reply(job.row.completion(), self.version, queued, now - job.submitted)
        job.future.set_result(reply)

    def _fail_running(self, error: Exception) -> None:
        text = " ".join(str(error).split()) or type(error).__name__
        jobs = list(self._running.values())
        self._running.clear()
        self.sampler.clear()
        for job in jobs:
            failure = InferenceError(f"sampling failed: {text}")
            failure.__cause__ = error
            _fail(job, failure)
        with self._changed:
            self._metrics.failed += len(jobs)
            self._busy = False
            self._changed.notify_all()


def _fail(job: _Job, error: Exception) -> None:
    if job.future.set_running_or_notify_cancel():
        job.future.set_exception(error)
