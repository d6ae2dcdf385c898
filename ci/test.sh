#!/usr/bin/env bash
# All tests of the workspace. They are built as whoever calls this and run as root, which the kernel wants of those who
# load programs; without root and without sudo they fail rather than being skipped.
set -euo pipefail
cd "$(dirname "$0")/.."

if [ "$(id -u)" != 0 ]; then
    if ! command -v sudo >/dev/null 2>&1; then
        echo "error: the tests load programs into the kernel, which needs root, and there is no sudo" >&2
        echo "  do:  run \`make test\` as root" >&2
        exit 1
    fi
    host=$(rustc -vV | sed -n 's/^host: //p' | tr 'a-z-' 'A-Z_')
    export "CARGO_TARGET_${host}_RUNNER=sudo -E"
    sudo -v
fi
# To the end, whatever fails: a failure that hides others costs another round.
exec cargo test --workspace --locked --no-fail-fast "$@"
