"""A real server over a real small policy, asked by verifiers' own clients."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
import verifiers.v1 as vf
from verifiers.v1.clients.client import resolve_client
from verifiers.v1.configs.client import TrainClientConfig
from verifiers.v1.dialects.chat import ChatDialect
from verifiers.v1.errors import ProviderError
from verifiers.v1.graph import prepare_turn
from verifiers.v1.trace import AgentInfo, TraceTask
from verifiers.v1.types import AssistantMessage, SystemMessage, UserMessage

from air.errors import InferenceError, UsageError
from air.train.model import policy
from air.train.model.logprobs import token_logprobs
from air.train.model.policy import Policy, default_renderer
from air.train.serving.sampler import Sampler, SamplingParams
from air.train.serving.scheduler import Scheduler
from air.train.serving.server import VERSION_HEADER, InferenceServer

PROMPT = list(range(20, 60))


@pytest.fixture
def server(small: Policy) -> Iterator[InferenceServer]:
    with InferenceServer(small, max_batch=8, max_model_len=256) as running:
        yield running


@pytest.fixture
def warm_server(warm: Policy) -> Iterator[InferenceServer]:
    with InferenceServer(warm) as running:
        yield running


def ask(server: InferenceServer, **fields: Any) -> httpx.Response:
    body = {"model": server.name, "token_ids": PROMPT, "sampling_params": fields}
    return httpx.post(f"{server.url}/inference/v1/generate", json=body, timeout=120)


def token_config(server: InferenceServer) -> TrainClientConfig:
    return TrainClientConfig(
        base_url=f"{server.url}/v1",
        renderer=default_renderer("qwen3"),
        renderer_model_name=server.policy.name,
    )


@asynccontextmanager
async def asking(config: Any) -> AsyncIterator[Any]:
    """A client of verifiers, closed whatever the test found: a socket left open turns a later test red."""
    client = resolve_client(config)
    try:
        yield client
    finally:
        await client.close()


@pytest.mark.parametrize("max_tokens", [60, 3])
async def test_an_episode_is_one_token_exact_branch(
    warm_server: InferenceServer, max_tokens: int
) -> None:
    """Whether replies end by themselves or are cut short: which of the two, chance decides at 60 tokens."""
    trace: Any = vf.Trace(
        task=TraceTask(type="Task", data=vf.TaskData(idx=0, prompt="")),
        agent=AgentInfo(config=vf.AgentConfig()),
    )
    messages: list[Any] = [
        SystemMessage(content="You are a researcher."),
        UserMessage(content="Use depth 2."),
    ]
    sampling = vf.SamplingConfig(temperature=0.4, max_tokens=max_tokens)
    seen: list[tuple[list[int], list[int]]] = []
    async with asking(token_config(warm_server)) as client:
        for turn_number in range(4):
            turn = prepare_turn(trace, messages)
            response = await client.get_response(
                ChatDialect(), {"model": warm_server.name}, sampling, "session", turn
            )
            seen.append((response.tokens.prompt_ids, response.tokens.completion_ids))
            turn.commit(response)
            messages.append(AssistantMessage(content=response.message.content))
            messages.append(UserMessage(content=f" observation {turn_number}\n"))

    [branch] = trace.branches
    last_prompt, last_reply = seen[-1]
    assert branch.token_ids == last_prompt + last_reply
    sampled = [t for t, m in zip(branch.token_ids, branch.sampled_mask, strict=True) if m]
    assert sampled == [token for _, reply in seen for token in reply]
    for prompt, reply in seen:
        assert branch.token_ids[: len(prompt) + len(reply)] == prompt + reply
    with torch.no_grad():
        ours = token_logprobs(
            warm_server.policy.model, torch.tensor([branch.token_ids]), temperature=0.4
        )[0]
    mask = torch.tensor(branch.sampled_mask)
    assert torch.allclose(ours[mask], torch.tensor(branch.logprobs)[mask], atol=1e-4)


async def test_the_eval_client_gets_text(warm_server: InferenceServer) -> None:
    body = {
        "model": warm_server.name,
        "messages": [
            {"role": "system", "content": "You are a researcher."},
            {"role": "user", "content": "Use depth 3."},
        ],
        "temperature": 0,
        "max_tokens": 60,
    }
    async with asking(vf.EvalClientConfig(base_url=f"{warm_server.url}/v1")) as client:
        response = await client.get_response(ChatDialect(), body, vf.SamplingConfig())
    assert re.fullmatch(r"```run\ntrain --depth [123]\n```", response.message.content)
    assert response.finish_reason == "stop"
    assert response.usage.completion_tokens > 3


def test_openai_clients_get_log_probabilities_and_no_stream(warm_server: InferenceServer) -> None:
    from openai import BadRequestError, OpenAI

    request: dict[str, Any] = {
        "model": warm_server.name,
        "messages": [{"role": "user", "content": "Use depth 1."}],
        "temperature": 0,
        "max_tokens": 40,
    }
    with OpenAI(base_url=f"{warm_server.url}/v1", api_key="none") as client:
        answer = client.chat.completions.create(**request, logprobs=True)
        with pytest.raises(BadRequestError, match="`stream` = True is not supported"):
            client.chat.completions.create(**request, stream=True)
    entries = answer.choices[0].logprobs.content
    assert len(entries) == answer.usage.completion_tokens
    assert "".join(entry.token for entry in entries).startswith(answer.choices[0].message.content)


def test_generate_answers_ids_and_logprobs(server: InferenceServer) -> None:
    answer = ask(server, max_tokens=5, temperature=0.8, seed=1, logprobs=1)
    choice = answer.json()["choices"][0]
    assert answer.headers[VERSION_HEADER] == "0"
    assert len(choice["token_ids"]) == 5
    assert [e["token"] for e in choice["logprobs"]["content"]] == [
        f"token_id:{i}" for i in choice["token_ids"]
    ]
    assert choice["finish_reason"] == "length"
    [again] = ask(server, max_tokens=5, temperature=0.8, seed=1).json()["choices"]
    assert again["token_ids"] == choice["token_ids"]


def test_requests_share_batches(server: InferenceServer) -> None:
    async def all_at_once() -> list[dict[str, Any]]:
        body = {"token_ids": PROMPT, "sampling_params": {"max_tokens": 50}}
        async with httpx.AsyncClient(timeout=60) as client:
            url = f"{server.url}/inference/v1/generate"
            answers = await asyncio.gather(*[client.post(url, json=body) for _ in range(20)])
        return [a.json() for a in answers]

    answers = asyncio.run(all_at_once())
    assert len({a["request_id"] for a in answers}) == 20
    found = server.metrics()
    assert (found.requests, found.failed, found.prompt_tokens) == (20, 0, 20 * len(PROMPT))
    assert found.completion_tokens == sum(len(a["choices"][0]["token_ids"]) for a in answers)
    assert found.busy_seconds > 0
    text = httpx.get(f"{server.url}/metrics").text
    assert "air_inference_requests 20\n" in text


def test_what_is_served_is_told(server: InferenceServer) -> None:
    assert httpx.get(f"{server.url}/health").status_code == 200
    [card] = httpx.get(f"{server.url}/v1/models").json()["data"]
    assert (card["id"], card["max_model_len"]) == (server.name, 256)


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"model": "other"}, 404, "The model `other` does not exist."),
        ({"token_ids": []}, 400, "prompt is empty"),
        ({"token_ids": [1] * 256}, 400, "maximum context length is 256 tokens. However, your"),
        ({"token_ids": [10**6]}, 400, "token ids must be integers from 0 to"),
        ({"token_ids": "text"}, 400, "must be a list"),
        ({"sampling_params": {"temperature": "hot"}}, 400, "`temperature` must be a number"),
        ({"sampling_params": {"top_p": 2}}, 400, "`top_p` must be from"),
        ({"sampling_params": {"max_tokens": 0}}, 400, "`max_tokens` must be an integer"),
        ({"sampling_params": {"n": 2}}, 400, "`n` = 2 is not supported"),
        ({"sampling_params": {"stop": ["x"]}}, 400, "`stop` = ['x'] is not supported"),
    ],
)
def test_bad_requests(
    server: InferenceServer, body: dict[str, Any], status: int, words: str
) -> None:
    whole = {"token_ids": PROMPT, "sampling_params": {"max_tokens": 2}, **body}
    answer = httpx.post(f"{server.url}/inference/v1/generate", json=whole)
    assert answer.status_code == status
    assert words in answer.json()["error"]["message"]
    assert answer.json()["error"]["code"] == status


def test_bad_bodies(server: InferenceServer) -> None:
    url = f"{server.url}/v1/chat/completions"
    assert httpx.post(url, content=b"{").status_code == 400
    deep = httpx.post(url, content=b"[" * 100_000)
    assert deep.status_code == 400
    assert "nested too deeply" in deep.json()["error"]["message"]
    assert httpx.post(url, json=[]).status_code == 400
    assert httpx.post(url, json={"messages": []}).status_code == 400
    assert httpx.post(url, json={"messages": [{"content": "no role"}]}).status_code == 400


async def test_a_prompt_that_is_too_long_is_a_provider_error(server: InferenceServer) -> None:
    body = {"model": server.name, "messages": [{"role": "user", "content": "x y " * 300}]}
    async with asking(token_config(server)) as client:
        with pytest.raises(ProviderError, match="exceeds maximum context length") as raised:
            await client.get_response(ChatDialect(), body, vf.SamplingConfig(max_tokens=5))
    assert raised.value.status_code == 400


def test_new_weights_answer_under_a_new_version(server: InferenceServer, warm: Policy) -> None:
    before = ask(server, max_tokens=4, temperature=0).json()["choices"][0]
    assert server.update_weights(warm.model.state_dict()) == 1
    answer = ask(server, max_tokens=4, temperature=0)
    assert answer.headers[VERSION_HEADER] == "1"
    after = answer.json()["choices"][0]
    assert after["logprobs"] != before["logprobs"]
    ids = torch.tensor([PROMPT + after["token_ids"]])
    with torch.no_grad():
        expected = token_logprobs(warm.model, ids)[0, len(PROMPT) :].tolist()
    found = [e["logprob"] for e in after["logprobs"]["content"]]
    assert found == pytest.approx(expected, abs=1e-4)


def test_what_the_prefix_cache_saved_is_told(server: InferenceServer) -> None:
    for _ in range(2):
        ask(server, max_tokens=3, seed=1)
    told = server.step_metrics()
    assert (told["prompt_tokens"], told["cached_tokens"]) == (80, 39)
    # 40 prompt tokens and 2 of the reply; keys and values; 2 layers of 2 heads of 32 numbers of 4 bytes.
    assert told["prefix_cache_mb"] * 2**20 == 42 * 2 * 2 * 2 * 32 * 4
    assert f"air_inference_cached_tokens {39}\n" in httpx.get(f"{server.url}/metrics").text
    server.update_weights()
    ask(server, max_tokens=3, seed=1)
    told = server.step_metrics()
    assert (told["prompt_tokens"], told["cached_tokens"]) == (40, 0)


def test_exclusive_waits_and_holds_back(server: InferenceServer) -> None:
    answers: list[httpx.Response] = []

    def request() -> None:
        answers.append(ask(server, max_tokens=100))

    first = threading.Thread(target=request)
    first.start()
    while server.metrics().busy_seconds == 0:
        time.sleep(0.001)
    with server.exclusive():
        done = server.metrics().requests
        second = threading.Thread(target=request)
        second.start()
        time.sleep(0.1)
        assert server.metrics().requests == done == 1
    first.join()
    second.join()
    assert [a.status_code for a in answers] == [200, 200]


def test_a_client_that_leaves_costs_nothing_more(tmp_path: Path) -> None:
    texts = ["some text for a tokenizer, and some more"]
    folder = policy.build(tmp_path, texts, hidden=64, layers=2, vocab=400, max_length=8192)
    small = policy.load(folder)
    with InferenceServer(small, max_batch=1) as server:
        # Never the token that ends a reply; and many times longer than the server needs to see that
        # the client left.
        likeliest = {"max_tokens": small.max_length - len(PROMPT), "temperature": 0.0}
        body = json.dumps({"token_ids": PROMPT, "sampling_params": likeliest}).encode()
        head = (
            "POST /inference/v1/generate HTTP/1.1\r\nHost: localhost\r\n"
            f"Content-Length: {len(body)}\r\n"
        )
        with socket.create_connection((server.host, server.port)) as client:
            client.sendall(head.encode() + b"Content-Type: application/json\r\n\r\n" + body)
            while server.metrics().busy_seconds == 0:
                time.sleep(0.001)
        assert ask(server, max_tokens=2, temperature=0.0).status_code == 200
        assert server.metrics().completion_tokens == 2


def test_a_page_of_another_site_gets_nothing(server: InferenceServer) -> None:
    """Its own name may mean this machine (then the Host is foreign), or it sends to a loopback address."""
    path = "/inference/v1/generate"
    body = json.dumps({"token_ids": PROMPT, "sampling_params": {"max_tokens": 1}})
    foreign = ({"host": "example.com"}, {"origin": "http://example.com"}, {"origin": "null"})
    own: tuple[dict[str, str], ...] = (
        {},
        {"host": "localhost:80"},
        {"host": "[::1]"},
        {"origin": "http://localhost:3000"},
    )
    with httpx.Client(base_url=server.url, timeout=120) as client:

        def status(headers: dict[str, str]) -> int:
            headers = {"content-type": "text/plain", **headers}
            return client.post(path, content=body, headers=headers).status_code

        assert [status(headers) for headers in foreign] == [403] * 3
        assert client.get("/metrics", headers={"host": "example.com"}).status_code == 403
        assert server.metrics().requests == 0
        assert [status(headers) for headers in own] == [200] * 4


def test_a_server_for_other_machines_is_called_by_any_name(small: Policy) -> None:
    with InferenceServer(small, host="0.0.0.0") as server:
        url = f"http://127.0.0.1:{server.port}/health"
        assert httpx.get(url, headers={"host": "gpu.example.com"}).status_code == 200


def test_port_that_is_taken(small: Policy) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"127.0.0.1:{port}: cannot listen .* another port"):
            InferenceServer(small, port=port).start()


def test_stopping_fails_what_is_under_way(small: Policy) -> None:
    scheduler = Scheduler(Sampler(small, max_batch=1, max_model_len=500))
    scheduler.start()
    futures = [scheduler.submit(PROMPT, SamplingParams(max_tokens=400)) for _ in range(3)]
    scheduler.stop()
    for future in futures:
        with pytest.raises(InferenceError, match="stopped"):
            future.result(timeout=60)
    with pytest.raises(InferenceError, match="stopped"):
        scheduler.submit(PROMPT, SamplingParams())


def test_stopping_ends_the_wait_for_an_exclusive_sampler(small: Policy) -> None:
    scheduler = Scheduler(Sampler(small, max_batch=1, max_model_len=4000))
    scheduler.start()
    scheduler.submit(PROMPT, SamplingParams(max_tokens=3900, temperature=0.0))
    while scheduler.metrics().busy_seconds == 0:
        time.sleep(0.001)
    errors: list[InferenceError] = []

    def wait() -> None:
        try:
            with scheduler.exclusive():
                pass
        except InferenceError as error:
            errors.append(error)

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    time.sleep(0.02)
    scheduler.stop()
    waiting.join(60)
    assert not waiting.is_alive()
    assert [str(error) for error in errors] == ["the inference server was stopped"]


def test_a_failing_model_fails_its_requests_and_no_others(small: Policy) -> None:
    scheduler = Scheduler(Sampler(small, max_batch=4, max_model_len=500))
    scheduler.start()
    beyond = [10**6]
    with pytest.raises(InferenceError, match="sampling failed"):
        scheduler.submit(beyond, SamplingParams(max_tokens=4)).result(timeout=60)
    reply = scheduler.submit(PROMPT, SamplingParams(max_tokens=4)).result(timeout=60)
    assert len(reply.completion.token_ids) <= 4
    assert (scheduler.metrics().requests, scheduler.metrics().failed) == (1, 1)
    scheduler.stop()


def test_a_request_that_is_under_way_at_the_stop_has_status_503(small: Policy) -> None:
    server = InferenceServer(small)
    responses: list[httpx.Response] = []
    with server:
        asking = threading.Thread(
            target=lambda: responses.append(ask(server, max_tokens=400, temperature=0.0))
        )
        asking.start()
        while server.metrics().busy_seconds == 0:
            time.sleep(0.001)
    asking.join(60)
    assert [response.status_code for response in responses] == [503]
    assert "was stopped" in responses[0].text


def test_a_failure_whose_text_says_stopped_has_status_500(
    small: Policy, server: InferenceServer
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("the GPU stopped")

    hook = small.model.model.rotary_emb.register_forward_pre_hook(fail)
    response = ask(server, max_tokens=2)
    hook.remove()
    assert (response.status_code, "the GPU stopped" in response.text) == (500, True)
    assert ask(server, max_tokens=2).status_code == 200


def test_nothing_is_left_after_stop(small: Policy) -> None:
    server = InferenceServer(small)
    with server:
        assert ask(server, max_tokens=1).status_code == 200
    with pytest.raises(httpx.ConnectError):
        ask(server)
    assert not [t for t in threading.enumerate() if t.name in ("air-sampler", "air-http")]
