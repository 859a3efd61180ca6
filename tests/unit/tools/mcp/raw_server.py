"""A program that speaks the protocol of MCP by hand, well or badly; it needs only the standard library.

The argument names what is wrong with it; `well` is a server that does as it should.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from typing import Any

FAULT = sys.argv[1]
ANSWERS = {"content": [{"type": "text", "text": "the answer"}]}


LOCK = threading.Lock()


def say(**message: Any) -> None:
    with LOCK:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()


def tools(calls: int) -> list[dict[str, Any]]:
    names = ["ask", "other"] if FAULT != "changing" or not calls else ["renamed"]
    return [
        {"name": name, "description": "Asks.", "inputSchema": {"type": "object"}} for name in names
    ]


def initialize(number: Any, message: dict[str, Any]) -> None:
    if FAULT == "mute":
        time.sleep(10_000)
    if FAULT == "version":
        message["params"]["protocolVersion"] = "1066-10-14"
    if FAULT == "refusing":
        say(id=number, error={"code": -32000, "message": "Not\ntoday. " * 500})
        return
    say(
        id=number,
        result={
            "protocolVersion": message["params"]["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "raw", "version": "1"},
        },
    )


def call(number: int, message: dict[str, Any], calls: int) -> None:
    if FAULT == "line":
        piece = "x" * 1_000_000
        for _ in range(100):
            sys.stdout.write(piece)
    elif FAULT == "hanging":
        time.sleep(10_000)
    elif FAULT == "noisy":
        for _ in range(2000):
            print("INFO: listening")
    elif FAULT == "talkative":
        print("INFO: asked\n\n{}\n[1, 2]\n\x00\xff")
        print("a warning", file=sys.stderr)
    elif FAULT == "flooding":
        while True:
            say(method="notifications/message", params={"level": "info", "data": "x" * 10_000})
    elif FAULT == "forging":
        forge(number)
    elif FAULT == "malformed":
        say(id=number, result={"content": "no list", "isError": 7})
        return
    elif FAULT == "deep":
        sys.stdout.write(f'{{"jsonrpc": "2.0", "id": {number}, "result": {"[" * 100_000}\n')
    elif FAULT == "surrogates":
        text = '{"type": "text", "text": "half \\ud800 a pair"}'
        sys.stdout.write(f'{{"jsonrpc":"2.0","id":{number},"result":{{"content":[{text}]}}}}\n')
        sys.stdout.flush()
        return
    elif FAULT == "closing":
        os.close(0)
        time.sleep(10_000)
    elif FAULT == "changing" and calls > 1:
        say(id=number, error={"code": -32602, "message": "Unknown tool: ask"})
        return
    say(id=number, result=ANSWERS)
    if FAULT == "changing":
        say(method="notifications/tools/list_changed")


def forge(number: int) -> None:
    """Sends answers to other questions, two to one, requests of its own, and what is not in the protocol."""
    for other in (number + 1, -1, 10**30, "x", None, str(number + 1), {"a": 1}):
        say(id=other, result={"content": [{"type": "text", "text": "forged"}]})
    say(id=7, method="sampling/createMessage", params={"messages": [], "maxTokens": 5})
    say(id=8, method="roots/list")
    say(id=9, method="air/shutdown")
    say(method="notifications/cancelled", params={"requestId": number + 5})
    say(method="notifications/progress", params={"progressToken": number, "progress": "much"})
    sys.stdout.write('{"jsonrpc": "1.0"}\n[]\nnull\n{"jsonrpc":"2.0","id":1,"id":2}\n')


def idle_flood() -> None:
    while True:
        say(method="notifications/message", params={"level": "info", "data": "x" * 10_000})


def main() -> None:
    calls = 0
    for line in sys.stdin:
        message = json.loads(line)
        method, number = message.get("method"), message.get("id")
        if method == "initialize":
            initialize(number, message)
        elif method == "tools/list":
            again = {"nextCursor": "again"} if FAULT == "endless" else {}
            say(id=number, result={"tools": tools(calls), **again})
        elif method == "tools/call":
            calls += 1
            call(number, message, calls)
            if FAULT == "idle":
                threading.Thread(target=idle_flood).start()


main()
