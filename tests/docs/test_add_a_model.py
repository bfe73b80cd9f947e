"""docs/add-a-model.md, followed: the file that it shows, registered as it says, run on every backend."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from olivine import models
from olivine.backends.cpu import CpuProgram
from olivine.backends.reference import ReferenceProgram
from olivine.convert import convert
from oracles import folders, published, running
from oracles.documents import ROOT, blocks

PAGE = ROOT / "docs" / "add-a-model.md"
FILE, LINE, CASE = (block.text for block in blocks(PAGE)[:3])
TOKENS = [int(token) for token in np.random.default_rng(7).integers(0, 32, 21)]


@pytest.fixture
def case(monkeypatch: pytest.MonkeyPatch) -> published.Case:
    """The architecture is registered; a small random model of the published code."""
    module = ModuleType("olivine.models.hunyuan")
    monkeypatch.setitem(sys.modules, module.__name__, module)  # for `from __future__ import annotations`
    exec(compile(FILE, "docs/add-a-model.md", "exec"), module.__dict__)
    registered = eval(f"{{{LINE}}}", {"Kinds": models.Kinds})
    monkeypatch.setattr(models, "ARCHITECTURES", {**models.ARCHITECTURES, **registered})
    found = eval(CASE, vars(published).copy())
    assert isinstance(found, published.Case)
    return found


def program(kind: type, path: Path, **options: object) -> ReferenceProgram:
    model = running.build(path)
    made = kind(model.plan, model.weights, page_counts=[16] * len(model.plan.groups), **options)
    assert isinstance(made, kind)
    return made  # type: ignore[no-any-return]


def spread(ours: np.ndarray, theirs: np.ndarray) -> float:
    """The error of nine rows in ten, as a share of the logits' spread."""
    rows = np.sqrt(np.mean(np.square(ours - theirs), axis=1)) / theirs.std()
    return float(np.quantile(rows, 0.9))


def test_it_is_the_published_model(case: published.Case, tmp_path: Path) -> None:
    oracle = case.make()
    path = published.save(oracle, tmp_path)
    expected = published.logits_of(oracle, TOKENS)
    assert expected.std() > 0.3
    reference = program(ReferenceProgram, path, page_size=4)
    for sizes in ([len(TOKENS)], [1], [5, 2]):
        np.testing.assert_allclose(running.chunked(reference, TOKENS, sizes), expected, rtol=0, atol=1e-4)
    cpu = program(CpuProgram, path, threads=2)
    assert spread(running.chunked(cpu, TOKENS, [8]), expected) < 0.04
    assert spread(running.chunked(cpu, TOKENS, [1], generated=True), expected) < 0.01


def test_it_goes_through_gguf(case: published.Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(published, "CASES", (*published.CASES, case))
    monkeypatch.setitem(folders.FAMILIES, "hunyuan", ("hunyuan", {}, "qwen2"))
    path = folders.write("hunyuan", tmp_path / "folder", wide=False)
    made = convert(path, tmp_path / "made.gguf", "F32").path
    expected = running.chunked(program(ReferenceProgram, path), TOKENS, [len(TOKENS)])
    ours = running.chunked(program(ReferenceProgram, made), TOKENS, [len(TOKENS)])
    np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-5)


def test_it_runs_on_the_gpu(case: published.Case, tmp_path: Path) -> None:
    """In Triton's interpreter, which is slow: one layer of two heads, 32 tokens."""
    pytest.importorskip("triton")
    if os.environ["TRITON_INTERPRET"] != "1":
        pytest.skip("this test runs in Triton's interpreter")
    from olivine.backends.cuda import CudaProgram

    small = {"num_hidden_layers": 1, "vocab_size": 32, "intermediate_size": 16, "num_attention_heads": 2}
    small |= {"num_key_value_heads": 1}
    path = published.save(replace(case, options={**case.options, **small}).make(), tmp_path)
    cuda = running.Session(program(CudaProgram, path, device="cpu"), 1, 32)
    expected = running.chunked(program(ReferenceProgram, path, page_size=32), TOKENS[:6], [6])
    ours = [*cuda.step([(0, TOKENS[:5])]), *cuda.step([(0, TOKENS[5:6])], generated=True)]
    assert spread(np.concatenate(ours), expected) < 0.04
