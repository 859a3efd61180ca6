"""A program in each language that reads a number from its standard input and writes twice the number."""

from __future__ import annotations

DOUBLE = {
    "python": "print(2 * int(input()))",
    "bash": "read n; echo $((2 * n))",
    "c": '#include <stdio.h>\nint main() { int n; scanf("%d", &n); printf("%d\\n", 2 * n); return 0; }',
    "cpp": "#include <iostream>\nint main() { int n; std::cin >> n; std::cout << 2 * n << std::endl; }",
    "go": 'package main\nimport "fmt"\nfunc main() { var n int; fmt.Scan(&n); fmt.Println(2 * n) }',
    "java": (
        "import java.util.Scanner;\npublic class Main { public static void main(String[] a) {"
        " System.out.println(2 * new Scanner(System.in).nextInt()); } }"
    ),
    "nodejs": "console.log(2 * parseInt(require('fs').readFileSync(0, 'utf8')))",
    "typescript": (
        "import * as fs from 'fs'; const n: number = parseInt(fs.readFileSync(0, 'utf8'));\n"
        "console.log(2 * n)"
    ),
    "rust": (
        "fn main() { let mut s = String::new(); std::io::stdin().read_line(&mut s).unwrap();"
        ' println!("{}", 2 * s.trim().parse::<i32>().unwrap()); }'
    ),
    "lua": "print(math.tointeger(2 * io.read('n')))",
    "perl": 'my $n = <STDIN>; print 2 * $n, "\\n";',
    "php": 'echo 2 * intval(fgets(STDIN)), "\\n";',
    "ruby": "puts 2 * gets.to_i",
}
"""Languages whose programs read standard input."""
OTHERS = {
    "pytest": ("def test_sum():\n    assert 20 + 22 == 42\n", "1 passed"),
    "go_test": (
        'package main\nimport "testing"\nfunc TestSum(t *testing.T) { if 20+22 != 42 { t.Fail() } }',
        "ok",
    ),
    "sql": ("select 20 + 22;", "42"),
}
"""Languages whose programs read nothing: a program, and a text in its output."""
