"""Tools of the Responses API: functions, namespaces of functions, and custom tools, which take a text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from olivine.errors import RequestError

Json = dict[str, Any]
INPUT = "input"  # the parameter of a custom tool as a function


class Tool(NamedTuple):
    """A tool as the API calls it. For the model it is a function, `NAMESPACE.NAME`."""

    name: str
    namespace: str | None = None
    custom: bool = False

    @property
    def function(self) -> str:
        return self.name if self.namespace is None else f"{self.namespace}.{self.name}"


@dataclass
class Tools:
    """The tools of a request."""

    declared: list[Json] = field(default_factory=list)  # as `LLM.chat` takes them
    by_function: dict[str, Tool] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)  # types that this server does not have

    @classmethod
    def of(cls, tools: Sequence[Any]) -> Tools:
        found = cls()
        for i, tool in enumerate(tools):
            found._add(tool, f"tools[{i}]")
        return found

    def named(self, function: str | None) -> Tool:
        """The tool behind the function that a model called."""
        return self.by_function.get(function or "", Tool(function or ""))

    def choice(self, choice: Any) -> Any:
        """`tool_choice` for `LLM.chat`."""
        if not isinstance(choice, Mapping) or choice.get("type") not in ("function", "custom"):
            return choice
        name = str(choice.get("name"))
        asked = Tool(name, choice.get("namespace")).function
        tools = self.by_function.values()
        found = next((tool.function for tool in tools if asked in (tool.function, tool.name)), asked)
        return {"type": "function", "function": {"name": found}}

    def allowed(self, listed: Sequence[Mapping[str, Any]]) -> Tools:
        """Only these tools."""
        names = {Tool(str(each.get("name")), each.get("namespace")).function for each in listed}
        kept = [tool for tool in self.declared if tool["function"]["name"] in names]
        return Tools(kept, self.by_function, self.skipped)

    def _add(self, tool: Any, where: str, namespace: str | None = None) -> None:
        if not isinstance(tool, Mapping):
            raise RequestError(f"{where} is not an object", param="tools")
        kind, name = tool.get("type"), tool.get("name")
        if kind not in ("function", "custom", "namespace"):
            self.skipped.append(str(kind)[:60])
            return
        if not isinstance(name, str) or not name:
            raise RequestError(f"{where} has no name", param="tools")
        if kind == "namespace":
            inner = tool.get("tools")
            if not isinstance(inner, list) or namespace is not None:
                raise RequestError(f"{where}: a namespace has a list of functions", param="tools")
            for i, each in enumerate(inner):
                self._add(each, f"{where}.tools[{i}]", name)
            return
        own = Tool(name, namespace, kind == "custom")
        if own.function in self.by_function:
            return  # a tool that is declared again in a later item
        self.by_function[own.function] = own
        function: Json = {"name": own.function}
        description = _custom_description(tool) if own.custom else tool.get("description")
        if description:
            function["description"] = description
        function["parameters"] = (
            _TEXT if own.custom else tool.get("parameters") or {"type": "object", "properties": {}}
        )
        self.declared.append({"type": "function", "function": function})


_TEXT = {
    "type": "object",
    "properties": {INPUT: {"type": "string"}},
    "required": [INPUT],
    "additionalProperties": False,
}


def _custom_description(tool: Mapping[str, Any]) -> str:
    """What a custom tool is for, and the grammar of its text, if it has one."""
    format = tool.get("format")
    found = str(tool.get("description") or "")
    if isinstance(format, Mapping) and format.get("type") == "grammar":
        found += f"\n\nThe grammar of {INPUT} ({format.get('syntax')}):\n{format.get('definition')}"
    return found


def custom_arguments(text: Any) -> str:
    """The arguments of a custom tool's function."""
    return json.dumps({INPUT: text if isinstance(text, str) else ""}, ensure_ascii=False)


def custom_input(arguments: str) -> str:
    """The text that a model gave a custom tool; what is no such object is the text itself."""
    try:
        found = json.loads(arguments)
    except ValueError:
        return arguments
    text = found.get(INPUT) if isinstance(found, dict) else None
    return text if isinstance(text, str) else arguments
