"""What Mistral Small 3 and Ministral 3 have of their own: a text model within another, scaled queries."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from olivine import models
from olivine.errors import ModelError
from olivine.formats import open_checkpoint
from olivine.models import mistral
from olivine.models.fields import Fields
from olivine.plan import ops
from oracles import published, running

TOKENS = [5, 3, 90, 17, 64, 2, 2, 41] * 5
VISION = {
    "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 1, "num_attention_heads": 2,
    "head_dim": 16, "patch_size": 14, "image_size": 56,
}  # fmt: skip


def test_the_text_model_of_one_that_sees_is_run(tmp_path: Path) -> None:
    text = {**published.COMMON, **published.case("ministral3").options, "model_type": "ministral3"}
    torch.manual_seed(0)
    config = transformers.Mistral3Config(
        text_config=text, vision_config={"model_type": "pixtral", **VISION}, tie_word_embeddings=False
    )
    model = published.randomize(transformers.Mistral3ForConditionalGeneration(config))
    folder = published.save(model, tmp_path)
    built = running.build(folder)
    assert not built.warnings
    assert json.loads((folder / "config.json").read_text())["model_type"] == "mistral3"
    ours = running.chunked(running.reference(folder), TOKENS, [11])
    np.testing.assert_allclose(ours, published.logits_of(model, TOKENS), rtol=0, atol=1e-4)


def test_what_the_configuration_of_one_that_sees_leaves_out() -> None:
    """As the published classes have it: heads are tied, Mistral slides, and Ministral 3 does not."""
    base = {**published.COMMON, **published.case("ministral3").options, "rms_norm_eps": 1e-5}
    scaling = base.pop("rope_parameters")
    for kind, window in (("mistral", 4096), ("ministral3", None)):
        text = {**base, "model_type": kind, "rope_scaling": scaling}
        read = transformers.Mistral3Config(text_config=copy.deepcopy(text), vision_config=VISION)
        c = mistral.from_hf(Fields({"model_type": "mistral3", "text_config": text}))
        assert c.tied == read.tie_word_embeddings is True
        assert c.windows[0] == read.text_config.sliding_window == window
        assert c.beta == (0.4 if kind == "ministral3" else 0.0)
    with pytest.raises(ModelError, match="rope_parameters = None, which must be there"):
        mistral.from_hf(Fields({"text_config": {**base, "model_type": "ministral3"}}))


def test_text_models_of_other_families_are_refused_by_name() -> None:
    with pytest.raises(ModelError, match="model_type = 'mistral4', which is not supported"):
        models.build("mistral3", "hf", {"text_config": {"model_type": "mistral4"}}, {})


def test_only_contexts_beyond_the_original_one_pay_for_the_scale(tmp_path: Path) -> None:
    opened = open_checkpoint(published.save(published.case("ministral3").make(), tmp_path))

    def scales(context: int | None) -> int:
        built = models.build(
            opened.architecture, opened.naming, opened.metadata, opened.tensors, context=context
        )
        return sum(isinstance(op, ops.PositionScale) for op in built.plan.ops)

    assert [scales(context) for context in (16, 17, None)] == [0, 3, 3]


@pytest.mark.parametrize(
    ("kind", "scaling", "window"),
    [
        ("mistral", {"rope_type": "default"}, 16),
        ("ministral3", {"rope_type": "default", "llama_4_scaling_beta": 0.1}, None),
        ("ministral3", {"rope_type": "linear", "factor": 2.0, "llama_4_scaling_beta": 0.1}, None),
    ],
)
def test_what_gguf_says_of_windows_and_scaled_queries(
    kind: str, scaling: dict[str, object], window: int | None
) -> None:
    """A window cuts the context, and the length after which queries are scaled is there without YaRN too."""
    base = {**published.COMMON, **published.case("ministral3").options, "rms_norm_eps": 1e-5}
    told = {**base, "model_type": kind, "sliding_window": window, "rope_parameters": scaling}
    c = mistral.from_hf(Fields(told))
    form = mistral.to_gguf(c)
    keys = {f"mistral3.{key}": value for key, value in form.keys.items()}
    found = mistral.from_gguf(Fields(keys, "mistral3."))
    assert found == form.config and found.context == (window or c.context)
    assert (found.beta, found.original) == (c.beta, c.context if c.beta else 0)
