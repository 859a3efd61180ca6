"""Compares `air serve sandbox` with the original SandboxFusion server in one run: `make bench-serve`.

Measures the requests per second of `/run_code` with `print(1 + 1)`, in Python and in bash, with 1, 8 and 50
clients. The two servers take turns of a few seconds each, so that other load on the machine affects both. If
E2B's package is installed and air's server supports E2B's protocol, also measures a sandbox from the warm
pool and its first command.

The original server runs from a checkout of github.com/bytedance/SandboxFusion (`--original DIR`), without
containers and with its default settings; its packages are installed into `build/` once. Air's server isolates
each request.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import sys
import time
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from urllib.parse import urlsplit

from bench.sandbox.table import Bench, machine, report
from bench.serve import e2b_client
from bench.serve import sides as serve_sides

CLIENTS = (1, 8, 50)
PROGRAMS = {"python": "print(1 + 1)", "bash": "echo $((1 + 1))"}
ASKED, TIMES = "python", 5.0
"""The language with a bar, and the required ratio of the requests per second of air's server to those of the
original SandboxFusion server, with 1 and with 8 clients."""
ORIGINAL = "SandboxFusion"
AT_ONCE = 50
"""The number of E2B's sandboxes that are created at the same time."""
SPARES = 50
"""The number of spare boxes of each protocol while E2B's protocol is measured."""
QUIET_SECONDS, FILL_SECONDS = 3, 90


class Client:
    """An HTTP client with one persistent connection. It uses little CPU time, so that the server is measured
    and not the client."""

    def __init__(self, url: str) -> None:
        self._address = urlsplit(url)
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def run(self, body: bytes) -> None:
        """Sends a request to run a program that prints 2. Raises an error if the response is not its
        output."""
        assert self._address.hostname
        if self._streams is None:
            self._streams = await asyncio.open_connection(
                self._address.hostname, self._address.port, limit=1 << 20
            )
        reader, writer = self._streams
        head = f"POST /run_code HTTP/1.1\r\nHost: {self._address.netloc}\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        answer = (await reader.readuntil(b"\r\n\r\n")).lower()
        size = int(answer.partition(b"content-length:")[2].split(b"\r\n")[0])
        result = json.loads(await reader.readexactly(size))
        if result.get("status") != "Success" or result["run_result"]["stdout"] != "2\n":
            raise RuntimeError(f"a wrong answer: {result}")

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()


async def turn(url: str, language: str, clients: int, seconds: float) -> tuple[float, list[float]]:
    """Measures a server with `clients` simultaneous clients for `seconds`; returns the requests per second,
    and the milliseconds of each request."""
    body = json.dumps({"language": language, "code": PROGRAMS[language]}).encode()
    begun, each = time.perf_counter(), list[float]()

    async def one() -> None:
        client = Client(url)
        try:
            while (since := time.perf_counter()) < begun + seconds:
                await client.run(body)
                each.append((time.perf_counter() - since) * 1000)
        finally:
            client.close()

    await asyncio.gather(*(one() for _ in range(clients)))
    return len(each) / (time.perf_counter() - begun), each


async def fusion(bench: Bench, sides: dict[str, str], seconds: float, turns: int) -> None:
    """Measures `/run_code` of all servers, in alternating turns. The first turn of each server is
    discarded."""
    for language in PROGRAMS:
        for clients in CLIENTS:
            rates: dict[str, list[float]] = {name: [] for name in sides}
            times: dict[str, list[float]] = {name: [] for name in sides}
            for number in range(turns + 1):
                for name in list(sides) if number % 2 else list(reversed(sides)):
                    rate, each = await turn(sides[name], language, clients, seconds)
                    if number:
                        rates[name].append(rate)
                        times[name] += each
            at = f"{language}, {clients} client{'s' if clients > 1 else ''}"
            rows = {name: bench.add(at, name, "1/s", values) for name, values in rates.items()}
            if ORIGINAL in rows and language == ASKED and clients < max(CLIENTS):
                least = TIMES * rows[ORIGINAL].p50
                ours = rows[serve_sides.OURS]
                ours.ask(f"≥ {TIMES:g} x {ORIGINAL} = {least:.0f}", ours.p50 >= least)
            for name, values in times.items():
                bench.add(f"{at}, each", name, "ms", values)


