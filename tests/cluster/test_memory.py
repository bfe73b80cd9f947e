"""The memory of each rank, as foretold: of large models by their shapes, of a small one as it is mapped."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import olivine
from olivine.backends.collectives import weights_of
from olivine.cluster import Group, Parallel
from olivine.cluster.memory import Need, rank_needs
from olivine.cluster.rank import divide
from olivine.models import Model
from olivine.tensor import Tensor
from synthetic import SHAPES, Shape, write_gguf
from synthetic.blocks import RandomWeights
from synthetic.gemma4 import Gemma4Shape
from synthetic.in_memory import hollow_model

columns = Tensor.columns


def hollow_columns(tensor: Tensor, start: int, stop: int) -> Tensor:
    """As `Tensor.columns`, with the bytes of one row for all: there is no room for the copies."""
    row = columns(tensor.rows(0, 1), start, stop)
    data = np.broadcast_to(np.uint8(0), (row.data.size * tensor.row_count,))
    return Tensor(tensor.name, tensor.dtype, (*tensor.shape[:-1], stop - start), data)


LARGE = [("gemma3-27b", "Q4_0"), ("gemma4-31b", "Q4_K_M"), ("llama-70b", "BF16")]


@pytest.mark.parametrize(
    ("name", "kind", "ways"),
    [
        *((*model, [way]) for model, way in zip(LARGE, [(2, 2), (4, 1), (8, 1)], strict=True)),
        *(
            pytest.param(*model, [(2, 1), (4, 1), (8, 1), (1, 4), (2, 2)], marks=pytest.mark.exhaustive)
            for model in LARGE
        ),
    ],
)
def test_large_models_by_their_shapes(
    name: str, kind: str, ways: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What ranks map and copy is what was foretold, and about an equal share of the whole."""
    model = hollow_model(SHAPES[name], kind)
    monkeypatch.setattr(Tensor, "columns", hollow_columns)
    whole = stored(model)
    head = sum(part.nbytes for part in model.weights["token_embd.weight"])
    token = sum(group.bytes_per_token(2) for group in model.plan.groups)
    for tensor, pipeline in ways:
        parallel = Parallel(tensor, pipeline)
        needs = rank_needs(model.plan, model.weights, parallel)
        held = [
            sum(part.nbytes for parts in weights_of(found, rank, model.weights).values() for part in parts)
            for found in divide(model.plan, model.weights, parallel)
            for rank in range(tensor)
        ]
        assert len(needs) == len(held) == parallel.size
        for need, size in zip(needs, held, strict=True):
            assert need.weights == pytest.approx(size, rel=0.05)
        # The embedding is the head too: of a pipeline, the first and the last stage have it.
        assert max(held) < 1.06 * (whole + (head if pipeline > 1 else 0)) / parallel.size
        # Gemma 4 has 4 KV heads in some layers, of which 8 ranks have one each twice.
        assert token <= sum(need.cache_token for need in needs) <= (1.3 if tensor == 8 else 1.0) * token


def stored(model: Model) -> int:
    return sum(part.nbytes for weight in model.plan.weights for part in model.weights[weight.name])


def zeros(
    self: RandomWeights, wanted: Iterable[tuple[object, tuple[int, ...]]]
) -> Iterator[list[np.ndarray]]:
    """Q8_0."""
    for _, shape in wanted:
        yield [np.zeros(int(np.prod(shape)) // 32 * 34, np.uint8)]


def cut(name: str, part: int, layers: int) -> Shape:
    """A published shape with few layers and tokens, its widths divided by `part`."""
    shape = SHAPES[name]
    widths = {key: getattr(shape, key) // part for key in ("width", "hidden", "heads", "kv_heads")}
    few: dict[str, object] = {**widths, "layers": layers, "vocabulary": 1024, "context": 512}
    if isinstance(shape, Gemma4Shape):
        few["period"] = 2  # a layer of each kind
    return replace(shape, **few)  # type: ignore[arg-type]


def ranks_memory(path: Path, way: dict[str, int]) -> tuple[Need, int, int]:
    """What the other of two ranks of a model should need, what it has of the file, and of its own."""
    with olivine.load(path, device="cpu", threads=1, context=64, sequences=1, **way) as llm:  # type: ignore[arg-type]
        parallel = Parallel(way.get("tensor_parallel", 1), way.get("pipeline_parallel", 1))
        need = rank_needs(llm.model.plan, llm.model.weights, parallel)[1 - parallel.driver]
        llm.score([3, 4, 5], [6, 7])
        program = llm.program
        assert isinstance(program, Group)
        (pid,) = program.pids
        return need, *resident(pid, path)


# Not smaller: the system maps pages before and after those that are read, tens of kilobytes of each matrix.
@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="only Linux says what a process has mapped")
@pytest.mark.parametrize(
    ("name", "part", "layers", "way"),
    [
        ("gemma3-27b", 1, 1, {"tensor_parallel": 2}),
        ("gemma4-31b", 2, 2, {"pipeline_parallel": 2}),
        *(
            pytest.param(name, 1, 2, way, marks=pytest.mark.exhaustive)
            for name in ("gemma3-27b", "gemma4-31b", "llama-70b")
            for way in ({"tensor_parallel": 2}, {"pipeline_parallel": 2})
        ),
    ],
)
def test_a_rank_has_the_memory_that_was_foretold(
    name: str,
    part: int,
    layers: int,
    way: dict[str, int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Within 5 %, beside what a rank of a tiny model has: Python itself."""
    monkeypatch.setattr(RandomWeights, "tensors", zeros)
    tiny = write_gguf(tmp_path / "tiny.gguf", SHAPES["tiny-llama"], "Q8_0", pure=True)
    path = write_gguf(tmp_path / "model.gguf", cut(name, part, layers), "Q8_0", pure=True)
    _, _, before = ranks_memory(tiny, way)
    need, mapped, own = ranks_memory(path, way)
    assert mapped == pytest.approx(need.weights - need.copied, rel=0.05)
    assert mapped + own - before == pytest.approx(need.weights, rel=0.05)


def resident(pid: int, path: Path) -> tuple[int, int]:
    """Bytes of a file, and of no file, that a process has in memory."""
    mapped = anonymous = 0
    of_file = False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        word, *rest = line.split()
        if "-" in word and not word.endswith(":"):
            of_file = line.endswith(str(path))
        elif word == "Rss:" and of_file:
            mapped += 1024 * int(rest[0])
        elif word == "Anonymous:":
            anonymous += 1024 * int(rest[0])
    return mapped, anonymous
