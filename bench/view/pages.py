"""Measures the speed of the viewer's pages in a real browser, over 10,000 episodes and one trajectory of 100
MB.

    python -m bench.view.pages [--episodes N] [--megabytes M] [--screenshots DIR]

Writes the runs into a temporary folder, starts `air view` on them as a user would, and prints, for each page
or click, the seconds until Streamlit has rendered the whole page. Needs Chromium and the `view` extra.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

from playwright.sync_api import Locator, Page, expect, sync_playwright

from bench.view.index import write

DONE = "[data-testid=stApp][data-test-script-state=notRunning]"
TIMES = 5
PATIENCE = 120.0


def main() -> None:
    """Runs all measurements and prints them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--episodes", type=int, default=10_000)
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--screenshots", type=Path)
    args = parser.parse_args()
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        parser.error("there is no Chromium: apt-get install chromium")
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        os.environ["AIR_CACHE"] = str(root / "cache")
        runs(root / "outputs", args.episodes, args.megabytes * 10)
        with serving(root / "outputs") as url, sync_playwright() as playwright:
            chromium = playwright.chromium.launch(
                executable_path=browser, args=["--no-sandbox", "--disable-gpu"]
            )
            page = chromium.new_page(viewport={"width": 1440, "height": 1000})
            page.set_default_timeout(PATIENCE * 1000)
            expect.set_options(timeout=PATIENCE * 1000)
            pages(page, url, args.episodes, args.screenshots)
            chromium.close()


def runs(folder: Path, episodes: int, turns: int) -> None:
    """Writes two runs: one with many episodes, and one with a single large episode."""
    rng = Random(0)
    for name in ("many", "large"):
        (folder / name / "trajectories").mkdir(parents=True)
    for number in range(episodes):
        path = folder / "many" / "trajectories" / f"{number:032x}.jsonl"
        write(path, rng, turns=4, output=600)
    write(folder / "large" / "trajectories" / "large.jsonl", rng, turns=turns, output=98_000)


def pages(page: Page, url: str, episodes: int, screenshots: Path | None) -> None:
    """Opens each page of the viewer several times and measures the times. The first time includes the
    viewer's first reading of the files."""

    def opened(name: str, address: str, there: Callable[[], None]) -> None:
        seconds = []
        for _ in range(TIMES):
            began = time.perf_counter()
            page.goto(f"{url}/?{address}")
            there()
            page.wait_for_selector(DONE)
            seconds.append(time.perf_counter() - began)
        said(name, seconds)
        if screenshots:
            screenshots.mkdir(parents=True, exist_ok=True)
            page.screenshot(path=screenshots / f"{name.replace(' ', '-')}.png")

    def done(name: str, act: Callable[[], None], there: Callable[[], None]) -> None:
        began = time.perf_counter()
        act()
        there()
        page.wait_for_selector(DONE)
        said(name, [time.perf_counter() - began])

    def text(words: str) -> Callable[[], None]:
        return lambda: expect(page.get_by_text(words).first).to_be_visible()

    opened("runs", "page=Runs", text("2 runs"))
    opened("run", "run=many&page=Run", text("where the episodes' time went"))
    of_all = f"of {episodes} episodes"
    opened("episodes", "run=many&page=Episodes", text(of_all))
    box = page.get_by_placeholder("id, model or error")
    done("  filtered by an id", lambda: _fill(box, f"{7:032x}"), text("of 1 episodes"))
    done("  the filter taken away", lambda: _fill(box, ""), text(of_all))
    done("  sorted by reward", lambda: _sort(page), text(of_all))
    opened("an episode", f"run=many&page=Episode&episode={7:032x}", _here(page, "1"))
    opened("the large episode", "run=large&page=Episode&episode=large", _here(page, "1"))
    number = page.locator(".step.here .n")
    before = number.inner_text()
    done(
        "  jump to the next error",
        lambda: page.get_by_role("button", name="Error ›").click(),
        lambda: expect(number).not_to_have_text(before),
    )


def _here(page: Page, turn: str) -> Callable[[], None]:
    return lambda: expect(page.locator(".step.here .n")).to_have_text(turn)


def _fill(box: Locator, value: str) -> None:
    box.fill(value)
    box.press("Enter")


def _sort(page: Page) -> None:
    page.get_by_role("combobox", name="Sort by").click()
    page.get_by_role("option", name="reward, best first").click()


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """Context manager: runs `air view` on a folder as a user would start it, and yields its URL."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "air.cli.main", "view", str(folder), "--port", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + PATIENCE
        while not healthy(url):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("the viewer did not start")
            time.sleep(0.1)
        yield url
        rows = Path(f"/proc/{process.pid}/status").read_text().splitlines()
        peak = next(int(row.split()[1]) for row in rows if row.startswith("VmHWM"))
        print(f"{'peak memory of the viewer':<28}{peak / 1024:9.0f} MB")
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(30)


def healthy(url: str) -> bool:
    """Whether the viewer at `url` answers HTTP requests."""
    try:
        with urllib.request.urlopen(f"{url}/_stcore/health", timeout=5):
            return True
    except OSError:
        return False


def said(name: str, seconds: list[float]) -> None:
    """Prints one measurement: the first time, and the median of the further times."""
    first, again = seconds[0], sorted(seconds[1:])
    more = f", again {again[len(again) // 2]:6.2f} s" if again else ""
    print(f"{name:<28}{first:9.2f} s{more}", flush=True)


if __name__ == "__main__":
    main()
