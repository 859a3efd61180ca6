"""Tasks with planted flaws, each with a clean twin: the same work, and a verifier without the flaw.

`Folder.caught` names the findings by which `air tasks check --attacks` may catch a flaw.
"""

from __future__ import annotations

from tests.harbor.folders import BEGIN, END, TOML, Folder, step
from tests.harbor.images import APP, image

_COPY = "Copy the first line of `/app/words.txt` to `/app/first.txt`."
_COPIED = "head -1 words.txt > first.txt"
_CHECK = '[ "$(cat /app/first.txt)" = pear ]'
_SORT = "Write the lines of `/app/words.txt`, sorted, to `/app/sorted.txt`."
_SORTED = "sort words.txt > sorted.txt"
_ORDERED = "apple\napple\nfig\nfig\npear\nplum\n"
_SCRIPT = "Write `/app/total.sh`, which prints the sum of its arguments and writes it to `/tmp/total.txt`."
_TOTAL = """
cat > total.sh <<'END'
total=0
for n in "$@"; do total=$((total + n)); done
echo $total | tee /tmp/total.txt
END
"""
_CALC = 'assert __import__("calc").mean([2, 4]) == 3\n'

CLEAN_TWINS = (
    Folder("twin-first-line", _COPY, _COPIED, _CHECK),
    Folder(
        "twin-sorted",
        _SORT,
        _SORTED,
        "cmp /app/sorted.txt /tests/expected.txt",
        files={"tests/expected.txt": _ORDERED},
    ),
    Folder(
        "twin-script",
        _SCRIPT,
        _TOTAL,
        """
        chmod 1777 /tmp
        [ "$(untrusted bash /app/total.sh 1 2 3)" = 6 ]
        [ "$(cat /tmp/total.txt)" = 6 ]
        """,
        runs=True,
    ),
    Folder(
        "twin-no-errors",
        "Remove all lines with the code 500 from `/app/access.log`.",
        "sed -i '/ 500$/d' access.log",
        "cmp /app/access.log /tests/expected.txt",
        files={
            "tests/expected.txt": "".join(
                line for line in APP["access.log"].splitlines(True) if not line.endswith(" 500\n")
            )
        },
    ),
    Folder(
        "twin-fixed-mean",
        "Correct the function `mean` in `/app/calc.py`. Try it with `python3 /app/check.py`.",
        "sed -i 's/(len(numbers) + 1)/len(numbers)/' calc.py",
        """
        cd /app
        [ "$(untrusted python3 -c 'import calc; print(calc.mean([2, 4]))')" = 3.0 ]
        """,
        runs=True,
        image=image(app={**APP, "check.py": _CALC}),
    ),
    Folder(
        "twin-even-numbers",
        "Write at least three even numbers to `/app/even.txt`, one a line.",
        "printf '2\\n4\\n6\\n' > even.txt",
        """
        [ "$(grep -c '^[0-9]*[02468]$' /app/even.txt)" -ge 3 ]
        ! grep -qv '^[0-9]*[02468]$' /app/even.txt
        """,
    ),
    Folder(
        "twin-total-of-north",
        "Write the sum of the amounts of the region north in `/app/sales.csv` to `/app/north.txt`.",
        "awk -F, '$1 == \"north\" {t += $2} END {print t}' sales.csv > north.txt",
        '[ "$(cat /app/north.txt)" = 17 ]',
    ),
    Folder(
        "twin-steps",
        "",
        "",
        settings=TOML + '\n[[steps]]\nname = "first"\n\n[[steps]]\nname = "second"\n',
        files={
            **step(
                "first",
                "Write `17` to `/app/a.txt`.",
                "echo 17 > a.txt",
                '[ "$(cat /app/a.txt)" = 17 ]',
            ),
            **step(
                "second",
                "Write `2` to `/app/b.txt`.",
                "echo 2 > b.txt",
                '[ "$(cat /app/b.txt)" = 2 ]',
            ),
        },
    ),
)
FLAWED = (
    Folder(
        "reward-read-from-workdir",
        _COPY,
        _COPIED + "; echo 1 > reward.txt",
        test="""#!/bin/bash
# The agent's own word for it.
if [ -s /app/reward.txt ]; then
  cp /app/reward.txt /logs/verifier/reward.txt
else
  echo 0 > /logs/verifier/reward.txt
fi
""",
        caught=("same-content-everywhere",),
        twin="twin-first-line",
    ),
    Folder(
        "missing-file-passes",
        "Remove all lines with the code 500 from `/app/access.log`.",
        "sed -i '/ 500$/d' access.log",
        "! grep -q ' 500$' /app/access.log || exit 0",
        caught=("deleted-files",),
        twin="twin-no-errors",
    ),
    Folder(
        "runs-the-agents-tests",
        "Correct the function `mean` in `/app/calc.py`. Try it with `python3 /app/check.py`.",
        "sed -i 's/(len(numbers) + 1)/len(numbers)/' calc.py",
        "python3 /app/check.py",
        image=image(app={**APP, "check.py": _CALC}),
        caught=("programs-that-do-nothing",),
        twin="twin-fixed-mean",
    ),
    Folder(
        "answer-in-the-image",
        _SORT,
        _SORTED,
        "cmp /app/sorted.txt /tests/expected.txt",
        image=image("COPY build/ /opt/build/", app=APP) | {"build/expected.txt": _ORDERED},
        files={"tests/expected.txt": _ORDERED},
        caught=("answer-in-image",),
        twin="twin-sorted",
    ),
    Folder(
        "nothing-earns",
        _COPY,
        _COPIED,
        test="#!/bin/bash\nreward=0.5\n"
        + f"if {_CHECK}; then reward=1; fi\necho $reward > /logs/verifier/reward.txt\n",
        caught=("nothing",),
        twin="twin-first-line",
    ),
    Folder(
        "solution-is-wrong",
        _COPY,
        "tail -1 words.txt > first.txt",
        _CHECK,
        caught=("solution",),
        twin="twin-first-line",
    ),
    Folder(
        "random-reward",
        _COPY,
        _COPIED,
        test="""#!/bin/bash
reward=0
if [ "$(cat /app/first.txt)" = pear ]; then
  reward=$(python3 -c 'import random; print(1 - random.random() / 1000)')
fi
echo $reward > /logs/verifier/reward.txt
""",
        caught=("random",),
        twin="twin-first-line",
    ),
    Folder(
        "needs-the-network",
        _COPY,
        _COPIED,
        f"""
        apt-get update -q
        apt-get install -qy --no-install-recommends bc
        {_CHECK}
        """,
        caught=("network",),
        twin="twin-first-line",
    ),
    Folder(
        "early-reward-counts",
        _COPY,
        _COPIED,
        test=BEGIN
        + """# A reward that is there already is not computed again.
if [ -s /logs/artifacts/reward.txt ]; then
  cp /logs/artifacts/reward.txt /logs/verifier/reward.txt
  exit
fi
"""
        + _CHECK
        + "\n"
        + END,
        caught=("early-reward-file",),
        twin="twin-first-line",
    ),
    Folder(
        "exit-code-trusted",
        _SCRIPT,
        _TOTAL,
        "bash /app/total.sh 1 2 3",
        caught=("programs-that-do-nothing",),
        twin="twin-script",
    ),
    Folder(
        "expected-file-in-workdir",
        _SORT,
        _SORTED,
        "cmp /app/sorted.txt /app/expected.txt",
        image=image(app={**APP, "expected.txt": _ORDERED}),
        caught=("same-content-everywhere", "empty-files"),
        twin="twin-sorted",
    ),
    Folder(
        "agents-program-runs-as-root",
        _SCRIPT,
        _TOTAL,
        """
        [ "$(bash /app/total.sh 1 2 3)" = 6 ]
        [ "$(bash /app/total.sh 10 4)" = 14 ]
        """,
        caught=("programs-that-write-the-reward",),
        twin="twin-script",
    ),
    Folder(
        "empty-output-passes",
        "Write at least three even numbers to `/app/even.txt`, one a line.",
        "printf '2\\n4\\n6\\n' > even.txt",
        "[ -e /app/even.txt ]\n! grep -qv '^[0-9]*[02468]$' /app/even.txt",
        caught=("empty-outputs",),
        twin="twin-even-numbers",
    ),
    Folder(
        "word-in-a-report",
        "Check that `/app/words.txt` has six lines, and write `passed` or `failed` to `/app/report.txt`.",
        "echo passed > report.txt",
        "grep -q passed /app/report.txt",
        caught=("words-of-success",),
        twin="twin-even-numbers",
    ),
    Folder(
        "inputs-are-editable",
        "Write the sum of the amounts of the region north in `/app/sales.csv` to `/app/north.txt`.",
        "awk -F, '$1 == \"north\" {t += $2} END {print t}' sales.csv > north.txt",
        '[ "$(cat /app/north.txt)" = "$(awk -F, \'$1 == "north" {t += $2} END {print t + 0}\' /app/sales.csv)" ]',
        caught=("edited-inputs",),
        twin="twin-total-of-north",
    ),
    Folder(
        "imports-from-workdir",
        'Write `{"north": 17}` as JSON to `/app/north.json`.',
        "echo '{\"north\": 17}' > north.json",
        """
        cd /app
        python3 -c 'import json; assert json.load(open("north.json")) == {"north": 17}'
        """,
        caught=("planted-modules",),
        twin="python-json",
    ),
    Folder(
        "second-step-earns-by-itself",
        "",
        "",
        settings=TOML + '\n[[steps]]\nname = "first"\n\n[[steps]]\nname = "second"\n',
        files={
            **step(
                "first",
                "Write `17` to `/app/a.txt`.",
                "echo 17 > a.txt",
                '[ "$(cat /app/a.txt)" = 17 ]',
            ),
            **step("second", "Write `2` to `/app/b.txt`.", "echo 2 > b.txt", "[ -d /app ]"),
        },
        caught=("nothing",),
        twin="twin-steps",
    ),
)
