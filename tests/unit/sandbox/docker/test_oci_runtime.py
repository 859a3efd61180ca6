"""Tests of `AIR_OCI_RUNTIME`, and of the settings of open boxes."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from air.sandbox.contract.box import BoxSpec, OpenBox
from air.sandbox.docker import container_spec, oci_runtime
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


def test_another_runtime_has_processes_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("", "runc", "crun"):
        monkeypatch.setenv(oci_runtime.SETTING, name)
        assert oci_runtime.process_limit(129) == 129
    monkeypatch.setenv(oci_runtime.SETTING, "runsc")
    assert oci_runtime.process_limit(129) > 8 * 129


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
        ({"open": {"keep": True, "user": "a b"}}, "not the name of a user"),
        ({"open": {"keep": True, "workspace": "/proc/self"}}, "system"),
        ({"open": {"keep": True, "workspace": "var/www"}}, "absolute"),
    ],
)
def test_settings_that_no_open_box_can_have_are_refused(
    settings: dict[str, object], word: str
) -> None:
    with pytest.raises(ValidationError, match=word):
        BoxSpec.model_validate({"open": OpenBox()} | settings)


def test_an_open_box_that_keeps_files_takes_from_its_image_what_its_settings_leave_out() -> None:
    image = {"User": "web:staff", "WorkingDir": "srv/", "Env": ["LANG=C", "PATH=/opt/bin"]}
    spec = BoxSpec(open=OpenBox(keep=True), env={"A": "1"})
    filled = container_spec.with_open_box_defaults(spec, image)
    assert filled.open == spec.open.model_copy(update={"user": "web:staff", "workspace": "/srv"})
    assert filled.env == {
        "A": "1",
        "LANG": "C",
    }  # what the image says, not air; PATH is there anyway
    own = BoxSpec(open=OpenBox(keep=True, user="root", workspace="/"), env={"LANG": "D"})
    filled = container_spec.with_open_box_defaults(own, image)
    assert (filled.open, filled.env) == (
        OpenBox(keep=True, user="0", workspace="/"),
        {"LANG": "D"},
    )
    assert (
        container_spec.with_open_box_defaults(BoxSpec(open=OpenBox(keep=True)), {}).open
        == filled.open
    )
    plain = container_spec.with_open_box_defaults(BoxSpec(open=OpenBox()), image)
    assert plain.open == OpenBox(user="user", workspace="/home/user")
