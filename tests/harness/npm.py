"""Packages of npm that tests run, installed once for all checkouts of this user."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import tempfile
from pathlib import Path

from .waiting import PATIENCE

# The folder of `outside` in xtask/src/workspace.rs; deleting it costs only time.
KEPT = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "berth/npm"


def installed(dependencies: dict[str, str]) -> Path:
    """The `node_modules` with these packages, by their versions. Nothing may be written there."""
    package = json.dumps({"private": True, "dependencies": dependencies}, sort_keys=True)
    kept = KEPT / hashlib.sha256(package.encode()).hexdigest()
    if not kept.is_dir():
        KEPT.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=KEPT, prefix="half-") as half:
            making = Path(half) / "made"
            making.mkdir()
            (making / "package.json").write_text(package)
            install = ["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--prefer-offline"]
            subprocess.run(install, cwd=making, check=True, capture_output=True, timeout=PATIENCE * 2)
            try:
                making.rename(kept)
            except OSError:  # another process of tests was faster
                assert kept.is_dir()
    return kept / "node_modules"
