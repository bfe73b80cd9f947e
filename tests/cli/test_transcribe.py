"""`olivine transcribe` on a small random model that hears."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pexpect
import pytest
import soundfile

from olivine.llm import load
from oracles import multimodal
from oracles.commands import olivine

SPEECH = Path(__file__).parents[3] / "shared" / "data" / "media" / "jfk.wav"
FIXED = ("--max-tokens", "6", "-t", "1", "--device", "cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model, and beside it four seconds of a tone with a pause in them."""
    folder = tmp_path_factory.mktemp("hearing")
    sound = 0.3 * np.sin(2 * np.pi * 440 * np.arange(64_000) / 16_000)
    sound[round(1.6 * 16_000) : round(1.9 * 16_000)] = 0
    soundfile.write(folder / "tone.wav", sound, 16_000)
    multimodal.write("gemma4-e2b", folder / "model")
    return folder


def transcribe(folder: Path, *arguments: object, text: str = "") -> subprocess.CompletedProcess[str]:
    return olivine("transcribe", "-m", folder / "model", *arguments, *FIXED, text=text)


def test_text_subtitles_and_json(folder: Path) -> None:
    tone = folder / "tone.wav"
    with load(folder / "model", device="cpu", threads=1) as llm:
        expected = llm.transcribe(tone, window=2, max_tokens=6)
    assert [each.start for each in expected.segments[:2]] == [0.0, 1.85]
    done = transcribe(folder, tone, "--window", "2")
    assert done.returncode == 0 and done.stdout == expected.text + "\n", done.stderr
    assert (
        "warning: the text from 00:00:00 to 00:00:01 was cut: it is longer than --max-tokens" in done.stderr
    )
    assert transcribe(folder, tone, "--window", "2", "--srt").stdout == expected.srt
    assert transcribe(folder, tone, "--window", "2", "--vtt").stdout == expected.vtt
    told = json.loads(transcribe(folder, tone, "--window", "2", "--json").stdout)
    assert told["text"] == expected.text and told["duration"] == 4.0 and told["finish_reason"] == "stop"
    assert [each["tokens"] for each in told["segments"]] == [each.tokens for each in expected.segments]
    assert [each["end"] for each in told["segments"]] == [each.end for each in expected.segments]


def test_no_recording_is_overwritten(folder: Path, tmp_path: Path) -> None:
    """Neither the one that is transcribed, by whatever name, nor another one."""
    sound = (folder / "tone.wav").read_bytes()
    tone, other, plain = tmp_path / "tone.wav", tmp_path / "other.mp3", tmp_path / "tone.txt"
    for path in (tone, other, plain):
        path.write_bytes(sound)
    (tmp_path / "link").symlink_to(tone)
    for given, output in ((tone, tone), (tone, tmp_path / "link"), (tone, other), (plain, tmp_path)):
        done = transcribe(folder, given, "-o", output)
        assert done.returncode == 1 and "stays: name another file" in done.stderr, done.stderr
    assert [path.read_bytes() for path in (tone, other, plain)] == [sound] * 3
    plain.write_text("BMW builds cars.")
    assert transcribe(folder, tone, "-o", plain).returncode == 0
    done = transcribe(folder, tone, folder / "tone.wav", "-o", tmp_path / "texts")
    assert "two of the files have the same name" in done.stderr and not (tmp_path / "texts").exists()


@pytest.mark.skipif(not SPEECH.exists(), reason="needs jfk.wav")
def test_real_speech_from_a_file_and_from_standard_input(folder: Path) -> None:
    done = transcribe(folder, SPEECH, "--json", "--language", "en")
    (segment,) = json.loads(done.stdout)["segments"]
    with load(folder / "model", device="cpu", threads=1) as llm:
        found = llm.transcribe(SPEECH, language="English", max_tokens=6)
    assert segment["tokens"] == found.segments[0].tokens and segment["end"] == 11.0
    command = [
        sys.executable,
        "-m",
        "olivine",
        "transcribe",
        "-m",
        str(folder / "model"),
        "-",
        *FIXED,
        "-l",
        "en",
    ]
    with SPEECH.open("rb") as file:
        piped = subprocess.run(command, stdin=file, capture_output=True, timeout=200, check=True)
    assert piped.stdout.decode() == found.text + "\n"


