"""Thin binding of libfastbpe."""
import ctypes
import os

import numpy as np

_lib = ctypes.CDLL(os.path.join(os.path.dirname(os.path.abspath(__file__)), "libfastbpe.so"))
_lib.encode.argtypes = [ctypes.c_char_p, ctypes.c_int64, ctypes.c_void_p]


def encode(text):
    out = np.empty(len(text), dtype=np.int64)
    _lib.encode(text, len(text), out.ctypes.data)
    return out
