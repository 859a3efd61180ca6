"""SandboxFusion's own client against our server, and the faults of the original, which ours must not have."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import sandbox_fusion
from sandbox_fusion import (
    EvalResult,
    GetPromptByIdRequest,
    GetPromptsRequest,
    RunCodeRequest,
    RunStatus,
    SubmitRequest,
    TestConfig,
)

from tests.docker.client import boxes_of
from tests.docker.serve.serving import Served, serving
from tests.until import until

pytestmark = pytest.mark.docker
RUN = "serve-fusion"
SECONDS = 120
"""The time limit of programs: a loaded machine starts a Python in seconds."""
SECRET = "a-secret-of-the-server"
SUMS = {
    "id": 7,
    "content": "Add two numbers.",
    "labels": {"level": "easy"},
    "test": [
        {"input": {"stdin": "1 2\n"}, "output": {"stdout": "3\n"}},
        {"input": {"stdin": "0.1 0.2\n"}, "output": {"stdout": "0.3"}},
    ],
}
ADD = "Here:\n```python\nprint(sum(map(float, input().split())))\n```\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("datasets") / "CommonOJDataset"
    folder.mkdir()
    (folder / "sums.jsonl").write_text(json.dumps(SUMS) + "\n")
    flags = ["--max-boxes", "2", "--queue-seconds", "60", "--datasets", str(folder.parent)]
    flags += ["--disk-mb", "16"]
    with serving(*flags, AIR_RUN=RUN, AIR_TEST_SECRET=SECRET) as served:
        sandbox_fusion.set_endpoint(served.url)
        yield served


def run(server: Served, code: str, language: str = "python", **more: Any) -> dict[str, Any]:
    """What the server answers to one program."""
    body = {"code": code, "language": language, "run_timeout": SECONDS} | more
    answer = httpx.post(f"{server.url}/run_code", json=body, timeout=300)
    assert answer.status_code == 200, answer.text
    result: dict[str, Any] = answer.json()
    return result


def refused(server: Served, **body: Any) -> str:
    """The message of a 422."""
    answer = httpx.post(f"{server.url}/run_code", json=body, timeout=300)
    assert answer.status_code == 422
    return str(answer.json()["detail"][0]["msg"])


def test_the_client_runs_programs(server: Served) -> None:
    good = RunCodeRequest(
        code="print(input())", language="python", stdin="hello", run_timeout=SECONDS
    )
    files = {"a/b.txt": base64.b64encode(b"data").decode()}
    copied = RunCodeRequest(
        code="cp a/b.txt c; exit 3",
        language="bash",
        run_timeout=SECONDS,
        files=files,
        fetch_files=["c", "none"],
    )
    first, second = sandbox_fusion.run_concurrent(sandbox_fusion.run_code, args=[[good], [copied]])
    assert (first.status, first.message) == (RunStatus.Success, "")
    assert (first.run_result.stdout, first.run_result.return_code) == ("hello\n", 0)
    assert first.compile_result is None
    assert second.status == RunStatus.Failed
    assert second.run_result.return_code == 3
    assert second.files == {"c": files["a/b.txt"]}


def test_a_program_over_its_time_keeps_what_it_wrote(server: Served) -> None:
    answer = run(server, "echo begun; sleep 600", "bash", run_timeout=5)
    assert answer["status"] == "Failed"
    result = answer["run_result"]
    assert (result["status"], result["return_code"]) == ("TimeLimitExceeded", None), result
    assert result["stdout"] == "begun\n"
    assert result["execution_time"] >= 5


def test_large_output_is_whole(server: Served) -> None:
    answer = run(server, "print('x' * 2_000_000)")
    assert answer["status"] == "Success"
    assert len(answer["run_result"]["stdout"]) == 2_000_001


def test_output_over_the_limit_loses_its_middle(server: Served) -> None:
    code = (
        "import sys\nsys.stdout.write('begin' + 'x' * 20_000_000 + 'end')\n"
        "sys.stderr.write('y' * 9_000_000)"
    )
    answer = run(server, code)
    assert answer["status"] == "Success"
    stdout, stderr = answer["run_result"]["stdout"], answer["run_result"]["stderr"]
    assert stdout.startswith("beginx")
    assert stdout.endswith("xend")
    cut = 20_000_008 - (8 << 20)
    assert f"\n[... {cut} bytes cut ...]\n" in stdout
    assert len(stdout) + cut < 20_000_100
    assert f"[... {9_000_000 - (8 << 20)} bytes cut ...]" in stderr


def test_output_that_is_no_text_is_kept(server: Served) -> None:
    answer = run(server, r"printf 'before\xffafter'", "bash")
    assert answer["run_result"]["stdout"] == "before�after"


def test_nothing_of_a_request_meets_the_next(server: Served) -> None:
    leave = "touch /tmp/mark /mnt/mark mark; nohup sleep 600 >/dev/null 2>&1 & echo left"
    assert run(server, leave, "bash")["run_result"]["stdout"] == "left\n"
    look = "cat /proc/[0-9]*/cmdline | tr '\\0' ' '; ls /tmp /mnt ."
    seen = run(server, look, "bash")["run_result"]["stdout"]
    assert "sleep 600" not in seen
    assert "mark" not in seen


def named(marker: str) -> list[str]:
    """The processes of this machine with `marker` in their command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has ended
            if marker.encode() in path.read_bytes():
                found.append(path.parent.name)
    return found


