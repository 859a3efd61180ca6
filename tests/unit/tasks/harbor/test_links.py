"""Links in what an agent hands in."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from air.errors import ArtefactError
from air.tasks.sources.harbor.artefact import HarborArtefact, _Collection

BOX: Any = SimpleNamespace(workspace="/workspace")


@pytest.mark.parametrize("target", ["other.txt", "/workspace/hidden/answer.txt"])
def test_a_link_within_the_working_directory_counts_only_in_the_agents_image(target: str) -> None:
    contents = HarborArtefact(0, links={"/workspace/answer.txt": target})
    _Collection(BOX, contents, 9, own_image=False).check_links()
    with pytest.raises(ArtefactError, match="not handed in"):
        _Collection(BOX, contents, 9, own_image=True).check_links()


def test_a_link_to_what_is_handed_in_counts_in_every_image() -> None:
    contents = HarborArtefact(0, files={"/workspace/b": b""}, links={"/workspace/a": "b"})
    _Collection(BOX, contents, 9, own_image=True).check_links()
