"""The programs that stand in for the guest in an image without Python: plain `sh`, nothing else.

They hold to POSIX and to what busybox has, so that any `sh` runs them. `INIT` is the first process
of the box, `WRAPPER` runs around every command, `HAND` finds and kills processes, and the others move
files. The box needs the programs in `NEEDED` beside `sh`.

A path is handed over as its parts, each as `escaped`, and is walked one part at a time: no part may be
a link, and where the walk has led is compared with where it should have.
"""

from __future__ import annotations

import re

from air.sandbox.wire.connection import PATIENCE, frame
from air.sandbox.wire.guest_box import MOST_FILES

NEEDED = ["cat", "chmod", "find", "head", "mkdir", "mv", "readlink", "rm", "sleep", "tar", "wc"]
"""What an image must have, beside `sh`."""
BEAT_SECONDS = 10
FAILED = 9
"""The status of a file program that refuses; why is the last line of its standard error."""
BOUND = f"{{ ulimit -Sn {MOST_FILES} && ulimit -Hn {MOST_FILES}; ulimit -Sc 0; ulimit -Hc 0; }} 2>/dev/null"
"""What a guest's `BOUNDS` are, for a shell and all that it starts. A soft limit above the hard one is
refused, so the soft one comes first; a hard one that is lower already stays."""


def escaped(text: bytes) -> str:
    """Bytes as an argument that is plain ASCII, for `printf %b`."""
    return re.sub(rb"[^A-Za-z0-9_./=-]", lambda m: b"\\0%03o" % m[0][0], text).decode()


def _says(header: dict[str, str]) -> str:
    """A command that prints one frame."""
    return "printf '" + "".join(f"\\{byte:03o}" for byte in frame(header)) + "'"


INIT = f"""
trap 'exit 0' TERM
{BOUND}
exec 3<&0 </dev/null
live() {{
  left=$1
  while [ "$left" -gt 0 ]; do
    nap=$left; [ "$nap" -le {BEAT_SECONDS} ] || nap={BEAT_SECONDS}
    sleep "$nap" || break
    left=$((left - nap))
    {_says({"op": "beat"})}
  done
  {_says({"op": "bye", "reason": "its time to live is over"})}
  kill -TERM 1
}}
hear() {{
  life=$patience
  while read -r said <&3; do
    seconds=999999999
    case $said in
      *'"lease"'*) seconds=${{said##*: }}; seconds=${{seconds%%[!0-9]*}};;
      *'"hello"'*) {_says({"op": "ready"})};;
      *) continue;;
    esac
    kill -9 "$life" 2>/dev/null
    live "$seconds" & life=$!
  done
}}
{{ sleep {PATIENCE}; kill -TERM 1; }} & patience=$!
while :; do
  hear & wait $! && exit 0
  patience=
done
"""
"""The first process. It ends, and all in the box with it, when its standard input closes, when it is
told nothing for `PATIENCE` seconds, or when the time of the last `lease` is over. It waits all the
while, and so collects every orphan. Frames that come to it end with a line feed."""

HAND = f"""
{BOUND}
missing=
for need in {" ".join(NEEDED)}; do command -v $need >/dev/null || missing="$missing $need"; done
command -v bash >/dev/null && shell=bash || shell=sh
echo "$$ $shell$missing"
scan() {{
  list=
  for p in /proc/[0-9]*; do list="$p $list"; done
  for p in $list; do
    state=X parent=0 group=0 session=0 whose=none
    while read -r key value _; do
      case $key in
        State:) state=$value;;
        PPid:) parent=$value;;
        NSpgid:) group=$value;;
        NSsid:) session=$value; break;;
      esac
    done <$p/status
    while IFS= read -r line || [ "$line" ]; do
      case $line in
        *"=$1-$2."*) whose=own; break;;
        *"=$1-"*.*)
          mark=${{line##*"=$1-"}}
          case ${{mark%%.*}} in
            *[!0-9]*) ;;
            *) whose=other;;
          esac;;
      esac
    done <$p/environ
    echo "$tag ${{p#/proc/}} $state $parent $group $session $whose"
  done
}}
while read -r tag op rest; do
  case $op in
    scan) scan $rest;;
    kill) kill -STOP $rest; kill -KILL $rest;;
    groups) for group in $rest; do kill -KILL "-$group"; done;;
    all) kill -KILL -1;;
  esac 2>/dev/null
  echo "$tag ."
done
"""
"""Answers each line, a tag and an order, with lines that begin with the tag, the last of them a dot. It
never forks: a fork bomb leaves it able to end the bomb. `scan BOX COMMAND` tells of every process, the
newest first: pid, state (`X`: it was gone before it was looked at), parent, group, session, and whose
mark is in its environment; of one that ends meanwhile only a part may be read."""

WRAPPER = f"""
{BOUND}
token=$1 folder=$2 fed=$3
shift 3
exec 3>&1 4>&2 2>/dev/null
echo 1000 >/proc/self/oom_score_adj
printf '%s+;' "$token" >&4
if cd -- "$folder"; then
  (exec "$@" 2>&4 3>&- 4>&-)
  status=$?
else
  status=126 why='Not a directory, or permission denied'
  [ -e "$folder" ] || why='No such file or directory'
  printf "air: cannot run '%s': cannot go to '%s': %s\\n" "$1" "$folder" "$why" >&4
fi
for fd in 3 4; do
  tries=0
  until printf '%s%d;' "$token" "$status" >&$fd || [ $tries -ge 100000 ]; do
    tries=$((tries + 1))
  done
done
[ -z "$fed" ] || cat >&2
"""
"""Runs a command in a folder, and marks in the output where it begins and ends: what a child in the
background prints after that is not its output any more. The end is told again while the pipe is full,
which fails where the command made it non-blocking. What the command has not read of its input is
thrown away: Podman drops output when a program ends before its input does."""

