"""Model files with the shapes of published models and random weights: nothing to download, same speed."""

from synthetic.gemma4 import GEMMA4_SHAPES
from synthetic.gguf_file import write_gguf
from synthetic.qwen3c_file import write_qwen3c
from synthetic.qwen3moe import QWEN3MOE_SHAPES
from synthetic.shapes import SHAPES as _SHAPES
from synthetic.shapes import Shape
from synthetic.types import KINDS

SHAPES = _SHAPES | QWEN3MOE_SHAPES | GEMMA4_SHAPES

__all__ = ["KINDS", "SHAPES", "Shape", "write_gguf", "write_qwen3c"]
