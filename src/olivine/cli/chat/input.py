"""What the user types: one message at a time, of one line or several."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Protocol

from olivine.cli.chat.commands import COMMANDS
from olivine.cli.chat.interrupt import STOP, stop
from olivine.cli.chat.terminal import Terminal
from olivine.cli.files import LARGEST
from olivine.cli.signals import ENDING, Handler, end_by, handling, interrupts
from olivine.cli.text import size
from olivine.errors import RequestError

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

QUOTES = '"""'
PROMPT = ">>> "
HINT = "Send a message (/help for help)"


def unfinished(text: str) -> bool:
    """Whether Enter begins a new line: inside of triple quotes, and after a backslash."""
    begun = text.lstrip()
    if begun.startswith(QUOTES):
        return QUOTES not in begun[len(QUOTES) :]
    return text.endswith("\\")


def message(text: str) -> str:
    """The message without the quotes and backslashes that `unfinished` looks for."""
    begun = text.strip()
    if begun.startswith(QUOTES):
        inner, _, rest = begun[len(QUOTES) :].partition(QUOTES)
        return f"{inner}{rest}".strip("\n")
    return text.replace("\\\n", "\n").strip()


class Input(Protocol):
    """Where messages come from."""

    interactive: bool  # somebody types them

    def read(self) -> str:
        """The next message. EOFError: there is none; KeyboardInterrupt: Ctrl-C at an empty prompt."""

    def confirm(self, question: str) -> bool:
        """Asks for consent: whether the answer is yes."""


def confirm(question: str) -> bool:
    """Asks in a terminal; anything but yes is no, and so are Ctrl-C and Ctrl-D."""
    try:
        with interrupts():
            return _typed(question).strip().lower() in ("y", "yes")
    except (EOFError, KeyboardInterrupt):
        print()
        return False


def _typed(question: str) -> str:
    """A line. `input` would not notice a Ctrl-C between its prompt and its read before a key is pressed, so
    this waits in short turns until there is something to read."""
    if os.name == "nt":
        return input(question)
    print(question, end="", flush=True)
    while not select.select([sys.stdin], [], [], 0.2)[0]:
        pass
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line


class LineInput:
    """Lines from a pipe or a simple terminal."""

    def __init__(self) -> None:
        self.interactive = sys.stdin.isatty()
        self._prompt = PROMPT if self.interactive and sys.stdout.isatty() else ""

    def read(self) -> str:
        with interrupts() if self.interactive else nullcontext():
            return self._message()

    def confirm(self, question: str) -> bool:
        return self.interactive and confirm(question)

    def _message(self) -> str:
        line = self._line(self._prompt)
        if line is None:
            raise EOFError
        lines, length = [line], len(line)
        more = unfinished(line)
        quoted = more and line.lstrip().startswith(QUOTES)
        while more and (line := self._line(self._prompt and "... ")) is not None:
            length += len(line) + 1
            if length <= LARGEST:
                lines.append(line)
            more = QUOTES not in line if quoted else line.endswith("\\")
        if length > LARGEST:
            raise RequestError(f"the message is longer than {size(LARGEST)}")
        return message("\n".join(lines))

    def _line(self, prompt: str) -> str | None:
        """The next line; of one that is too long, a bit more than is allowed."""
        print(prompt, end="", flush=True)
        line = part = sys.stdin.buffer.readline(LARGEST + 1)
        while part and not part.endswith(b"\n"):
            part = sys.stdin.buffer.readline(LARGEST)
            line = line if len(line) > LARGEST else line + part
        return line.decode("utf-8", "replace").rstrip("\r\n") if line else None


class TerminalInput:
    """An editor of messages with history, paste and completion of commands."""

    interactive = True

    def __init__(self, history: Path | None, toggle: Callable[[], None]) -> None:
        """`toggle` is called for Ctrl-O, and may print."""
        self._toggle = toggle
        self._session = self._make(history)

    def read(self) -> str:
        terminal = Terminal()

        def ended(number: int, frame: FrameType | None) -> None:
            terminal.reset()
            end_by(number)

        def stopped(number: int, frame: FrameType | None) -> None:
            if (loop := self._session.app.loop) is not None:
                loop.call_soon_threadsafe(self._stop, os.getpid(), context=self._session.app.context)

        handlers: dict[int, Handler] = dict.fromkeys(ENDING, ended)
        if STOP is not None:
            handlers[STOP] = stopped
        with handling(handlers):
            try:
                self._press(terminal.typed())
                return message(self._session.prompt())
            finally:
                terminal.restore()  # what the prompt found may be a terminal where keys waited

    def confirm(self, question: str) -> bool:
        return confirm(question)

    def _press(self, keys: str) -> None:
        """Gives keys to the next prompt, as if they were typed there."""
        if not keys:
            return
        from prompt_toolkit.input.typeahead import store_typeahead
        from prompt_toolkit.input.vt100_parser import Vt100Parser
        from prompt_toolkit.key_binding import KeyPress

        pressed: list[KeyPress] = []
        parser = Vt100Parser(pressed.append)
        parser.feed(keys)
        parser.flush()
        store_typeahead(self._session.input, pressed)

    def _stop(self, process: int) -> None:
        """Stops the program, with the terminal as it was; the prompt is drawn again when it goes on."""
        from prompt_toolkit.application import run_in_terminal

        if STOP is not None:
            run_in_terminal(lambda: stop(process))

    def _make(self, history: Path | None) -> PromptSession[str]:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.application import get_app
        from prompt_toolkit.completion import WordCompleter
        from prompt_toolkit.formatted_text import FormattedText
        from prompt_toolkit.history import FileHistory, InMemoryHistory

        class History(FileHistory):
            """A disk that is full, or a folder that is gone, does not keep a message from being sent."""

            def store_string(self, string: str) -> None:
                with suppress(OSError):
                    super().store_string(string)

        return PromptSession(
            FormattedText([("bold", PROMPT)]),
            placeholder=lambda: FormattedText(
                [] if get_app().is_done else [("fg:ansibrightblack", HINT)]  # it does not stay in the text
            ),
            multiline=True,
            prompt_continuation=lambda width, line, wrapped: "" if wrapped else "... ",
            history=History(str(history)) if history is not None else InMemoryHistory(),
            completer=WordCompleter([f"/{name}" for name in COMMANDS], sentence=True),
            complete_while_typing=False,
            enable_open_in_editor=True,
            key_bindings=self._keys(),
        )

    def _keys(self) -> KeyBindings:
        from prompt_toolkit.application import run_in_terminal
        from prompt_toolkit.key_binding import KeyBindings

        keys = KeyBindings()

        @keys.add("enter")
        def _(event: KeyPressEvent) -> None:
            buffer = event.current_buffer
            if unfinished(buffer.text):
                buffer.insert_text("\n")
            elif buffer.text.strip():
                buffer.validate_and_handle()

        @keys.add("escape", "enter")
        @keys.add("c-j")
        def _(event: KeyPressEvent) -> None:
            event.current_buffer.insert_text("\n")

        @keys.add("c-o")
        def _(event: KeyPressEvent) -> None:
            run_in_terminal(self._toggle)

        @keys.add("c-z")
        def _(event: KeyPressEvent) -> None:
            self._stop(0)  # the whole group, as a terminal does

        @keys.add("c-c")
        def _(event: KeyPressEvent) -> None:
            buffer = event.current_buffer
            if buffer.text:
                buffer.reset()
            else:
                event.app.exit(exception=KeyboardInterrupt)

        return keys
