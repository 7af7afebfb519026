"""A system in which nothing of a checkout is: the distribution's programs and empty folders."""

from __future__ import annotations

from pathlib import Path

# In a mount namespace of its own. What is left of the old root goes with the last line.
MAKE = """
set -e
root=$1; shift
mkdir -p "$root"
mount -t tmpfs root "$root"
cd "$root"
mkdir -p usr etc dev proc sys tmp run root home var/tmp old
for name in bin sbin lib lib64; do
  if [ -L "/$name" ]; then ln -s "$(readlink "/$name")" "$name"; elif [ -d "/$name" ]; then mkdir "$name"; mount --bind "/$name" "$name"; fi
done
for name in usr etc; do mount --bind "/$name" "$name"; mount -o remount,bind,ro "$name"; done
mount --rbind /dev dev
mount --rbind /sys sys
mount -t proc proc proc
for shared in "$@"; do mkdir -p ".$shared"; mount --bind "$shared" ".$shared"; done
chmod 1777 tmp var/tmp
pivot_root . old
umount -l old
exec bash --noprofile --norc
"""


def program(root: Path, *shared: Path) -> list[str]:
    """The shell of such a system; `shared` folders are the same inside and outside."""
    return ["bash", "-c", MAKE, "clean-root", str(root), *map(str, shared)]
