"""What an agent wrote is text in the HTML and in the terminal, never tags, markdown or escape sequences."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from air.cli.main import main
from air.view import export
from air.view.index.run_discovery import Run, discover, flat
from air.view.index.run_index import RunIndex
from air.view.index.steps import Item, items, outputs, reasoning, thought
from air.view.render import markup, metric_series, svg
from tests.unit.view import hostile

TAGS = {
    "b",
    "body",
    "circle",
    "code",
    "details",
    "div",
    "h1",
    "h2",
    "head",
    "html",
    "i",
    "input",
    "label",
    "line",
    "meta",
    "option",
    "path",
    "pre",
    "script",
    "select",
    "span",
    "style",
    "summary",
    "svg",
    "table",
    "tbody",
    "td",
    "text",
    "th",
    "thead",
    "title",
    "tr",
}
"""What a page of ours is made of; no link among them."""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIR_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return hostile.run(tmp_path)


class Elements(HTMLParser):
    """Counts what a page is made of."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.scripts = 0
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}


def exported(folder: Path) -> str:
    index = RunIndex(folder)
    index.file.refresh()
    return "".join(export.page(Run("hostile", folder), index, index.episodes()))


def test_an_exported_page_has_no_element_of_an_agent(folder: Path) -> None:
    page = exported(folder)
    found = Elements(page)
    assert set(found.tags) <= TAGS
    assert found.tags.count("script") == found.tags.count("style") == 1
    assert not {name for name in found.attributes if name.startswith("on")}
    assert not {"href", "src", "action"} & found.attributes
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", page)
    assert "default-src 'none'" in page
    assert "http-equiv" in page[: page.index("<title>")]


def test_a_step_shows_everything_as_text(folder: Path) -> None:
    index = RunIndex(folder)
    index.file.refresh()
    one = index.episodes()[0]
    places = index.places(one, 0, 9)
    found = items(places, index.load(one, places))
    assert [each.bad for each in found] == [False, True, True]
    html = markup.item(found[2], is_open=True, here=True)
    assert html.count("&lt;script&gt;") >= 7
    assert "<summary>reasoning</summary>" in html
    assert "100%|##########| done" in html
    assert " 10%|#" not in html
    assert "for people, never shown to the agent: the grader failed" in html
    assert "exit 137" in html
    assert set(Elements(html).tags) == {"details", "summary", "span", "code", "div", "pre", "b"}


def test_the_terminal_gets_no_escape_sequence(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trajectory = str(folder / "trajectories" / "aa.jsonl")
    for args in (
        [str(folder)],
        [trajectory],
        [trajectory, "--full"],
        [trajectory, "--step", "3"],
        [trajectory, "--step", "3", "--full"],
        [trajectory, "--only", "errors"],
        [trajectory, "--only", "validates"],
    ):
        assert main(["show", *args]) == 0
        out = capsys.readouterr().out
        assert out
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", out), args
    assert main(["show", trajectory, "--step", "3"]) == 0
    out = capsys.readouterr().out
    for words in (
        "reasoning <script>",
        "<script>",
        "[click](javascript",
        ":material/home:",
        "100%|##########| done",
        "exit 2",
        "for people, never shown to the agent",
        "exit 137",
    ):
        assert words in " ".join(out.split())


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["show", "nowhere"], "no such file or folder"),
        (["show", "{run}", "--sort", "luck"], "newest"),
        (["show", "{run}", "--last", "0"], "--last"),
        (
            ["show", "{run}", "--step", "1", "--full"],
            "--step, --full: has a meaning only for an epi",
        ),
        (
            ["show", "{run}/trajectories/aa.jsonl", "--last", "3"],
            "--last: has a meaning only for a run",
        ),
        (["show", "{run}/trajectories/aa.jsonl", "--step", "9"], "no turn 9"),
        (["show", "{run}/config.json"], "is not a trajectory"),
        (["export", "{run}", "--html", "{run}/no/such/page.html"], "cannot be written"),
        (["export", "{run}/..", "--html", "x.html", "--episodes", "-1"], "--episodes"),
        (["view", "{run}/trajectories/none"], "no such folder"),
        (["view", "{run}", "--port", "99999999"], "--port"),
    ],
)
def test_bad_input_is_one_line(
    args: list[str], words: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([arg.format(run=folder) for arg in args]) == 2
    error = capsys.readouterr().err.strip()
    assert error.startswith("error: ")
    assert words in error
    assert "\n" not in error


def test_export_writes_one_file_and_says_what_it_left_out(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = folder.parent / "page.html"
    assert main(["export", str(folder), "--html", str(page), "--episodes", "1"]) == 0
    assert "1 more are left out" in capsys.readouterr().out
    assert page.read_text().count('<details class="episode"') == 1
    assert "1 of 2 episodes" in page.read_text()
    assert sorted(p.name for p in folder.parent.iterdir()) == ["cache", "hostile", "page.html"]


def test_thoughts_and_outputs_of_both_versions() -> None:
    step = {"reply": "I think.\n```bash\nls\n```\nDone.", "action": "ls"}
    assert thought(step) == ("I think.", "Done.")
    assert thought({"reply": "only words", "action": None}) == ("only words", "")
    assert thought({"reply": 3}) == ("", "")
    assert reasoning({"reply": "x", "reasoning": None}) == reasoning({"reasoning": ["x"]}) == ""
    assert outputs({"observation": "seen"}) == ("seen", "")
    assert outputs({"observation": "all", "shown": "part"}) == ("all", "part")
    assert outputs({"observation": None, "shown": "why not"}) == ("why not", "")


def test_long_reasoning_is_cut_and_alone_it_names_its_turn() -> None:
    step = {"reply": "", "reasoning": "Hm. " * 100_000, "action": None, "problem": "length"}
    html = markup.item(Item(0, step))
    assert "characters left out" in html
    assert len(html) < 1.1 * markup.SHOWN_CHARACTERS
    assert "<code>Hm. Hm." in html


def test_figures_are_means_over_the_right_steps() -> None:
    rows = [{"step": i, "reward": float(i), "x": "no"} for i in range(1, 9)]
    assert metric_series.quarters(rows, "reward") == (1.5, 7.5)
    assert metric_series.quarters(rows, "x") == (None, None)
    assert metric_series.smooth([(1, 1.0), (2, 3.0), (3, 5.0)], 2) == [(1, 1.0), (2, 2.0), (3, 4.0)]
    assert metric_series.names(rows) == ["reward"]
    assert flat({"a": {"b": 1}, "c": [{"d": None}], "e": [1]}) == {
        "a.b": "1",
        "c.0.d": "null",
        "e": "[1]",
    }


@pytest.mark.parametrize("points", [[(1, 5.0)], [(1, 0.0), (2, 0.0)], [(1, 1e-9), (900, -1e12)]])
def test_a_curve_stays_inside_its_frame(points: list[tuple[float, float]]) -> None:
    drawn = svg.curves({"<x>": points})
    places = [float(v) for v in re.findall(r'c[xy]="([-\d.]+)"', drawn)]
    assert places
    assert all(0 <= place <= svg.WIDTH for place in places)
    assert "<x>" not in drawn


def test_runs_are_found_in_folders_and_by_name(folder: Path) -> None:
    other = folder.parent / "more" / "hostile"
    (other / "trajectories").mkdir(parents=True)
    assert [run.folder for run in discover([folder])] == [folder]
    names = {run.name for run in discover([folder.parent, other.parent])}
    assert names == {str(folder), str(other)}
    assert [run.folder.name for run in discover([folder / "trajectories"])] == ["trajectories"]
