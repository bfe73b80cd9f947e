"""Calls the native library with nothing but Python's standard library, and prints what came of it as JSON.

A program of its own, for emulated CPUs that NumPy refuses to run on. Arguments: the library, and the types as
JSON: name → [number, bytes of a row of K elements].
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import random
import sys
from ctypes import c_char_p, c_float, c_int32, c_int64, c_uint8, c_void_p

N, K, ROWS = 5, 512, 3
F32 = 0


class Weight(ctypes.Structure):
    """olv_weight, as in olivine.backends.cpu.native."""

    _fields_ = (
        ("type", c_int32),
        ("group", c_int32),
        ("data", c_void_p),
        ("scales", c_void_p),
        ("n", c_int64),
        ("k", c_int64),
    )


def main() -> None:
    library = ctypes.CDLL(sys.argv[1])
    types: dict[str, tuple[int, int]] = json.loads(sys.argv[2])
    library.olv_isa.restype = c_char_p
    library.olv_pool_new.restype = c_void_p
    pool = c_void_p(library.olv_pool_new(2))
    pick = random.Random(1)
    values = (c_float * (N * K))(*(pick.gauss(0, 1) for _ in range(N * K)))
    x = (c_float * (ROWS * K))(*(pick.gauss(0, 1) for _ in range(ROWS * K)))
    source = Weight(F32, 0, ctypes.addressof(values), None, N, K)
    files, products = {}, {}
    for name, (number, row_bytes) in types.items():
        data = (c_uint8 * (N * row_bytes))()
        if number == F32:
            ctypes.memmove(data, values, len(data))
        elif library.olv_convert(ctypes.byref(source), number, data):
            continue  # a type that is only read
        files[name] = hashlib.sha256(bytes(data)).hexdigest()
        weight = Weight(number, 0, ctypes.addressof(data), None, N, K)
        row, y = (c_float * K)(), (c_float * (ROWS * N))()
        products[name] = []
        for generated in (0, 1):
            failed = library.olv_linear(pool, ctypes.byref(weight), x, c_int64(ROWS), generated, y)
            assert not failed and not library.olv_dequantize(ctypes.byref(weight), c_int64(1), row), name
            products[name] += [*y, *row[:8]]
    noise = (c_float * 8)()
    library.olv_noise(
        ctypes.c_uint64(7), ctypes.c_uint32(3), (ctypes.c_uint32 * 8)(*range(8)), c_int64(8), noise
    )
    library.olv_pool_free(pool)
    found = {"isa": library.olv_isa().decode(), "files": files, "products": products, "noise": [*noise]}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
