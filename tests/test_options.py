"""Options by name: what a call takes, what editors are told of it, and what an unknown name gets."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import fields
from typing import Any, get_type_hints

import pytest

from olivine import LLM, load
from olivine.conversation import ChatKwargs, Conversations, PromptKwargs, RenderKwargs
from olivine.engine import Sampling
from olivine.loading import LoadKwargs, LoadOptions
from olivine.options import GenerateKwargs, Options
from olivine.perception import MEDIA_OPTIONS
from olivine.scoring import EmbedKwargs, ScoreKwargs, embeddings, scores


@pytest.mark.parametrize(("keywords", "options"), [(GenerateKwargs, Options), (LoadKwargs, LoadOptions)])
def test_the_keywords_that_editors_know_are_the_options_with_their_types(keywords: Any, options: Any) -> None:
    assert get_type_hints(keywords) == {
        each.name: get_type_hints(options)[each.name] for each in fields(options)
    }


def named(function: Any) -> set[str]:
    parameters = inspect.signature(function).parameters.values()
    return {each.name for each in parameters if each.kind is each.KEYWORD_ONLY}


@pytest.mark.parametrize(
    ("keywords", "functions"),
    [
        (RenderKwargs, [Conversations._render]),
        (EmbedKwargs, [embeddings]),
        (ScoreKwargs, [scores]),
    ],
)
def test_the_keywords_that_editors_know_are_those_of_the_functions(
    keywords: Any, functions: list[Any]
) -> None:
    assert set(get_type_hints(keywords)) == set().union(*map(named, functions))


def test_the_keywords_of_a_chat_are_those_of_its_prompt_and_its_media() -> None:
    prepared = named(Conversations._render) | named(Conversations.prepare)
    assert set(get_type_hints(PromptKwargs)) == prepared - {"media", "paths"} | set(MEDIA_OPTIONS)
    assert "media" in prepared


def test_a_chat_takes_what_a_prompt_and_a_generation_take() -> None:
    assert get_type_hints(ChatKwargs) == get_type_hints(PromptKwargs) | get_type_hints(GenerateKwargs)


@pytest.mark.parametrize("name", [name for name in vars(LLM) if not name.startswith("_")])
def test_no_public_call_takes_options_without_a_type(name: str) -> None:
    method = getattr(LLM, name)
    if inspect.isfunction(method):
        for parameter in inspect.signature(method).parameters.values():
            if parameter.kind is parameter.VAR_KEYWORD:
                assert parameter.annotation.startswith("Unpack["), f"{name}: {parameter}"


def test_options_name_what_is_unknown_and_differ_from_a_sampling() -> None:
    with pytest.raises(TypeError, match=r"no option 'temprature'; known: sampling, temperature, top_k"):
        Options.of({"temprature": 1.0})
    default = Sampling(temperature=0.6, top_k=20, seed=4)
    assert Options.of({}).adjusted(default) == default
    assert Options.of({"top_k": 0, "seed": 9}).adjusted(default) == Sampling(temperature=0.6, seed=9)
    assert Options.of({"sampling": Sampling(top_p=0.5), "temperature": 1.0}).adjusted(default) == Sampling(
        temperature=1.0, top_p=0.5
    )


@pytest.fixture(scope="module")
def mini() -> Iterator[LLM]:
    with load("olivine-mini", device="cpu", threads=1) as llm:
        yield llm


@pytest.mark.parametrize(
    ("method", "given", "known"),
    [
        ("embed", ["x"], "pooling, normalize, timeout, priority, client"),
        ("score", ["x", "y"], "timeout, priority, client"),
        ("score_many", [[("x", "y")]], "timeout, priority, client"),
        ("render", ["x"], "tools, tool_choice, think, template_options, continue_final_message"),
    ],
)
def test_every_method_names_what_is_unknown(mini: LLM, method: str, given: list[Any], known: str) -> None:
    with pytest.raises(TypeError, match=f"^there is no option 'temprature'; known: {known}$"):
        getattr(mini, method)(*given, temprature=1.0)


def test_loading_names_what_is_unknown() -> None:
    with pytest.raises(TypeError, match=r"no option 'devise'; known: device, threads, context"):
        LoadOptions.of({"devise": "cpu"})  # type: ignore[typeddict-unknown-key]
