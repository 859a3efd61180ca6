"""The folders `environment/` of the small Harbor tasks. Equal ones share one image."""

from __future__ import annotations

from collections.abc import Mapping

APP = {
    "access.log": "".join(
        f"10.0.0.{host} GET {path} {code}\n"
        for host, path, code in (
            (1, "/", 200),
            (2, "/shop", 500),
            (1, "/cart", 200),
            (3, "/", 404),
            (2, "/pay", 500),
            (4, "/help", 200),
            (1, "/shop", 500),
        )
    ),
    "sales.csv": "region,amount\nnorth,10\nsouth,5\nnorth,7\neast,20\nsouth,1\n",
    "words.txt": "pear\napple\nfig\napple\nplum\nfig\n",
    "settings.ini": "[server]\nhost=localhost\nport=8080\n\n[log]\nlevel=info\n",
    "people.json": '[{"name": "Ada", "age": 36}, {"name": "Alan", "age": 41}, {"name": "Grace", "age": 85}]\n',
    "notes/alpha.txt": "first note\n",
    "notes/beta.txt": "the second note is longer\n",
    "notes/gamma.txt": "third\n",
    "message.b64": "TWVldCBtZSBhdCBub29uLgo=\n",
    "calc.py": "def mean(numbers):\n    return sum(numbers) / (len(numbers) + 1)\n",
    "sum.c": (
        "#include <stdio.h>\n#include <stdlib.h>\n\nint main(int argc, char **argv) {\n"
        "    int total = 0;\n    for (int i = 1; i < argc - 1; i++) total += atoi(argv[i]);\n"
        '    printf("%d\\n", total);\n    return 0;\n}\n'
    ),
}
"""The files of `/app` in the images below."""


def image(*lines: str, base: str = "air-base", app: Mapping[str, str] = APP) -> dict[str, str]:
    """Returns the files of an `environment/` whose Dockerfile puts `app` into `/app` and adds `lines`."""
    steps = [
        f"FROM {base}",
        *lines,
        "COPY app/ /app/",
        "RUN chown -R agent:agent /app",
        "WORKDIR /app",
    ]
    return {
        "Dockerfile": "\n".join(steps) + "\n",
        **{f"app/{name}": text for name, text in app.items()},
    }


DATA = image()
"""What most tasks use: Debian with bash, awk, sed, perl, and Python with numpy."""
TOOLS = image(
    "RUN apt-get update -q && apt-get install -qy --no-install-recommends "
    "gcc libc6-dev make sqlite3 gawk jq bc lua5.4 && rm -rf /var/lib/apt/lists/*"
)
"""The same, with a C compiler, make, SQLite, GNU awk, jq, bc and Lua from Debian's packages."""
