"""From one model file to another: `convert(source, destination, type)`.

types.py          which tensor gets which type
translate.py      a Hugging Face model in GGUF's terms
mmproj.py         vision and audio towers, as a second file
towers.py         the tables of that
vocabulary.py     a Hugging Face tokenizer in GGUF's terms
gguf_writer.py    the bytes of a GGUF file before its tensors
qwen3c.py         qwen3.c's files
stream.py         tensors from type to type, by many threads
files.py          files that are there whole, or not at all
"""

from __future__ import annotations

from olivine.convert.convert import QWEN3C, Report, convert
from olivine.convert.types import NAMES

__all__ = ["NAMES", "QWEN3C", "Report", "convert"]
