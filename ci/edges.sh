#!/usr/bin/env bash
# The dependency edges that docs/architecture.md forbids. Tests may depend on anything; what is built may not.
set -euo pipefail
cd "$(dirname "$0")/.."

failed=0

# forbid PACKAGE PATTERN REASON: PACKAGE depends on nothing, directly or not, whose whole name matches PATTERN.
forbid() {
    local tree found
    # On a line of its own, so that a failing cargo ends the script instead of being taken for "nothing found".
    tree=$(cargo tree --locked -e normal,build --prefix none --format '{p}' -p "$1")
    found=$(awk -v self="$1" '$1 != self { print $1 }' <<<"$tree" | { grep -E -x "$2" || true; } | sort -u | paste -sd ' ')
    if [ -n "$found" ]; then
        echo "error: $1 depends on $found: $3" >&2
        failed=1
    fi
}

# only PACKAGE USERS: of the packages of the workspace, at most USERS depend on PACKAGE directly.
only() {
    local tree users user
    tree=$(cargo tree --locked -e normal,build --workspace --no-dedupe --depth 1 --prefix depth --format ' {p}')
    users=$(awk -v wanted="$1" '$1 == 0 { user = $2 } $1 == 1 && $2 == wanted { print user }' <<<"$tree" | sort -u)
    for user in $users; do
        if [[ " $2 " != *" $user "* ]]; then
            echo "error: $user depends on $1, which only these may: $2" >&2
            failed=1
        fi
    done
}

forbid runnel-ir 'runnel.*' "the IR knows nothing of what is built on it"
forbid runnel-interp 'runnel-(passes|analysis|tables|bpf|kernel|engine)' \
    "the reference semantics must not share a mistake with what it judges"
forbid runnel-analysis 'runnel-(passes|interp|tables|bpf|kernel|engine)' "analyses know programs and nothing else"
forbid runnel-passes 'runnel-(interp|tables|bpf|kernel|engine)' "passes know no plugin"
forbid runnel-tables 'runnel-(passes|analysis|interp|bpf|kernel|engine)' "representations are pure algorithms"
forbid runnel-engine 'runnel-(bpf|kernel)' "the engine names no plugin"
forbid runnel-bpf 'runnel-(kernel|engine|tables|interp)' "eBPF is read and written without a kernel"
forbid runnel-kernel 'runnel-(engine|passes|analysis|tables|interp)' "the kernel's crate knows no specialization"
for core in ir analysis interp passes tables engine; do
    forbid "runnel-$core" 'serde|serde_json|tokio|libc|nix|libbpf-.*' "the core knows no kernel, runtime or file format"
done
# The lab and the router's control program are the others on the machine: they must not go through runnel-kernel.
only libbpf-sys "runnel-kernel runnel-lab"
only libbpf-rs "runnel-kernel router-ctl"

[ "$failed" = 0 ] && echo "no forbidden edge"
exit "$failed"
