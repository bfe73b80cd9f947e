"""The metrics of several replicas as one page."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from olivine.ray.exposition import merged

PAGE = """\
# HELP olivine:tokens_total Tokens.
# TYPE olivine:tokens_total counter
olivine:tokens_total{model_name="a {b}"} 3.0
# HELP memory Bytes.
# TYPE memory gauge
memory 1.5e+09
"""


def test_samples_have_their_replica_and_families_stay_together() -> None:
    found = {each.name: each for each in text_string_to_metric_families(merged({"x": PAGE, "y": PAGE}))}
    assert [s.labels for s in found["memory"].samples] == [{"replica": "x"}, {"replica": "y"}]
    tokens = found["olivine:tokens"].samples
    assert [s.labels for s in tokens] == [{"replica": r, "model_name": "a {b}"} for r in "xy"]
    assert [s.value for s in tokens] == [3.0, 3.0]
