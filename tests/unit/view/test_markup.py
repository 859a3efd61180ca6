"""What an agent wrote is text in the HTML and in the terminal, never tags, markdown or escape sequences."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from air.cli.main import main
from air.view import export, terminal, terminal_tokens
from air.view.index.episode_file import scan
from air.view.index.items import Item, items, outputs, reasoning, thought
from air.view.index.run_discovery import Run, differences, discover, flat
from air.view.index.run_index import RunIndex
from air.view.render import charts, markup, metric_series, overview, results, svg
from air.view.render.charts import Chart
from tests.unit.view import hostile

TAGS = {
    "b",
    "body",
    "button",
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


def exported(folder: Path, **limits: int) -> str:
    index = RunIndex(folder)
    index.file.refresh()
    return "".join(export.page(Run("hostile", folder), index, index.episodes(), **limits))


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


def test_an_exported_page_has_the_tokens_that_it_has_room_for(folder: Path) -> None:
    page = exported(folder)
    assert page.count('<span class="token up"') == 3 * 2  # of one episode's three turns
    assert "log p −2 · trainer −1.9 · ratio 1.1052 · advantage +0.25 · id 3" in page
    assert "delta +0.5 (validate 1, turn 3, score 0.5)" in page
    small = exported(folder, token_bytes=1000)
    assert '<span class="token' not in small
    assert small.count("no room for more tokens") == 3


def test_the_terminal_shows_the_tokens_of_one_turn(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "500")
    path = folder / "trajectories" / "aa.jsonl"
    assert main(["show", str(path), "--turn", "3"]) == 0
    out = capsys.readouterr().out
    assert "2 sampled · 2 trained · 1 masked" in out
    row = next(line for line in out.splitlines() if line.startswith("last "))
    numbers = ["−2", "−1.9", "1.10517", "+0.25", "3"]
    assert row.split()[1:6] == numbers
    assert "delta +0.5 (validate 1, turn 3, score 0.5)" in row
    file = scan(path)
    terminal_tokens.show(terminal.console(), file, file.items(2, 1)[0], most=1)
    out = capsys.readouterr().out
    assert "\nlast " not in out
    assert "1 tokens more: add --full" in out


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
        (["show", "{run}/trajectories/aa.jsonl", "--step", "9"], "turns: --step N"),
        (["show", "{run}/trajectories/aa.jsonl", "--turn", "9"], "turns: --turn N"),
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
    assert metric_series.names(rows) == ["reward"]
    assert flat({"a": {"b": 1}, "c": [{"d": None}], "e": [1]}) == {
        "a.b": "1",
        "c.0.d": "null",
        "e": "[1]",
    }


@pytest.mark.parametrize("points", [[(1, 5.0)], [(1, 0.0), (2, 0.0)], [(1, 1e-9), (900, -1e12)]])
def test_a_curve_stays_inside_its_frame(points: list[tuple[float, float]]) -> None:
    drawn = svg.curves(Chart("t", {"<x>": points}))
    places = [float(v) for v in re.findall(r'c[xy]="([-\d.]+)"', drawn)]
    assert places
    assert all(0 <= place <= svg.WIDTH for place in places)
    assert "<x>" not in drawn


@pytest.mark.parametrize("count", [1, 100])
def test_a_curve_without_points_is_only_named_in_the_legend(count: int) -> None:
    points = [(float(number), 0.5) for number in range(count)]
    drawn = svg.curves(Chart("t", {"empty": (), "full": points}, y="reward"))
    alone = svg.curves(Chart("t", {"full": points}, y="reward"))
    assert drawn.count("<path") == alone.count("<path") > 0
    assert "empty</span>" in drawn
    assert "nothing to draw" in svg.curves(Chart("t", {"empty": ()}))


def test_runs_are_found_in_folders_and_by_name(folder: Path) -> None:
    other = folder.parent / "more" / "hostile"
    (other / "trajectories").mkdir(parents=True)
    assert [run.folder for run in discover([folder])] == [folder]
    names = {run.name for run in discover([folder.parent, other.parent])}
    assert names == {f"{folder.parent.name}/hostile", "more/hostile"}
    assert [run.folder.name for run in discover([folder / "trajectories"])] == ["trajectories"]


def test_settings_that_differ_only_in_a_folder_stand_apart() -> None:
    one = {
        "run.name": "a",
        "output_dir": "/x/outputs",
        "model.name": "/x/warm",
        "seed": 1,
        "env": {"taskset": {"task_roots": ["/x/tasks"]}, "hub": "Qwen/Q", "data": "/x/a.jsonl"},
        "resume": None,
    }
    other = {
        "run.name": "b",
        "output_dir": "outputs2",
        "model.name": "outputs/warm",
        "seed": 2,
        "env": {"taskset": {"task_roots": ["/y/tasks"]}, "hub": "Other/Q", "data": "/y/b.jsonl"},
    }
    keys, paths = differences(flat(one), flat(other))
    assert keys == ["seed", "env.hub", "env.data"]
    assert paths == ["output_dir", "model.name", "env.taskset.task_roots"]


def test_every_view_smooths_a_long_curve_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"step": i, "reward": float(i % 2)} for i in range(1, 31)]
    (chart,) = charts.main(rows)[:1]
    assert chart.strong("reward")[:3] == [(1, 1.0), (2, 0.5), (3, 2 / 3)]
    assert chart.strong("reward")[-1] == (30, 0.4)
    assert charts.EACH in svg.curves(chart)
    assert charts.MEAN in svg.curves(chart)
    few = Chart("few", {"reward": rows_of(rows[:5])}, y="reward")
    assert list(few.strong("reward")) == rows_of(rows[:5])
    assert charts.MEAN not in svg.curves(few)
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["show", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert f" 0.4  {charts.MEAN}" in out
    assert charts.as_csv(few).splitlines()[:2] == ["curve,training step,reward", "reward,1,1.0"]


def test_the_curves_of_a_run_in_the_terminal_begin_in_one_column(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("digits", "prisonersDilemma", "a-task-with-a-name-of-many-more-words-than-fit-a-line")
    rows = [
        {"step": i, "reward": i / 90, "tasks": {name: {"reward": i / 90} for name in names}}
        for i in range(1, 91)
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for width in (160, 80):
        monkeypatch.setenv("COLUMNS", str(width))
        assert main(["show", str(tmp_path)]) == 0
        out = capsys.readouterr().out.splitlines()
        curves = [line for line in out if "▁" in line]
        tile = next(line for line in out if line.startswith("steps"))
        assert len(curves) == 4
        assert {line.index("▁") for line in curves} == {tile.index("90")}
        assert {line.index("█") for line in curves} == {curves[0].index("█")}
        assert "reward, a-task-with" in curves[3]
        assert "…" in curves[3]
        assert all(line.endswith(charts.MEAN) and len(line) <= width for line in curves)


def test_a_training_whose_episodes_all_failed_has_no_charts_of_a_run_of_sft() -> None:
    failed = [{"step": 1, "reward": None, "loss/mean": 0.0, "optim/lr": 0.001}]
    assert charts.main(failed) == []
    assert [chart.title for chart in charts.small(failed)] == ["loss/mean"]


def rows_of(rows: list[dict[str, float]]) -> list[tuple[int, float]]:
    return metric_series.series(rows, "reward")


def test_a_run_of_sft_is_shown_with_loss_tokens_and_learning_rate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = warm_start(tmp_path)
    (run,) = discover([folder])
    index = RunIndex(folder)
    index.file.refresh()
    assert index.problems() == []
    assert (overview.kind(run, index.metrics()), run.recorded()) == ("sft", 0)
    assert [chart.title for chart in charts.main(index.metrics())] == ["loss", "learning rate"]
    assert "loss/mean" not in [chart.title for chart in charts.small(index.metrics())]  # is above
    assert main(["show", str(folder)]) == 0
    out = capsys.readouterr().out
    out = " ".join(out.split())
    for words in ("warm sft", "steps 12", "of 24,000 read", "held-out loss", "0.001"):
        assert words in out
    assert "episodes" not in out
    page = "".join(export.page(run, index, []))
    assert "<h2>learning rate</h2>" in page
    assert "all ended well" not in page


def test_models_and_tasks_are_a_table_with_standard_errors() -> None:
    def played(task: str, value: float | None, baseline: float = 0.5) -> dict[str, object]:
        facts = {"task": task, "metric": "m", "direction": "higher", "baseline": baseline}
        return facts | {"model": "/runs/a/checkpoints/step_4", "value": value}

    table = results.results(
        {
            "one": [played("t", 0.5), played("t", 0.7), played("t", None), played("u", None)],
            "two": [played("t", 0.25, baseline=0.6)],
        }
    )
    heads, rows = results.rows(table)
    assert heads == ["run", "model", "t · m ↑", "u · m ↑"]
    assert rows == [
        ["baseline", "", "0.5", "0.5"],
        ["one", "a step_4", "0.6 ± 0.1 (2 of 3)", "– (1)"],
        ["two", "a step_4", "0.25 (1)", ""],
    ]
    assert table.changed == {"t"}
    csv = results.as_csv(table, "reward").splitlines()
    assert csv[0] == "run,model,task,metric,n,scored,mean reward,stderr"
    assert csv[-1] == "two,/runs/a/checkpoints/step_4,t,m ↑,1,1,0.25,"


def warm_start(folder: Path) -> Path:
    """Writes the run `warm`, as `sft` writes its files: steps are numbers with a fraction of 0."""
    root = folder / "warm"
    root.mkdir()
    (root / "config.json").write_text(json.dumps({"model_type": "llama"}))
    rows = [
        {
            "step": float(step),
            "loss": 6.0 / step,
            "lr": 0.001,
            "grad_norm": 1.0,
            "tokens": 500.0,
            "train_tokens": 2000.0,
            "seconds": 0.5,
        }
        for step in range(1, 13)
    ]
    rows[-1]["val_loss"] = 0.7
    (root / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return root
