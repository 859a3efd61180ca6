"""`air view` and `air export` in a real browser, over a run that was really trained.

Skipped, each by name, where there is no Chromium; under AIR_REQUIRE_BROWSER=1 that is a failure. Every test
leaves a screenshot of where it ended in its `tmp_path`.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from air.testing import replies
from air.trajectories import trained_tokens
from tests.e2e.commands.test_commands import command
from tests.e2e.conftest import attempt, played_by, research
from tests.unit.view import hostile, test_coevolution
from tests.unit.view.test_markup import warm_start

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
RUN = "r"
BAR = "printf '\\r 10%%\\r\\033[32m100%%\\033[0m done'; exit 3"
WITH_ERRORS = [
    "I have no idea.",
    f"A bar.\n```bash\n{BAR}\n```",
    attempt(1, 1),
    "Look.\n```bash\nls\n```",
    attempt(3, 3, "submit"),
]
"""Turn 1 is no action, turn 2 fails, turns 3 and 5 validate."""

if not CHROMIUM:
    if os.environ.get("AIR_REQUIRE_BROWSER") == "1":
        pytest.fail("AIR_REQUIRE_BROWSER=1, and there is no Chromium", pytrace=False)
    pytest.skip("there is no Chromium: apt-get install chromium", allow_module_level=True)

from playwright.sync_api import Browser, Page, TimeoutError, expect, sync_playwright  # noqa: E402


@pytest.fixture(scope="module")
def outputs(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`outputs/` with the trained run `r`, one of `sft`, one whose agent is hostile, and a co-evolution."""
    folder = tmp_path_factory.mktemp("view")
    shutil.copytree(trained / "outputs" / RUN, folder / "outputs" / RUN)
    hostile.run(folder / "outputs")
    warm_start(folder / "outputs")
    (folder / "data").mkdir()
    test_coevolution.recorded(folder / "data", output_dir=folder / "outputs")
    with ThreadPoolExecutor(1) as thread:  # Playwright keeps an event loop running in this one
        where = folder / "outputs" / "scripted" / "trajectories"
        thread.submit(lambda: asyncio.run(scripted(where))).result()
    return folder / "outputs"


async def scripted(folder: Path) -> None:
    """Plays, in real boxes, two episodes of `WITH_ERRORS` and one without any."""
    for script, count in ((WITH_ERRORS, 2), ([attempt(2, 2, "submit")], 1)):
        config = research(["titanic"], "subprocess", max_turns=6, record_dir=folder)
        async with played_by(replies(*script), config) as play:
            for _ in range(count):
                assert (await play()).ok


@pytest.fixture(scope="module")
def viewer(outputs: Path) -> Iterator[str]:
    """The address of `air view outputs`, which Ctrl-C ends after the tests."""
    with serving(outputs) as (url, process):
        yield url
        process.send_signal(signal.SIGINT)
        out = process.communicate(timeout=120)[0]
    assert process.returncode in (0, 130), out
    assert f"7 runs at {url}" in out
    assert "Traceback" not in out, out


