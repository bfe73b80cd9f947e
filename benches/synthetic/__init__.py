"""Model files with the shapes of published models and random weights: nothing to download, same speed."""

from synthetic.gguf_file import write_gguf
from synthetic.qwen3c_file import write_qwen3c
from synthetic.shapes import SHAPES, Shape
from synthetic.types import KINDS

__all__ = ["KINDS", "SHAPES", "Shape", "write_gguf", "write_qwen3c"]
