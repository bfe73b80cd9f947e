"""The `openai` package transcribes real speech, on a small random model that hears."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openai
import pytest

from olivine.llm import LLM

SPEECH = Path(__file__).parents[4] / "shared" / "data" / "media" / "jfk.wav"


@pytest.mark.skipif(not SPEECH.exists(), reason="needs jfk.wav")
def test_real_speech_by_the_openai_package(heard: str, hearing: LLM) -> None:
    expected = hearing.transcribe(SPEECH, language="en", max_tokens=12)
    options: dict[str, Any] = {"model": "m", "language": "en", "extra_body": {"max_tokens": 12}}
    with openai.OpenAI(base_url=f"{heard}/v1", api_key="none", max_retries=0) as client:
        create = client.audio.transcriptions.create
        with SPEECH.open("rb") as file:
            assert create(file=file, **options).text == expected.text
        verbose = create(file=SPEECH, response_format="verbose_json", **options)
        assert verbose.segments is not None
        assert verbose.segments[0].tokens == expected.segments[0].tokens
        assert verbose.segments[0].end == verbose.duration == 11.0 and verbose.language == "english"
        assert create(file=SPEECH, response_format="srt", **options) == expected.srt
        events = list(create(file=SPEECH, stream=True, **options))
        assert events[-1].type == "transcript.text.done" and events[-1].text == expected.text
        assert {each.type for each in events[:-1]} == {"transcript.text.delta"}
        with pytest.raises(openai.BadRequestError, match="broken, or in a format that is not read"):
            create(file=("a.wav", b"no sound"), **options)
