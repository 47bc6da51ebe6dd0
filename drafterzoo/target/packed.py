"""Linear layers whose weight lies in memory as CPU kernels like it: the same product, faster for few rows.

Knows nothing of targets or caches. The operators are private to torch (machine.md 3), so they are tried before use, and
a plain linear layer stays where they are missing.
"""

from __future__ import annotations

from functools import cache
from typing import TypeGuard

import torch
from torch import Tensor, nn
from torch.nn import functional

from drafterzoo.cpu import cpu_vendor
from drafterzoo.errors import UsageError

_BATCH_HINT = 8  # the layout is chosen for this many rows; 1 is worse from two rows on (machine.md 3)
_GREATEST = torch.finfo(torch.float16).max


class PackedLinear(nn.Module):
    """`nn.Linear` for inference in float32 on CPU: x [..., in] -> [..., out].

    dtype float16 keeps the weight in float16 and multiplies in float32: half the memory to read, and of a checkpoint
    stored in float16 the same numbers. As in float32, the last bits of a row's product depend on how many rows there
    are. bfloat16 multiplies in bfloat16: half the memory, a rounded product. The dense
    weight is kept where the packed one has lost some of its bits, to be given back as it was.

    dense_rows: inputs of so many rows at most go through the dense weight, which is then kept (float32 alone).

    Raises UsageError where the weight is too large for float16.
    """

    def __init__(self, linear: nn.Linear, dtype: torch.dtype = torch.float32, dense_rows: int = 0) -> None:
        super().__init__()
        self.in_features, self.out_features, self.dtype = linear.in_features, linear.out_features, dtype
        self.dense_rows = dense_rows if dtype == torch.float32 else 0
        weight = linear.weight.detach()
        if dtype == torch.float16:
            self.packed = torch.ops.quantized.linear_prepack_fp16(_within_float16(weight), None)
        else:
            self.packed = torch.ops.mkldnn._reorder_linear_weight(weight.to(dtype), _BATCH_HINT)
        kept = weight.dtype == dtype or (dtype == torch.float16 and torch.equal(weight, weight.half().float()))
        self._dense = None if kept and not dense_rows else weight
        # not rounded: a checkpoint that is saved holds it as it was loaded
        self.bias = None if linear.bias is None else nn.Parameter(linear.bias.detach(), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        if (x.requires_grad and torch.is_grad_enabled()) or torch.is_autocast_enabled("cpu"):
            # the packed operators have no derivative, and autocast does not know them
            return functional.linear(x, self.to_dense(), self._bias(x.dtype))
        if self.dtype == torch.float16:
            rows = x.float() if x.ndim > 1 else x.float()[None]
            product = torch.ops.quantized.linear_dynamic_fp16(rows, self.packed).view(*x.shape[:-1], self.out_features)
            return (product if self.bias is None else product + self.bias).to(x.dtype)
        if self._dense is not None and x.numel() <= self.dense_rows * self.in_features:
            return functional.linear(x, self._dense.to(x.dtype), self._bias(x.dtype))
        bias = self._bias(self.dtype)
        return torch.ops.mkldnn._linear_pointwise(x.to(self.dtype), self.packed, bias, "none", [], "").to(x.dtype)

    def _bias(self, dtype: torch.dtype) -> Tensor | None:
        return None if self.bias is None else self.bias.to(dtype)

    def to_dense(self) -> Tensor:
        """A dense copy of the weight [out, in], bit-equal to the one that was packed."""
        if self._dense is not None:
            return self._dense
        if self.dtype == torch.float16:
            return torch.ops.quantized.linear_unpack_fp16(self.packed)[0]
        return self.packed.to_dense()

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


def fits_float16(model: nn.Module) -> bool:
    """Whether every layer that can be packed holds numbers that float16 has room for."""
    return all(float(m.weight.detach().abs().amax()) <= _GREATEST for m in model.modules() if can_pack(m))


def _within_float16(weight: Tensor) -> Tensor:
    if float(weight.abs().amax()) <= _GREATEST:
        return weight
    raise UsageError(
        f"a weight of {float(weight.abs().amax()):.3g} cannot be multiplied in float16, which ends at {_GREATEST:g}; "
        f"load it with packed_dtype='float32'."
    )


@cache
def packing_works(dtype: torch.dtype = torch.float32) -> bool:
    """Whether this build of torch has the operators for `dtype` and they give the right product here."""
    weight, x = torch.linspace(-1, 1, 48).view(6, 8), torch.linspace(-1, 1, 16).view(2, 8)
    linear = nn.Linear(8, 6, bias=False)
    linear.weight = nn.Parameter(weight, requires_grad=False)
    try:
        packed = PackedLinear(linear, dtype)
        near = 1e-5 if dtype == torch.float32 else 5e-2
        good = torch.allclose(packed(x), x @ weight.T, atol=near) and torch.equal(packed.to_dense(), weight)
    except (RuntimeError, AttributeError, NotImplementedError):
        return False
    return good


def quickest_dtype() -> torch.dtype:
    """bfloat16 where this CPU multiplies it by itself (AVX-512 BF16, AMX), else float16; float32 where neither works.

    Few rows are bound by reading the weight, and half of it is read in half the time.
    """
    native = getattr(torch.cpu, "_is_avx512_bf16_supported", None)
    if native is not None and native() and packing_works(torch.bfloat16):
        return torch.bfloat16
    return torch.float16 if packing_works(torch.float16) else torch.float32


@cache
def quickest_dense_rows() -> int:
    """How many rows at most this machine multiplies sooner by the dense weight: two where MKL knows the CPU, else none.

    MKL, which multiplies dense float32 in torch, has kernels for few rows on Intel's CPUs, and on others falls back
    to slower ones (`benchmarks/packing.py` shows both). What the vendor is, and not a stopwatch, decides, since the
    last bits of a product depend on it: they must not change from run to run.
    """
    return 2 if torch.backends.mkl.is_available() and cpu_vendor() == "GenuineIntel" else 0


def can_pack(linear: nn.Module) -> TypeGuard[nn.Linear]:
    """Plain linear layers in float32 on CPU; subclasses (quantised, adapted) do something else with their weight."""
    return type(linear) is nn.Linear and linear.weight.dtype == torch.float32 and linear.weight.device.type == "cpu"


def pack_linears(model: nn.Module, dtype: torch.dtype = torch.float32, dense_rows: int = 0) -> int:
    """Replace every linear layer of `model` that can be packed, one at a time; return how many were."""
    count = 0
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if can_pack(child):
                setattr(parent, name, PackedLinear(child, dtype, dense_rows))
                count += 1
    return count
