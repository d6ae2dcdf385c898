#!/usr/bin/env bash
# Every dependency is under a licence that deny.toml allows. The same rule as `cargo deny check licenses`, which is used
# where it is installed, without having to build it first.
set -euo pipefail
cd "$(dirname "$0")/.."

if command -v cargo-deny >/dev/null 2>&1; then
    exec cargo deny --locked check licenses
fi

allowed=$(sed -n '/^allow = \[/,/^\]/ s/^ *"\(.*\)",\{0,1\}$/\1/p' deny.toml)
if [ -z "$allowed" ]; then
    echo "error: deny.toml has no list \`allow\`, or not one licence a line" >&2
    exit 1
fi

# Whether an SPDX expression holds, given the licences that do: 1 or 0.
evaluate() {
    local words term value
    # Old manifests write a slash for OR.
    words=$(sed -E 's#/# OR #g; s/([()])/ \1 /g; s/ WITH /_WITH_/g' <<<"$1")
    term=""
    for word in $words; do
        case "$word" in
            OR) term+=" || " ;;
            AND) term+=" && " ;;
            "(" | ")") term+="$word" ;;
            *)
                value=0
                grep -qxF -- "${word//_WITH_/ WITH }" <<<"$allowed" && value=1
                term+="$value"
                ;;
        esac
    done
    echo $((${term:-0}))
}

packages=$(cargo tree --locked --workspace -e normal,build,dev --prefix none --format $'{p}\t{l}')
failed=0
while IFS=$'\t' read -r package expression; do
    if [ "$(evaluate "$expression")" != 1 ]; then
        echo "error: $package is under \`${expression:-no licence}\`, which deny.toml does not allow" >&2
        failed=1
    fi
done < <(sed -E '/^$/d; s/ \(\*\)$//; s/ \([^\t]*\)//' <<<"$packages" | sort -u)
[ "$failed" = 0 ] && echo "all licences are allowed"
exit "$failed"