async def test_a_child_in_a_session_of_its_own_ends_with_its_request(server: Served) -> None:
    held, child = (f"air-{kind}-{secrets.token_hex(8)}" for kind in ("held", "child"))
    async with httpx.AsyncClient(base_url=server.url, timeout=300) as client:

        async def sent(code: str) -> dict[str, Any]:
            body = {"code": code, "language": "bash", "run_timeout": 600}
            return dict((await client.post("/run_code", json=body)).json())

        # This machine shows the processes of boxes. The client leaves: its program ends.
        holder = asyncio.create_task(sent(f"exec -a {held} sleep 600"))
        await until(lambda: named(held), every=0.05)
        holder.cancel()
        await until(lambda: not named(held), every=0.05)
        shell = f"exec -a {child} sleep 600"
        look = f"until grep -qs ^{child} /proc/[0-9]*/cmdline; do sleep 0.05; done"
        answer = await sent(f"setsid bash -c '{shell}' > /dev/null 2>&1 & {look}; echo left")
        assert answer["run_result"]["stdout"] == "left\n"
        await until(lambda: not named(child), every=0.05)


async def test_no_more_requests_run_at_once_than_there_are_boxes(server: Served) -> None:
    """The original parses its limit, and does not use it."""
    code = "import time; a = time.monotonic(); time.sleep(0.2); print(a, time.monotonic())"
    body = {"code": code, "language": "python", "run_timeout": SECONDS}
    async with httpx.AsyncClient(base_url=server.url, timeout=300) as client:
        answers = await asyncio.gather(*(client.post("/run_code", json=body) for _ in range(7)))
    outputs = [answer.json()["run_result"]["stdout"] for answer in answers]
    spans = [tuple(map(float, output.split())) for output in outputs]
    at_once = [sum(begin <= moment < end for begin, end in spans) for moment, _ in spans]
    assert max(at_once) <= 2, spans


@pytest.mark.parametrize("path", ["/etc/cron.d/x", "../x", "a/../../x", "..", "a/"])
def test_files_stay_inside_the_workspace(server: Served, path: str) -> None:
    text = refused(server, code="", language="bash", files={path: "eA=="})
    assert text == f"Value error, {path!r} is not the path of a file inside the workspace"
    assert not Path("/etc/cron.d/x").exists()


def test_links_lead_no_file_out(server: Served) -> None:
    code = "ln -s /etc/passwd link; ln -s /proc/1/environ environ"
    answer = run(server, code, "bash", fetch_files=["link", "environ", "/etc/passwd"])
    assert answer["files"] == {}


