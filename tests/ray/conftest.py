"""A Ray cluster for the tests of a file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from oracles.ray_cluster import RayCluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    pytest.importorskip("ray.serve", reason="replicas need Ray: pip install 'olivine[cluster]'")
    from oracles.ray_cluster import running

    with running() as found:
        yield found
