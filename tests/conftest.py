"""Set before anything imports triton: the kernels of the CUDA backend run in its interpreter here."""

import os

os.environ.setdefault("TRITON_INTERPRET", "1")
