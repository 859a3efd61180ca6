"""Tasks that use what Harbor's format offers beyond one script in one image; each is sound."""

from __future__ import annotations

from tests.harbor.folders import BEGIN, END, TOML, UNTRUSTED, Folder, checking, step
from tests.harbor.images import APP, image

_GREETING = "Write the word `hello` to `/app/greeting.txt`."
_GREET = "echo hello > greeting.txt"
_GREETED = '[ "$(cat /app/greeting.txt)" = hello ]'

SETTINGS = (
    Folder(
        "canary-comment",
        f"<!-- small-tasks canary GUID 0b0cd3a2 -->\n# canary: keep out of training data\n\n{_GREETING}",
        _GREET,
        _GREETED,
    ),
    Folder(
        "older-spellings",
        _GREETING,
        _GREET,
        _GREETED,
        version='version = "1.0"',
        settings="""
[metadata]
difficulty = "easy"

[agent]
timeout_sec = 120.0

[verifier]
environment_mode = "separate"
timeout_sec = 60.0

[environment]
memory = "512M"
storage = "1G"
allow_internet = false
""",
    ),
    Folder(
        "existing-image",
        "Write the word `hello` to `/tmp/work/greeting.txt`.",
        "echo hello > greeting.txt",
        '[ "$(cat /tmp/work/greeting.txt)" = hello ]',
        artifacts='["/tmp/work/greeting.txt"]',
        image={},
        settings=TOML.replace(
            "[environment]", '[environment]\ndocker_image = "air-base"\nworkdir = "/tmp/work"'
        ).replace('user = "agent"\n', ""),
    ),
    Folder(
        "other-workdir",
        "Write the name of the folder in which your commands start to `where.txt` there.",
        "pwd > where.txt",
        '[ "$(cat /srv/desk/where.txt)" = /srv/desk ]',
        image=image("RUN install -d -o agent -g agent /srv/desk"),
        settings=TOML.replace("[environment]", '[environment]\nworkdir = "/srv/desk"'),
    ),
    Folder(
        "variables",
        "Write the value of the variable `TEAM` to `/app/team.txt`.",
        'echo "$TEAM$MARK" > team.txt',
        '[ "$(cat /app/team.txt)" = "$EXPECTED!" ] || [ "$(cat /app/team.txt)" = "$EXPECTED" ]',
        settings=TOML.replace('user = "agent"\n', 'user = "agent"\n\n[solution.env]\nMARK = "!"\n')
        .replace("timeout_sec = 60", 'timeout_sec = 60\nenv = { EXPECTED = "blue" }')
        .replace("[environment]", '[environment]\nenv = { TEAM = "${SMALL_TASKS_TEAM:-blue}" }'),
    ),
    Folder(
        "users",
        "Write the name of the user that you are to `/app/me.txt`.",
        "whoami > me.txt",
        '[ "$(cat /app/me.txt)" = agent ]\n[ "$(id -un)" = root ]',
        settings=TOML.replace("timeout_sec = 60", 'timeout_sec = 60\nuser = "root"'),
    ),
    Folder(
        "root-agent",
        "Write the word `ready` to `/etc/motd`, and a copy of that file to `/app/motd`.",
        "echo ready > /etc/motd; cp /etc/motd /app/motd",
        '[ "$(cat /etc/motd)" = ready ]\n[ "$(cat /app/motd)" = ready ]',
        artifacts='["/etc/motd", "/app/motd"]',
        settings=TOML.replace('user = "agent"\n', ""),
    ),
    Folder(
        "allowlist",
        _GREETING,
        _GREET,
        _GREETED,
        settings=TOML.replace(
            'network_mode = "no-network"',
            'network_mode = "allowlist"\nallowed_hosts = ["deb.debian.org"]',
        ),
    ),
    Folder(
        "healthcheck",
        "Copy the text of `/tmp/service/state` to `/app/state.txt`.",
        "cp /tmp/service/state state.txt",
        '[ "$(cat /app/state.txt)" = up ]',
        settings=TOML
        + """
[environment.healthcheck]
command = "mkdir -p /tmp/service && echo up > /tmp/service/state && chmod -R a+rX /tmp/service"
interval_sec = 0.2
timeout_sec = 10
retries = 5
""",
    ),
    Folder(
        "skills",
        "The skill in `/skills` says what to write to `/app/word.txt`.",
        "echo quince > word.txt",
        '[ "$(cat /app/word.txt)" = quince ]',
        image={
            **image("COPY skills/ /skills/"),
            "skills/word/SKILL.md": "---\nname: word\ndescription: the word to write\n---\nWrite `quince`.\n",
        },
        settings=TOML.replace("[environment]", '[environment]\nskills_dir = "/skills"'),
    ),
    Folder(
        "nothing-earns-some",
        "Write `done` to `/app/state.txt`. A third of the reward is for leaving `/app/words.txt` alone.",
        "echo done > state.txt",
        test=BEGIN
        + """[ "$(sha256sum < /app/words.txt)" = "$(sha256sum < /tests/words.txt)" ]
echo 0.3 > /logs/verifier/reward.txt
[ "$(cat /app/state.txt)" = done ]
"""
        + END,
        files={"tests/words.txt": APP["words.txt"]},
        settings=TOML + "\n[metadata.air]\nnothing = 0.3\n",
    ),
)
REWARDS = (
    Folder(
        "several-keys",
        "Write `/app/poem.txt` with exactly three lines that all end in a full stop.",
        "printf 'Rain.\\nSun.\\nRain again.\\n' > poem.txt",
        test="""#!/bin/bash
lines=$(grep -c '' /app/poem.txt) || lines=0
stops=$(grep -c '\\.$' /app/poem.txt) || stops=0
reward=0
if [ "$lines" = 3 ] && [ "$stops" = 3 ]; then reward=1; fi
printf '{"reward": %s, "lines": %d, "stops": %d}' "$reward" "$lines" "$stops" > /logs/verifier/reward.json
""",
    ),
    Folder(
        "boolean-reward",
        _GREETING,
        _GREET,
        test="""#!/bin/bash
reward=false
[ "$(cat /app/greeting.txt)" = hello ] && reward=true
echo "{\\"reward\\": $reward}" > /logs/verifier/reward.json
""",
    ),
    Folder(
        "parts",
        "Write 1 to `/app/a.txt`, 22 to `/app/b.txt`, 333 to `/app/c.txt` and 4444 to `/app/d.txt`.",
        "echo 1 > a.txt; echo 22 > b.txt; echo 333 > c.txt; echo 4444 > d.txt",
        test="""#!/bin/bash
right=0
for pair in a:1 b:22 c:333 d:4444; do
  [ "$(cat "/app/${pair%:*}.txt")" = "${pair#*:}" ] && right=$((right + 1))
done
# The first is too easy to earn something by itself.
[ "$right" -ge 2 ] || right=0
python3 -c "print($right / 4)" > /logs/verifier/reward.txt
""",
    ),
    Folder(
        "json-before-text",
        _GREETING,
        _GREET,
        test="""#!/bin/bash
echo 0 > /logs/verifier/reward.txt
if [ "$(cat /app/greeting.txt)" = hello ]; then echo '{"reward": 1}'; else echo '{"reward": 0}'; fi \\
  > /logs/verifier/reward.json
""",
    ),
    Folder(
        "best-below-one",
        "Write a number to `/app/guess.txt`. The nearer to 70 (from below), the better.",
        "echo 63 > guess.txt",
        test="""#!/bin/bash
guess=$(head -c 20 /app/guess.txt | tr -cd 0-9)
python3 -c "g = int('${guess:-0}'); print(g / 70 if 10 <= g <= 70 else 0)" > /logs/verifier/reward.txt
""",
        settings=TOML + "\n[metadata.air]\noracle = 0.9\n",
    ),
)
_OWN_IMAGE = """
[verifier.environment]
network_mode = "no-network"
cpus = 1
memory_mb = 512
"""
SEPARATE = (
    Folder(
        "exclude-and-destination",
        "Make `/app/out` with the files `keep.txt` (text `keep`) and `scratch.tmp` (any text).",
        "mkdir -p out; echo keep > out/keep.txt; echo x > out/scratch.tmp",
        '[ "$(cat /app/out/keep.txt)" = keep ]\n[ ! -e /app/out/scratch.tmp ]',
        artifacts='[{ source = "/app/out", destination = "result/out", exclude = ["*.tmp"] }]',
    ),
    Folder(
        "collect-command",
        "Write a list of numbers, one a line, to `/app/numbers.txt`, whose sum is 100.",
        "printf '60\\n40\\n' > numbers.txt",
        """
        python3 - <<'END'
        numbers = [int(line) for line in open("/tmp/collected/numbers.txt")]
        assert numbers and sum(numbers) == 100
        END
        """,
        artifacts='["/tmp/collected/numbers.txt"]',
        settings=TOML
        + """
[[verifier.collect]]
command = "mkdir -p /tmp/collected && cp /app/numbers.txt /tmp/collected/"
timeout_sec = 20
""",
    ),
    Folder(
        "verifier-image-of-its-own",
        "Write the word `hello` to `/app/greeting.txt`.",
        _GREET,
        _GREETED,
        artifacts='["/app/greeting.txt"]',
        files={
            "tests/Dockerfile": "FROM air-base\nCOPY test.sh /tests/test.sh\nRUN chmod 755 /tests/test.sh && mkdir /app\n"
        },
        settings=TOML + _OWN_IMAGE,
    ),
    Folder(
        "verifier-environment",
        "Write the word `hello` to `/app/greeting.txt`.",
        _GREET,
        f'{_GREETED}\n[ "$CHECKER" = yes ]',
        artifacts='["/app/greeting.txt"]',
        settings=TOML + _OWN_IMAGE + 'env = { CHECKER = "yes" }\n',
    ),
    Folder(
        "whole-workdir",
        "Write `one` to `/app/deep/er/one.txt`, remove `/app/words.txt`, and add the line `end` to `/app/settings.ini`.",
        "mkdir -p deep/er; echo one > deep/er/one.txt; rm words.txt; echo end >> settings.ini",
        """
        [ "$(cat /app/deep/er/one.txt)" = one ]
        [ ! -e /app/words.txt ]
        [ "$(tail -1 /app/settings.ini)" = end ]
        [ "$(head -1 /app/settings.ini)" = '[server]' ]
        """,
    ),
    Folder(
        "agents-program-runs-apart",
        "Write `/app/answer.py`, which prints the square of its argument.",
        "echo 'import sys; print(int(sys.argv[1]) ** 2)' > answer.py",
        test=BEGIN
        + UNTRUSTED
        + """for n in 3 12; do
  [ "$(untrusted python3 /app/answer.py $n)" = $((n * n)) ]
done
"""
        + END,
    ),
    Folder(
        "shared-verifier",
        _GREETING,
        _GREET,
        _GREETED,
        settings=TOML.replace('environment_mode = "separate"\n', ""),
    ),
)
_STEPS = TOML + '\n[[steps]]\nname = "first"\n\n[[steps]]\nname = "second"\n'
STEPS = (
    Folder(
        "steps-mean",
        "",
        "",
        settings=_STEPS,
        files={
            **step(
                "first",
                "Write `one` to `/app/one.txt`.",
                "echo one > one.txt",
                '[ "$(cat /app/one.txt)" = one ]',
            ),
            **step(
                "second",
                "Write the text of `/app/one.txt` in capital letters to `/app/two.txt`.",
                "tr a-z A-Z < one.txt > two.txt",
                '[ "$(cat /app/two.txt)" = ONE ]',
            ),
        },
    ),
    Folder(
        "steps-final",
        "",
        "",
        version='schema_version = "1.4"\nmulti_step_reward_strategy = "final"',
        settings=_STEPS,
        files={
            **step(
                "first",
                "Write `one` to `/app/one.txt`.",
                "echo one > one.txt",
                '[ "$(cat /app/one.txt)" = one ]',
            ),
            **step(
                "second",
                "Append the line `two` to `/app/one.txt`.",
                "echo two >> one.txt",
                '[ "$(cat /app/one.txt)" = "$(printf \'one\\ntwo\')" ]',
            ),
        },
    ),
    Folder(
        "steps-least-reward",
        "",
        "",
        settings=TOML
        + '\n[[steps]]\nname = "first"\nmin_reward = 0.5\n\n[[steps]]\nname = "second"\nmin_reward = { reward = 1.0 }\n',
        files={
            **step(
                "first",
                "Write `17` to `/app/n.txt`.",
                "echo 17 > n.txt",
                '[ "$(cat /app/n.txt)" = 17 ]',
            ),
            **step(
                "second",
                "Write `2` to `/app/n.txt`.",
                "echo 2 > n.txt",
                '[ "$(cat /app/n.txt)" = 2 ]',
            ),
        },
    ),
    Folder(
        "steps-with-files",
        "",
        "",
        settings=_STEPS,
        files={
            **step(
                "first",
                "Write the number of lines of `/app/input.txt` to `/app/count.txt`.",
                "wc -l < input.txt > count.txt",
                '[ "$(cat /app/count.txt)" = 3 ]',
            ),
            **step(
                "second",
                "The input has changed. Write the number of its lines to `/app/count.txt` again.",
                "wc -l < input.txt > count.txt",
                '[ "$(cat /app/count.txt)" = 5 ]',
            ),
            "steps/first/workdir/input.txt": "a\nb\nc\n",
            "steps/second/workdir/input.txt": "a\nb\nc\nd\ne\n",
        },
    ),
    Folder(
        "steps-shared-tests",
        "",
        "",
        settings=TOML
        + '\n[[steps]]\nname = "first"\nartifacts = ["/app/n.txt"]\n\n[[steps]]\nname = "second"\nartifacts = ["/app/n.txt"]\n',
        files={
            "tests/test.sh": checking('[ "$(cat /app/n.txt)" = "$(cat /tests/expected.txt)" ]'),
            "steps/first/instruction.md": "Write `10` to `/app/n.txt`.\n",
            "steps/first/solution/solve.sh": "#!/bin/bash\necho 10 > n.txt\n",
            "steps/first/tests/expected.txt": "10\n",
            "steps/second/instruction.md": "Double the number in `/app/n.txt`.\n",
            "steps/second/solution/solve.sh": "#!/bin/bash\necho $((2 * $(cat n.txt))) > n.txt\n",
            "steps/second/tests/expected.txt": "20\n",
        },
    ),
)
FEATURES = (*SETTINGS, *REWARDS, *SEPARATE, *STEPS)