def test_files_that_are_too_large_together_are_refused(server: Served) -> None:
    code = "head -c 6M /dev/zero > a"
    names = ["a", "./a", "././a"]
    text = refused(server, code=code, language="bash", run_timeout=SECONDS, fetch_files=names)
    assert text == "the files exceed 16 MiB together"


def test_the_servers_environment_and_network_are_not_there(server: Served) -> None:
    assert SECRET not in run(server, "env; cat /proc/*/environ", "bash")["run_result"]["stdout"]
    code = f"import urllib.request as u; u.urlopen({server.url!r}, timeout=5)"
    assert "Error" in run(server, code)["run_result"]["stderr"]


def test_memory_is_limited_and_numpy_runs_under_the_limit(server: Served) -> None:
    numpy = "import numpy as n; a = n.ones((300, 300)); print(int((a @ a)[0, 0]))"
    answer = run(server, numpy, memory_limit_MB=256)
    assert answer["run_result"]["stdout"] == "300\n"
    answer = run(server, "x = b'x' * (3 << 30); print('had it')", memory_limit_MB=256)
    assert answer["status"] == "Failed"
    assert "had it" not in answer["run_result"]["stdout"]
    assert "--memory-mb" in refused(server, code="", language="bash", memory_limit_MB=10**6)


def test_processes_are_limited(server: Served) -> None:
    code = "import os, time\nfor n in range(2000):\n    if os.fork() == 0: time.sleep(60)"
    answer = run(server, code)
    assert answer["status"] == "Failed"
    assert "BlockingIOError" in answer["run_result"]["stderr"]


def test_a_program_gets_one_core(server: Served) -> None:
    """The kernel's own limit of the box, and the CPU time of processes that use all that they get."""
    quota = (
        "cd /sys/fs/cgroup; cat cpu.max 2>/dev/null || "
        "echo $(cat cpu/cpu.cfs_quota_us) $(cat cpu/cpu.cfs_period_us)"
    )
    most, period = map(int, run(server, quota, "bash")["run_result"]["stdout"].split())
    assert most == period
    busy = (
        "import os, resource, time\nbegan = time.monotonic()\n"
        "for _ in range(4):\n"
        "    if os.fork() == 0:\n"
        "        while time.monotonic() < began + 3: pass\n"
        "        os._exit(0)\n"
        "for _ in range(4): os.wait()\n"
        "used = resource.getrusage(resource.RUSAGE_CHILDREN)\n"
        "print((used.ru_utime + used.ru_stime) / (time.monotonic() - began))"
    )
    assert float(run(server, busy)["run_result"]["stdout"]) < 1.3


def test_what_cannot_be_run_is_refused_by_name(server: Served) -> None:
    assert "'klingon'" in refused(server, code="", language="klingon")
    text = refused(server, code="", language="sql")
    assert text.startswith("the image air-base does not have the language 'sql'; it has python")
    assert refused(server, language="python") == "Field required"
    assert "is not base64" in refused(server, code="", language="bash", files={"a": "é"})
    assert "at most" in refused(server, code="", language="bash", run_timeout=1e9)


async def test_requests_queue_and_are_refused_in_time_and_leaving_frees_a_box() -> None:
    run_id = f"{RUN}-queue"
    long = {"code": "sleep 600", "language": "bash", "run_timeout": 900}
    short = {"code": "true", "language": "bash", "compile_timeout": 0.5, "run_timeout": 0.5}
    flags = ("--max-boxes", "1", "--warm", "0", "--queue-seconds", "2")
    with serving(*flags, AIR_RUN=run_id) as served:
        async with httpx.AsyncClient(base_url=served.url, timeout=300) as client:
            holder = asyncio.create_task(client.post("/run_code", json=long))
            await until(lambda: served.boxes()["lent"] == 1, every=0.05)
            since = time.monotonic()
            answer = await client.post("/run_code", json=short)
            assert answer.status_code == 504
            assert "no box was free" in answer.json()["detail"]
            # 0.5 + 0.5 + 2 seconds, less 0.5 for the program and 1 for the server.
            assert time.monotonic() - since >= 1.5
            holder.cancel()  # the client leaves: its program and its box end
            await asyncio.gather(holder, return_exceptions=True)
            await until(lambda: served.boxes()["live"] == 0, every=0.05)
            assert boxes_of(run_id) == []


