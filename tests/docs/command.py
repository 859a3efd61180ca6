"""`air`, `rl` or `sft` for shell scripts: asks the fork server to run it, with this process's streams.

    python tests/docs/command.py SOCKET air tasks

Standard library only: it starts in milliseconds.
"""

import json
import os
import socket
import sys


def main(address: str, argv: list[str]) -> int:
    """Runs one command to its end; gives its exit code."""
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(address)
        here = os.path.realpath(os.curdir)  # pathlib takes longer to import than all else
        request = json.dumps({"argv": argv, "cwd": here, "env": dict(os.environ)}).encode()
        socket.send_fds(link, [len(request).to_bytes(8, "big")], [1, 2, 0])
        link.sendall(request)
        answer = b""
        while len(answer) < 16:
            piece = link.recv(16 - len(answer))
            if not piece:
                return 1
            answer += piece
    return int.from_bytes(answer[8:], "big", signed=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
