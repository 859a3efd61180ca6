"""Tasks of one step in several languages; each is sound: only the work earns its reward."""

from __future__ import annotations

from tests.harbor.folders import TOML, Folder
from tests.harbor.images import TOOLS

TOOLS_TOML = TOML.replace("memory_mb = 512", "memory_mb = 512\nbuild_timeout_sec = 300")

SHELL = (
    Folder(
        "shell-errors",
        "Write the lines of `/app/access.log` that end in the code 500 to `/app/errors.txt`.",
        "grep ' 500$' access.log > errors.txt",
        """
        diff /app/errors.txt - <<< '10.0.0.2 GET /shop 500
        10.0.0.2 GET /pay 500
        10.0.0.1 GET /shop 500'
        """,
        artifacts='["/app/errors.txt"]',
    ),
    Folder(
        "shell-sorted-words",
        "Write each word of `/app/words.txt` once, sorted, to `/app/sorted.txt`.",
        "sort -u words.txt > sorted.txt",
        "cmp /app/sorted.txt /tests/expected.txt",
        artifacts='["/app/sorted.txt"]',
        files={"tests/expected.txt": "apple\nfig\npear\nplum\n"},
    ),
    Folder(
        "shell-rename",
        "Rename every file `*.txt` in `/app/notes` to `*.md`; their text stays as it is.",
        'cd notes; for file in *.txt; do mv "$file" "${file%.txt}.md"; done',
        """
        [ "$(ls /app/notes)" = "$(printf 'alpha.md\\nbeta.md\\ngamma.md')" ]
        [ "$(cat /app/notes/alpha.md)" = "first note" ]
        [ "$(cat /app/notes/beta.md)" = "the second note is longer" ]
        [ "$(cat /app/notes/gamma.md)" = "third" ]
        """,
        artifacts='["/app/notes"]',
    ),
    Folder(
        "shell-longest",
        "Write the name of the longest file in `/app/notes` to `/app/longest.txt`, without its folder.",
        "ls -S notes | head -1 > longest.txt",
        '[ "$(cat /app/longest.txt)" = beta.txt ]',
    ),
    Folder(
        "shell-archive",
        "Pack the three files of `/app/notes` into `/app/notes.tar.gz`, as `alpha.txt` and so on.",
        "tar -czf notes.tar.gz -C notes alpha.txt beta.txt gamma.txt",
        """
        mkdir /tmp/out
        tar -xzf /app/notes.tar.gz -C /tmp/out --no-same-owner alpha.txt beta.txt gamma.txt
        [ "$(cat /tmp/out/alpha.txt)" = "first note" ]
        [ "$(cat /tmp/out/beta.txt)" = "the second note is longer" ]
        [ "$(cat /tmp/out/gamma.txt)" = "third" ]
        """,
        artifacts='["/app/notes.tar.gz"]',
    ),
    Folder(
        "shell-checksum",
        "Write the SHA-256 of `/app/words.txt` to `/app/words.sha256`, as `sha256sum` prints it there.",
        "sha256sum words.txt > words.sha256",
        """
        [ "$(cut -d' ' -f1 /app/words.sha256)" = \\
          121d60e6ff8d57f6491b361366bb7674371e3403826d4cd9219d6f2683c357c8 ]
        """,
    ),
    Folder(
        "shell-decode",
        "Decode `/app/message.b64` (base64) into `/app/message.txt`.",
        "base64 -d message.b64 > message.txt",
        '[ "$(cat /app/message.txt)" = "Meet me at noon." ]',
        artifacts='["/app/message.txt"]',
    ),
    Folder(
        "shell-tree",
        "Make the folders `/app/site/css` and `/app/site/js`, and the file `/app/site/index.html` with the "
        "line `<h1>hello</h1>`.",
        "mkdir -p site/css site/js; echo '<h1>hello</h1>' > site/index.html; touch site/css/.keep site/js/.keep",
        """
        [ -d /app/site/css ]
        [ -d /app/site/js ]
        [ "$(cat /app/site/index.html)" = '<h1>hello</h1>' ]
        """,
        artifacts='["/app/site"]',
    ),
    Folder(
        "shell-script",
        "Write a script `/app/shout.sh` for bash that prints its first argument in capital letters.",
        "printf '#!/bin/bash\\necho \"${1^^}\"\\n' > shout.sh",
        """
        [ "$(untrusted bash /app/shout.sh 'hello there')" = "HELLO THERE" ]
        [ "$(untrusted bash /app/shout.sh Xyz7)" = "XYZ7" ]
        """,
        runs=True,
    ),
)
TEXT = (
    Folder(
        "sed-port",
        "Change the port in `/app/settings.ini` to 9090. Leave everything else as it is.",
        "sed -i 's/^port=.*/port=9090/' settings.ini",
        """
        diff /app/settings.ini - <<< '[server]
        host=localhost
        port=9090

        [log]
        level=info'
        """,
        artifacts='["/app/settings.ini"]',
    ),
    Folder(
        "sed-comments",
        "Add the line `# checked` after each line of `/app/settings.ini` that begins with `[`.",
        "sed -i '/^\\[/a # checked' settings.ini",
        """
        diff /app/settings.ini - <<< '[server]
        # checked
        host=localhost
        port=8080

        [log]
        # checked
        level=info'
        """,
    ),
    Folder(
        "awk-totals",
        "Sum the amounts of each region of `/app/sales.csv`. Write lines such as `east 20`, sorted by region, "
        "to `/app/totals.txt`.",
        "awk -F, 'NR > 1 {t[$1] += $2} END {for (r in t) print r, t[r]}' sales.csv | sort > totals.txt",
        "diff /app/totals.txt - <<< 'east 20\nnorth 17\nsouth 6'",
        artifacts='["/app/totals.txt"]',
    ),
    Folder(
        "awk-columns",
        "Write the second column of `/app/sales.csv` without its heading to `/app/amounts.txt`.",
        "awk -F, 'NR > 1 {print $2}' sales.csv > amounts.txt",
        '[ "$(paste -sd" " /app/amounts.txt)" = "10 5 7 20 1" ]',
    ),
    Folder(
        "gawk-program",
        "Write `/app/longest.awk`, a program for gawk that prints the longest line of its input.",
        "echo 'length($0) > n { n = length($0); line = $0 } END { print line }' > longest.awk",
        """
        [ "$(printf 'a\\nlonger line\\nb c\\n' > /tmp/in; untrusted gawk -f /app/longest.awk /tmp/in)" = "longer line" ]
        [ "$(printf 'xxxx\\nyy\\n' > /tmp/in; untrusted gawk -f /app/longest.awk /tmp/in)" = "xxxx" ]
        """,
        runs=True,
        image=TOOLS,
        settings=TOOLS_TOML,
    ),
    Folder(
        "perl-reverse",
        "Write `/app/reverse.pl`, a Perl program that prints each line of its standard input reversed.",
        "echo 'while (<STDIN>) { chomp; print scalar reverse($_), \"\\n\"; }' > reverse.pl",
        """
        [ "$(printf 'abc\\nhello\\n' | timeout 20 setpriv --reuid=65534 --regid=65534 --clear-groups \\
          perl /app/reverse.pl)" = "$(printf 'cba\\nolleh')" ]
        """,
        runs=True,
        artifacts='["/app/reverse.pl"]',
    ),
    Folder(
        "perl-fix",
        "Write to `/app/hosts.txt` how often each address is in `/app/access.log`, as `10.0.0.1 3`, by address.",
        "perl -ane '$n{$F[0]}++; END { print \"$_ $n{$_}\\n\" for sort keys %n }' access.log > hosts.txt",
        '[ "$(cat /app/hosts.txt)" = "$(printf \'10.0.0.1 3\\n10.0.0.2 2\\n10.0.0.3 1\\n10.0.0.4 1\')" ]',
    ),
    Folder(
        "jq-names",
        "Write the names in `/app/people.json` of all who are older than 40 to `/app/old.txt`, one a line.",
        "jq -r '.[] | select(.age > 40) | .name' people.json > old.txt",
        '[ "$(cat /app/old.txt)" = "$(printf \'Alan\\nGrace\')" ]',
        image=TOOLS,
        settings=TOOLS_TOML,
        artifacts='["/app/old.txt"]',
    ),
    Folder(
        "bc-power",
        "Write 2 to the power of 100 to `/app/power.txt`.",
        "echo '2^100' | bc > power.txt",
        '[ "$(cat /app/power.txt)" = 1267650600228229401496703205376 ]',
        image=TOOLS,
        settings=TOOLS_TOML,
    ),
)
PROGRAMS = (
    Folder(
        "python-fizz",
        "Write `/app/fizz.py`: `python3 fizz.py N` prints the numbers from 1 to N, one a line; multiples of 3 as "
        "`fizz`, of 5 as `buzz`, of both as `fizzbuzz`.",
        """
        cat > fizz.py <<'END'
        import sys
        for n in range(1, int(sys.argv[1]) + 1):
            print("fizz" * (n % 3 == 0) + "buzz" * (n % 5 == 0) or n)
        END
        """,
        """
        [ "$(untrusted python3 /app/fizz.py 5 | paste -sd' ')" = "1 2 fizz 4 buzz" ]
        [ "$(untrusted python3 /app/fizz.py 15 | tail -1)" = fizzbuzz ]
        """,
        runs=True,
        artifacts='["/app/fizz.py"]',
    ),
    Folder(
        "python-fix-mean",
        "The function `mean` in `/app/calc.py` is wrong. Correct it.",
        "sed -i 's/(len(numbers) + 1)/len(numbers)/' calc.py",
        """
        cd /app
        [ "$(untrusted python3 -c 'from calc import mean; print(mean([1, 2, 6]))')" = 3.0 ]
        [ "$(untrusted python3 -c 'from calc import mean; print(mean([5]))')" = 5.0 ]
        """,
        runs=True,
    ),
    Folder(
        "python-json",
        "Write `/app/ages.json`: an object that maps each name of `/app/people.json` to its age.",
        """
        python3 - <<'END'
        import json
        people = json.load(open("people.json"))
        json.dump({one["name"]: one["age"] for one in people}, open("ages.json", "w"))
        END
        """,
        "python3 /tests/check.py",
        artifacts='["/app/ages.json"]',
        files={
            "tests/check.py": 'import json\n\nwith open("/app/ages.json") as file:\n'
            '    assert json.load(file) == {"Ada": 36, "Alan": 41, "Grace": 85}\n'
        },
    ),
    Folder(
        "python-numpy",
        "Write mean and standard deviation of the amounts in `/app/sales.csv` to `/app/stats.json`, with the keys "
        "`mean` and `std`.",
        """
        python3 - <<'END'
        import json
        import numpy as np
        amounts = np.loadtxt("sales.csv", delimiter=",", skiprows=1, usecols=1)
        json.dump({"mean": amounts.mean(), "std": amounts.std()}, open("stats.json", "w"))
        END
        """,
        "python3 /tests/check.py",
        files={
            "tests/check.py": 'import json\n\nwith open("/app/stats.json") as file:\n'
            "    stats = json.load(file)\n"
            'assert abs(stats["mean"] - 8.6) < 0.01 and abs(stats["std"] - 6.406) < 0.01\n'
        },
    ),
    Folder(
        "python-primes",
        "Write all primes below 60 to `/app/primes.txt`, one a line.",
        "python3 -c 'print(*(n for n in range(2, 60) if all(n % d for d in range(2, n))), sep=\"\\n\")' > primes.txt",
        '[ "$(paste -sd" " /app/primes.txt)" = "2 3 5 7 11 13 17 19 23 29 31 37 41 43 47 53 59" ]',
    ),
    Folder(
        "python-sqlite",
        "Put `/app/sales.csv` into a table `sales(region, amount)` of the SQLite database `/app/sales.db`.",
        """
        python3 - <<'END'
        import csv, sqlite3
        base = sqlite3.connect("sales.db")
        base.execute("create table sales(region text, amount integer)")
        rows = list(csv.reader(open("sales.csv")))[1:]
        base.executemany("insert into sales values (?, ?)", rows)
        base.commit()
        END
        """,
        "python3 /tests/check.py",
        artifacts='["/app/sales.db"]',
        files={
            "tests/check.py": "import sqlite3\n\n"
            'base = sqlite3.connect("file:/app/sales.db?mode=ro", uri=True)\n'
            'rows = base.execute("select region, amount from sales order by region, amount").fetchall()\n'
            'assert rows == [("east", 20), ("north", 7), ("north", 10), ("south", 1), ("south", 5)]\n'
        },
    ),
    Folder(
        "sql-query",
        "Write one SQL statement to `/app/query.sql` that gives the regions of a table `sales(region, amount)` with "
        "their total amounts, the greatest total first.",
        "echo 'select region, sum(amount) from sales group by region order by 2 desc;' > query.sql",
        """
        sqlite3 /tmp/sales.db "create table sales(region, amount);
          insert into sales values ('a', 1), ('b', 5), ('a', 9), ('c', 7);"
        chmod 644 /tmp/sales.db
        [ "$(untrusted sqlite3 -safe -readonly /tmp/sales.db "$(cat /app/query.sql)" | paste -sd' ')" = "a|10 c|7 b|5" ]
        """,
        runs=True,
        image=TOOLS,
        settings=TOOLS_TOML,
    ),
    Folder(
        "c-gcd",
        "Write `/app/gcd.c`, a C program that prints the greatest common divisor of its two arguments.",
        """
        cat > gcd.c <<'END'
        #include <stdio.h>
        #include <stdlib.h>

        int main(int argc, char **argv) {
            int a = atoi(argv[1]), b = atoi(argv[2]);
            while (b) { int rest = a % b; a = b; b = rest; }
            printf("%d\\n", a);
            return 0;
        }
        END
        """,
        """
        chmod 1777 /tmp
        untrusted gcc -o /tmp/gcd /app/gcd.c
        [ "$(untrusted /tmp/gcd 12 18)" = 6 ]
        [ "$(untrusted /tmp/gcd 35 64)" = 1 ]
        """,
        runs=True,
        image=TOOLS,
        settings=TOOLS_TOML,
        artifacts='["/app/gcd.c"]',
    ),
    Folder(
        "c-fix-sum",
        "The program `/app/sum.c` shall print the sum of its arguments, but leaves out the last one. Correct it.",
        "sed -i 's/argc - 1/argc/' sum.c",
        """
        chmod 1777 /tmp
        untrusted gcc -o /tmp/sum /app/sum.c
        [ "$(untrusted /tmp/sum 4)" = 4 ]
        [ "$(untrusted /tmp/sum 10 20 5)" = 35 ]
        """,
        runs=True,
        image=TOOLS,
        settings=TOOLS_TOML,
    ),
    Folder(
        "make-target",
        "Write `/app/Makefile` so that `make all` concatenates `a.txt` and `b.txt` of its folder into `c.txt`.",
        "printf 'all: c.txt\\n\\nc.txt: a.txt b.txt\\n\\tcat a.txt b.txt > c.txt\\n' > Makefile",
        """
        mkdir -m 777 /tmp/work
        cp /app/Makefile /tmp/work
        echo one > /tmp/work/a.txt
        echo two > /tmp/work/b.txt
        untrusted make -C /tmp/work all
        [ "$(cat /tmp/work/c.txt)" = "$(printf 'one\\ntwo')" ]
        """,
        runs=True,
        image=TOOLS,
        settings=TOOLS_TOML,
        artifacts='["/app/Makefile"]',
    ),
    Folder(
        "lua-fibonacci",
        "Write `/app/fib.lua`: `lua5.4 fib.lua N` prints the N-th Fibonacci number; the first two are 1.",
        """
        cat > fib.lua <<'END'
        local a, b = 0, 1
        for _ = 1, tonumber(arg[1]) do a, b = b, a + b end
        print(a)
        END
        """,
        """
        [ "$(untrusted lua5.4 /app/fib.lua 1)" = 1 ]
        [ "$(untrusted lua5.4 /app/fib.lua 10)" = 55 ]
        [ "$(untrusted lua5.4 /app/fib.lua 40)" = 102334155 ]
        """,
        runs=True,
        image=TOOLS,
        settings=TOOLS_TOML,
    ),
)
LANGUAGES = (*SHELL, *TEXT, *PROGRAMS)
