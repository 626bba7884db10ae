"""The convolution of capsule networks, and the order in which convolutions keep their numbers.

Shape letters: B batch, C H W image.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Convolution(nn.Conv2d):
    """A convolution padded as TensorFlow names it, also where the stride is above 1.

    valid: no padding. same: ceil(size / stride) places, zeros around, the odd one below and right.
    divisor: the weighted sums are divided by it, the bias is not.
    """

    def __init__(
        self, channels: int, outputs: int, kernel: int, stride: int, same: bool, divisor: int = 1
    ) -> None:
        super().__init__(channels, outputs, kernel, stride)
        self.same, self.divisor = same, divisor

    def places(self, size: int) -> int:
        """Places along an image axis of `size` pixels; below 1 when the kernel does not fit."""
        kernel, stride = self.kernel_size[0], self.stride[0]
        return -(-size // stride) if self.same else (size - kernel) // stride + 1

    def forward(self, input: Tensor) -> Tensor:
        """Feature maps [B, C, H, W]."""
        if self.same:
            input = F.pad(input, [*self._around(input.shape[3]), *self._around(input.shape[2])])
        if self.divisor == 1:
            return super().forward(input)
        # A division of the weights touches fewer numbers than one of the features or the sums.
        weight: Tensor = self.weight / self.divisor
        return torch.conv2d(input, weight, self.bias, self.stride)

    def _around(self, size: int) -> tuple[int, int]:
        """Zeros before and after."""
        kernel, stride = self.kernel_size[0], self.stride[0]
        missing = max((self.places(size) - 1) * stride + kernel - size, 0)
        return missing // 2, missing - missing // 2


def to_channels_last(network: nn.Module) -> nn.Module:
    """Let the convolutions of `network` compute with the channels of a pixel side by side.

    In place, and returned. A convolution whose weights are laid out so gives features laid out so,
    whatever its input's layout. Shapes, values and the keys of `state_dict` stay; weights saved in
    either layout load into the other. It is faster on CPUs, and what a GPU's tensor cores
    read. Vote weights, which have four axes too, stay as they are.
    """
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            weight = module.weight.data
            # Not .contiguous(): weights of one input channel count as both, and would give features
            # in the other layout.
            laid_out = torch.empty_like(weight, memory_format=torch.channels_last)
            module.weight.data = laid_out.copy_(weight)
    return network
