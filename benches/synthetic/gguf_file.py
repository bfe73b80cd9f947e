"""A shape and a storage type as a GGUF file that any engine opens."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

from synthetic.blocks import RandomWeights, nbytes
from synthetic.shapes import Shape
from synthetic.types import KINDS, type_of
from synthetic.vocabulary import vocabulary_for


def write_gguf(
    path: Path, shape: Shape, kind: str, *, name: str = "random", seed: int = 0, pure: bool = False
) -> Path:
    """Writes the file, tensor by tensor and never holding one whole. `kind` is a key of `KINDS`."""
    unfinished = path.with_name(path.name + ".part")
    writer = gguf.GGUFWriter(unfinished, shape.architecture)
    writer.add_name(name)
    writer.add_file_type(KINDS[kind][1])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    _add_shape(writer, shape)
    _add_vocabulary(writer, shape)
    types = {tensor: type_of(tensor, size, kind, shape.layers, pure=pure) for tensor, size in shape.tensors()}
    for tensor, size in shape.tensors():
        dtype = types[tensor]
        writer.add_tensor_info(tensor, size, np.dtype(np.float32), nbytes(dtype, size), raw_dtype=dtype)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()

    weights = RandomWeights(seed)
    with unfinished.open("ab") as file:
        for tensor, size in shape.tensors():
            file.write(bytes(-file.tell() % gguf.GGUF_DEFAULT_ALIGNMENT))
            if len(size) == 1:
                file.write(shape.vector(tensor, size[0]))
                continue
            for chunk in weights.chunks(types[tensor], size):
                file.write(chunk)
        # Readers round the last tensor up as well.
        file.write(bytes(-file.tell() % gguf.GGUF_DEFAULT_ALIGNMENT))
    return unfinished.replace(path)


def _add_shape(writer: gguf.GGUFWriter, shape: Shape) -> None:
    for key, value in shape.metadata().items():
        key = f"{shape.architecture}.{key}"
        match value:
            case int():
                writer.add_uint32(key, value)
            case float():
                writer.add_float32(key, value)
            case str():
                writer.add_string(key, value)
            case _:
                writer.add_array(key, value)


def _add_vocabulary(writer: gguf.GGUFWriter, shape: Shape) -> None:
    made = vocabulary_for(shape.architecture, shape.vocabulary)
    writer.add_tokenizer_model(made.model)
    if made.pre:
        writer.add_tokenizer_pre(made.pre)
    writer.add_token_list(made.tokens)
    writer.add_token_types(made.types)
    if made.scores:
        writer.add_token_scores(made.scores)
    if made.model != "gpt2":
        writer.add_add_space_prefix(False)
    if made.merges:
        writer.add_token_merges([f"{left} {right}" for left, right in made.merges])
    writer.add_bos_token_id(made.bos)
    writer.add_eos_token_id(made.eos)
    writer.add_pad_token_id(made.pad)
    if made.unknown is not None:
        writer.add_unk_token_id(made.unknown)
    writer.add_add_bos_token(made.add_bos)
