"""Triton's interpreter without what takes it longest and computes nothing (TRITON_INTERPRET=1).

It searches all of `triton.language` whenever a kernel calls a function, makes a table of all types whenever
it needs one, and takes parities, of which sorts are made, one number at a time.
`fast_interpreter.py FILE [ARGUMENT...]` runs a script that way.
"""

import runpy
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import triton.language as tl
from triton.runtime import interpreter


def quicken() -> None:
    """For the rest of the process, in which nothing but kernels may use the language."""
    patch, scope = interpreter._patch_lang, interpreter._LangPatchScope
    patch(SimpleNamespace(__globals__={"tl": tl, "core": tl.core}))
    interpreter._patch_lang = lambda function: scope()

    numpy_type, types = interpreter._get_np_dtype, {}

    def known_type(asked):
        one = asked.scalar
        if one.name not in types:
            types[one.name] = numpy_type(one)
        return types[one.name]

    interpreter._get_np_dtype = known_type

    reduce = interpreter.ReduceOps.apply_impl

    def with_parity(self, values):
        if self.combine_fn != tl.standard._xor_combine or self.axis is None:
            return reduce(self, values)
        data = np.bitwise_xor.reduce(values[0].handle.data, axis=self.axis, keepdims=self.keep_dims)
        return self.to_tensor(data, values[0].dtype)

    interpreter.ReduceOps.apply_impl = with_parity


if __name__ == "__main__":
    quicken()
    del sys.argv[0]
    sys.path[0] = str(Path(sys.argv[0]).parent)
    runpy.run_path(sys.argv[0], run_name="__main__")
