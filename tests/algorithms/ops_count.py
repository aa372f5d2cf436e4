"""Counts what code would launch on a GPU, and how often the host would wait for it, without a GPU."""

import importlib.util
from collections import Counter
from contextlib import ExitStack
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode

# Views, allocations and what only looks at a shape: no kernel.
# fmt: off
FREE = {
    "view", "_unsafe_view", "reshape", "expand", "slice", "select", "unsqueeze", "squeeze", "t",
    "transpose", "permute", "as_strided", "detach", "alias", "empty", "empty_like", "new_empty",
    "empty_strided", "new_empty_strided", "unbind", "split", "split_with_sizes", "_reshape_alias",
    "unfold", "lift_fresh", "is_same_size", "_local_scalar_dense", "item", "resolve_conj",
    "resolve_neg", "diagonal", "set_data", "numpy_T", "promote_types",
}
# fmt: on
# Operators of several kernels each, at the least.
SEVERAL = {
    **dict.fromkeys(("sort", "argsort", "nonzero", "bincount", "masked_scatter", "masked_scatter_"), 4),
    "topk": 2,
}
# The result, or its size, is needed on the host.
# fmt: off
WAITS = {
    "nonzero", "_local_scalar_dense", "item", "bincount", "masked_select", "is_nonzero", "equal",
    "repeat_interleave", "histc", "_unique", "_unique2", "unique_dim", "unique_consecutive",
    "unique_dim_consecutive",
}
# fmt: on


class CountOps(TorchDispatchMode):
    """``with CountOps() as c: ...`` counts operators by dispatch, and Triton kernels, on any device.

    Args:
        run_kernels: False only counts the Triton kernels, where the interpreter would take too long and
            nothing looks at the results.
    """

    def __init__(self, run_kernels: bool = True) -> None:
        super().__init__()
        self.ops: Counter[str] = Counter()
        """Calls by operator, or by kernel ("triton: name")."""
        self.waited: Counter[str] = Counter()
        """Calls that make the host wait for the device."""
        self._run_kernels, self._in_kernel, self._patches = run_kernels, False, ExitStack()

    @property
    def launches(self) -> int:
        """Kernels on a GPU, at the least."""
        return sum(count * SEVERAL.get(name, 1) for name, count in self.ops.items())

    @property
    def waits(self) -> int:
        """How often the host would wait for the GPU."""
        return sum(self.waited.values())

    def __enter__(self):
        if importlib.util.find_spec("triton") is not None:
            from triton.runtime.jit import KernelInterface

            launch = KernelInterface.__getitem__
            counted = mock.patch.object(
                KernelInterface,
                "__getitem__",
                lambda kernel, grid: self._counted(kernel, launch(kernel, grid)),
            )
            self._patches.enter_context(counted)
        return super().__enter__()

    def __exit__(self, *error):
        self._patches.close()
        return super().__exit__(*error)

    def _counted(self, kernel, launch):
        def call(*args, **options):
            self.ops[f"triton: {kernel.fn.__name__}"] += 1
            if not self._run_kernels:
                return
            self._in_kernel = True  # what Triton's interpreter does with torch is no launch
            try:
                launch(*args, **options)
            finally:
                self._in_kernel = False

        return call

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        space, name = func._schema.name.split("::")
        if self._in_kernel or space != "aten":
            return out
        if name not in FREE:
            self.ops[name] += 1
        if name in WAITS or self._waits_by_arguments(name, args, kwargs or {}, out):
            self.waited[name] += 1
        return out

    @staticmethod
    def _waits_by_arguments(name, args, kwargs, out) -> bool:
        if name in ("index", "index_put", "index_put_", "_index_put_impl_"):
            indices = [index for index in args[1] if index is not None]
            return any(index.dtype in (torch.bool, torch.uint8) for index in indices)
        if name in ("_to_copy", "copy_"):
            source = args[1] if name == "copy_" else args[0]
            return source.is_cuda != out.is_cuda and not kwargs.get("non_blocking")
        return False
