"""Clusters of real processes in network namespaces. `cargo xtask test` sets BERTH, ORT_DYLIB_PATH and EXAMPLE_MODELS."""

from __future__ import annotations

import pytest

from system import Cluster

pytest_plugins = ["harness.failures"]


@pytest.fixture
def cluster(tmp_path):
    """Makes a cluster: `cluster(["--memory", "1GiB"], [...])` is one node per list of arguments; a number, that many nodes."""
    made: list[Cluster] = []

    def make(*nodes: list[str], count: int = 0) -> Cluster:
        made.append(Cluster(tmp_path, [["--memory", "1GiB"]] * count + list(nodes)))
        return made[-1]

    yield make
    for one in made:
        one.close()
