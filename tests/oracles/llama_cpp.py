"""llama.cpp, in the Python that has llama-cpp-python: this one, or the one that OLIVINE_LLAMA_PYTHON names.

Tests that need it skip where it is missing.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

PYTHON = os.environ.get("OLIVINE_LLAMA_PYTHON", sys.executable)
_COMMON = """
import ctypes, json, sys
import numpy as np
import llama_cpp as api
silent = api.llama_log_callback(lambda level, text, data: None)
api.llama_log_set(silent, None)
given = json.loads(sys.stdin.read())
"""
_LOGITS = """
model = api.Llama(given["model"], n_ctx=512, n_batch=512, logits_all=True, verbose=False, n_threads=1)
model.eval(given["tokens"])
np.save(given["out"], np.array(model.scores[: len(given["tokens"])], np.float32))
print(json.dumps([model.tokenize(text.encode(), add_bos=True, special=False) for text in given["texts"]]))
"""
_GREEDY = """
caches = {"type_k": api.GGML_TYPE_F32, "type_v": api.GGML_TYPE_F32, "flash_attn": False}
model = api.Llama(given["model"], n_ctx=512, logits_all=True, verbose=False, n_threads=1, **caches)
model.eval(given["tokens"])
while model.n_tokens < len(given["tokens"]) + given["count"]:
    model.eval([int(np.argmax(model.scores[model.n_tokens - 1]))])
print(json.dumps(model.input_ids[len(given["tokens"]) : model.n_tokens].tolist()))
"""
_QUANTIZE = """
settings = api.llama_model_quantize_default_params()
settings.ftype, settings.nthread, settings.allow_requantize = given["type"], 1, True
print(api.llama_model_quantize(given["source"].encode(), given["to"].encode(), settings))
"""
_IMAGE = """
from llama_cpp import mtmd_cpp as media
media.mtmd_helper_log_set(silent, None)
model = api.llama_model_load_from_file(given["model"].encode(), api.llama_model_default_params())
settings = media.mtmd_context_params_default()
settings.use_gpu, settings.n_threads, settings.print_timings, settings.warmup = False, 1, False, False
context = media.mtmd_init_from_file(given["mmproj"].encode(), model, settings)
pixels = np.load(given["pixels"])
high, wide, _ = pixels.shape
bitmap = media.mtmd_bitmap_init(wide, high, pixels.ctypes.data_as(ctypes.POINTER(ctypes.c_ubyte)))
marker = media.mtmd_get_marker(context)
text = media.mtmd_input_text(text=marker, text_len=len(marker), add_special=False, parse_special=True)
chunks = media.mtmd_input_chunks_init()
bitmaps = (media.mtmd_bitmap_p_ctypes * 1)(bitmap)
assert media.mtmd_tokenize(context, chunks, ctypes.byref(text), bitmaps, 1) == 0
for i in range(media.mtmd_input_chunks_size(chunks)):
    chunk = media.mtmd_input_chunks_get(chunks, i)
    if media.mtmd_input_chunk_get_type(chunk) == media.MTMD_INPUT_CHUNK_TYPE_IMAGE:
        assert media.mtmd_encode_chunk(context, chunk) == 0
        shape = (media.mtmd_input_chunk_get_n_tokens(chunk), api.llama_model_n_embd(model))
        np.save(given["out"], np.ctypeslib.as_array(media.mtmd_get_output_embd(context), shape))
print("null")
"""


@functools.cache
def _is_there() -> bool:
    run = subprocess.run([PYTHON, "-c", "import llama_cpp"], capture_output=True)
    return run.returncode == 0


def need() -> None:
    if not _is_there():
        pytest.skip("llama-cpp-python is not here; OLIVINE_LLAMA_PYTHON names a Python that has it")


def _run(script: str, **given: Any) -> Any:
    need()
    run = subprocess.run(
        [PYTHON, "-c", _COMMON + script], input=json.dumps(given), capture_output=True, text=True, timeout=300
    )
    assert run.returncode == 0, run.stderr[-2000:]
    return json.loads(run.stdout.splitlines()[-1])


def logits(
    model: Path, tokens: list[int], texts: list[str], folder: Path
) -> tuple[np.ndarray, list[list[int]]]:
    """The logits of every position, [T, V], and how the texts are cut."""
    out = folder / "logits.npy"
    cut = _run(_LOGITS, model=str(model), tokens=tokens, texts=texts, out=str(out))
    return np.load(out), cut


def greedy(model: Path, tokens: list[int], count: int) -> list[int]:
    """The likeliest tokens after these, with a cache in float32."""
    written = _run(_GREEDY, model=str(model), tokens=tokens, count=count)
    return [int(token) for token in written]


def quantize(source: Path, to: Path, file_type: int) -> Path:
    assert _run(_QUANTIZE, source=str(source), to=str(to), type=file_type) == 0
    return to


def image_features(model: Path, mmproj: Path, pixels: np.ndarray, folder: Path) -> np.ndarray:
    """What the text model is handed of an image, [tokens, D]; `pixels` are [height, width, 3]."""
    np.save(folder / "pixels.npy", pixels)
    out = folder / "features.npy"
    _run(_IMAGE, model=str(model), mmproj=str(mmproj), pixels=str(folder / "pixels.npy"), out=str(out))
    return np.load(out)
