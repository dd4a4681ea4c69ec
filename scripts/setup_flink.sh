#!/usr/bin/env bash
# Apache Flink, for `clonos-bench nexmark --parts flink`: a virtual environment of its own (its
# pins contradict ours) with Flink's jars and PyFlink, and our source and sink compiled against
# them. Safe to run again: only what changed is made.
#
#   FLINK_VENV=folder scripts/setup_flink.sh    somewhere else than in .venv-flink
#   PYTHON=python3.11 scripts/setup_flink.sh    the interpreter: 3.9 to 3.12
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

venv=${FLINK_VENV:-.venv-flink}
java=benchmarks/src/clonos_bench/flink/java

say() { printf 'setup_flink: %s\n' "$*" >&2; }
fail() { say "$*"; exit 1; }

ensure_compiler() {
    command -v javac >/dev/null && return
    command -v apt-get >/dev/null || fail "javac is missing: install a JDK 17 and put it on PATH"
    local as_root=()
    [ "$(id -u)" -eq 0 ] || as_root=(sudo)
    say "installing openjdk-17-jdk-headless"
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get install -qq -y --no-install-recommends openjdk-17-jdk-headless >/dev/null ||
        fail "could not install javac: install a JDK 17 and put it on PATH"
}

packages=$(cksum <scripts/flink.lock)
if [ ! -x "$venv/bin/python" ] || [ "$(cat "$venv/stamp" 2>/dev/null)" != "$packages" ]; then
    python=${PYTHON:-python3}
    "$python" -c 'import sys; sys.exit(not (3, 9) <= sys.version_info < (3, 13))' ||
        fail "$python is no Python that Flink knows: name one, PYTHON=python3.11"
    say "making $venv with $("$python" --version) (Flink is large: some minutes)"
    [ -x "$venv/bin/python" ] || "$python" -m venv "$venv" || fail "$python cannot make $venv"
    "$venv/bin/python" -m pip --disable-pip-version-check install -q --require-hashes \
        -r scripts/flink.lock 2>&1 | { grep -v '^ *\(WARNING\|DEPRECATION\): ' || true; } >&2
    "$venv/bin/python" -c 'import pyflink.version' || fail "could not install Flink"
    echo "$packages" >"$venv/stamp"
fi

jar=$venv/nexmark.jar
sources=$(find "$java" -type f | LC_ALL=C sort | xargs cat | sha256sum | cut -d ' ' -f 1)
if [ "$(cat "$jar.sha256" 2>/dev/null)" != "$sources" ]; then
    ensure_compiler
    say "compiling $java"
    libraries=$(echo "$venv"/lib/python3.*/site-packages/pyflink/lib)
    classes=$(mktemp -d)
    trap 'rm -rf "$classes"' EXIT
    javac -Xlint:all,-serial,-classfile,-path,-processing -Werror --release 17 -d "$classes" \
        -cp "$libraries/*" "$java"/nexmark/*.java
    cp -r "$java/META-INF" "$classes"
    jar --create --file "$jar" -C "$classes" .
    echo "$sources" >"$jar.sha256"
fi
say "done: $venv/bin/python"
