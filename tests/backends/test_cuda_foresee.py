"""The kernels that a program launches are known before it runs, and so compiled before it runs."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("triton")

from oracles import foreseeing, published, tiny


@pytest.mark.parametrize("name", ["qwen3moe-normalized", "gemma4-everything", "phi4-mini"])
def test_every_kernel_is_foreseen(name: str, tmp_path: Path) -> None:
    published.save(published.case(name).make(), tmp_path)
    check(foreseeing.kernels(tmp_path))


@pytest.mark.parametrize(("kind", "cache_type"), [("Q4_K", "BF16"), ("Q8_0", "Q8_0")])
def test_every_kernel_of_quantized_weights_is_foreseen(kind: str, cache_type: str, tmp_path: Path) -> None:
    check(foreseeing.kernels(tiny.write("tiny-qwen3", kind, tmp_path), cache_type))


def check(found: dict[str, set[str]]) -> None:
    assert found["short"] == found["first"]
    assert not found["long"] - found["first"] - found["later"]
    assert found["long"] - found["first"]  # else there would be nothing to foresee
