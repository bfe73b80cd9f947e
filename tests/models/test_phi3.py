"""What Phi-3 and Phi-4 have of their own: factors by context, fused tensors, partial rotary embeddings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from olivine import models
from olivine.errors import ModelError
from olivine.formats import open_checkpoint
from olivine.plan import ops
from oracles import gguf_twin, published, running

CASE = published.case("phi4-mini")
ORIGINAL = CASE.options["original_max_position_embeddings"]


@pytest.fixture(scope="module")
def oracle() -> Any:
    return CASE.make()


@pytest.fixture(scope="module", params=["hf", "gguf"])
def path(request: pytest.FixtureRequest, oracle: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "gguf":
        return gguf_twin.write_gguf(oracle, folder / "model.gguf")
    return published.save(oracle, folder)


def build(path: Path, context: int | None) -> models.Model:
    opened = open_checkpoint(path)
    return models.build(opened.architecture, opened.naming, opened.metadata, opened.tensors, context=context)


def test_short_factors_are_for_contexts_up_to_the_original_one(path: Path, oracle: Any) -> None:
    """The published code has them for sequences of that length; longer contexts have the long ones from the
    first token on, because their keys stay in the cache."""
    tokens = [5, 3, 90, 17, 64, 2, 2, 41][:ORIGINAL]
    theirs = published.logits_of(oracle, tokens)
    short = running.reference(path, model=build(path, ORIGINAL))
    np.testing.assert_allclose(running.chunked(short, tokens, [3]), theirs, rtol=0, atol=1e-4)
    long = running.reference(path, model=build(path, ORIGINAL + 1))
    assert np.abs(running.chunked(long, tokens, [3]) - theirs).max() > 0.01
    whole = running.reference(path, model=build(path, None))  # for as long as the model was made for
    np.testing.assert_array_equal(running.chunked(long, tokens, [3]), running.chunked(whole, tokens, [3]))


def test_the_other_factors_and_the_fused_tensors_are_no_strangers(path: Path) -> None:
    assert not build(path, ORIGINAL).warnings
    assert not build(path, None).warnings


def test_fused_tensors_are_read_as_views_of_their_rows(path: Path) -> None:
    opened = open_checkpoint(path)
    model = models.build(opened.architecture, opened.naming, opened.metadata, opened.tensors)
    names = {"attn_q": "qkv", "attn_k": "qkv", "attn_v": "qkv", "ffn_gate": "up", "ffn_up": "up"}
    for stem, fused in names.items():
        (part,) = model.weights[f"blk.1.{stem}.weight"]
        (whole,) = (t for n, t in opened.tensors.items() if ".1." in n and fused in n)
        assert np.shares_memory(part.data, whole.data)
    widths = [op.out.width for op in model.plan.ops if isinstance(op, ops.Linear)][:5]
    assert widths == [96, 32, 32, 96, 52]


def test_plans_of_phi_have_no_copies_of_columns(path: Path) -> None:
    assert not any(isinstance(op, ops.Columns) for op in build(path, None).plan.ops)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"partial_rotary_factor": 0.7}, "makes 11 columns of a head: they must be pairs"),
        ({"long_factor": [1.0]}, "must be a list of 6 numbers"),
        ({"short_factor": [1.0] * 5 + ["x"]}, "must be a list of finite numbers above 0"),
        ({"short_factor": None}, "lacks 'short_factor'"),
        ({"rope_type": "llama3"}, "rope_type = 'llama3', which is not supported; known: default, longrope"),
    ],
)
def test_a_rotary_embedding_that_makes_no_sense_is_refused(change: dict[str, Any], message: str) -> None:
    told = {**CASE.options["rope_parameters"], **change}
    config = {"model_type": "phi3", "rms_norm_eps": 1e-5, "max_position_embeddings": 512}
    with pytest.raises(ModelError, match=message):
        models.build("phi3", "hf", {**CASE.options, **config, "rope_parameters": told}, {})


def test_fused_tensors_of_other_shapes_are_named(oracle: Any, tmp_path: Path) -> None:
    def spoil(name: str, values: np.ndarray) -> tuple[np.ndarray, None]:
        return (values[:-2] if "blk.1.attn_qkv" in name or "blk.2.ffn_up" in name else values), None

    path = gguf_twin.write_gguf(oracle, tmp_path / "model.gguf", spoil)
    with pytest.raises(ModelError) as caught:
        build(path, None)
    assert "blk.1.attn_k.weight (blk.1.attn_qkv.weight) is [31, 96] and should be [32, 96]" in str(
        caught.value
    )
    assert "blk.2.ffn_gate.weight (blk.2.ffn_up.weight) is [51, 96] and should be [52, 96]" in str(
        caught.value
    )
