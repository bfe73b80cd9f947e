"""What files say about a model, without loading it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from olivine import box
from olivine.formats import open_checkpoint
from olivine.llm import LLM, load
from olivine.memory import Need
from olivine.server.facts import Facts, facts_of, read_facts
from olivine.server.served import ServedModel
from oracles import folders

TOOLS = "{% if tools %}<tool_call>{{ tools }}</tool_call>{% endif %}"
THINKS = "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>{% endif %}"


def test_the_model_in_the_box(mini: LLM) -> None:
    facts = read_facts(box.FILE)
    assert facts == read_facts(mini.checkpoint)
    assert facts.parameters == sum(tensor.size for tensor in mini.checkpoint.tensors.values())
    assert facts.file_bytes == box.FILE.stat().st_size
    assert facts.train_context == mini.model.config.context
    assert (facts.layers, facts.embedding_length) == (mini.model.config.layers, mini.model.config.width)
    assert sum(facts.types.values()) <= facts.file_bytes and facts.problem is None
    assert facts.capabilities == {"vision": False, "audio": False, "tools": False, "reasoning": False}


def test_what_a_model_takes_besides_text() -> None:
    sees, hears = Facts(vision=True), Facts(audio=True)
    assert sees.modalities == {"vision": True, "audio": False} and sees.capabilities["vision"]
    assert hears.modalities == {"vision": False, "audio": True} and hears.capabilities["audio"]


@pytest.mark.parametrize(
    ("template", "tools", "reasoning"),
    [("", False, False), (TOOLS, True, False), (THINKS, False, True), (TOOLS + THINKS, True, True)],
)
def test_the_template_tells_of_tools_and_thoughts(
    small: Path, template: str, tools: bool, reasoning: bool
) -> None:
    (small / "chat_template.jinja").write_text(folders.TEMPLATE + template)
    facts = read_facts(small)
    assert (facts.tools, facts.reasoning) == (tools, reasoning)
    assert facts.chat_template == folders.TEMPLATE + template and facts.format == "safetensors"
    assert read_facts(replace(open_checkpoint(small), tool_template=TOOLS)).tools


def test_what_is_broken_is_told_and_the_rest_is_there(small: Path, tmp_path: Path) -> None:
    (small / "chat_template.jinja").write_text("{% for %}")
    facts = read_facts(small)
    assert "chat template" in (facts.problem or "") and facts.train_context == 512
    (tmp_path / "x.gguf").write_bytes(b"GGUF")
    assert "x.gguf" in (read_facts(tmp_path / "x.gguf").problem or "")
    assert read_facts(tmp_path / "nowhere").parameters == 0


def test_files_are_read_again_when_they_change(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF")
    model = ServedModel("m", path=path)
    assert asyncio.run(facts_of(model)).problem is not None
    assert asyncio.run(facts_of(model)) is asyncio.run(facts_of(model))
    path.write_bytes(box.FILE.read_bytes())
    assert asyncio.run(facts_of(model)).parameters == read_facts(open_checkpoint(box.FILE)).parameters


def test_facts_of_a_file_that_was_replaced_are_those_of_the_last_load(mini: LLM, small: Path) -> None:
    model = ServedModel("m", path=Path("m"))
    model.put(mini, Need("cpu", 0, 0, 0))
    assert asyncio.run(facts_of(model)) == read_facts(box.FILE)
    assert asyncio.run(facts_of(model)) is asyncio.run(facts_of(model))
    model.take()
    with load(small, device="cpu", threads=1, context=64) as other:
        model.put(other, Need("cpu", 0, 0, 0))
        assert asyncio.run(facts_of(model)) == read_facts(other.checkpoint) != read_facts(box.FILE)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folders.write("qwen3", tmp_path_factory.mktemp("model"), wide=False)
