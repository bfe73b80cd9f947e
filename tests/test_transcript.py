"""How a model is asked for a transcript."""

from __future__ import annotations

import pytest

from olivine.errors import RequestError
from olivine.languages import language_name
from olivine.transcript import instruction


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("de", "German"),
        ("pt-BR", "Portuguese"),
        ("zh_CN", "Chinese"),
        ("EN", "English"),
        ("german", "German"),
        ("Swiss German", "Swiss German"),
        ("हिन्दी", "हिन्दी"),
    ],
)
def test_languages_are_known_by_code_and_by_name(given: str, name: str) -> None:
    assert language_name(given) == name


@pytest.mark.parametrize("given", ["", "x", "qq", "x" * 61, "Ger\nman"])
def test_what_is_no_language_is_refused(given: str) -> None:
    with pytest.raises(RequestError, match="a language's name or its code") as caught:
        language_name(given)
    assert caught.value.param == "language"


def test_the_instruction_is_the_publishers() -> None:
    rules = (
        " Follow these specific instructions for formatting the answer:\n"
        "* Only output the transcription, with no newlines.\n"
        "* When transcribing numbers, write the digits, i.e. write 1.7 and not one point seven, and write 3 "
        "instead of three."
    )
    segment = "Transcribe the following speech segment in "
    assert instruction(None, None, None) == f"{segment}its original language.{rules}"
    assert instruction("de", None, None) == f"{segment}German into German text.{rules}"
    assert instruction("de", None, "Kafka").endswith("Kafka")
    assert instruction("fr", "en", None) == (
        f"{segment}French, then translate it into English. When formatting the answer, first output the "
        "transcription in French, then one newline, then output the string 'English: ', then the translation "
        "in English."
    )
    with pytest.raises(RequestError, match="4000 is the most"):
        instruction(None, None, "x" * 4001)