def test_the_client_reads_and_grades_a_dataset(server: Served) -> None:
    config = TestConfig(language="python", locale="en", run_timeout=SECONDS)
    assert httpx.get(f"{server.url}/list_datasets").json() == ["sums"]
    asked = GetPromptsRequest(dataset="sums", config=config)
    ids = httpx.post(f"{server.url}/list_ids", json=asked.dict()).json()
    assert ids == [7]
    (prompt,) = sandbox_fusion.get_prompts(asked)
    assert prompt.prompt.startswith("Add two numbers.\n\nWrite a complete program in python")
    one = GetPromptByIdRequest(dataset="sums", config=config, id=7)
    assert sandbox_fusion.get_prompt_by_id(one) == prompt
    result = sandbox_fusion.submit(
        SubmitRequest(dataset="sums", config=config, id=7, completion=ADD)
    )
    assert (result.id, result.accepted, len(result.tests)) == (7, True, 2)
    assert result.extracted_code == "print(sum(map(float, input().split())))"
    wrong = SubmitRequest(
        dataset="sums", config=config, id=7, completion="```python\nprint(0)\n```"
    )
    result = sandbox_fusion.submit(wrong)
    assert (result.accepted, [test.passed for test in result.tests]) == (False, [False])
    metrics = {"dataset": "sums", "config": {}, "results": [json.loads(result.json())]}
    answer = httpx.post(f"{server.url}/get_metrics", json=metrics).json()
    assert answer == {"accepted": 0, "total": 1, "accuracy": 0.0}


def test_a_completion_that_ends_early_is_not_accepted(server: Served) -> None:
    row = {"id": 1, "content": "Double.", "labels": {}, "test_list": ["assert double(2) == 4"]}
    config = TestConfig(dataset_type="MBPPDataset", provided_data=row, run_timeout=SECONDS)

    def accepted(code: str) -> bool:
        fenced = f"```python\n{code}\n```"
        request = SubmitRequest(dataset="any", config=config, id=1, completion=fenced)
        return bool(sandbox_fusion.submit(request).accepted)

    assert accepted("def double(n): return 2 * n")
    assert not accepted("def double(n): return n")
    assert not accepted("import os; os._exit(0)")


HUMAN_EVAL = {
    "task_id": "HumanEval/900",
    "prompt": (
        "from typing import List\n\n\ndef largest(numbers: List[int]) -> int:\n"
        '    """Returns the largest number."""\n'
    ),
    "canonical_solution": "    return max(numbers)\n",
    "entry_point": "largest",
    "test": (
        "METADATA = {}\n\n\ndef check(candidate):\n    assert candidate([1, 3, 2]) == 3\n"
        "    assert candidate([-2, -1]) == -1\n"
    ),
}
WHOLE = "I think:\n```python\ndef largest(numbers: List[int]) -> int:\n    return {}\n```\n"
FUTURE = WHOLE.replace("python\n", "python\nfrom __future__ import annotations\n")


