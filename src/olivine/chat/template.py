"""From a conversation to a prompt, through the model's own template."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import Template, meta
from jinja2.exceptions import SecurityError, TemplateError, TemplateSyntaxError, UndefinedError

from olivine.chat import builtin, folding, prompt_files
from olivine.chat.guard import Guard
from olivine.chat.messages import Message
from olivine.chat.parsers import format_of
from olivine.chat.prefix import Prefix
from olivine.chat.probes import Probes
from olivine.chat.sandbox import Sandbox
from olivine.chat.thinking import SWITCHES, Thinking
from olivine.errors import ModelError, RequestError

LARGEST = 1 << 18  # characters of a template
_SAID = 500  # characters of a complaint


@dataclass(frozen=True)
class Prompt:
    """A rendered conversation, and the places in it where no special token begins: see guard.py."""

    text: str
    literal: frozenset[int] = frozenset()


class ChatTemplate:
    """A chat template. Rendering equals that of the publisher's own code, character for character."""

    def __init__(
        self,
        source: str,
        tokens: Mapping[str, Any] | None = None,
        special: Iterable[str] = (),
        *,
        with_tools: ChatTemplate | None = None,
    ) -> None:
        """`tokens` are variables that are the same in all prompts (bos_token, eos_token, …); `special` are
        the tokens that text of messages must not become; `with_tools` takes the conversations with tools."""
        self.source = source
        self.with_tools = with_tools
        self.format = format_of(source)
        self._tokens = dict(tokens or {})
        self._guard = Guard(special)
        self._sandbox = Sandbox()
        self._probes = Probes(self.render)
        if len(source) > LARGEST:
            raise ModelError(
                f"the model's chat template has {len(source)} characters, and {LARGEST} is the most"
            )
        try:
            self._compiled, self.variables = self._sandbox.run(lambda: self._compile(source))
        except TemplateSyntaxError as error:
            problem = f"line {error.lineno}: {_printable(error.message)}"
            raise ModelError(f"the model's chat template: {problem}") from None
        except Exception as error:  # Python itself refuses some, such as loops in loops in loops …
            raise ModelError(f"the model's chat template cannot be read: {_printable(error)}") from None

    def _compile(self, source: str) -> tuple[Template, set[str]]:
        """The template and its variables. Jinja computes constant expressions here, so it is limited too."""
        return self._sandbox.from_string(source), meta.find_undeclared_variables(self._sandbox.parse(source))

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
        *,
        add_generation_prompt: bool = True,
    ) -> str:
        """Renders these messages as they are."""
        given = {
            **self._tokens,
            **(variables or {}),
            "messages": messages,
            "tools": tools or None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        variable = self.format.tools_variable
        if variable is not None and "tools" not in self.variables:
            given[variable] = [tool.get("function", tool) for tool in tools or ()] or None
        try:
            return self._sandbox.run(lambda: self._compiled.render(given), given)
        except (UndefinedError, SecurityError) as error:
            problem = _printable(error)
        except TemplateError as error:  # its own complaint
            raise RequestError(_printable(error.message or error)) from None
        except (RecursionError, MemoryError):
            problem = "it is nested too deeply or takes too much memory"
        except Exception as error:  # templates fail on what they do not expect in any way that Python has
            problem = _printable(error)
        raise RequestError(f"the chat template cannot render this conversation: {problem}") from None

    def prompt(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] = (),
        thinking: Thinking | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> Prompt:
        """The prompt of a conversation, adapted to what this template takes."""
        if tools and self.with_tools is not None:
            return self.with_tools.prompt(messages, tools, thinking, variables)
        text = self._guarded(messages, tools, thinking, True, variables or {})
        return Prompt(*self._guard.reveal(text))

    def continued(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]],
        thinking: Thinking,
        prefix: Prefix,
        variables: Mapping[str, Any],
    ) -> Prompt:
        """A prompt that ends inside of the answer to these messages, as transformers' continue_final_message
        has it. What the template does not show of the prefix goes behind the prompt."""
        if tools and self.with_tools is not None:
            return self.with_tools.continued(messages, tools, thinking, prefix, variables)
        rendered = self._guarded([*messages, prefix.marked], tools, thinking, False, variables)
        text = prefix.cut(rendered)
        if text is None:
            if prefix.reasoning is not None:
                thinking = Thinking(True, thinking.effort)
            prompt = self._guarded(messages, tools, thinking, True, variables)
            text = prefix.behind(prompt, self.format, self._guard.hide)
        return Prompt(*self._guard.reveal(text))

    def _guarded(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]],
        thinking: Thinking | None,
        add_generation_prompt: bool,
        variables: Mapping[str, Any],
    ) -> str:
        """The rendered conversation, in which special tokens of messages are still hidden."""
        if not self.knows_tools:
            messages, tools = folding.without_tools(messages, tools), ()
        if any(len(message.tool_calls) > 1 for message in messages) and not self._probes.several_calls:
            messages = folding.one_call_each(messages)
        messages = self._placed(messages)
        # What a format puts into messages of its own accord may be markers: it comes after hiding.
        given = [self._with_thoughts(self._guard.hide_message(self._adapted(each))) for each in messages]
        declared = self._guard.hide(list(tools))
        if self.format.adapt is not None:
            given = self.format.adapt(self.source, given, declared)
        text = self.render(
            given,
            declared,
            {**(thinking or Thinking()).variables(), **variables},
            add_generation_prompt=add_generation_prompt,
        )
        unopened = self.format.unopened_answer
        if add_generation_prompt and unopened is not None and text.endswith(unopened[0]):
            text += unopened[1]
        return text

    @property
    def knows_tools(self) -> bool:
        variable = self.format.tools_variable
        return variable is None or bool({"tools", variable} & self.variables)

    @property
    def thinks(self) -> bool:
        """Whether it has thoughts: a variable that switches them, or their markers."""
        return bool(SWITCHES & self.variables) or any(marker in self.source for marker in self.format.thought)

    def _placed(self, messages: Sequence[Message]) -> Sequence[Message]:
        """The conversation with system messages where this template takes them."""
        leading = folding.leading_systems(messages)
        if leading and not self._probes.systems:
            return folding.without_systems(messages)
        if leading > 1 and not self._probes.several_systems:
            messages = folding.with_one_system(messages)
        if folding.has_later_systems(messages) and not self._probes.later_systems:
            messages = folding.without_later_systems(messages)
        return messages

    def _adapted(self, message: Message) -> dict[str, Any]:
        found = message.for_template()
        if message.role == "developer" and not self._probes.developers:
            found["role"] = "system"
        parts = not isinstance(message.content, str)
        if message.media or message.has_thoughts:
            return found
        if parts and message.role == "user" and self._probes.user_parts:
            return found
        found["content"] = self._text(found["role"], message.text)
        return found

    def _text(self, role: str, text: str) -> str | list[dict[str, str]]:
        """A text as the content of such a message."""
        return text if role in self._probes.texts else [{"type": "text", "text": text}]

    def _with_thoughts(self, message: dict[str, Any]) -> dict[str, Any]:
        """A message whose parts of thought are text between the format's markers."""
        parts = message["content"]
        if isinstance(parts, str) or not any(part["type"] == "thinking" for part in parts):
            return message
        opens, closes = self.format.thought
        parts = [
            {"type": "text", "text": f"{opens}{part['thinking']}{closes}"} if "thinking" in part else part
            for part in parts
        ]
        if all(part["type"] == "text" for part in parts):
            parts = self._text(message["role"], "".join(part["text"] for part in parts))
        return {**message, "content": parts}


def _printable(said: object) -> str:
    """An error message of a template, or of Python about it: one line, without control characters."""
    text = "".join(char if char.isprintable() else " " for char in str(said)[: 2 * _SAID])
    text = " ".join(text.split())
    return text if len(text) <= _SAID else text[: _SAID - 1] + "…"


def template_source(own: str | None, architecture: str, files: Mapping[str, str] | None = None) -> str:
    """The model's own template, or else ours for its family, or else ChatML. `files` are prompt files."""
    if own is not None:
        return own
    ours = builtin.source(builtin.FAMILIES.get(architecture, "chatml"))
    return prompt_files.template_of(files, ours) if files else ours
