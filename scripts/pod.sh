#!/usr/bin/env bash
# A rented GPU pod (Debian or Ubuntu, x86-64) from nothing to a running job:
#
#   git clone … air && air/scripts/pod.sh            # a run file that fits the number of GPUs
#   air/scripts/pod.sh configs/mlgym/several.toml --max-steps 20
#   air/scripts/pod.sh --dry-run                     # everything that needs neither a GPU nor prime-rl
#
# A second run does only what is missing. Settings, from the environment:
#   POD_DIR       where prime-rl goes (beside this repository)
#   PRIME_RL_URL  where prime-rl comes from
#   PYTHON        a Python 3.11 to 3.13 for air itself (python3)
set -euo pipefail
cd "$(dirname "$0")/.."
here=$PWD
pod=${POD_DIR:-$(dirname "$here")}
url=${PRIME_RL_URL:-https://github.com/PrimeIntellect-ai/prime-rl}
facts=air/train/prime_rl/schema/prime_rl.json

die() {
  echo "pod: $*" >&2
  exit 2
}

say() { printf '\n== %s\n' "$*"; }

gpus() { # how many this machine has; AIR_GPU_INVENTORY may declare them, as in air
  case "${AIR_GPU_INVENTORY:-}" in
    "") nvidia-smi --list-gpus 2> /dev/null | grep -c '^GPU' || true ;;
    none) echo 0 ;;
    *) tr ',' '\n' <<< "$AIR_GPU_INVENTORY" | grep -c = ;;
  esac
}

packages() { # what a bare image may lack
  local missing=() tool
  for tool in git make curl; do command -v "$tool" > /dev/null || missing+=("$tool"); done
  python3 -m pip --version > /dev/null 2>&1 || missing+=(python3-pip)
  if [ ${#missing[@]} -gt 0 ]; then
    [ "$(id -u)" -eq 0 ] || die "install these first: ${missing[*]}"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "${missing[@]}"
  fi
}

boxes() { # Docker where it runs or may be started; else process boxes, of which rented pods often have no other
  if .venv/bin/air setup && .venv/bin/air doctor > /dev/null 2>&1; then
    box=()
  else
    echo "pod: no containers here: episodes play in process boxes, which isolate less (docs/boxes.md)" >&2
    box=(process)
  fi
}

prime_rl() { # the commit that air's table of facts was read from, in an environment of its own, with air in it
  local commit uv=uv
  commit=$(.venv/bin/python -c "import json, sys; print(json.load(open(sys.argv[1]))['commit'])" "$facts")
  uv --version > /dev/null 2>&1 || uv=$here/build/uv/bin/uv
  [ -d "$pod/prime-rl/.git" ] || git clone --filter=blob:none "$url" "$pod/prime-rl"
  # Its submodules are named by ssh addresses, for which a pod has no key.
  git config --global --get url.https://github.com/.insteadOf > /dev/null ||
    export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=url.https://github.com/.insteadOf \
      GIT_CONFIG_VALUE_0=git@github.com:
  [ "$(git -C "$pod/prime-rl" rev-parse HEAD)" = "$commit" ] ||
    git -C "$pod/prime-rl" checkout --quiet "$commit"
  git -C "$pod/prime-rl" submodule update --quiet --init -- \
    deps/verifiers deps/renderers deps/prime-envs deps/pydantic-config
  (cd "$pod/prime-rl" && "$uv" sync --quiet --all-extras --inexact)
  "$uv" pip install --quiet --python "$pod/prime-rl/.venv/bin/python" --editable "$here"
}

sources() { # how many [[orchestrator.train.source]] and [[orchestrator.eval.source]] a file has
  grep -c "^\[\[orchestrator\.$1\.source\]\]" "$file" || true
}

dry=
[ "${1:-}" != --dry-run ] || { dry=1 && shift; }
file=
if [ $# -gt 0 ] && [ "${1#-}" = "$1" ]; then file=$1 && shift; fi
[ "$(uname -sm)" = "Linux x86_64" ] || die "needs Linux on x86-64, and this is $(uname -sm)"

count=$(gpus)
say "$count GPUs"
if [ "$count" -eq 0 ] && [ -z "$dry" ]; then
  die "no NVIDIA GPU: nvidia-smi must list some (--dry-run needs none)"
fi
if [ -z "$file" ]; then
  if [ "$count" -ge 8 ] || [ "$count" -eq 0 ]; then
    file=configs/mlgym/rl_debug.toml
  elif [ "$count" -ge 2 ]; then
    file=configs/mlgym/rl_2gpu.toml
  else
    file=configs/mlgym/rl_1gpu.toml
  fi
fi
[ -f "$file" ] || die "$file: no such file"
mkdir -p "$pod"
free=$(df --output=avail -BG "$pod" | tail -1 | tr -dc 0-9)
[ -n "$dry" ] || [ -d "$pod/prime-rl/.venv" ] || [ "$free" -ge 60 ] ||
  die "$pod has $free GB free, and prime-rl, vLLM and a model take about 60: POD_DIR names another disk"

say "air"
packages
make env
say "boxes"
boxes
flags=()
if [ ${#box[@]} -gt 0 ]; then
  for kind in train eval; do
    for ((index = 0; index < $(sources "$kind"); index++)); do
      flags+=("--orchestrator.$kind.source.$index.env.agent.runtime.type" subprocess)
    done
  done
fi
if [ -n "$dry" ]; then
  say "plan of $file"
  exec .venv/bin/rl --engine prime-rl --dry-run @ "$file" "${flags[@]}" "$@"
fi
say "prime-rl (some ten minutes and 20 GB at first)"
prime_rl
say "running $file; Ctrl-C ends it"
AIR_PRIME_RL=$pod/prime-rl exec .venv/bin/rl --engine prime-rl @ "$file" "${flags[@]}" "$@"
