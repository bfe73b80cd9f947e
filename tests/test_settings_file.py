"""Changes to the settings file: one line, and nothing else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from olivine.errors import RequestError
from olivine.settings_file import changed, removed, write

FILE = Path("config.toml")
TEXT = """\
# For all.
threads = 2  # of four

# The server at home.
[serve]
port = 9000
api-key = ["a", "b"]
"""


def test_a_value_is_changed_in_its_place() -> None:
    assert changed(TEXT, "serve", "port", 1, FILE) == TEXT.replace("port = 9000", "port = 1")
    assert changed(TEXT, "", "threads", 4, FILE) == TEXT.replace("threads = 2  # of four", "threads = 4")


def test_a_new_value_goes_to_its_section() -> None:
    assert changed(TEXT, "", "temp", 0.5, FILE) == TEXT.replace("of four\n", "of four\ntemp = 0.5\n")
    assert changed(TEXT, "serve", "host", "::", FILE) == TEXT.replace("[serve]\n", '[serve]\nhost = "::"\n')
    assert changed(TEXT, "run", "temp", 0, FILE) == f"{TEXT}\n[run]\ntemp = 0\n"
    assert changed("", "run", "temp", 0, FILE) == "[run]\ntemp = 0\n"
    assert changed("", "", "temp", 0, FILE) == "temp = 0\n"


def test_a_key_with_underscores_is_the_same_key() -> None:
    text = "kv_type = 'f32'\n"
    assert changed(text, "", "kv-type", "auto", FILE) == 'kv_type = "auto"\n'
    assert removed(text, "", "kv-type", FILE) == ""


def test_a_value_is_removed() -> None:
    assert removed(TEXT, "serve", "port", FILE) == TEXT.replace("port = 9000\n", "")
    with pytest.raises(RequestError, match=r"config.toml: serve.host is not set there"):
        removed(TEXT, "serve", "host", FILE)


def test_texts_are_quoted() -> None:
    nasty = 'a "b" \\ \n \x7f é'
    assert changed("", "", "device", nasty, FILE) == 'device = "a \\"b\\" \\\\ \\n \\u007f é"\n'


@pytest.mark.parametrize(
    "text",
    ['cors = [\n  "a",\n]\n', '[serve]\ncors = """\na"""\n', "serve = { port = 1 }\n"],
    ids=["list", "text", "inline"],
)
def test_what_a_line_cannot_change_is_left_alone(text: str) -> None:
    section = "" if text.startswith("cors") else "serve"
    with pytest.raises(RequestError, match="cannot be changed by a line: edit the file"):
        changed(text, section, "cors", "b", FILE)


def test_a_new_file_is_its_owners_alone_and_an_old_one_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "new" / "config.toml"
    write(path, "threads = 1\n")
    assert path.read_text() == "threads = 1\n" and path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o644)
    write(path, "threads = 2\n")
    assert path.read_text() == "threads = 2\n" and path.stat().st_mode & 0o777 == 0o644
    assert os.listdir(path.parent) == ["config.toml"]


def test_a_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "dotfiles").write_text("")
    link = tmp_path / "config.toml"
    link.symlink_to("dotfiles")
    write(link, "threads = 1\n")
    assert link.is_symlink() and (tmp_path / "dotfiles").read_text() == "threads = 1\n"


def test_what_is_no_file_is_not_replaced(tmp_path: Path) -> None:
    """As where OLIVINE_CONFIG is /dev/null: root could replace that."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(RequestError, match=r"pipe: is no file, and cannot have settings"):
        write(pipe, "threads = 1\n")
    assert os.listdir(tmp_path) == ["pipe"] and pipe.is_fifo()


def test_a_place_that_cannot_be_written_is_an_error() -> None:
    with pytest.raises(RequestError, match=r"/proc/none/config.toml: cannot be written: "):
        write(Path("/proc/none/config.toml"), "")
