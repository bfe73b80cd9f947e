"""What a seed promises: docs/engine.md says it, and here each line of it is tried on the CPU backend."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import olivine
from olivine import LLM, OlivineError, box
from olivine.backends.cpu import isa
from olivine.chat.messages import Message
from olivine.cli.main import cli
from olivine.reply import Reply
from oracles import tiny
from oracles.isas import ONE_KIND

PROMPT = "A prompt that takes more than a page of the cache, and is read in chunks. " * 2
OPTIONS: dict[str, Any] = {"temperature": 0.9, "seed": 5, "max_tokens": 40, "ignore_eos": True, "logprobs": 2}
QUESTION = [{"role": "user", "content": "Tell me something, and then some more of it."}]
FURTHER = {"role": "user", "content": "Go on."}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write("tiny-qwen3", "Q4_K", tmp_path_factory.mktemp("models"))


def load(file: Path, **options: Any) -> LLM:
    return olivine.load(file, **{"device": "cpu", "context": 512, "threads": 2, **options})


def figures(reply: Any) -> tuple[list[int], list[float]]:
    """Tokens, and their log-probabilities to the last bit."""
    return reply.tokens, [each.logprob for report in reply.logprobs for each in (report, *report.top)]


@pytest.fixture(scope="module")
def quiet(file: Path) -> tuple[list[int], list[float]]:
    """What comes out of a model that does nothing else."""
    with load(file) as llm:
        return figures(llm.generate(PROMPT, **OPTIONS))


@pytest.mark.parametrize(
    "options",
    [
        {"threads": 1},
        {"threads": 3},
        {"speculate": False},
        {"sequences": 1},
        {"context": 300},
        {"kv_bytes": 3 << 19},
        {"reproducible": True},
    ],
    ids=str,
)
def test_a_seed_means_the_same_however_a_model_is_loaded(
    file: Path, quiet: tuple[list[int], list[float]], options: dict[str, Any]
) -> None:
    with load(file, **options) as llm:
        assert figures(llm.generate(PROMPT, **OPTIONS)) == quiet


def test_a_seed_means_the_same_in_company_and_after_others(
    file: Path, quiet: tuple[list[int], list[float]]
) -> None:
    with load(file) as llm:
        others = [llm.stream(f"{i} other prompt " * 9, **{**OPTIONS, "seed": i}) for i in range(5)]
        assert figures(llm.generate(PROMPT, **OPTIONS)) == quiet
        again = llm.generate(PROMPT, **OPTIONS)  # the prompt's pages are there now
        assert again.usage.cached > 0
        assert figures(again) == quiet
        del others


def second_turn(llm: LLM, first: Message | None) -> tuple[Message, Reply]:
    """The answer to a question after the first answer, which is made here or was made elsewhere."""
    first = first or llm.chat(QUESTION, temperature=0.9, seed=5, max_tokens=80).message
    return first, llm.chat([*QUESTION, first, FURTHER], **{**OPTIONS, "ignore_eos": False})


def test_a_reproducible_conversation_does_not_depend_on_who_made_its_earlier_answers() -> None:
    """Otherwise an answer is taken over as it was generated, and has other bits than one that is read,
    unless the model has one kind of rows."""
    mini = Path(box.find(box.NAME))  # which writes words, so that an answer has the same tokens in a prompt
    with load(mini, reproducible=True) as maker, load(mini, reproducible=True) as reader:
        first, made = second_turn(maker, None)
        _, read = second_turn(reader, first)
        assert figures(read) == figures(made) == figures(second_turn(maker, first)[1])
        one_kind = maker._engine.program.one_kind
        assert one_kind or made.usage.cached < 64  # the answer of 80 tokens was read again
    with load(mini) as maker:
        assert second_turn(maker, None)[1].usage.cached >= 64


def test_with_one_kind_of_rows_a_conversation_is_the_same_with_and_without_its_history_cached(
    file: Path,
) -> None:
    with load(file) as maker, load(file) as reader:
        one_kind = maker._engine.program.one_kind
        assert one_kind == (isa() in ONE_KIND)
        question = maker.tokenizer.encode(PROMPT)
        answer = maker.generate(question, **{**OPTIONS, "max_tokens": 80}).tokens
        turn = [*question, *answer, *question]
        made, read = maker.generate(turn, **OPTIONS), reader.generate(turn, **OPTIONS)
        assert (made.usage.cached >= len(question) + 40) == one_kind
        assert read.usage.cached == 0
        assert figures(made) == figures(read)


def test_marks_of_generated_tokens_mean_nothing_to_a_reproducible_model(file: Path) -> None:
    with load(file, reproducible=True) as llm:
        prompt = llm.tokenizer.encode(PROMPT)
        plain = figures(llm.generate(prompt, **OPTIONS))
        assert figures(llm.generate(prompt, generated=[True] * len(prompt), **OPTIONS)) == plain
    with load(file) as llm:
        marked = llm.generate(prompt, generated=[True] * len(prompt), **OPTIONS)
        again = llm.generate(prompt, **OPTIONS)
        assert figures(again) == plain
        assert marked.usage.cached == 0
        assert (again.usage.cached > 0) == llm._engine.program.one_kind


def test_the_commands_know_the_switch(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def opened(*args: Any, **options: Any) -> None:
        seen.append(options["reproducible"])
        raise OlivineError("that was all")

    monkeypatch.setattr("olivine.llm.load", opened)
    for command in (["run", str(file), "Hello"], ["chat", str(file)]):
        for flag in ([], ["--reproducible"]):
            CliRunner().invoke(cli, [*command, *flag], input="")
    assert seen == [False, True, False, True]