@contextmanager
def serving(*paths: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A viewer as a user starts it; killed at the end if it still is there."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-m", "air.cli.main", "view", *map(str, paths), "--port", str(port)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        url = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + 300
        while True:
            try:
                with urllib.request.urlopen(f"{url}/_stcore/health", timeout=5):
                    break
            except OSError:
                assert process.poll() is None, process.communicate()[0]
                assert time.monotonic() < deadline
                time.sleep(0.2)
        yield url, process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def tab(browser: Browser) -> Iterator[Page]:
    """The one tab that all tests use: a new one would load and compile the viewer's scripts anew."""
    context = browser.new_context(viewport={"width": 1440, "height": 1000})
    page = context.new_page()
    page.set_default_timeout(30_000)
    expect.set_options(timeout=30_000)
    yield page
    context.close()


@pytest.fixture
def page(tab: Page, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Page]:
    """The tab, empty, which may ask nothing of any other host, and in which nothing may go wrong."""
    wrong: list[str] = []
    listeners: dict[Any, Any] = {
        "pageerror": lambda error: wrong.append(f"error: {error}"),
        "dialog": lambda dialog: wrong.append(f"dialog: {dialog.message}"),
        "request": lambda asked: (
            wrong.append(f"request: {asked.url}") if outside(asked.url) else None
        ),
    }
    for event, listener in listeners.items():
        tab.on(event, listener)
    yield tab
    tab.screenshot(path=tmp_path / f"{request.node.name}.png")
    tab.goto("about:blank")
    for event, listener in listeners.items():
        tab.remove_listener(event, listener)
    assert not wrong


def outside(url: str) -> bool:
    return not url.startswith(
        ("http://127.0.0.1:", "ws://127.0.0.1:", "data:", "blob:", "file:///")
    )


def show(page: Page, viewer: str, name: str, **more: object) -> None:
    """Opens a page of the viewer and waits until it is there."""
    parts = "&".join(f"{key}={value}" for key, value in {"run": RUN, "page": name, **more}.items())
    page.goto(f"{viewer}/?{parts}")
    settled(page)


def settled(page: Page) -> None:
    """Waits until nothing is rendered any more."""
    page.wait_for_selector("[data-testid=stApp][data-test-script-state=notRunning]")


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def episodes(outputs: Path, run: str = RUN) -> dict[str, list[dict[str, Any]]]:
    """The lines of each trajectory of a run, by name."""
    folder = outputs / run / "trajectories"
    return {path.stem: lines(path) for path in folder.glob("*.jsonl")}


def open_row(page: Page, row: int) -> None:
    """Clicks a row of the table, which is drawn on a canvas, 30 pixels a row below its head; again where
    the table was just then drawn anew."""
    for _ in range(10):
        box = page.get_by_test_id("stDataFrame").first.bounding_box()
        if box is not None:
            page.mouse.click(box["x"] + 30, box["y"] + 34 + 30 * row + 15)
        page.wait_for_timeout(1500)
        if "page=Episode&" in page.url:
            return
    raise AssertionError("no click on the row opened it")


def drawn(page: Page) -> None:
    """Waits until the first table, a canvas, has what a screen reader reads."""
    table = page.get_by_test_id("stDataFrame").first
    expect(table.locator("canvas tbody tr").first).to_be_attached()


def cells(page: Page, column: str) -> list[str]:
    """What a column of the first table holds, as a screen reader would read it."""
    grid = page.get_by_test_id("stDataFrame").first
    drawn(page)
    heads = grid.locator("canvas th").all_inner_texts()
    at = heads.index(column)
    return [row.locator("td").nth(at).inner_text() for row in grid.locator("canvas tbody tr").all()]


def test_a_run_opens_with_its_curves_and_figures(page: Page, viewer: str, outputs: Path) -> None:
    show(page, viewer, "Run")
    metrics = lines(outputs / RUN / "metrics.jsonl")
    tiles = page.locator(".tile").all_inner_texts()
    assert any("2/2" in tile for tile in tiles)
    assert any(f"{metrics[-1]['reward']:+.3f}".replace("-", "−") in tile for tile in tiles)
    assert any("16" in tile and "ended well" in tile for tile in tiles)
    expect(page.locator("[data-testid=stVegaLiteChart]").nth(2)).to_be_visible()
    expect(page.get_by_text("where the episodes' time went")).to_be_visible()
    for name in ("model", "exec", "grading", "queue"):
        assert page.locator(".split .legend").get_by_text(name).count() == 1
    with page.expect_download() as saved:
        page.get_by_role("button", name="CSV").first.click()
    rows = saved.value.path().read_text().splitlines()
    assert rows[:2] == ["curve,training step,reward", f"reward,1,{metrics[0]['reward']!r}"]
    bar(page, "Runs")
    expect(page.get_by_text("7 runs")).to_be_visible()
    counted = dict(zip(cells(page, "run"), cells(page, "episodes"), strict=True))
    assert counted[RUN] == "16"
    assert counted["scripted"] == "3"  # not trained: its trajectories are counted
    kinds = dict(zip(cells(page, "run"), cells(page, "kind"), strict=True))
    rounds = {"proposer": "rl", "round0/held_out": "eval", "round1/held_out": "eval"}
    assert kinds == {RUN: "rl", "warm": "sft", "hostile": "rl", "scripted": "eval", **rounds}
    bar(page, "Results")
    row = page.locator("table tr").filter(has_text="scripted")
    expect(row.locator("td").last).to_have_text(re.compile(r"^0\.\d+ ± 0(\.\d+)? \(3\)$"))


def test_a_co_evolution_has_its_rounds_and_curves(page: Page, viewer: str) -> None:
    show(page, viewer, "Run")
    bar(page, "Co-evolution")
    rows = page.locator("table tr")
    expect(rows).to_have_count(3)
    second = rows.nth(2).locator("td")
    expect(second.nth(10)).to_contain_text("0.625")
    expect(second.nth(10)).to_contain_text("0.500 – 0.750")
    bars = second.last.locator("[title^='p from']")
    expect(bars).to_have_count(10)
    heights = [bars.nth(n).bounding_box() for n in (4, 5)]
    assert heights[0]
    assert heights[1]
    assert heights[1]["height"] > heights[0]["height"]  # one of three questions has p = 0.5
    expect(page.locator("[data-testid=stVegaLiteChart]").nth(2)).to_be_visible()
    with page.expect_download() as saved:
        page.get_by_role("button", name="CSV").first.click()
    assert (
        saved.value.path().read_text()
        == "curve,round,accuracy\naccuracy,1,0.625\n95 % from,1,0.5\n95 % to,1,0.75\n"
    )


def test_episodes_are_filtered_and_opened(page: Page, viewer: str, outputs: Path) -> None:
    show(page, viewer, "Episodes", run="scripted")
    expect(page.get_by_text("1–3 of 3 episodes")).to_be_visible()
    errors = page.get_by_test_id("stMarkdownContainer").get_by_text("Errors", exact=True)
    errors.click()
    expect(page.get_by_text("1–2 of 2 episodes")).to_be_visible()
    errors.click()
    expect(page.get_by_text("1–3 of 3 episodes")).to_be_visible()
    page.get_by_label("Turns from").fill("99")
    page.keyboard.press("Enter")
    expect(page.get_by_text("no such episode")).to_be_visible()
    assert parse_qs(urlsplit(page.url).query)["turns"] == ["99"]
    page.reload()  # the address has the filters
    expect(page.get_by_text("no such episode")).to_be_visible()
    expect(page.get_by_label("Turns from")).to_have_value("99")
    page.get_by_label("Turns from").fill("1")
    page.keyboard.press("Enter")
    expect(page.get_by_text("1–3 of 3 episodes")).to_be_visible()
    name = sorted(episodes(outputs, "scripted"))[0]
    page.get_by_placeholder("id, model or error").fill(name)
    page.keyboard.press("Enter")
    expect(page.get_by_text("1–1 of 1 episodes")).to_be_visible()
    settled(page)
    open_row(page, 0)
    expect(page.locator(".facts .note").first).to_contain_text(name)
    assert f"episode={name}" in page.url
    show(page, viewer, "Episodes", run="scripted", task="titanic", errors=1, end="never")
    expect(page.get_by_text("1–2 of 2 episodes")).to_be_visible()
    expect(page.get_by_role("combobox", name="Task")).to_have_value("titanic")
    expect(page.get_by_text("filters that do not fit this run: end=never")).to_be_visible()


def test_sorting_by_reward_brings_the_best_first(page: Page, viewer: str, outputs: Path) -> None:
    show(page, viewer, "Episodes")
    page.get_by_role("combobox", name="Sort by").click()
    page.get_by_role("option", name="reward, best first").click()
    rewards = sorted((of[-1]["reward"] for of in episodes(outputs).values()), reverse=True)
    settled(page)
    drawn(page)
    page.wait_for_function(  # all of them: the first was perhaps the best before
        """best => {
            const rows = [...document.querySelectorAll('canvas tbody tr')];
            return rows.length && rows.every((r, i) => parseFloat(r.cells[1].innerText) === best[i]);
        }""",
        arg=rewards,
    )
    shown = [float(text) for text in cells(page, "reward")]
    assert shown == sorted(shown, reverse=True)
    assert shown == pytest.approx(rewards[: len(shown)])


def test_an_episode_is_walked_by_jumps(page: Page, viewer: str, outputs: Path) -> None:
    recorded = episodes(outputs, "scripted")
    name = next(name for name, turns in recorded.items() if turns[1]["reply"] == WITH_ERRORS[0])
    show(page, viewer, "Episode", run="scripted", episode=name)
    here = page.locator(".step.here")
    # Lists, since the page may hold the old and the new turn for a moment; a text alone is refused then.
    expect(here.locator(".n")).to_have_text(["1"])
    expect(here.locator("pre").first).to_contain_text(WITH_ERRORS[0])
    jumps = [("Error ›", 2), ("Validate ›", 3), ("Validate ›", 5), ("‹ Error", 2), ("Turn ›", 3)]
    for button, turn in jumps:
        page.get_by_role("button", name=button).click()
        expect(here.locator(".n")).to_have_text([str(turn)])
    for key, turn in [("ArrowRight", 4), ("v", 5), ("Shift+E", 2)]:
        page.keyboard.press(key)
        expect(here.locator(".n")).to_have_text([str(turn)])
    expect(page.get_by_role("button", name="Error ›")).to_be_disabled()
    page.get_by_role("button", name="Episode", exact=True).click()
    settled(page)
    for key, turn in [("ArrowLeft", 1), ("ArrowRight", 2)]:  # after a click on the bar, too
        page.keyboard.press(key)
        expect(here.locator(".n")).to_have_text([str(turn)])
    expect(here.locator(".chip.red")).to_contain_text("exit 3")
    output = here.locator(".output pre").first.inner_text()
    assert output.startswith("100% done")  # a bar's last state, without its colours
    assert "10%\r" not in output
    expect(page.locator("[data-testid=stVegaLiteChart]").first).to_be_visible()


def test_a_step_has_its_diff_and_folds(page: Page, viewer: str, outputs: Path) -> None:
    name = next(
        name
        for name, of in episodes(outputs).items()
        if any(line.get("diff") and line["diff"]["text"] and line["turn"] == 1 for line in of)
    )
    show(page, viewer, "Episode", episode=name)
    diff = page.locator(".step.here .diff")
    expect(diff.locator("summary")).to_contain_text("changed")
    expect(diff.locator("pre")).to_be_hidden()
    diff.locator("summary").click()
    expect(diff.locator(".add").first).to_be_visible()
    page.get_by_text("task prompt").click()
    expect(page.locator(".fold[open] pre").filter(has_text="Titanic").first).to_be_visible()


def test_a_group_stands_side_by_side_with_its_advantages(
    page: Page, viewer: str, outputs: Path
) -> None:
    group = lines(outputs / RUN / "groups.jsonl")[1]
    show(page, viewer, "Groups", group=f"{group['step']}.{group['group']}")
    columns = page.locator(".column:not(.step)")
    expect(columns).to_have_count(4)
    for at, one in enumerate(group["episodes"]):
        shown = f"{one['advantage']:+.3f}".replace("-", "−")
        expect(columns.nth(at).locator("b").first).to_have_text(f"advantage {shown}")
    boxes = [columns.nth(at).bounding_box() for at in range(4)]
    assert len({round(box["y"]) for box in boxes if box}) == 1  # beside, not beneath
    page.get_by_role("button", name="Open episode").nth(2).click()
    expect(page.locator(".facts .note").first).to_contain_text(group["episodes"][2]["episode"])


def test_a_run_is_seen_live_and_compared(page: Page, viewer: str, outputs: Path) -> None:
    """The trained run once more, whose second step is written while the page is open."""
    live = outputs / "live"
    shutil.copytree(outputs / RUN, live)
    config = json.loads((live / "config.json").read_text())
    (live / "config.json").write_text(json.dumps(config | {"max_steps": 500}))
    first, second = (live / "metrics.jsonl").read_text().splitlines(keepends=True)
    (live / "metrics.jsonl").write_text(first)
    page.goto(f"{viewer}/?run=live&page=Run")
    steps = page.locator(".tile").filter(has_text="steps").locator(".value")
    expect(steps).to_have_text("1/500")
    with (live / "metrics.jsonl").open("a") as file:
        file.write(second)
    expect(steps).to_have_text("2/500", timeout=90_000)  # nothing was pressed meanwhile
    show(page, viewer, "Compare", run="live", other=RUN)
    differ = page.locator("table").filter(has_text="setting")
    expect(differ.locator("tr").filter(has_text="max_steps")).to_contain_text("500")
    table = page.locator("table").filter(has_text="mean last")
    expect(table.locator("tr").filter(has_text="titanic")).to_have_count(2)
    expect(page.locator("[data-testid=stVegaLiteChart]").first).to_be_visible()


def test_the_chosen_run_is_among_the_results(page: Page, viewer: str) -> None:
    show(page, viewer, "Results")
    expect(page.locator("table tr").filter(has_text=f"{RUN}")).not_to_have_count(0)
    chosen = page.locator("[data-testid=stMultiSelect]").inner_text().split()
    assert chosen[:2] == ["Runs", RUN]


def test_settings_that_were_not_recorded_do_not_differ(page: Page, viewer: str) -> None:
    show(page, viewer, "Compare", other="scripted")
    expect(page.get_by_text("scripted: no settings are recorded")).to_be_visible()
    expect(page.locator("table").filter(has_text="setting")).to_have_count(0)


def test_a_telephone_shows_whole_names_and_scrolls_wide_tables(page: Page, viewer: str) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    try:
        for name, cell in (("Run", "titanic"), ("Results", "scripted"), ("Co-evolution", None)):
            show(page, viewer, name)
            if cell is not None:
                box = page.locator("td").get_by_text(cell, exact=True).first.bounding_box()
                assert box is not None
                assert box["height"] < 30, name  # one line
            wide = page.locator("[data-testid=stMain]").evaluate(
                "main => main.scrollWidth - main.clientWidth"
            )
            assert wide <= 0, name
    finally:
        page.set_viewport_size({"width": 1440, "height": 1000})


def test_a_chart_of_many_runs_names_them_all(page: Page, viewer: str, outputs: Path) -> None:
    """Beside it stand a run whose episodes all failed, which has no curve, and one that trained by `sft`."""
    names = [f"2026-11-2{n}-titanic-and-digits--small-model--77aa0{n}" for n in range(8)]
    failed = {"step": 1, "reward": None, "loss/mean": 0.0, "episodes": 8}
    try:
        for name in names:
            (outputs / name).mkdir()
            shutil.copy(outputs / RUN / "metrics.jsonl", outputs / name)
        (outputs / "fails").mkdir()
        (outputs / "fails" / "metrics.jsonl").write_text(json.dumps(failed) + "\n")
        for width, height in ((1440, 1000), (390, 844)):
            page.set_viewport_size({"width": width, "height": height})
            show(page, viewer, "Runs")
            chart = page.get_by_test_id("stVegaLiteChart").first
            legend = page.locator(".air .legend").first
            for name in names:
                entry = legend.get_by_text(name)
                box = entry.bounding_box()
                assert box is not None
                assert 0 <= box["x"] < box["x"] + box["width"] <= width
                dot = entry.locator(".dot").evaluate("e => getComputedStyle(e).backgroundColor")
                point = chart.locator(f".mark-symbol path[aria-label*='{name}']").first
                assert point.evaluate("e => getComputedStyle(e).fill") == dot
            main = page.get_by_test_id("stMain")
            assert main.evaluate("e => e.scrollWidth - e.clientWidth") <= 0
            # The one other curve needs no legend.
            expect(page.get_by_test_id("stVegaLiteChart")).to_have_count(2)
            expect(page.locator(".air .legend")).to_have_count(1)
        # A run whose files have just changed is watched.
        (outputs / "fails" / "metrics.jsonl").write_text(json.dumps(failed) + "\n")
        show(page, viewer, "Run", run="fails")
        expect(page.get_by_text("No step has a reward")).to_be_visible()
        expect(page.get_by_test_id("stVegaLiteChart")).to_have_count(1)
        shutil.rmtree(outputs / "fails")
        expect(page.get_by_text("no run fails here")).to_be_visible()
    finally:
        page.set_viewport_size({"width": 1440, "height": 1000})
        for name in (*names, "fails"):
            shutil.rmtree(outputs / name, ignore_errors=True)


def test_nothing_of_a_hostile_agent_runs_or_is_fetched(page: Page, viewer: str) -> None:
    show(page, viewer, "Episode", run="hostile", episode="aa", item=2)
    action = page.locator(".step.here pre.action")
    expect(action).to_contain_text("<script>document.title='owned'")
    expect(action).to_contain_text("100%|##########| done")
    check_hostile(page)
    for name in ("Runs", "Run", "Episodes", "Groups", "Results", "Compare"):
        bar(page, name)
        check_hostile(page)


def bar(page: Page, name: str) -> None:
    """Goes to a page of the viewer by its button in the bar."""
    page.get_by_role("button", name=name, exact=True).click()
    page.wait_for_url(f"**page={name}*")
    settled(page)


def check_hostile(page: Page) -> None:
    page.wait_for_timeout(500)
    assert "owned" not in page.title()
    wrong = "[onerror], .air script, .air img, .air a, [data-testid=stApp] a[href*=evil], .katex"
    assert page.locator(wrong).count() == 0
    assert page.get_by_text("Traceback").count() == 0


def test_an_exported_page_works_alone(page: Page, outputs: Path, tmp_path: Path) -> None:
    for run in (RUN, "warm", "hostile"):
        file = tmp_path / f"{run}.html"
        done = command("air", "export", outputs / run, "--html", file, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        page.goto(file.as_uri())
        counts = {RUN: 16, "warm": 0, "hostile": 2}
        assert page.locator(".episode").count() == counts[run]
        assert "owned" not in page.title()
        if run == "warm":
            check_saving(page)
        else:
            check_export(page, errors=2 if run == "hostile" else None)
            check_tokens(page)
        check_phone(page)


def check_saving(page: Page) -> None:
    with page.expect_download() as saved:
        page.get_by_role("button", name="CSV").first.click()
    rows = saved.value.path().read_text().splitlines()
    assert rows[:2] == ["curve,training step,nats a token", "loss,1,6.0"]
    with page.expect_download() as saved:
        page.get_by_role("button", name="PNG").first.click()
    assert saved.value.suggested_filename == "loss.png"
    assert saved.value.path().read_bytes().startswith(b"\x89PNG")


def check_tokens(page: Page) -> None:
    """The tokens of the first turn that has any: each in its place, and in a table with its numbers."""
    page.evaluate(
        "for (let each = document.querySelector('.tokens-of-turn').parentElement; each;"
        " each = each.parentElement) if (each.matches('details')) each.open = true"
    )
    tokens = page.locator(".tokens-of-turn").first
    tokens.locator("summary").first.click()
    count = tokens.locator(".token").count()
    assert count > 0
    tokens.get_by_text("each sampled token").click()
    rows = tokens.locator("tbody tr")
    expect(rows).to_have_count(count)
    assert re.fullmatch(r"[−+]\d.*|–", rows.first.locator("td").nth(5).inner_text())


def check_phone(page: Page) -> None:
    """On a narrow screen, with everything opened, nothing is wider than the screen."""
    size = page.viewport_size
    assert size is not None
    page.set_viewport_size({"width": 390, "height": 800})
    page.evaluate("for (const each of document.querySelectorAll('details')) each.open = true")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.set_viewport_size(size)


def check_export(page: Page, errors: int | None) -> None:
    rows = page.locator("#episodes tbody tr:not([hidden])")
    page.locator("#errors").check()
    counts = [
        int(text)
        for text in page.locator(
            "#episodes tbody tr:not([hidden]) td:nth-child(9)"
        ).all_inner_texts()
    ]
    assert all(count > 0 for count in counts)
    assert errors is None or len(counts) == errors
    page.locator("#errors").uncheck()
    page.locator("#episodes th").filter(has_text="reward").click()
    values = [v for v in page.locator("#episodes td:nth-child(2)").all_inner_texts() if v != "–"]
    numbers = [float(value.replace("−", "-")) for value in values]
    assert numbers == sorted(numbers, reverse=True)
    rows.last.click()
    opened = page.locator(".episode[open]")
    expect(opened).to_have_count(1)
    opened.locator(".step > summary").first.click()
    expect(opened.locator("pre.action, .thought pre").first).to_be_visible()


def click_the_last_point(page: Page, viewer: str) -> None:
    """Clicks the last point of the first curve until the table of episodes opens: a chart that has just been
    drawn may not listen yet."""
    for _ in range(6):
        show(page, viewer, "Run")
        points = page.get_by_test_id("stVegaLiteChart").first.locator(".mark-symbol").last
        points.locator("path").last.click()
        try:
            page.wait_for_url("**page=Episodes*", timeout=10_000)
        except TimeoutError:
            continue
        settled(page)
        return
    raise AssertionError("no click on the point opened the episodes")


def test_from_a_curve_to_an_episode_to_a_token_to_a_live_fork(
    page: Page, viewer: str, outputs: Path
) -> None:
    click_the_last_point(page, viewer)
    assert cells(page, "step") == ["2"] * 8
    open_row(page, 0)
    name = parse_qs(urlsplit(page.url).query)["episode"][0]
    recorded = trained_tokens.read(outputs / RUN, 2)
    assert recorded is not None
    (conversation,) = [one for one in recorded.conversations if one.episode == name]
    reply = conversation.messages[conversation.replies[0]]
    expect(page.locator(".tokens .token")).to_have_count(len(reply.logprobs))
    page.get_by_text("each sampled token").click()
    rows = page.locator(".tokens tbody tr")
    expect(rows).to_have_count(len(reply.logprobs))
    shown = rows.last.locator("td").all_inner_texts()
    wanted = [f"{reply.logprobs[-1]:.5g}", f"{reply.advantages[-1]:+.4g}"]
    assert [shown[2], shown[5]] == [number.replace("-", "−") for number in wanted]
    page.get_by_role("button", name="Live fork").click()
    file = outputs / RUN / "trajectories" / f"{name}.jsonl"
    expect(page.get_by_test_id("stCode")).to_contain_text(f"air shell --from {file} --turn 0")


def test_the_server_is_on_loopback_alone(viewer: str) -> None:
    port = int(viewer.rsplit(":", 1)[1])
    with socket.socket() as probe:
        probe.settimeout(5)
        assert probe.connect_ex((address_of_this_machine(), port)) != 0


def address_of_this_machine() -> str:
    """One that is not loopback, or a loopback one that the server does not listen on."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.2"
