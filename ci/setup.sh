#!/usr/bin/env bash
# Installs what building and testing needs, where it is missing. May be run again at any time; says what it does.
set -euo pipefail

# What it is for: the compiler of eBPF programs, the headers that they include, and what libbpf is built with.
packages=(llvm libbpf-dev libelf-dev zlib1g-dev pkg-config make gcc iproute2)
rust_wanted=1.90

missing=()

have() { command -v "$1" >/dev/null 2>&1; }
installed() { dpkg-query -W -f '${Status}' "$1" 2>/dev/null | grep -q 'ok installed'; }
offered() { apt-cache policy "$1" 2>/dev/null | grep -q 'Candidate: [^(]'; }

as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    elif have sudo; then
        sudo "$@"
    else
        echo "error: this needs root, and there is no sudo: $*" >&2
        exit 1
    fi
}

check_rust() {
    if ! have cargo || ! have rustc; then
        echo "error: cargo and rustc $rust_wanted or later are needed, and not there" >&2
        echo "  do:  install Rust as https://rustup.rs says, and open a new shell" >&2
        exit 1
    fi
    local found
    found=$(rustc --version | awk '{ print $2 }')
    if [ "$(printf '%s\n' "$rust_wanted" "$found" | sort -V | head -n 1)" != "$rust_wanted" ]; then
        echo "error: rustc is $found, and $rust_wanted or later is needed" >&2
        echo "  do:  rustup update stable" >&2
        exit 1
    fi
    echo "rustc $found"
}

# Packages that go by different names, or are a program that may have come by another way.
choose() {
    if [ -z "${RUNNEL_CLANG:-}" ] && ! have clang-19 && ! have clang; then
        if offered clang-19; then missing+=(clang-19); else missing+=(clang); fi
    fi
    if ! have bpftool; then
        # Ubuntu has it among the kernel's tools only.
        if offered bpftool; then missing+=(bpftool); else missing+=("linux-tools-$(uname -r)" linux-tools-common); fi
    fi
}

check_rust
if ! have apt-get || ! have dpkg-query; then
    echo "This is neither Debian nor Ubuntu, so nothing is installed. Needed are: clang 15 or later, ${packages[*]}, bpftool"
    exit 0
fi
for package in "${packages[@]}"; do
    installed "$package" || missing+=("$package")
done
choose
if [ ${#missing[@]} -gt 0 ]; then
    # What is offered is known only once the lists have been fetched.
    echo "fetching the lists of packages"
    as_root apt-get update -q
    missing=()
    for package in "${packages[@]}"; do
        installed "$package" || missing+=("$package")
    done
    choose
    echo "installing ${missing[*]}"
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}"
fi
echo "$("${RUNNEL_CLANG:-$(command -v clang-19 || command -v clang)}" --version | head -n 1)"
echo "everything that is needed is there"
