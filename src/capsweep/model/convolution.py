"""Convolutions of capsule networks, and the positions that their kernels see.

Shape letters: B batch, C H W image; N child positions (H rows, W columns), M parent positions, K
kernel offsets.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from capsweep.model.large_kernels import SMALLEST_KERNEL, Tiling, choose_tiling
from capsweep.model.transformed_convolution import convolve

FEW_NUMBERS = 128  # the most that a kernel may see to be gathered
WHOLE_PRECISION = (torch.float32, torch.float64)
# Whether the processor has instructions for it, and need not emulate it.
MULTIPLIES_BFLOAT16 = any(
    torch.cpu.get_capabilities().get(name, False) for name in ("avx512_bf16", "amx_bf16", "bf16")
)


class Convolution(nn.Conv2d):
    """A convolution padded as TensorFlow names it, also where the stride is above 1.

    valid: no padding. same: ceil(size / stride) places, zeros around, the odd one below and right.
    divisor: the weighted sums are divided by it, the bias is not. bias: whether there is one.

    Attributes:
        method: direct, as torch does it; transformed, as `large_kernels` does it where it can, on
            processors alone; auto, transformed where that pays, and gathered, a product of
            matrices, where a kernel sees few numbers on a GPU.
        methods: those of the batches so far.
    """

    def __init__(
        self,
        channels: int,
        outputs: int,
        kernel: int,
        stride: int,
        same: bool,
        divisor: int = 1,
        bias: bool = True,
    ) -> None:
        super().__init__(channels, outputs, kernel, stride, bias=bias)
        self.same, self.divisor = same, divisor
        self.method = "auto"
        self.methods: set[str] = set()

    def count_places(self, size: int, key: str = "kernel") -> int:
        """Return the places along an image axis of `size` pixels. Raises as `count_places`."""
        kernel, stride = self.kernel_size[0], self.stride[0]
        return -(-size // stride) if self.same else count_places(size, kernel, stride, key)

    def forward(self, input: Tensor) -> Tensor:
        """Return the feature maps [B, C, H, W]."""
        # A division of the weights touches fewer numbers than one of the features or the sums.
        weight = self.weight if self.divisor == 1 else self.weight / self.divisor
        tiling = self._choose_tiling(input)
        if tiling is None and self._sees_few(input):
            self.methods.add("gathered")
            return self._multiply_gathered(input, weight)
        if tiling is None:
            self.methods.add("direct")
            return self._convolve_directly(input, weight)
        self.methods.add(f"transformed, tiles of {tiling.outputs}x{tiling.outputs}")
        assert self.bias is not None
        left, _, above, _ = self._list_padding(input)
        arguments = input, weight, self.bias, tiling, (above, left), self._count_all_places(input)
        return convolve(*arguments)

    def _choose_tiling(self, input: Tensor) -> Tiling | None:
        """None: directly, as all that `large_kernels` cannot do, and what a processor multiplies in
        bfloat16.
        """
        if self.method == "direct" or input.device.type != "cpu" or self.bias is None:
            return None
        kernel, stride, places = self.kernel_size[0], self.stride[0], self._count_all_places(input)
        is_large = kernel >= SMALLEST_KERNEL and min(len(input), *places) > 0
        is_bfloat16 = torch.is_autocast_enabled("cpu") and MULTIPLIES_BFLOAT16
        if not is_large or stride > 2 or is_bfloat16 or self.weight.dtype not in WHOLE_PRECISION:
            return None
        channels, always = (self.in_channels, self.out_channels), self.method == "transformed"
        return choose_tiling(kernel, stride, channels, len(input), places, always)

    def _sees_few(self, input: Tensor) -> bool:
        """Return whether a GPU can copy all that the kernel sees, no more than the features are."""
        seen = self.in_channels * self.kernel_size[0] ** 2
        few = self.in_channels < seen <= min(FEW_NUMBERS, self.out_channels)
        return few and input.is_cuda and self.method != "direct"

    def _multiply_gathered(self, input: Tensor, weight: Tensor) -> Tensor:
        """Convolve by one product of matrices, of what the kernel sees at each place.

        The first convolution of a network sees few channels, for which cuDNN's kernels are not
        made: 81 numbers to 256 take it 0.55 ms forward and backward in bfloat16 on an H200, 128
        images, ReLU included, and a product 0.20. The bias is the weight of a number that is 1
        everywhere, so that its gradient is a part of the product, too.
        """
        if torch.is_autocast_enabled(input.device.type):
            input = input.to(torch.get_autocast_dtype(input.device.type))
        kernel, stride = self.kernel_size[0], self.stride[0]
        padded = F.pad(input, self._list_padding(input))
        windows = padded.unfold(2, kernel, stride).unfold(3, kernel, stride)
        seen_BHWE = windows.permute(0, 2, 3, 1, 4, 5).flatten(3)
        weight_OE = weight.flatten(1)
        if self.bias is not None:
            weight_OE = torch.cat([weight_OE, self.bias[:, None]], dim=1)
        # Tensor cores read rows of 16 bytes.
        weight_OE = F.pad(weight_OE.to(seen_BHWE.dtype), (0, -weight_OE.shape[1] % 8))
        missing = weight_OE.shape[1] - seen_BHWE.shape[3]
        features_BHWO = F.linear(F.pad(seen_BHWE, (0, missing), value=1.0), weight_OE)
        features_BOHW = features_BHWO.permute(0, 3, 1, 2)
        is_channels_last = weight.stride(1) == 1  # as `lay_out_weights` may have laid it out
        return features_BOHW if is_channels_last else features_BOHW.contiguous()

    def _count_all_places(self, input: Tensor) -> tuple[int, int]:
        return self.count_places(input.shape[2]), self.count_places(input.shape[3])

    def _convolve_directly(self, input: Tensor, weight: Tensor) -> Tensor:
        left, right, above, below = padding = self._list_padding(input)
        if (above, left) == (below, right):
            return torch.conv2d(input, weight, self.bias, self.stride, (above, left))
        return torch.conv2d(F.pad(input, padding), weight, self.bias, self.stride)

    def _list_padding(self, input: Tensor) -> list[int]:
        """Return the zeros left, right, above and below."""
        padding: list[int] = []
        for size in (input.shape[3], input.shape[2]):
            seen = (self.count_places(size) - 1) * self.stride[0] + self.kernel_size[0]
            missing = max(seen - size, 0) if self.same else 0
            padding += [missing // 2, missing - missing // 2]
        return padding


def count_places(size: int, kernel: int, stride: int, key: str) -> int:
    """Return the places of a kernel along an axis of `size` pixels, without padding.

    Raises ValueError naming the key of a kernel that does not fit.
    """
    if kernel > size:
        raise ValueError(
            f"{key}={kernel} does not fit into {size} pixels; make kernels or strides smaller"
        )
    return (size - kernel) // stride + 1


def set_method(network: nn.Module, method: str) -> None:
    """Let the convolutions of `network` compute by a method of `Convolution`."""
    for module in network.modules():
        if isinstance(module, Convolution):
            module.method = method


def describe_methods(network: nn.Module) -> dict[str, str]:
    """Return how each convolution computed its batches, by its name."""
    return {
        name: " or ".join(sorted(module.methods)) or "direct"
        for name, module in network.named_modules()
        if isinstance(module, Convolution)
    }


def zip_layers(
    section: str, sizes: Mapping[str, Sequence[int]], *keys: str
) -> list[tuple[int, ...]]:
    """The sizes of layer after layer, in the order of the keys. Raises ValueError naming a list of
    another length than the first.
    """
    first, *others = keys
    for key in others:
        if len(sizes[key]) != len(sizes[first]):
            raise ValueError(
                f"{section}.{key} needs one size for each of the {len(sizes[first])} layers of "
                f"{section}.{first}, got {list(sizes[key])}"
            )
    return list(zip(*(sizes[key] for key in keys), strict=True))


def lay_out_weights(network: nn.Module, layout: torch.memory_format) -> None:
    """Lay the weights of convolutions out, in place, as their features shall be.

    A convolution gives features laid out as its weights, whatever its input's layout. Shapes,
    values and the keys of `state_dict` stay; weights saved in one layout load into another.
    torch.channels_last, the channels of a pixel side by side, is faster on CPUs, and what a GPU's
    tensor cores read. Vote weights, which have four axes too, stay as they are.
    """
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            weight = module.weight.data
            # Not .contiguous(): weights of one input channel count as both, and would give features
            # in the other layout.
            module.weight.data = torch.empty_like(weight, memory_format=layout).copy_(weight)


PLACES: Mapping[str, tuple[int, ...]] = {"right_column": (3, 7), "first": (0, 1), "none": ()}
PIXELS_OF_A_UNIT = 100  # the authors' code


@dataclass(frozen=True)
class PositionGrid:
    """Positions in rows and columns, and where the centres of what they see are in the image.

    first, step: pixels, of the first centre and from one to the next, in both axes; without them
    the pixels themselves.
    """

    height: int
    width: int
    first: float = 0.0
    step: float = 1.0

    @property
    def num_positions(self) -> int:
        """N."""
        return self.height * self.width

    def after_convolution(self, kernel: int, stride: int, key: str) -> "PositionGrid":
        """Return the positions of a kernel on this grid, without padding.

        Raises ValueError naming the key of a kernel that does not fit.
        """
        return PositionGrid(
            height=count_places(self.height, kernel, stride, key),
            width=count_places(self.width, kernel, stride, key),
            first=self.first + self.step * (kernel - 1) / 2,
            step=self.step * stride,
        )


def list_fields(children: PositionGrid, kernel: int, stride: int) -> list[list[int]]:
    """[M][K], row by row: the child position at each kernel offset of each parent position."""
    grid_HW = torch.arange(children.num_positions, device="cpu").view(children.height, -1)
    windows = grid_HW.unfold(0, kernel, stride).unfold(1, kernel, stride)
    return windows.flatten(2).flatten(0, 1).tolist()


def make_coordinate_offsets(
    children: PositionGrid, image: PositionGrid, numbers: int, place: str, scale: str
) -> Tensor | None:
    """[N, D]: what is added to the votes of each child position (coordinate addition, section 4.1).

    place: the two of `numbers` that get row and column. right_column: the last of the first two
    rows of a 4x4 pose (the paper); first: the first two (the authors' code); none: no addition,
    None. scale. pixels: from the centre of the image to the centre of what the child sees, in
    hundreds (the authors' code); grid: (row + 1/2) / rows.
    """
    if place == "none":
        return None
    offset_HWD = torch.zeros(children.height, children.width, numbers)
    row_number, column_number = PLACES[place]
    rows = _list_coordinates(children, children.height, image.height, scale)
    columns = _list_coordinates(children, children.width, image.width, scale)
    offset_HWD[:, :, row_number] = torch.tensor(rows)[:, None]
    offset_HWD[:, :, column_number] = torch.tensor(columns)
    return offset_HWD.flatten(0, 1)


def _list_coordinates(children: PositionGrid, size: int, pixels: int, scale: str) -> list[float]:
    """Of the positions along an axis: `size` of them in an image of so many pixels."""
    if scale == "grid":
        return [(position + 0.5) / size for position in range(size)]
    centres = (children.first + children.step * position for position in range(size))
    return [(centre - (pixels - 1) / 2) / PIXELS_OF_A_UNIT for centre in centres]
