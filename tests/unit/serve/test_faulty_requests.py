"""Requests with very many faults: the server names the first, and spends no memory on the others."""

from __future__ import annotations

import pytest
from pydantic import BaseModel, ValidationError

from air.serve.fusion.datasets.messages import GetMetricsRequest, GetPromptsRequest
from air.serve.fusion.messages import RunCodeAnswer, RunCodeRequest, RunJupyterRequest

NUMBERS = "[" + ",".join(["1"] * 1000) + "]"
TABLE = "{" + ",".join(f'"{number}":1' for number in range(1000)) + "}"
PROGRAM = '{"code":"","language":"bash",'
RESULT = '{"id":1,"accepted":true,"extracted_code":"","tests":'


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (RunCodeRequest, f'{PROGRAM}"fetch_files":{NUMBERS}}}'),
        (RunCodeRequest, f'{PROGRAM}"files":{TABLE}}}'),
        (RunJupyterRequest, f'{{"cells":{NUMBERS}}}'),
        (GetMetricsRequest, f'{{"dataset":"a","config":{{}},"results":{NUMBERS}}}'),
        (GetMetricsRequest, f'{{"dataset":"a","config":{{}},"results":[{RESULT}{NUMBERS}}}]}}'),
        (GetPromptsRequest, f'{{"dataset":"a","config":{{"provided_data":{NUMBERS}}}}}'),
        (RunCodeAnswer, f'{{"status":"Success","files":{TABLE}}}'),
    ],
)
def test_a_request_with_many_faults_is_refused_for_the_first(
    kind: type[BaseModel], text: str
) -> None:
    with pytest.raises(ValidationError) as caught:
        kind.model_validate_json(text)
    assert caught.value.error_count() <= 3  # one for each form that a field may have


def test_a_file_of_a_wrong_type_is_named() -> None:
    with pytest.raises(ValidationError, match="'a' has a value of a wrong type"):
        RunCodeRequest.model_validate({"code": "", "language": "bash", "files": {"a": 1}})
    request = RunCodeRequest.model_validate({"code": "", "language": "bash", "files": {"a": None}})
    assert request.contents() == {}
