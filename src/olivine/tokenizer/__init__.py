"""Every tokenizer file becomes one `Tokenizer`.

    from_folder(path)               a Hugging Face folder: tokenizer.json, or else tokenizer.model
    from_gguf(metadata)             the `tokenizer.ggml.*` keys of a GGUF file
    from_qwen3c(path, vocab_size)   the `.tokenizer` file beside a qwen3.c checkpoint

All of them run on the `tokenizers` library: a source only decides vocabulary, merges, pre-tokenizer and which
tokens are special. Files are untrusted: a broken one raises `TokenizerError` that names the file or the key.
"""

from __future__ import annotations

from olivine.tokenizer.gguf import from_gguf
from olivine.tokenizer.huggingface import from_folder
from olivine.tokenizer.infill import Infill, infill
from olivine.tokenizer.qwen3c import from_qwen3c
from olivine.tokenizer.stream import StreamDecoder
from olivine.tokenizer.tokenizer import Tokenizer

__all__ = ["Infill", "StreamDecoder", "Tokenizer", "from_folder", "from_gguf", "from_qwen3c", "infill"]
