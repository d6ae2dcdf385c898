#!/usr/bin/env bash
# Everything that can be checked without running the program: formatting, lints, and the rules of the house.
set -euo pipefail
cd "$(dirname "$0")/.."

step() { printf '\n== %s\n' "$*"; }

step "dependency edges"
ci/edges.sh
step "licences of dependencies"
ci/licences.sh
step "paths in the documents"
ci/paths.sh
step "formatting"
cargo fmt --all --check
step "lints"
cargo clippy --workspace --all-targets --locked -- -D warnings
