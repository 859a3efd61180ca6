"""Tests of `AIR_OCI_RUNTIME`, and of the settings of open boxes."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from air.sandbox.contract.box import BoxSpec, OpenBox
from air.sandbox.docker import oci_runtime
from air.sandbox.ops.doctor import judge_runtime

INFO = {"Runtimes": {"runc": {}, "io.containerd.runc.v2": {}}}


def test_a_runtime_that_the_engine_lacks_is_named_with_those_that_it_has() -> None:
    assert oci_runtime.missing("runc", INFO) == ""
    problem = "the container engine has no runtime 'runsc': it has io.containerd.runc.v2, runc"
    assert oci_runtime.missing("runsc", INFO) == problem
    assert oci_runtime.missing("runsc", {}).endswith("it has none")
    finding = judge_runtime("runsc", INFO)
    assert (finding.state, finding.seen) == ("fail", problem)
    assert judge_runtime("runc", INFO).state == "ok"


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"provider": "process"}, "provider `docker`"),
        ({"second_user": True}, "second_user"),
        ({"open": {"workspace": "home"}}, "absolute"),
        ({"open": {"workspace": "/home/../etc"}}, "absolute"),
        ({"open": {"workspace": "/"}}, "system"),
        ({"open": {"workspace": "/usr/local"}}, "system"),
        ({"open": {"user": "a:b"}}, "not the name of a user"),
        ({"open": {"user": ""}}, "not the name of a user"),
    ],
)
def test_settings_that_no_open_box_can_have_are_refused(
    settings: dict[str, object], word: str
) -> None:
    with pytest.raises(ValidationError, match=word):
        BoxSpec.model_validate({"open": OpenBox()} | settings)