@pytest.mark.parametrize(
    ("completion", "freeform", "accepted"),
    [
        (HUMAN_EVAL["canonical_solution"], False, True),
        ("    return numbers[0]\n", False, False),
        ("    import os; os._exit(0)\n", False, False),
        ("    import time; time.sleep(600)\n", False, False),
        ("    return math.ceil(np.max(numbers))\n", False, True),  # no import
        ("    return max(numbers)\n\n\nThis is right.\n", False, True),
        ("    return numbers[0]\n\n\nimport os; os._exit(0)\n", False, False),
        (
            "    found = [\n        *numbers,\n]\n# the largest\n    return max(found)\n",
            False,
            True,
        ),
        (FUTURE.format("max(numbers)"), True, True),
        (WHOLE.format("max(numbers)"), True, True),
        (WHOLE.format("numbers[0]"), True, False),
        ("I do not know.", True, False),
    ],
)
def test_problems_of_humaneval_are_graded(
    server: Served, completion: str, freeform: bool, accepted: bool
) -> None:
    config = TestConfig(
        dataset_type="HumanEvalDataset",
        provided_data=HUMAN_EVAL,
        run_timeout=2 if "sleep" in completion else SECONDS,
        extra={"is_freeform": freeform},
    )
    ident = HUMAN_EVAL["task_id"]
    one = GetPromptByIdRequest(dataset="human_eval", config=config, id=ident)
    prompt = sandbox_fusion.get_prompt_by_id(one)
    assert prompt.id == ident
    assert (prompt.prompt == HUMAN_EVAL["prompt"]) is not freeform
    assert HUMAN_EVAL["prompt"].strip() in prompt.prompt
    request = SubmitRequest(dataset="human_eval", config=config, id=ident, completion=completion)
    result = sandbox_fusion.submit(request)
    assert (result.id, result.accepted) == (ident, accepted), result
    assert [test.passed for test in result.tests] == [accepted]
    assert "check(largest)" in result.full_code


def test_the_function_of_the_metrics_counts_as_the_server_does(server: Served) -> None:
    config = {"dataset_type": "HumanEvalDataset"}
    named = {"dataset": "human_eval", "config": config}
    body = httpx.post(f"{server.url}/get_metrics_function", json=named).json()
    names: dict[str, Any] = {}
    exec(body["function"], names)  # as clients do with it
    results = [{"id": n, "accepted": n < 3, "extracted_code": "", "tests": []} for n in range(4)]
    expected = {"accepted": 3, "total": 4, "accuracy": 0.75}
    assert names["get_metrics"](results) == expected
    assert names["get_metrics"]([EvalResult(**each) for each in results]) == expected
    answer = httpx.post(f"{server.url}/get_metrics", json=named | {"results": results})
    assert answer.json() == expected
    unknown = httpx.post(f"{server.url}/get_metrics_function", json={"dataset": "n", "config": {}})
    assert unknown.status_code in (400, 404)


def test_code_of_the_caller_finds_the_code_inside_a_box(server: Served) -> None:
    logic = (
        "import os\n"
        "code = completion.partition('CODE:')[2] if not os.environ.get('AIR_TEST_SECRET') else ''\n"
        "submit_code_blocks([CodeBlock(priority=40, code=code, language='python')])"
    )
    config = TestConfig(
        dataset_type="AutoEvalDataset",
        custom_extract_logic=logic,
        run_timeout=SECONDS,
        provided_data={
            "id": 1,
            "content": "",
            "labels": {"programming_language": "python"},
            "test": {"code": "assert one() == 1"},
        },
        extra={"append_flag": True},
    )
    text = "```python\nwrong\n``` CODE:def one(): return 1"
    result = sandbox_fusion.submit(
        SubmitRequest(dataset="any", config=config, id=1, completion=text)
    )
    assert (result.accepted, result.extracted_code) == (True, "def one(): return 1")
    deep = "open('blocks.json', 'w').write('[' * 100_000); import os; os._exit(0)"
    for logic, why in (("1 / 0", "ZeroDivisionError"), (deep, "custom_extract_logic failed")):
        config.custom_extract_logic = logic
        request = SubmitRequest(dataset="any", config=config, id=1, completion=text)
        answer = httpx.post(f"{server.url}/submit", json=request.dict(), timeout=300)
        assert answer.status_code == 400
        assert why in answer.json()["detail"]


def test_the_endpoints_are_described(server: Served) -> None:
    text = httpx.get(f"{server.url}/openapi.json").json()
    assert {"/run_code", "/run_jupyter", "/submit", "/v1/ping"} <= set(text["paths"])
    assert "compile_timeout" in text["components"]["schemas"]["RunCodeRequest"]["properties"]
    assert "POST /run_code" in httpx.get(f"{server.url}/docs").text
