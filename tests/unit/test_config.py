"""One explanation of a config that does not fit its schema; which texts are the URLs of servers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, ValidationError, model_validator

from air.config import (
    BaseConfig,
    first_problem,
    is_server,
    plugin,
    read_toml,
    toml_or_text,
    validate,
)
from air.errors import ConfigError, MissingError
from air.sandbox.remote.sandbox_fusion import base_url
from air.train.config.further_models_config import TeacherConfig


class Square(BaseConfig):
    type: Literal["square"] = "square"
    side: int = Field(1, ge=1)


class Circle(BaseConfig):
    type: Literal["circle"] = "circle"
    radius: float = 1.0


class Drawing(BaseConfig):
    title: str
    shapes: tuple[Annotated[Square | Circle, Field(discriminator="type")], ...] = ()

    @model_validator(mode="after")
    def _named(self) -> Drawing:
        if not self.title:
            raise ValueError("a drawing needs a title")
        return self


@pytest.mark.parametrize(
    ("data", "path", "message"),
    [
        ({}, ("title",), "`title`: Field required"),
        ({"title": ""}, (), "`(top level)`: a drawing needs a title"),
        (
            {"title": "x", "shapes": [{"type": "circle"}, {"type": "square", "side": 0}]},
            ("shapes", "1", "side"),
            "`shapes.1.side`: Input should be greater than or equal to 1, got 0",
        ),
        (
            {"title": 1, "shapes": 2},
            ("title",),
            "`title`: Input should be a valid string, got 1 (and 1 more)",
        ),
    ],
)
def test_the_first_error_is_one_line(
    data: dict[str, Any], path: tuple[str, ...], message: str
) -> None:
    with pytest.raises(ValidationError) as caught:
        Drawing.model_validate(data)
    bad = first_problem(caught.value, data)
    assert (bad.path, bad.message, bad.unknown) == (path, message, False)


def test_an_unknown_key_is_named_without_its_union_member() -> None:
    data = {"title": "x", "shapes": [{"type": "square", "radius": 2}]}
    with pytest.raises(ConfigError) as caught:
        validate(Drawing, data, where="a.toml")
    assert str(caught.value) == (
        "a.toml: there is no key `shapes.0.radius` — remove it or check its spelling"
    )


def test_data_that_is_no_table() -> None:
    class Point(BaseModel):
        x: int

    with pytest.raises(ValidationError) as caught:
        Point.model_validate([])
    assert first_problem(caught.value, []).name == "(top level)"


def test_a_plugin_of_a_file_is_executed_once(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("VALUE = object()\n", "utf-8")
    value = plugin("mine.py:VALUE", tmp_path)
    assert plugin(f"{tmp_path}/./mine.py:VALUE", Path("/")) is value


@pytest.mark.parametrize(
    ("source", "name", "kind", "part"),
    [
        (None, "VALUE", MissingError, "no such file"),
        ("VALUE = 1", "OTHER", MissingError, "no object `OTHER`"),
        ("1 / 0", "VALUE", ConfigError, "ZeroDivisionError: division by zero"),
        ("def", "VALUE", ConfigError, "SyntaxError"),
    ],
)
def test_a_plugin_of_a_file_that_cannot_be_had_is_refused(
    source: str | None, name: str, kind: type[Exception], part: str, tmp_path: Path
) -> None:
    if source is not None:
        (tmp_path / "mine.py").write_text(source, "utf-8")
    with pytest.raises(kind, match=part) as raised:
        plugin(f"mine.py:{name}", tmp_path)
    assert str(tmp_path / "mine.py") in str(raised.value)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.toml", "a = " + "[" * 100_000),
        ("a.json", "[" * 100_000),
        ("a.toml", "a = 1" + "0" * 5_000),
        ("a.json", "1" + "0" * 5_000),
    ],
    ids=["deep TOML", "deep JSON", "long TOML", "long JSON"],
)
def test_a_file_that_the_parser_cannot_read_is_one_clear_error(
    tmp_path: Path, name: str, text: str
) -> None:
    file = tmp_path / name
    file.write_text(text)
    with pytest.raises(ConfigError, match=f"{name}: not valid {name[2:].upper()}: "):
        read_toml(file)


@pytest.mark.parametrize("text", ["[" * 100_000, "1" + "0" * 5_000], ids=["deep", "long"])
def test_a_flag_that_the_parser_cannot_read_is_text(text: str) -> None:
    assert toml_or_text(text) == text


SERVERS = (
    "http://127.0.0.1:8000",
    "https://example.com/v1/",
    "http://[::1]:65535",
    "http://localhost",
    "http://name:word@host:1/path",
)
OTHERS = (
    "",
    "host:80",
    "ftp://host",
    "http://",
    "http:///v1",
    "http://[::1",
    "http://host:x",
    "http://host:0",
    "http://host:65536",
    "http://host:99999",
    "http://999.1.1.1",
    "http://a b",
    "http://host/a b",
    "http://host\n",
    "http://host\\path",
    "http://host?x=1",
    "http://host#part",
    "http://\ud800",
)


@pytest.mark.parametrize("url", SERVERS)
def test_the_url_of_a_server(url: str) -> None:
    assert is_server(url)


@pytest.mark.parametrize("url", OTHERS)
def test_a_text_that_is_no_url_of_a_server(url: str) -> None:
    assert not is_server(url)


def test_settings_with_urls_refuse_others() -> None:
    for url in ("http://[::1", "http://host:99999"):
        with pytest.raises(ConfigError, match="is not the URL of a server"):
            base_url(url)
        with pytest.raises(ValueError, match="URL"):
            TeacherConfig(name="teacher", base_url=url)
