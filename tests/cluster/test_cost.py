"""The cost model: what it counts, and what follows from it."""

from __future__ import annotations

import pytest

from olivine.cluster import Parallel
from olivine.cluster.cost import Cost, Device, Link, step_cost
from olivine.models import Model
from synthetic import SHAPES
from synthetic.in_memory import hollow_model

DEVICE, LINK = Device(1e11, 1e12), Link(1e10, 1e-4, 1e-5)


@pytest.fixture(scope="module")
def model() -> Model:
    return hollow_model(SHAPES["qwen3-0.6b"], "Q8_0")


def cost(model: Model, tensor: int = 1, pipeline: int = 1, rows: int = 1, context: int = 0) -> Cost:
    return step_cost(
        model.plan, model.weights, Parallel(tensor, pipeline), DEVICE, LINK, rows=rows, context=context
    )


def test_a_whole_model_reads_its_weights_once(model: Model) -> None:
    stored = sum(part.nbytes for weight in model.plan.weights for part in model.weights[weight.name])
    found = cost(model)
    assert found.reading == pytest.approx(stored / DEVICE.bandwidth, rel=1e-3)
    assert found.latency == found.transfer == 0
    assert found.arithmetic == pytest.approx(2 * 596e6 / DEVICE.operations, rel=0.01)


def test_ranks_meet_twice_a_layer_and_at_both_ends(model: Model) -> None:
    meetings = 2 * 28 + 2
    assert cost(model, 2).latency == pytest.approx(meetings * 1e-4)
    assert cost(model, 4).latency == pytest.approx(meetings * 1.2e-4)
    width, vocabulary = 1024, 151936
    assert cost(model, 2, rows=3).transfer == pytest.approx(3 * 4 * (57 * width + vocabulary / 2) / 1e10)


def test_ranks_divide_reading_and_stages_do_not(model: Model) -> None:
    whole = cost(model, context=1000)
    assert cost(model, 2, context=1000).reading == pytest.approx(whole.reading / 2, rel=0.01)
    assert cost(model, 1, 2, context=1000).reading == pytest.approx(whole.reading, rel=0.01)
    assert cost(model, 1, 2).latency == pytest.approx(1e-4)
    assert cost(model, context=2000).reading > whole.reading > cost(model).reading
