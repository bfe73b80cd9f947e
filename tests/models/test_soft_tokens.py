"""Soft tokens in the decoder, against the published models: what rows of an image see of each other."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from olivine.plan import ops
from oracles import published, running, soft

# Longer and shorter than the window, at both ends and side by side with one token between them.
SPANS = ((0, 7), (8, 3), (20, 9), (33, 4))
LENGTH = 37
CASES = ("gemma3-mqa-small-window", "gemma3-odd-heads-window-1", "gemma4-26b-a4b", "gemma4-31b", "gemma4-12b")


def close(ours: np.ndarray, theirs: np.ndarray) -> None:
    np.testing.assert_allclose(ours, theirs, atol=1e-3)


@pytest.mark.parametrize("name", CASES)
def test_an_image_block_sees_itself_as_in_the_published_model(name: str, tmp_path: Path) -> None:
    model = soft.multimodal(published.case(name))
    given = soft.prompt(LENGTH, SPANS, 36)
    theirs = soft.published_logits(model, given)
    folder = published.save(model, tmp_path)
    program = running.reference(folder)
    close(soft.logits_of(program, given, [LENGTH]), theirs)
    close(soft.logits_of(program, given, [5, 1, 2]), theirs)
    causal = soft.prompt(LENGTH, SPANS, 36, bidirectional=False)
    assert np.abs(soft.logits_of(program, causal, [LENGTH]) - theirs).max() > 0.1


@pytest.mark.parametrize(("name", "kind"), [("gemma4-e2b", soft.IMAGE), ("gemma4-31b", soft.AUDIO)])
def test_sounds_and_images_of_small_models_are_causal(name: str, kind: int, tmp_path: Path) -> None:
    model = soft.multimodal(published.case(name))
    given = soft.prompt(LENGTH, SPANS, 36, bidirectional=False)
    theirs = soft.published_logits(model, given, kind)
    program = running.reference(published.save(model, tmp_path))
    close(soft.logits_of(program, given, [LENGTH]), theirs)
    close(soft.logits_of(program, given, [5, 1, 2]), theirs)


def test_the_full_layers_of_gemma_4_are_causal(tmp_path: Path) -> None:
    for name, sliding, full in (("gemma3-mqa-small-window", True, True), ("gemma4-31b", True, False)):
        plan = running.build(published.save(published.case(name).make(), tmp_path / name)).plan
        for op in plan.ops:
            if isinstance(op, ops.Attention):
                assert op.bidirectional == (full if op.window is None else sliding)
