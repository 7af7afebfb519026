#!/bin/sh
# Installs Berth from a release archive.
#
#   ./install.sh                          the archive beside this script, into /usr/local (root) or ~/.local
#   ./install.sh --from URL_OR_PATH       another archive; its .sha256 must lie beside it
#   ./install.sh --prefix DIR             into DIR/bin and DIR/lib/berth
#   ./install.sh --uninstall              removes what an installation put there; data stays
set -eu

say() { printf '%s\n' "$*" >&2; }
fail() { say "install.sh: $*"; exit 1; }

from= prefix= uninstall=
while [ $# -gt 0 ]; do
    case $1 in
        --from) [ $# -ge 2 ] || fail "--from needs a URL or a path"; from=$2; shift 2 ;;
        --prefix) [ $# -ge 2 ] || fail "--prefix needs a folder"; prefix=$2; shift 2 ;;
        --uninstall) uninstall=1; shift ;;
        -h|--help) sed -n '2,8s/^# \{0,1\}//p' "$0"; exit 0 ;;
        *) fail "unknown argument $1: see --help" ;;
    esac
done
if [ -z "$prefix" ]; then
    if [ "$(id -u)" = 0 ]; then prefix=/usr/local; else prefix=$HOME/.local; fi
fi

if [ -n "$uninstall" ]; then
    rm -f "$prefix/bin/berth"
    rm -rf "$prefix/lib/berth"
    say "removed berth from $prefix; data folders stay where they are"
    exit 0
fi

[ "$(uname -s)" = Linux ] || fail "there are archives for Linux only: build from source, see README.md"
machine=$(uname -m)
here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT INT TERM

fetch() { # SOURCE TARGET
    case $1 in
        http://*|https://*)
            if command -v curl >/dev/null; then curl -fsSL -o "$2" "$1"
            elif command -v wget >/dev/null; then wget -qO "$2" "$1"
            else fail "curl or wget is needed to fetch $1"; fi ;;
        *) cp -- "$1" "$2" ;;
    esac
}

if [ -z "$from" ]; then
    for archive in "$here"/berth-*-linux-"$machine".tar.gz; do [ -f "$archive" ] && from=$archive; done
    [ -n "$from" ] || fail "there is no berth-VERSION-linux-$machine.tar.gz in $here: name one with --from"
fi
fetch "$from" "$work/berth.tar.gz" || fail "cannot fetch $from"
fetch "$from.sha256" "$work/berth.tar.gz.sha256" || fail "cannot fetch $from.sha256, without which nothing is installed"
expected=$(cut -d' ' -f1 <"$work/berth.tar.gz.sha256")
actual=$(sha256sum "$work/berth.tar.gz" | cut -d' ' -f1)
[ "$expected" = "$actual" ] || fail "the checksum of $from is $actual, expected $expected: fetch it again"

mkdir "$work/root"
tar -xzf "$work/berth.tar.gz" -C "$work/root" --strip-components=1
"$work/root/bin/berth" --version >/dev/null || fail "this binary does not run on this machine (glibc @GLIBC@ or later is needed)"
mkdir -p "$prefix/bin" "$prefix/lib/berth"
# Replaced by renaming: a berth that runs keeps its file.
for file in lib/berth/libonnxruntime.so bin/berth; do
    cp "$work/root/$file" "$prefix/$file.new"
    mv -f "$prefix/$file.new" "$prefix/$file"
done
say "installed $("$prefix/bin/berth" --version) in $prefix"
case ":$PATH:" in *":$prefix/bin:"*) ;; *) say "add $prefix/bin to your PATH" ;; esac
say "next: berth doctor"
