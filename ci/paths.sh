#!/usr/bin/env bash
# Every path that the documents name exists: words in backticks that begin with a folder of the repository, and
# relative links.
set -euo pipefail
cd "$(dirname "$0")/.."

documents=(README.md CONTRIBUTING.md docs/*.md)
folders=$(git ls-files | grep / | cut -d/ -f1 | sort -u | sed 's/\./\\./g' | paste -sd '|')

failed=0
for document in "${documents[@]}"; do
    here=$(dirname "$document")
    while read -r path; do
        # Globs stand for at least one file.
        if ! compgen -G "$path" >/dev/null; then
            echo "error: $document names \`$path\`, which does not exist" >&2
            failed=1
        fi
    done < <(grep -oE '`[^` ]+`' "$document" | tr -d '`' | grep -E "^($folders)/" | sed 's/:[0-9]*$//' | sort -u)
    while read -r link; do
        if [ ! -e "$here/${link%%#*}" ]; then
            echo "error: $document links to $link, which does not exist" >&2
            failed=1
        fi
    done < <(grep -oE '\]\([^)# ]+[^) ]*\)' "$document" | sed 's/^](//; s/)$//' | grep -vE '^[a-z]+:' | sort -u)
done
[ "$failed" = 0 ] && echo "every path exists"
exit "$failed"