async def e2b(bench: Bench, url: str, template: str, rounds: int) -> None:
    """Measures, through E2B's protocol, a sandbox with its first command: one after another, and `AT_ONCE` at
    the same time."""
    if importlib.util.find_spec("e2b") is None:
        bench.note("E2B is left out: the package `e2b` is not installed.")
        return
    if not serve_sides.speaks_e2b(url):
        bench.note("E2B is left out: this server does not speak it.")
        return
    await e2b_client.one(url, template)
    await _full(bench, url)
    single = []
    for _ in range(rounds):
        await asyncio.sleep(1)  # until the spare box is there again
        single.append(await e2b_client.one(url, template))
    row = bench.add("E2B create and first command", serve_sides.OURS, "ms", single)
    row.ask("p50 ≤ 50", row.p50 <= 50)

    def settle() -> None:
        asyncio.run(_full(bench, url))

    many = await asyncio.to_thread(e2b_client.at_once, url, template, AT_ONCE, settle)
    bench.note(
        f"E2B, {AT_ONCE} at once: the time from the call of `create` to the end of the first command, in "
        f"{e2b_client.CLIENTS} client processes that have had a sandbox before. The sandboxes are killed "
        "when all of them have answered."
    )
    row = bench.add(
        f"E2B create and first command, {AT_ONCE} at once", serve_sides.OURS, "ms", many
    )
    row.ask("p99 ≤ 140", row.p99 <= 140)


async def _full(bench: Bench, url: str) -> None:
    """Waits until the spare boxes of both protocols are ready."""
    since, before, quiet = time.monotonic(), -1, 0
    while quiet < QUIET_SECONDS:
        live, started = serve_sides.boxes(url)
        quiet = quiet + 1 if live >= 2 * SPARES and started == before else 0
        before = started
        if time.monotonic() > since + FILL_SECONDS:
            bench.note(f"Not all spare boxes are there after {FILL_SECONDS} s: {live} boxes.")
            return
        await asyncio.sleep(1)


async def run(args: argparse.Namespace) -> int:
    """Starts the servers, measures them, prints the table, and writes the numbers. Returns the exit code."""
    bench, found = Bench(args.quick), {"begun": machine()}
    seconds, turns = (1.0, 1) if args.quick else (args.seconds, args.turns)
    with ExitStack() as stack:
        sides = {serve_sides.OURS: stack.enter_context(serve_sides.ours(args.image))}
        if args.fresh:
            name = f"{serve_sides.OURS} --fresh-boxes"
            sides[name] = stack.enter_context(serve_sides.ours(args.image, "--fresh-boxes"))
        if args.original:
            sides[ORIGINAL] = stack.enter_context(serve_sides.original(args.original))
        else:
            bench.note(f"{ORIGINAL} is left out: name a checkout with `--original DIR`.")
        await fusion(bench, sides, seconds, turns)
        if not args.no_e2b:
            stack.close()  # the other servers' boxes cost time
            flags = ("--warm", str(SPARES), "--max-boxes", str(2 * SPARES + 10))
            pooled = stack.enter_context(serve_sides.ours(args.image, *flags))
            await e2b(bench, pooled, args.image, bench.rounds(30))
    report(bench)
    args.json.parent.mkdir(parents=True, exist_ok=True)
    found |= {"ended": machine(), "notes": bench.notes, "rows": [*map(asdict, bench.rows)]}
    args.json.write_text(json.dumps(found, indent=1))
    held = [row.held for row in bench.rows if row.held is not None]
    print(f"{held.count(True)} of {len(held)} bars held")
    return 0 if all(held) else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--original", type=Path, help="a checkout of SandboxFusion")
    parser.add_argument("--image", default="air-base", help="image of our boxes (air-base)")
    parser.add_argument("--seconds", type=float, default=4, help="length of one turn (4)")
    parser.add_argument("--turns", type=int, default=4, help="turns of each side that count (4)")
    parser.add_argument("--fresh", action="store_true", help="also with a new box each request")
    parser.add_argument("--no-e2b", action="store_true", help="leave the E2B protocol out")
    parser.add_argument("--quick", action="store_true", help="one turn of one second each")
    parser.add_argument("--json", type=Path, default=Path("outputs/bench-serve.json"))
    return asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
