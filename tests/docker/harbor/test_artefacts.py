"""What is read from an agent's box: thousands of files in few calls, and what an agent could leave there."""

from __future__ import annotations

from typing import Any, cast

import pytest

from air.errors import ArtefactError
from air.sandbox import open_box
from air.sandbox.contract.box import Box, BoxSpec, OpenBox
from air.tasks.sources.harbor.artefact import HarborArtefact, read
from air.tasks.sources.harbor.schema import Artifact

pytestmark = pytest.mark.docker
SPEC = BoxSpec(image="air-base", open=OpenBox(keep=True, user="root", workspace="/opt"))
MOST = 64 << 20


class Counted:
    """A box that counts the calls of its methods."""

    def __init__(self, box: Box) -> None:
        self.box, self.calls = box, 0

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.box, name)
        self.calls += callable(value)
        return value


async def test_thousands_of_files_are_read_in_few_calls_with_their_rights() -> None:
    script = """
mkdir -p deep/er; seq 1000 | split -l 1 -a 4 - deep/er/f; chmod 640 deep/er/faaaa
chown 1234:99 deep/er/faaaa deep; ln -s faaaa deep/er/link
"""
    async with await open_box(SPEC) as box:
        assert (await box.exec(script, timeout=120)).code == 0
        for declared in ([], [Artifact(source="deep")]):
            counted = Counted(box)
            artefact = await read(cast("Box", counted), declared, step=0, most_bytes=MOST)
            contents = HarborArtefact.of(artefact)
            assert counted.calls < 20
            assert len(contents.files) == 1000
            assert contents.files["/opt/deep/er/faaab"] == b"2\n"
            assert contents.rights["/opt/deep/er/faaaa"] == (0o640, 1234, 99)
            assert contents.rights["/opt/deep"][1:] == (1234, 99)
            assert contents.links == {"/opt/deep/er/link": "faaaa"}
            assert contents.folders == ["/opt/deep", "/opt/deep/er"]


async def test_a_declared_folder_around_the_tests_does_not_replace_them() -> None:
    async with await open_box(SPEC) as box:
        script = "mkdir -p /logs/verifier /logs/x; echo 1 > /logs/verifier/reward.txt; echo y > /logs/x/y"
        assert (await box.exec(script, timeout=60)).code == 0
        artefact = await read(box, [Artifact(source="/logs")], step=0, most_bytes=MOST)
        contents = HarborArtefact.of(artefact)
        assert (contents.files, contents.whole_folders) == ({"/logs/x/y": b"y\n"}, [])


async def test_what_cannot_be_handed_in_is_the_agents_fault() -> None:
    async with await open_box(SPEC) as box:
        for script, problem in (
            ("truncate -s 100M sparse", "too large"),
            ("for n in 1 2 3; do head -c 30M /dev/zero > f$n; done", "too large"),
            ("seq 5001 | split -l 1 -a 4 - f", "more than 5000 files"),
            ("mkfifo pipe", "pipe is neither a file"),
            ("ln -s /etc/shadow link", "/opt/link is a link to /etc/shadow"),
        ):
            assert (await box.exec(script, timeout=120)).code == 0
            for declared in ((), (Artifact(source="."),)):
                with pytest.raises(ArtefactError, match=problem):
                    await read(box, declared, step=0, most_bytes=MOST)
            await box.exec("find /opt -mindepth 1 -delete", timeout=120)


async def test_names_are_bytes_and_special_bits_are_not_handed_in() -> None:
    script = r"""
printf x > "$(printf 'line\nbreak')"; printf y > "$(printf 'bad\377')"
mkdir shut; echo z > shut/z; chmod 0 shut/z shut; cp /bin/true root; chmod 6755 root
"""
    async with await open_box(SPEC) as box:
        assert (await box.exec(script, timeout=60)).code == 0
        declared = [Artifact(source=".")]
        contents = HarborArtefact.of(await read(box, declared, step=0, most_bytes=MOST))
        assert contents.files["/opt/line\nbreak"] == b"x"
        assert contents.files["/opt/bad\udcff"] == b"y"
        assert contents.files["/opt/shut/z"] == b"z\n"
        assert contents.rights["/opt/shut"] == (0, 0, 0)
        assert contents.rights["/opt/root"] == (0o755, 0, 0)
