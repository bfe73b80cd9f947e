"""Options that users of llama.cpp and Ollama type by habit: taken, or refused in words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest

from olivine import box
from olivine.cli.chat.command import command as chat
from olivine.cli.habits import REFUSED, SPELLINGS
from olivine.cli.main import cli
from olivine.cli.run import command as run
from olivine.cli.tool_habits import FamiliarTool

BOTH = pytest.mark.parametrize("command", [run, chat], ids=["run", "chat"])


def parsed(command: click.Command, *arguments: str) -> dict[str, Any]:
    return command.make_context(command.name, list(arguments)).params


def refusal(command: click.Command, *arguments: str) -> str:
    with pytest.raises(click.UsageError) as error:
        parsed(command, *arguments)
    return error.value.format_message()


@BOTH
@pytest.mark.parametrize("how", [["-c", "2048"], ["-c2048"], ["--continue", "2048"]], ids=" ".join)
def test_a_number_after_c_is_not_a_question(command: click.Command, how: list[str]) -> None:
    assert "the context is --context 2048." in refusal(command, "olivine-mini", *how)
    assert "the context is --context 2048." in refusal(command, *how)


def test_a_question_after_c_is_one() -> None:
    told = parsed(run, "-c", "And then?", "2048")
    assert told["again"] and told["words"] == ("And then?", "2048")
    assert parsed(run, "2048", "-c")["words"] == ("2048",)
    assert parsed(run, "--", "-c", "2048")["words"] == ("-c", "2048")
    assert parsed(run, "-p", "-c", "2048")["words"] == ("2048",), "the value of an option is no option"


@BOTH
def test_a_number_is_no_system_message(command: click.Command) -> None:
    for how in (["-s", "42"], ["-s42"], ["--system", "42"], ["-sys", "-1"]):
        assert refusal(command, "olivine-mini", *how).startswith("-s (--system) takes a text, which")
    assert parsed(command, "olivine-mini", "-s", "42 words at most")["system"] == "42 words at most"


@BOTH
@pytest.mark.parametrize(
    ("arguments", "name", "value"),
    [
        (["--n-predict", "7"], "max_tokens", 7),
        (["--predict=7"], "max_tokens", 7),
        (["-n", "-1"], "max_tokens", -1),
        (["--seed", "-1"], "seed", None),
        (["--ctx-size", "0"], "context", 0),
        (["--ctx-size", "99"], "context", 99),
        (["--temperature", "0.5"], "temperature", 0.5),
        (["--temp", "0.5"], "temperature", 0.5),
        (["--repeat-penalty", "1.1"], "repetition_penalty", 1.1),
        (["--presence-penalty", "0.5"], "presence_penalty", 0.5),
        (["--frequency-penalty", "-0.5"], "frequency_penalty", -0.5),
        (["-r", "User:", "--stop", "x"], "stop", ("User:", "x")),
        (["-sys", "Be kind."], "system", "Be kind."),
        (["--system-prompt=Be=kind."], "system", "Be=kind."),
        (["--format", "json"], "json_schema", "json"),
        (["-j", "{}"], "json_schema", "{}"),
        (["--grammar-file", "x.gbnf"], "grammar", "x.gbnf"),
        (["--hidethinking"], "hide_thinking", True),
        (["--think"], "think", "on"),
        (["--think", "off"], "think", "off"),
        (["--think=high"], "think", "high"),
        (["--reasoning-effort", "low"], "think", "low"),
    ],
)
def test_other_spellings(command: click.Command, arguments: list[str], name: str, value: Any) -> None:
    assert parsed(command, "olivine-mini", *arguments)[name] == value
    assert parsed(command, *arguments, "olivine-mini")[name] == value


def test_think_takes_no_question_for_its_value() -> None:
    assert parsed(run, "--think", "why?")["words"] == ("why?",)


@BOTH
def test_what_cannot_be_is_refused_with_what_to_do(command: click.Command) -> None:
    assert refusal(command, "-ngl", "99") == f"-ngl: {REFUSED['-ngl']}"
    own = {name for each in command.params for name in each.opts}
    for name, reason in REFUSED.items():
        if name in own:
            continue
        assert refusal(command, "olivine-mini", name, "1") == f"{name}: {reason}"
        assert reason.endswith(".") and "\n" not in reason
    assert parsed(run, "-p", "-ngl")["prompt"] == "-ngl"


@BOTH
def test_no_habit_hides_an_option_of_ours(command: click.Command) -> None:
    own = {name for each in command.params for name in each.opts}
    assert not own & {*SPELLINGS} and own & {*REFUSED} <= {"-p", "--prompt"}, "these two are only run's"
    assert not {*REFUSED} & {*SPELLINGS} and {*SPELLINGS.values()} <= own


@BOTH
def test_no_answer_is_of_no_tokens(command: click.Command) -> None:
    for count in ("0", "-2"):
        assert f"{count} is neither at least 1 nor -1" in refusal(command, "-n", count)


def tool(name: str) -> FamiliarTool:
    found = cli.get_command(click.Context(cli), name)
    assert isinstance(found, FamiliarTool)
    return found


MODEL = "olivine-mini"


@pytest.mark.parametrize(
    ("line", "values"),
    [
        (
            f"bench -m {MODEL} -p 512 -n 128 -r 3 -d 4",
            {"prompt": 512, "generate": 128, "repeats": 3, "depth": 4},
        ),
        (f"perplexity -m {MODEL} -f - --chunks 2 -c 64", {"text": Path("-"), "most": 2, "window": 64}),
        (f"perplexity {MODEL} --file=-", {"text": Path("-")}),
        (f"tokenize --model {MODEL} hi", {"text": "hi"}),
        (f"tokenize -p -hi --model={MODEL} --show-count", {"text": "-hi", "count": True}),
        (f"tokenize -m {MODEL} -- -hi", {"text": "-hi"}),
        (f"inspect -m {MODEL}", {}),
        (f"convert {MODEL} x.gguf Q4_K_M", {"named": "Q4_K_M"}),
        (f"convert {MODEL} --outtype q8_0 --outfile x.gguf", {"kind": "q8_0", "destination": Path("x.gguf")}),
    ],
)
def test_tools_take_what_llama_cpp_has(line: str, values: dict[str, Any]) -> None:
    name, *arguments = line.split()
    told = parsed(tool(name), *arguments)
    assert told["source" if name == "convert" else "model"] == box.FILE
    assert told.items() >= values.items()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("bench -m x.gguf -ngl 99", f"-ngl: {REFUSED['-ngl']}"),
        ("bench -m x.gguf -o json", "-o: --json prints JSON."),
        ("tokenize -f x", "-f: a file is read as standard input: olivine tokenize MODEL < FILE."),
        ("inspect -m", "Option '-m' requires an argument."),
    ],
)
def test_tools_refuse_with_what_to_do(line: str, words: str) -> None:
    name, *arguments = line.split()
    assert refusal(tool(name), *arguments) == words


@pytest.mark.parametrize("name", ["bench", "perplexity", "tokenize", "inspect", "convert", "rank"])
def test_no_habit_hides_an_option_of_a_tool(name: str) -> None:
    command = tool(name)
    own = {each for param in command.params for each in param.opts if each.startswith("-")}
    assert not own & {*command.spellings, *command.refused, *command.arguments}
    assert {*command.spellings.values()} <= own
    assert not {*command.refused} & {*command.spellings, *command.arguments}
