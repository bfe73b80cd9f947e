"""`olivine transcribe`: what is said in sound files and videos, as text or as subtitles."""

from __future__ import annotations

import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from olivine.cli.loading import open_model
from olivine.cli.obtain import ModelCommand
from olivine.cli.options import ModelPath, device_option, max_tokens_option
from olivine.cli.signals import handling
from olivine.cli.text import echo_warnings, escaped, json_text, size
from olivine.errors import MediaError, RequestError
from olivine.subtitles import VTT_HEADER, srt_cue, timecode, vtt_cue

if TYPE_CHECKING:
    from olivine.cli.transcribe_progress import Progress
    from olivine.llm import LLM
    from olivine.transcript import Segment, Transcript, TranscriptDelta

STDIN = "-"
LARGEST = 4 << 30  # bytes of standard input
ENDLESS = (1 << 31) - 1  # tokens: the context ends a text before
CUT = {"length": "it is longer than --max-tokens", "repetition": "it only repeated itself"}


@click.command("transcribe", cls=ModelCommand, short_help="Write down what is said in sounds and videos.")
@click.argument("audio", nargs=-1, required=True, metavar="AUDIO...")
@click.option("-m", "--model", type=ModelPath(), required=True, help="A model with an audio tower: Gemma 4.")
@click.option("--srt", is_flag=True, help="Write SRT subtitles.")
@click.option("--vtt", is_flag=True, help="Write WebVTT subtitles.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
@click.option("-l", "--language", help="The language that is spoken, by name or code: German, de.")
@click.option("--translate", metavar="LANGUAGE", help="Translate what is said into this language.")
@click.option("--prompt", help="Names and words that may occur, or the text before.")
@click.option(
    "--window",
    type=click.FloatRange(1, 30),
    default=30,
    show_default=True,
    metavar="SECONDS",
    help="The most that is transcribed at once. Each window is a subtitle.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="A file to write to, or a folder with a file for each AUDIO.",
)
@max_tokens_option("Tokens of a window's text; by default it grows with the window")
@device_option
@click.option("-t", "--threads", type=click.IntRange(1, 1024), help="Default: the number of physical cores.")
@click.option("-q", "--quiet", is_flag=True, help="Show no progress bar.")
def command(
    audio: tuple[str, ...],
    model: Path,
    srt: bool,
    vtt: bool,
    as_json: bool,
    output: Path | None,
    max_tokens: int | None,
    device: str,
    threads: int | None,
    quiet: bool,
    **options: Any,
) -> None:
    """Write down what is said in AUDIO: sound files and videos of any length (- is standard input).

    \b
    olivine transcribe -m MODEL interview.mp3
    olivine transcribe -m MODEL --srt --window 8 film.mp4 -o film.srt
    ffmpeg -i stream.ts -f wav - | olivine transcribe -m MODEL -

    Long files are cut into windows at quiet places. Text is written as it comes, and Ctrl-C keeps what is
    there. Times of subtitles are those of the windows. MODEL needs an audio tower: Gemma 4 E2B, E4B or 12B,
    as a folder, or as a GGUF file with its mmproj file beside it.
    """
    from olivine.transcription import AT_ONCE

    forms = [name for name, wanted in (("srt", srt), ("vtt", vtt), ("json", as_json)) if wanted]
    if len(forms) > 1:
        raise click.UsageError(f"--{forms[0]} and --{forms[1]} exclude each other.")
    form = forms[0] if forms else _form_of(output)
    targets = _targets(audio, output, form)
    if max_tokens is not None:
        options["max_tokens"] = ENDLESS if max_tokens == -1 else max_tokens
    with ExitStack() as stack:
        paths = [stack.enter_context(_opened(each)) for each in audio]
        llm = stack.enter_context(
            open_model(
                model,
                device=device,
                threads=threads,
                context=None,
                kv_type="auto",
                quiet=quiet,
                sequences=AT_ONCE,
            )
        )
        if not quiet:
            echo_warnings(llm.warnings)
        for name, path, target in zip(audio, paths, targets, strict=True):
            if len(audio) > 1 and target is None:
                click.echo(f"{'' if name == audio[0] else chr(10)}{escaped(name)}:")
            try:
                complete = _transcribe(llm, name, path, target, form, quiet, options)
            except MediaError as error:
                raise RequestError(f"{name}: {error}", code=error.code) from None
            if not complete:
                raise click.Abort


def _form_of(output: Path | None) -> str:
    """The form that the name of the output tells; otherwise text."""
    suffix = "" if output is None else output.suffix.lower().removeprefix(".")
    return suffix if suffix in ("srt", "vtt", "json") else "txt"


def _targets(audio: Sequence[str], output: Path | None, form: str) -> list[Path | None]:
    """The file for each input; None: standard output. No recording is overwritten."""
    from olivine.media import kind_of

    for name in audio:
        if name != STDIN and not Path(name).is_file():
            told = (
                "this is a folder: name the files in it" if Path(name).is_dir() else "there is no such file"
            )
            raise RequestError(f"{name}: {told}")
    if output is None:
        if len(audio) > 1 and form != "txt":
            raise click.UsageError(f"--{form} of several files needs -o FOLDER.")
        return [None] * len(audio)
    folder = len(audio) > 1 or output.is_dir()
    if folder and output.suffix and not output.is_dir():
        raise click.UsageError("-o of several files is a folder: a file for each of them is written there.")
    names = [f"{'stdin' if name == STDIN else Path(name).stem}.{form}" for name in audio]
    if len(set(names)) < len(names):
        raise click.UsageError("two of the files have the same name: their texts would be one file.")
    targets = [output / name for name in names] if folder else [output]
    for target in targets:
        if not target.exists():
            continue
        if any(name != STDIN and target.samefile(name) for name in audio):
            raise RequestError(f"{target}: is the recording, and stays: name another file with -o")
        if (kind := kind_of(target)) in ("audio", "video"):  # a text that begins with BM could be an image
            raise RequestError(f"{target}: holds {kind}, not text, and stays: name another file with -o")
    if folder:
        output.mkdir(parents=True, exist_ok=True)
    return [*targets]


@contextmanager
def _opened(name: str) -> Iterator[Path]:
    """The path of an input; standard input is kept in a file while it is transcribed."""
    if name != STDIN:
        yield Path(name)
        return
    with tempfile.NamedTemporaryFile(prefix="olivine-", suffix=".audio") as file:
        count = 0
        while block := sys.stdin.buffer.read(1 << 20):
            count += len(block)
            if count > LARGEST:
                raise RequestError(f"standard input: is longer than {size(LARGEST)}")
            file.write(block)
        file.flush()
        yield Path(file.name)


def _transcribe(
    llm: LLM, name: str, path: Path, target: Path | None, form: str, quiet: bool, options: dict[str, Any]
) -> bool:
    """Writes one transcript as it comes; False where Ctrl-C ended it."""
    from olivine.cli.transcribe_progress import Progress

    stream = llm.stream_transcription(path, **options)

    def pressed(*_: object) -> None:
        # In a thread: what this one was doing may hold the locks that cancelling needs. A second Ctrl-C ends
        # the program.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        threading.Thread(target=stream.cancel, daemon=True).start()

    with ExitStack() as stack:
        stack.enter_context(handling({signal.SIGINT: pressed}))
        file = None if target is None else stack.enter_context(target.open("w", encoding="utf-8"))
        progress = stack.enter_context(Progress(escaped(Path(name).name), shown=not quiet))
        written = Written(name, form, file, progress)
        for delta in stream:
            written.add(delta)
            progress.advance(delta)
            for segment in delta.segments:
                _warn(segment, progress)
            if delta.transcript is not None:
                return delta.transcript.finish_reason != "cancelled"
    return False


def _warn(segment: Segment, progress: Progress) -> None:
    if why := CUT.get(segment.finish_reason):
        when = f"{timecode(segment.start, '.')[:8]} to {timecode(segment.end, '.')[:8]}"
        progress.note(f"warning: the text from {when} was cut: {why}")


class Written:
    """A transcript on its way to a file, a pipe or a terminal."""

    def __init__(self, name: str, form: str, file: IO[str] | None, progress: Progress) -> None:
        self._name, self._form, self._file, self._progress = name, form, file, progress
        self._count = 0
        self._put(VTT_HEADER if form == "vtt" else "")

    def add(self, delta: TranscriptDelta) -> None:
        last = delta.transcript
        if self._form == "txt":
            if self._file is None and self._progress.lines:  # a terminal shows whole windows above the bar
                for segment in delta.segments:
                    self._put(f"{segment.text}\n" if segment.text else "")
            else:
                self._put(delta.text + ("\n" if last is not None and last.text else ""))
        elif self._form == "json":
            self._put("" if last is None else f"{json_text(facts(self._name, last), indent=2)}\n")
        else:
            for segment in delta.segments:
                self._put(self._cue(segment))

    def _cue(self, segment: Segment) -> str:
        if not segment.text:
            return ""
        self._count += 1
        return srt_cue(self._count, segment) if self._form == "srt" else vtt_cue(segment)

    def _put(self, text: str) -> None:
        if not text:
            return
        if self._file is None:
            self._progress.write(text)
        else:
            self._file.write(text)
            self._file.flush()


def facts(name: str, transcript: Transcript) -> dict[str, Any]:
    """A transcript as JSON has it."""
    return {
        "file": name,
        "text": transcript.text,
        "duration": transcript.duration,
        "finish_reason": transcript.finish_reason,
        "segments": [
            {
                "start": each.start,
                "end": each.end,
                "text": each.text,
                "tokens": each.tokens,
                "finish_reason": each.finish_reason,
            }
            for each in transcript.segments
        ],
        "usage": {
            "prompt_tokens": transcript.usage.prompt,
            "completion_tokens": transcript.usage.completion,
        },
    }
