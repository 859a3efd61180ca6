"""Folders from which images of tasks are built: their tags, what is packed, and whom the builds trust."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from air.errors import MissingError
from air.sandbox.images import build_contexts


def _folder(path: Path, **files: str) -> Path:
    for name, text in {"Dockerfile": "FROM scratch\n", **files}.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(text)
    return path


def test_equal_folders_have_one_tag_and_any_difference_another(tmp_path: Path) -> None:
    one = _folder(tmp_path / "a", app="x")
    two = _folder(tmp_path / "b", app="x")
    seen = [build_contexts.tag(one)]
    assert seen == [build_contexts.tag(two)]
    for change in (
        lambda: (two / "app").write_text("y"),
        lambda: (two / "app").chmod(0o755),
        lambda: (two / "app").rename(two / "other"),
        lambda: (two / "link").symlink_to("other"),
        lambda: (two / "empty").mkdir(),
    ):
        change()
        seen.append(build_contexts.tag(two))
    assert len(set(seen)) == 6
    assert all(tag.startswith("air-harbor-") and len(tag) == 31 for tag in seen)


def test_a_folder_without_a_dockerfile_is_named(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match="no Dockerfile there"):
        build_contexts.tag(tmp_path)


def test_what_is_ignored_is_not_packed(tmp_path: Path) -> None:
    folder = _folder(tmp_path, keep="1", drop="2", **{".dockerignore": "# no\ndrop\nDockerfile\n"})
    with tarfile.open(fileobj=build_contexts.packed(folder, None)) as tar:
        names = tar.getnames()
        assert {"Dockerfile", "keep"} <= set(names)
        assert "drop" not in names
        assert len(names) == len(set(names))
        assert {member.uid for member in tar} == {0}


def test_each_stage_trusts_the_authorities_that_a_user_names(tmp_path: Path) -> None:
    text = (
        "# FROM here\nFROM a AS one\nRUN python -c \\\n# from x\n'\\\nfrom os import path \\\n'\n"
    )
    text += "from \\\n  b\nRUN true\n"
    lines = build_contexts.trusting(text).splitlines()
    copies = [number for number, line in enumerate(lines) if line.startswith("COPY air-auth")]
    assert [lines[number - 1].strip() for number in copies] == ["FROM a AS one", "b"]
    assert [
        line for line in lines if not line.startswith(("COPY air", "ARG "))
    ] == text.splitlines()
    folder = _folder(tmp_path, app="x")
    (tmp_path / "own.pem").write_text("authority")
    with tarfile.open(fileobj=build_contexts.packed(folder, tmp_path / "own.pem")) as tar:
        member = tar.extractfile("air-authorities.crt")
        assert member
        assert member.read() == b"authority"


@pytest.mark.parametrize(
    ("dockerfile", "instruction"),
    [
        ("FROM a\nRUN --mount=type=cache,target=/c make\n", "line 2: RUN --mount"),
        ("FROM a\nRUN --network=none --mount=type=secret,id=x make\n", "line 2: RUN --mount"),
        ("FROM a\n  run <<EOF\necho hello\nEOF\n", "line 2: RUN <<EOF"),
        ('FROM a\n\nCOPY <<-"END" /x\n\tword\n\tEND\n', "line 3: COPY <<END"),
        ("FROM a\nCOPY --from=b --chmod=755 x /x\n", "line 2: COPY --chmod"),
        ("FROM a\nADD --checksum=sha256:0 http://x/y /y\n", "line 2: ADD --checksum"),
        ("FROM a AS b\nFROM c\nCOPY --from=b --chown=1:1 x /x\n", ""),
        ("FROM a\nRUN cat <<< EOF\nRUN echo $((1 << 2)) 'a <<EOF'\n", ""),
        ("FROM a\n# RUN --mount=type=cache make\nRUN echo --mount\n", ""),
    ],
)
def test_what_only_buildkit_understands_is_named(
    tmp_path: Path, dockerfile: str, instruction: str
) -> None:
    assert build_contexts.needs_buildkit(_folder(tmp_path, Dockerfile=dockerfile)) == instruction
