"""What a CUDA graph could not capture, found without any accelerator.

The device is torch's `meta`: its tensors have no numbers, so whatever would read one fails there
(`item`, `if`, `nonzero`, boolean masks, `cpu`).
"""

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

DEVICE = torch.device("meta")
# They copy numbers of Python or NumPy to the device, which no operation tells.
COPIES = (torch.tensor, torch.as_tensor, torch.asarray, torch.from_numpy, Tensor.new_tensor)
INDEXES = (Tensor.__getitem__, Tensor.__setitem__)
WITHOUT_CUDA_DERIVATIVE = (torch.ops.aten.aminmax,)  # torch 2.11 on an H200


class OnlyOnDevice(TorchDispatchMode):
    """Fails where an operation takes or gives a tensor of another device, draws by a generator of
    the processor, or has no derivative on CUDA.
    """

    def __init__(self) -> None:
        super().__init__()
        self.copies = _NoCopies()

    def __enter__(self) -> Any:
        self.copies.__enter__()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self.copies.__exit__(*error)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        assert func.overloadpacket not in WITHOUT_CUDA_DERIVATIVE, f"{func} has no gradient on CUDA"
        result = func(*args, **(kwargs or {}))
        for value in _pytree.tree_leaves((args, kwargs, result)):
            is_tensor = isinstance(value, Tensor | torch.Generator)
            elsewhere = is_tensor and value.device != DEVICE
            assert not elsewhere, f"{func} with a {type(value).__name__} of {value.device}"
        return result


class _NoCopies(TorchFunctionMode):
    """Fails where numbers of Python become a tensor of the device."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        assert func not in COPIES, f"{func.__name__} copies to the device"
        if func in INDEXES:
            indices = args[1] if isinstance(args[1], tuple) else (args[1],)
            assert not any(isinstance(index, list) for index in indices), "indexed by a list"
        return func(*args, **(kwargs or {}))
