#!/usr/bin/env bash
# The demo: a router is specialized under traffic, in two network namespaces of its own. As root, from anywhere;
# `make demo` compiles what it needs first. It takes about 20 s and removes whatever it made.
set -euo pipefail
cd "$(dirname "$0")/.."

target=${CARGO_TARGET_DIR:-target}
router=$target/nf/router.bpf.o
for needed in "$target/release/runnel" "$target/release/runnel-demo" "$router"; do
    if [ ! -e "$needed" ]; then
        echo "error: there is no $needed; \`make demo\` builds it" >&2
        exit 1
    fi
done
if [ "$(id -u)" != 0 ]; then
    echo "error: loading programs takes root; \`make demo\` asks for it" >&2
    exit 1
fi
exec "$target/release/runnel-demo" "$router"
