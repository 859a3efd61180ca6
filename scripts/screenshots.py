"""Makes the pictures of the documentation from a recorded run, with a real browser.

    python scripts/screenshots.py outputs/quickstart               # docs/assets/viewer.png and episode.png
    python scripts/screenshots.py outputs/quickstart --every DIR   # also each page, and the exported page

`make pictures RUN=outputs/quickstart` runs the first of these commands. Needs Chromium and playwright (the
dependency group `test`).
"""

from __future__ import annotations

import argparse
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from playwright.sync_api import Page, ViewportSize, sync_playwright

ASSETS = Path(__file__).parents[1] / "docs" / "assets"
PAGES = ("Runs", "Run", "Episodes", "Episode", "Groups", "Results", "Compare")
DESKTOP, TALL, PHONE = (
    ViewportSize(width=w, height=h) for w, h in ((1280, 868), (1280, 1260), (390, 1600))
)
AIR = (sys.executable, "-m", "air.cli.main")
PATIENCE_MS = 120_000
SETTLE_MS = 2000
"""The time in milliseconds that charts need to fade in, and a page to adapt to a new size."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("run", type=Path, help="the folder of a run with tokens/")
    parser.add_argument("--every", type=Path, help="a folder for pictures of every page")
    args = parser.parse_args()
    chromium = next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
    )
    if chromium is None or not args.run.is_dir():
        missing = (
            "Chromium: apt-get install chromium" if chromium is None else f"the folder {args.run}"
        )
        print(f"error: missing {missing}", file=sys.stderr)
        return 2
    with sync_playwright() as playwright, _viewer(args.run) as url:
        browser = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page(viewport=DESKTOP)
        page.set_default_timeout(PATIENCE_MS)
        _open(page, url, args.run, "Run")
        page.screenshot(path=ASSETS / "viewer.png")
        _open_best_episode(page, url, args.run)
        page.set_viewport_size(TALL)
        page.wait_for_timeout(SETTLE_MS)
        page.screenshot(path=ASSETS / "episode.png")
        if args.every is not None:
            _every(page, url, args.run, args.every)
        browser.close()
    return 0


@contextmanager
def _viewer(run: Path) -> Iterator[str]:
    """Context manager: runs `air view` on the parent folder of `run`, so that the viewer can compare the run
    with its sibling runs; yields the URL."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [*AIR, "view", str(run.resolve().parent), "--port", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        url = f"http://127.0.0.1:{port}"
        while True:
            try:
                urllib.request.urlopen(f"{url}/_stcore/health", timeout=5).close()
                break
            except OSError:
                if process.poll() is not None:
                    raise SystemExit("error: air view ended") from None
                time.sleep(0.2)
        yield url
    finally:
        process.terminate()
        process.wait()


def _open(page: Page, url: str, run: Path, name: str, **parts: str) -> None:
    """Opens a page of the viewer, and waits until the page and its charts are drawn."""
    address = "&".join(f"{key}={quote(value)}" for key, value in parts.items())
    page.goto(f"{url}/?run={quote(run.name)}&page={name}&{address}")
    _drawn(page)


def _drawn(page: Page) -> None:
    page.wait_for_selector("[data-testid=stApp][data-test-script-state=notRunning]")
    page.wait_for_load_state("networkidle")
    page.wait_for_timeout(SETTLE_MS)


def _open_best_episode(page: Page, url: str, run: Path) -> None:
    """Opens the page of the episode with the highest reward, and waits until it is drawn."""
    _open(page, url, run, "Episodes", sort="reward, best first")
    box = page.get_by_test_id("stDataFrame").first.bounding_box()
    assert box is not None
    page.mouse.click(box["x"] + 30, box["y"] + 34 + 15)
    page.wait_for_url("**page=Episode&*")
    page.mouse.move(0, 0)  # a chart under the pointer would show its menu
    _drawn(page)


def _every(page: Page, url: str, run: Path, out: Path) -> None:
    """Saves pictures of each page of the viewer, with the table of sampled tokens on the page of an episode,
    and of the exported page at desktop and phone size."""
    out.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(PAGES, start=1):
        if name == "Episode":
            _open_best_episode(page, url, run)
            page.get_by_text("each sampled token").click()
            page.wait_for_timeout(SETTLE_MS)
        else:
            _open(page, url, run, name)
        page.screenshot(path=out / f"{number}-{name.lower()}.png")
    file = (out / "page.html").resolve()
    subprocess.run([*AIR, "export", str(run), "--html", str(file), "--episodes", "8"], check=True)
    for name, size in (("desktop", DESKTOP), ("phone", PHONE)):
        page.set_viewport_size(size)
        page.goto(f"{file.as_uri()}#e0")
        page.screenshot(path=out / f"exported-{name}.png")
        step = page.locator("#e0 .step").first
        step.evaluate(
            "step => [step, ...step.querySelectorAll('details')].forEach(d => d.open = true)"
        )
        step.scroll_into_view_if_needed()
        page.screenshot(path=out / f"exported-turn-{name}.png")


if __name__ == "__main__":
    sys.exit(main())