SCRIPT = 'exec 9<"$1" && rm -f -- "$1" && shift && exec "$@" /proc/self/fd/9'
"""Runs a file as the script of a shell; the file is gone before the script begins."""

_WALK = f"""
fail() {{ printf '%s\\n' "$1" >&2; exit {FAILED}; }}
decode() {{
  case $1 in
    *\\\\*) t=$(printf '%bx' "$1"); t=${{t%x}};;
    *) t=$1;;
  esac
}}
walk() {{
  while [ $# -gt 0 ]; do
    decode "$1"; shift
    if [ -L "./$t" ] || {{ [ -e "./$t" ] && [ ! -d "./$t" ]; }}; then
      fail "'$t' is a link or a file, not a folder"
    elif [ ! -e "./$t" ]; then
      [ "$make" ] || fail 'No such file or directory'
      mkdir -- "./$t" || [ -d "./$t" ] || exit {FAILED}
    fi
    cd -P -- "./$t" || exit {FAILED}
    here=$here/$t
    [ "$PWD" = "$here" ] || fail "'$t' changed on the way to it"
  done
}}
"""

_ROOT = """
cd -P -- "$1" || exit 9
root=$PWD here=$PWD
shift
"""

READ = (
    _WALK
    + """
most=$1 make=
shift
"""
    + _ROOT
    + """
while [ $# -gt 1 ]; do walk "$1"; shift; done
decode "$1"
[ ! -L "./$t" ] || fail 'it is a link'
[ -e "./$t" ] || fail 'No such file or directory'
[ ! -d "./$t" ] || fail 'it is a folder, not a regular file'
[ -f "./$t" ] || fail 'it is not a regular file'
exec 5<"./$t"
opened=$(readlink "/proc/$$/fd/5"; echo x)
[ "$opened" = "$here/$t
x" ] || fail 'it changed while it was read'
head -c "$most" <&5
"""
)
"""Prints a file's first bytes: MOST ROOT PART…"""

_PLACE = """
place() {
  [ ! -L "./$t" ] || rm -f -- "./$t"
  [ ! -d "./$t" ] || fail 'it is a folder'
  mv -f -- "$1" "./$t" || exit 9
}
"""

WRITE = (
    _WALK
    + _PLACE
    + """
temporary=.air-$1 size=$2 mode=$3 into=$4 make=1
shift 4
"""
    + _ROOT
    + """
while [ $# -gt 1 ]; do walk "$1"; shift; done
decode "$1"
if [ "$into" ] && [ ! -L "./$t" ] && [ -d "./$t" ]; then walk "$1"; decode "$into"; fi
trap 'rm -f -- "$here/$temporary"' EXIT
set -C
cat >"./$temporary" || exit 9
[ "$(wc -c <"./$temporary")" -eq "$size" ] || fail 'its stream broke off'
chmod "$mode" "./$temporary" || exit 9
place "$here/$temporary"
"""
)
"""Puts standard input into a file: TOKEN SIZE MODE INTO ROOT PART…; a folder takes it as INTO."""

PUT = (
    _WALK
    + _PLACE
    + """
token=$1 make=1
shift
"""
    + _ROOT
    + """
from=$root/.air-$token
home() { here=$root; cd -P -- "$root" || exit 9; }
folder() { entry=$1; shift; home; walk "$@"; }
file() {
  entry=$1; shift
  home
  while [ $# -gt 1 ]; do walk "$1"; shift; done
  decode "$1"
  place "$from/$entry"
}
entry=0
trap 'status=$?; rm -rf -- "$from"; [ $status = 0 ] || echo "$entry" >&2' EXIT
mkdir -- "$from" && cd -P -- "$from" && tar -xopf - || exit 9
. "$from/plan"
"""
)
"""Takes files out of the archive on standard input, and puts them where its `plan` says: TOKEN ROOT.
One that refuses prints, as its last line, the number of the plan's entry."""

GET = (
    _WALK
    + """
most=$1 make=
shift
"""
    + _ROOT
    + """
while [ $# -gt 1 ]; do walk "$1"; shift; done
t=.
[ $# -eq 0 ] || decode "$1"
[ ! -L "./$t" ] || fail 'it is a link'
[ -e "./$t" ] || fail 'No such file or directory'
if [ -d "./$t" ]; then
  [ $# -eq 0 ] || walk "$1"
  t=.
  odd=$(find . ! -type f ! -type d | head -n 1)
  if [ -L "$odd" ]; then fail "'${odd#./}' is a link"; fi
  [ -z "$odd" ] || fail "'${odd#./}' is not a regular file"
elif [ ! -f "./$t" ]; then
  fail 'it is not a regular file'
fi
{ tar -cf - "./$t"; echo "tar $?" >&2; } | head -c "$most"
"""
)
"""Prints an archive of a file or folder, cut after so many bytes: MOST ROOT PART…"""
