#!/usr/bin/env bash
# Makes everything the other commands need: a virtual environment in .venv with the pinned
# packages, the project and its benchmarks, and a Java runtime for Spark. Safe to run again: when
# nothing changed it ends at once.
#
#   PYTHON=python3.12 scripts/setup.sh     choose the interpreter (3.10 or newer)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { printf 'setup: %s\n' "$*" >&2; }
fail() { say "$*"; exit 1; }

# --- what Spark will start: the java of JAVA_HOME if set, else the one on PATH ------------------
find_java() {
    if [ -n "${JAVA_HOME:-}" ]; then echo "$JAVA_HOME/bin/java"; else command -v java; fi
}

java_major() { # prints 8 for 1.8, 17, 21, ...; 0 if it does not run
    { "$1" -version 2>&1 || true; } | sed -n 's/.* version "\(1\.\)\{0,1\}\([0-9]*\).*/\2/p' |
        head -n 1 | grep . || echo 0
}

install_java() {
    command -v apt-get >/dev/null ||
        fail "Spark needs Java 17 or newer: install one and put it on PATH (or set JAVA_HOME)"
    local as_root=()
    if [ "$(id -u)" -ne 0 ]; then
        command -v sudo >/dev/null || fail "Spark needs Java 17 or newer and installing it needs" \
            "root: apt-get install openjdk-17-jre-headless"
        as_root=(sudo)
    fi
    say "installing openjdk-17-jre-headless"
    "${as_root[@]}" apt-get update -qq || say "apt-get update failed; trying with what is known"
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get install -qq -y --no-install-recommends openjdk-17-jre-headless >/dev/null ||
        fail "could not install Java: install Java 17 or newer and put it on PATH"
}

ensure_java() {
    local java major
    java=$(find_java) || java=""
    major=0
    [ -z "$java" ] || major=$(java_major "$java")
    if [ "$major" -lt 17 ] && [ -n "${JAVA_HOME:-}" ]; then
        fail "JAVA_HOME has no Java 17 or newer: unset it or let it name one"
    fi
    if [ "$major" -lt 17 ]; then
        install_java
        hash -r
        java=$(find_java) || java=""
        major=0
        [ -z "$java" ] || major=$(java_major "$java")
        [ "$major" -ge 17 ] || fail "the java on PATH is older than 17: put a newer one before it"
    fi
    say "Java $major"
}

# --- Python --------------------------------------------------------------------------------------
good_python() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 10))' >/dev/null 2>&1
}

find_python() {
    local candidate
    if [ -n "${PYTHON:-}" ]; then
        good_python "$PYTHON" || fail "PYTHON=$PYTHON is not a Python 3.10 or newer"
        echo "$PYTHON"
        return
    fi
    for candidate in python3 python3.11 python3.12 python3.10; do
        if good_python "$candidate"; then echo "$candidate"; return; fi
    done
    fail "no Python 3.10 or newer found: install one, or name it: PYTHON=... scripts/setup.sh"
}

make_venv() {
    local python
    python=$(find_python)
    say "making .venv with $("$python" --version)"
    rm -rf .venv
    "$python" -m venv .venv >/dev/null 2>&1 || {
        rm -rf .venv
        "$python" -m virtualenv -q .venv >/dev/null 2>&1
    } || fail "$python cannot make virtual environments: install its venv module" \
        "(Debian: apt-get install python3-venv)"
}

pip_install() { # without pip's remarks about how this machine is configured
    .venv/bin/python -m pip --disable-pip-version-check install -q "$@" 2>&1 |
        { grep -v '^ *\(WARNING\|DEPRECATION\): ' || true; } >&2
}

# The stamp covers the place (a moved .venv does not work), what is installed and the recipe.
stamp() {
    pwd
    cat requirements.lock pyproject.toml benchmarks/pyproject.toml scripts/setup.sh | cksum
}

if [ -x .venv/bin/python ] && [ "$(cat .venv/stamp 2>/dev/null)" = "$(stamp)" ] &&
    java=$(find_java) && [ -x "$java" ]; then
    exit 0
fi

ensure_java
if [ -n "${PYTHON:-}" ] || ! good_python .venv/bin/python ||
    [ "$(head -n 1 .venv/stamp 2>/dev/null)" != "$(pwd)" ]; then
    make_venv
fi
rm -f .venv/stamp # until all is installed
say "installing the pinned packages (some minutes the first time)"
pip_install --require-hashes -r requirements.lock ||
    fail "could not install the pinned packages; is there a network?"
pip_install --no-deps --no-build-isolation -e . -e benchmarks || fail "could not install the project itself"
stamp >.venv/stamp
say "done"
