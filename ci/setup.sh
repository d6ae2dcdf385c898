#!/usr/bin/env bash
# Installs what building and testing needs, where it is missing. May be run again at any time; says what it does.
set -euo pipefail
# Where Debian has bpftool and ip, and where users other than root do not look.
PATH=$PATH:/usr/sbin:/sbin

# The headers that eBPF programs include, what libbpf is built with, and what tests and the demo call.
packages=(libbpf-dev linux-libc-dev libc6-dev libelf-dev zlib1g-dev pkg-config make gcc iproute2)
rust_wanted=1.90

missing=()

have() { command -v "$1" >/dev/null 2>&1; }
installed() { [[ $(dpkg-query -W -f '${Status}' "$1" 2>/dev/null) == *"ok installed" ]]; }
offered() { [[ $(apt-cache policy "$1" 2>/dev/null) =~ Candidate:\ [^\(] ]]; }

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

# What is missing, by the names of packages as far as they are known.
look() {
    local package
    missing=()
    for package in "${packages[@]}"; do
        installed "$package" || missing+=("$package")
    done
    # The tests expect what version 19 makes of the sources; another one does for everything else.
    if [ -z "${RUNNEL_CLANG:-}" ] && ! have clang-19; then
        if offered clang-19; then missing+=(clang-19); elif ! have clang; then missing+=(clang); fi
    fi
    if ! have llvm-objdump-19; then
        if offered llvm-19; then missing+=(llvm-19); elif ! have llvm-objdump; then missing+=(llvm); fi
    fi
    if ! have bpftool; then
        # Ubuntu has it among the tools of each kernel.
        if offered bpftool; then
            missing+=(bpftool)
        elif offered "linux-tools-$(uname -r)"; then
            missing+=(linux-tools-common "linux-tools-$(uname -r)")
        else
            missing+=(linux-tools-common linux-tools-generic)
        fi
    fi
}

check_rust
if ! have apt-get || ! have dpkg-query; then
    echo "This is neither Debian nor Ubuntu, so nothing is installed. What is needed, by Debian's names:"
    echo "clang-19 llvm-19 bpftool ${packages[*]}"
    exit 0
fi
look
if [ ${#missing[@]} -gt 0 ]; then
    echo "fetching the lists of packages"
    as_root apt-get update -q
    # Only now it is known what is offered.
    look
    echo "installing ${missing[*]}"
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}"
fi
"${RUNNEL_CLANG:-$(command -v clang-19 || command -v clang)}" --version | head -n 1
echo "everything that is needed is there"
