"""A teacher behind a real HTTP server."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from air.errors import ConfigError, InferenceError
from air.testing import ScoringServer
from air.train.config.further_models_config import TeacherConfig
from air.train.further_models.frozen_model import FrozenModel
from air.train.further_models.teacher_endpoint import TeacherEndpoint
from air.train.model import policy
from air.train.model.policy import Policy
from air.train.serving.server import InferenceServer
from tests.unit.sandbox.fusion_server import answering
from tests.unit.train.further_models.test_frozen_model import sample


@contextmanager
def endpoint(url: str, said: list[str] | None = None, **keys: Any) -> Iterator[TeacherEndpoint]:
    config = TeacherConfig(name="teacher", base_url=url, **keys)
    with closing(
        TeacherEndpoint(config, (said if said is not None else []).append, pause=0.01)
    ) as teacher:
        yield teacher


def test_an_endpoint_and_a_local_teacher_give_the_same(small: Policy) -> None:
    local = FrozenModel(small, 4096)
    samples = [sample(list(range(20, 30))), sample(list(range(40, 60)))]
    samples.append(sample(list(range(9)), mask=[n in (2, 5) for n in range(9)]))

    def score(ids: Sequence[int]) -> list[float]:
        return [0.0, *local.score([sample(list(ids))])[0]]

    with ScoringServer(score) as server, endpoint(server.url) as teacher:
        teacher.wait()
        scores = teacher.score(samples)
    assert [len(row) for row in scores] == [9, 19, 2]
    for row, expected in zip(scores, local.score(samples), strict=True):
        assert row == pytest.approx(expected, abs=1e-4)


def test_a_failure_that_passes_is_not_seen() -> None:
    calls = []

    def score(ids: Sequence[int]) -> list[float]:
        calls.append(ids)
        if len(calls) < 3:
            raise ConnectionError("planted")
        return [-0.5] * len(ids)

    with ScoringServer(score) as server, endpoint(server.url) as teacher:
        assert teacher.score([sample([1, 2, 3])]) == [[-0.5, -0.5]]
    assert len(calls) == 3


def test_a_teacher_that_is_away_is_named_with_its_key() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/v1"  # bound, but nobody listens
        said: list[str] = []
        with endpoint(url, said, wait_for_ready_timeout=0) as teacher:
            away = r"orchestrator\.algo\.teacher\.base_url: no answer from .* within 0 s"
            with pytest.raises(InferenceError, match=away):
                teacher.wait()
            with pytest.raises(InferenceError, match=r"teacher\.base_url: .* failed 4 times"):
                teacher.score([sample([1, 2])])
        assert said == []


def test_stopping_ends_the_wait_for_a_teacher_that_is_away() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
        stopping, said = threading.Event(), list[str]()

        def say(line: str) -> None:
            said.append(line)
            stopping.set()

        config = TeacherConfig(name="t", base_url=url, wait_for_ready_timeout=600)
        with closing(TeacherEndpoint(config, say, stopping=stopping)) as teacher:
            began = time.monotonic()
            with pytest.raises(InferenceError, match="the run stopped"):
                teacher.wait()
            with pytest.raises(InferenceError, match="the run stopped"):
                teacher.score([sample([1, 2])])
        assert time.monotonic() - began < 300
        assert said == [f"waiting up to 600 s for the teacher at {url}"]


def test_stopping_ends_a_request_that_is_not_answered() -> None:
    asked, hold, stopping = threading.Event(), threading.Event(), threading.Event()

    def score(ids: Sequence[int]) -> list[float]:
        asked.set()
        hold.wait(600)
        return [0.0] * len(ids)

    def stop() -> None:
        asked.wait(600)
        stopping.set()

    with ScoringServer(score) as server:
        config = TeacherConfig(name="teacher", base_url=server.url)
        with closing(TeacherEndpoint(config, print, stopping=stopping)) as teacher:
            stopper = threading.Thread(target=stop)
            stopper.start()
            try:
                with pytest.raises(InferenceError, match="the run stopped"):
                    teacher.score([sample([1, 2])])
                assert not hold.is_set()  # the teacher has not answered yet
            finally:
                hold.set()
                stopper.join()


def test_a_server_of_another_model_is_refused() -> None:
    with ScoringServer(lambda ids: [0.0] * len(ids), name="other") as server:
        expected = r"algo\.teacher\.name: .* serves other, not 'teacher'"
        with endpoint(server.url) as teacher, pytest.raises(ConfigError, match=expected):
            teacher.wait()
        with endpoint(server.url, skip_model_check=True) as teacher:
            teacher.wait()


def test_a_server_without_prompt_logprobs_is_no_teacher(small: Policy) -> None:
    with (
        InferenceServer(small, name="teacher") as server,
        endpoint(f"{server.url}/v1") as teacher,
    ):
        teacher.wait()
        with pytest.raises(InferenceError, match=r"teacher\.base_url: .* with status 404"):
            teacher.score([sample([1, 2])])


def test_an_answer_that_is_nested_too_deeply_is_no_teachers() -> None:
    with (
        answering((200, "[" * 100_000)) as (address, _),
        endpoint(f"http://{address}/v1") as teacher,
        pytest.raises(InferenceError, match="gave no prompt_logprobs of these tokens"),
    ):
        teacher.score([sample([1, 2])])


def test_keys_of_an_endpoint_need_an_endpoint() -> None:
    with pytest.raises(ValidationError, match="headers concerns a server: set base_url"):
        TeacherConfig(name="folder", headers={"X-Team": "1"})
    with pytest.raises(ValidationError, match="is not the URL of a server"):
        TeacherConfig(name="m", base_url="localhost:8000")
    assert TeacherConfig(name="m", base_url="http://h/v1").api_key_var == "VLLM_API_KEY"


def test_a_teacher_with_the_policys_tokenizer_passes(small: Policy) -> None:
    with InferenceServer(small, name="teacher") as server, endpoint(f"{server.url}/v1") as teacher:
        teacher.check_tokens(small.tokenizer)


def test_a_teacher_with_another_tokenizer_is_refused(small: Policy, tmp_path: Path) -> None:
    # As many tokens, and the same special ones, but merged from other words.
    texts = ["Quick brown foxes jump over lazy dogs, again and again and again."] * 20
    folder = policy.build(tmp_path, texts, hidden=64, layers=1, vocab=400, max_length=512)
    other = policy.load(folder)
    with InferenceServer(small, name="teacher") as server, endpoint(f"{server.url}/v1") as teacher:
        refusal = r"orchestrator\.algo\.teacher\.name: 'teacher' has another tokenizer"
        with pytest.raises(ConfigError, match=refusal):
            teacher.check_tokens(other.tokenizer)


def test_a_server_that_turns_no_tokens_into_text_is_refused(small: Policy) -> None:
    refusal = pytest.raises(ConfigError, match=r"detokenize gives no text .*404.* with vLLM")
    scoring = ScoringServer(lambda ids: [0.0] * len(ids))
    with scoring as server, endpoint(server.url) as teacher, refusal:
        teacher.check_tokens(small.tokenizer)
