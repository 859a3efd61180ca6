"""Which capabilities a container asks for: not one that the engine has refused. When limits are checked."""

from __future__ import annotations

import pytest

from air.errors import MissingError
from air.sandbox.docker import engine_support

REFUSALS = [
    "runc create failed: unable to start container process: unable to apply caps: operation not permitted",
    "crun: capset: Operation not permitted: OCI permission denied",
    "invalid CapAdd: capability not supported by your kernel or not available in the current "
    'environment: "CAP_SYS_RESOURCE"',
]


@pytest.mark.parametrize("text", REFUSALS)
def test_a_refused_capability_is_asked_for_once(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix:///no-such-engine-{REFUSALS.index(text)}")
    assert engine_support.capabilities() == [
        *engine_support.CAPABILITIES,
        engine_support.OOM_ORDER_CAPABILITY,
    ]
    assert not engine_support.learn_from_failed_start(
        'exec: "python3": executable file not found in $PATH'
    )
    assert engine_support.learn_from_failed_start(
        f"a box of image `air-base` did not start: {text}"
    )
    assert engine_support.capabilities() == [*engine_support.CAPABILITIES]
    # otherwise a start would be tried for ever
    assert not engine_support.learn_from_failed_start(text)


async def test_a_check_that_failed_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///no-such-engine-for-a-check")
    for _ in range(2):
        with pytest.raises(MissingError):
            await engine_support.warn_once("air-none")