def test_files_are_written(folder: Path, tmp_path: Path) -> None:
    tone = folder / "tone.wav"
    assert transcribe(folder, tone, "-o", tmp_path / "tone.srt").stdout == ""
    assert (tmp_path / "tone.srt").read_text().startswith("1\n00:00:00,000 --> 00:00:04,000\n")
    other = tmp_path / "other.wav"
    other.write_bytes(tone.read_bytes())
    assert transcribe(folder, tone, other, "-o", tmp_path / "texts").returncode == 0
    assert sorted(os.listdir(tmp_path / "texts")) == ["other.txt", "tone.txt"]
    both = transcribe(folder, tone, other).stdout
    text = (tmp_path / "texts" / "tone.txt").read_text()
    assert both == f"{tone}:\n{text}\n{other}:\n{text}"


def test_what_is_refused_in_words(folder: Path, tmp_path: Path) -> None:
    tone, broken = folder / "tone.wav", tmp_path / "broken.wav"
    broken.write_bytes(b"RIFF but nothing else")
    for arguments, told in (
        ((tmp_path / "none.wav",), "none.wav: there is no such file"),
        ((tmp_path,), f"{tmp_path}: this is a folder: name the files in it"),
        ((broken,), "broken.wav: the audio is broken, or in a format that is not read"),
        ((tone, "--srt", "--json"), "--srt and --json exclude each other"),
        ((tone, tone, "--srt"), "--srt of several files needs -o FOLDER"),
        ((tone, tone, "-o", tmp_path / "a.txt"), "-o of several files is a folder"),
        ((tone, tone, "-o", tmp_path / "texts"), "two of the files have the same name"),
        ((tone, "--language", "xx"), "a language's name or its code"),
        ((tone, "--window", "31"), "1<=x<=30"),
    ):
        done = transcribe(folder, *arguments)
        assert done.returncode != 0 and told in done.stderr, (arguments, done.stderr)
    done = olivine("transcribe", "-m", "olivine-mini", tone, *FIXED)
    assert done.returncode == 1 and "has no audio tower" in done.stderr and "Gemma 4 E2B" in done.stderr


def test_ctrl_c_keeps_what_is_there(folder: Path, tmp_path: Path) -> None:
    """A file of an hour: interrupted after its first windows, it ends by the signal, and they are written."""
    sound, path, output = 0.1 * np.sin(np.arange(16_000 * 60)), tmp_path / "long.flac", tmp_path / "long.json"
    soundfile.write(path, np.tile(sound, 60), 16_000)
    text = tmp_path / "long.txt"
    command = [sys.executable, "-m", "olivine", "transcribe", "-m", str(folder / "model"), str(path), *FIXED]
    for target in (text, output):
        with subprocess.Popen([*command, "-o", str(target)], stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            assert "was cut" in process.stderr.readline()  # a window is through
            process.send_signal(signal.SIGINT)
            process.stderr.read()
            assert process.wait(200) == -signal.SIGINT
        assert target.read_text()
    told = json.loads(output.read_text())
    assert told["finish_reason"] == "cancelled" and told["segments"] and told["duration"] < 3600


def test_a_bar_in_a_terminal(folder: Path) -> None:
    """Windows are lines above it, and when all is through it is gone."""
    arguments = ["-m", "olivine", "transcribe", "-m", str(folder / "model"), str(folder / "tone.wav")]
    child = pexpect.spawn(
        sys.executable,
        [*arguments, *FIXED, "--window", "2"],
        dimensions=(30, 200),
        encoding="utf-8",
        timeout=200,
    )
    child.expect("of 00:00:04")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0
    quiet = transcribe(folder, folder / "tone.wav", "--quiet")
    assert "of 00:00" not in quiet.stdout + quiet.stderr
