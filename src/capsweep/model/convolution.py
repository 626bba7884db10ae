"""Convolutions of capsule networks, and the geometry of their receptive fields.

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

FEW_NUMBERS = 128  # largest number of inputs per output for the method "gathered"
FULL_PRECISION = (torch.float32, torch.float64)
# True if the processor has instructions for bfloat16. Other processors emulate them.
MULTIPLIES_BFLOAT16 = any(
    torch.cpu.get_capabilities().get(name, False) for name in ("avx512_bf16", "amx_bf16", "bf16")
)


class Convolution(nn.Conv2d):
    """A convolution with TensorFlow's "valid" or "same" padding, for any stride.

    "valid" means no padding. "same" gives ceil(size / stride) positions along each axis, with zeros
    around the image. If the number of zeros along an axis is odd, the additional zero is below or
    to the right.

    Args:
        channels: Number of input channels.
        outputs: Number of output channels.
        kernel: Height and width of the kernel.
        stride: Stride along both axes.
        same: Whether the padding is "same".
        divisor: Number by which the weighted sums are divided; the bias is not divided.
        bias: Whether there is a bias.

    Attributes:
        method: How to compute the features.
            "direct": with torch's convolution.
            "auto": with the method that is expected to be fastest. On a CPU this can be the
            convolution of `large_kernels`, which needs fewer multiplications. On a GPU this can be
            one matrix product (called "gathered") if each output depends on few inputs.
            "transformed": on a CPU with the convolution of `large_kernels` if it can be used, else
            like "auto".
        methods: Names of the methods that have been used so far, such as "direct", "gathered" or
            "transformed, tiles of 6x6".
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

    def count_positions(self, size: int, key: str = "kernel") -> int:
        """Return the number of output positions along an image axis of `size` pixels.

        Raises:
            ValueError: If the kernel does not fit into `size` pixels. The message begins with
                `key`, the configuration key of the kernel.
        """
        kernel, stride = self.kernel_size[0], self.stride[0]
        return -(-size // stride) if self.same else count_positions(size, kernel, stride, key)

    def forward(self, input: Tensor) -> Tensor:
        """Compute the feature maps [B, C, H, W] of a batch of images."""
        # Dividing the weights takes fewer divisions than dividing the features or the sums.
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
        before, places = (above, left), self._count_outputs(input)
        return convolve(input, weight, self.bias, tiling, before, places)

    def _choose_tiling(self, input: Tensor) -> Tiling | None:
        """Choose the tiling of a transformed convolution, or return None to use another method.

        The result is None in these cases:

        - The attribute `method` is "direct".
        - `large_kernels` cannot be used, for example on a GPU.
        - `method` is "auto", and a direct convolution is expected to be faster.
        - Autocast is on, and the processor has instructions for bfloat16.
        """
        if self.method == "direct" or input.device.type != "cpu" or self.bias is None:
            return None
        kernel, stride, places = self.kernel_size[0], self.stride[0], self._count_outputs(input)
        is_large = kernel >= SMALLEST_KERNEL and min(len(input), *places) > 0
        is_bfloat16 = torch.is_autocast_enabled("cpu") and MULTIPLIES_BFLOAT16
        if not is_large or stride > 2 or is_bfloat16 or self.weight.dtype not in FULL_PRECISION:
            return None
        channels, always = (self.in_channels, self.out_channels), self.method == "transformed"
        return choose_tiling(kernel, stride, channels, len(input), places, always)

    def _sees_few(self, input: Tensor) -> bool:
        """Return whether to use the method "gathered" for this input.

        "gathered" is used on a GPU if each output depends on few inputs and the attribute `method`
        is not "direct". The gathered copies of the inputs are then no larger than the features.
        """
        seen = self.in_channels * self.kernel_size[0] ** 2
        few = self.in_channels < seen <= min(FEW_NUMBERS, self.out_channels)
        return few and input.is_cuda and self.method != "direct"

    def _multiply_gathered(self, input: Tensor, weight: Tensor) -> Tensor:
        """Copy the inputs of each output to a row, and convolve by one matrix product.

        The first convolution of a network reads few channels, and cuDNN's kernels are not made for
        few channels. An example on an H200: 128 images in bfloat16, 81 inputs per output, 256
        output channels. Forward and backward pass with ReLU take 0.55 ms with cuDNN and 0.20 ms
        with the matrix product.

        The bias is the weight of an additional input that is always 1. The matrix product then
        computes the gradient of the bias too.
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
        # Pad to a multiple of 8 columns, because tensor cores read rows of 16 bytes.
        weight_OE = F.pad(weight_OE.to(seen_BHWE.dtype), (0, -weight_OE.shape[1] % 8))
        missing = weight_OE.shape[1] - seen_BHWE.shape[3]
        features_BHWO = F.linear(F.pad(seen_BHWE, (0, missing), value=1.0), weight_OE)
        features_BOHW = features_BHWO.permute(0, 3, 1, 2)
        is_channels_last = weight.stride(1) == 1  # `set_weight_layout` can set this layout
        return features_BOHW if is_channels_last else features_BOHW.contiguous()

    def _count_outputs(self, input: Tensor) -> tuple[int, int]:
        return self.count_positions(input.shape[2]), self.count_positions(input.shape[3])

    def _convolve_directly(self, input: Tensor, weight: Tensor) -> Tensor:
        left, right, above, below = padding = self._list_padding(input)
        if (above, left) == (below, right):
            return torch.conv2d(input, weight, self.bias, self.stride, (above, left))
        return torch.conv2d(F.pad(input, padding), weight, self.bias, self.stride)

    def _list_padding(self, input: Tensor) -> list[int]:
        """Return the numbers of zeros to add left of, right of, above and below the input."""
        padding: list[int] = []
        for size in (input.shape[3], input.shape[2]):
            seen = (self.count_positions(size) - 1) * self.stride[0] + self.kernel_size[0]
            missing = max(seen - size, 0) if self.same else 0
            padding += [missing // 2, missing - missing // 2]
        return padding


def count_positions(size: int, kernel: int, stride: int, key: str) -> int:
    """Return the number of positions of a kernel along an axis of `size` pixels, without padding.

    Raises:
        ValueError: If the kernel does not fit into `size` pixels. The message begins with `key`,
            the configuration key of the kernel.
    """
    if kernel > size:
        raise ValueError(
            f"{key}={kernel} does not fit into {size} pixels; make kernels or strides smaller"
        )
    return (size - kernel) // stride + 1


def set_method(network: nn.Module, method: str) -> None:
    """Set the `method` of all convolutions of a network.

    The methods are "direct" (torch's convolution), "auto" (the method expected to be fastest) and
    "transformed" (on a CPU the convolution of `large_kernels` if it can be used, else like "auto").
    """
    for module in network.modules():
        if isinstance(module, Convolution):
            module.method = method


def describe_methods(network: nn.Module) -> dict[str, str]:
    """Return the names of the methods that each convolution has used so far, by module name.

    Several names are joined by " or ". A convolution that has not been used yet gets "direct".
    """
    return {
        name: " or ".join(sorted(module.methods)) or "direct"
        for name, module in network.named_modules()
        if isinstance(module, Convolution)
    }


def zip_layers(
    section: str, sizes: Mapping[str, Sequence[int]], *keys: str
) -> list[tuple[int, ...]]:
    """Combine the lists of sizes of several settings into one tuple of sizes per layer.

    Args:
        section: Configuration key of the settings, for the error message.
        sizes: For each setting, the list of its sizes, one per layer.
        *keys: Settings to combine. A tuple has the sizes in the order of these settings.

    Raises:
        ValueError: If a list is shorter or longer than the list of the first setting.
    """
    first, *others = keys
    for key in others:
        if len(sizes[key]) != len(sizes[first]):
            raise ValueError(
                f"{section}.{key} needs one size for each of the {len(sizes[first])} layers of "
                f"{section}.{first}, got {list(sizes[key])}"
            )
    return list(zip(*(sizes[key] for key in keys), strict=True))


def set_weight_layout(network: nn.Module, layout: torch.memory_format) -> None:
    """Change the memory layout of the weights of all convolutions of a network, in place.

    The features of a convolution have the layout of its weights, whatever the layout of its input.
    Shapes, values and the keys of `state_dict` stay the same. A network with one layout can load
    weights that were saved with another. The layout `torch.channels_last` puts the channels of a
    pixel side by side. This layout is faster on CPUs, and the tensor cores of GPUs read it. Vote
    weights also have four axes, but their layout is not changed.
    """
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            weight = module.weight.data
            # Not .contiguous(): weights with one input channel are contiguous in both layouts, so
            # .contiguous() would keep the old layout, and the features would have it too.
            module.weight.data = torch.empty_like(weight, memory_format=layout).copy_(weight)


# By `place`: indices of the two elements of a vote to which the coordinates are added. The first is
# for the row, the second for the column.
PLACES: Mapping[str, tuple[int, ...]] = {"right_column": (3, 7), "first": (0, 1), "none": ()}
PIXELS_OF_A_UNIT = 100  # pixels per unit of a coordinate, as in the authors' code


@dataclass(frozen=True)
class PositionGrid:
    """A grid of positions, with the centres of their receptive fields in the image.

    With the defaults of `first` and `step`, the positions are the pixels of the image.

    Attributes:
        height: Number of rows.
        width: Number of columns.
        first: Centre of the receptive field of the first position, in pixels; the same along both
            axes.
        step: Distance between the centres of neighbouring positions, in pixels.
    """

    height: int
    width: int
    first: float = 0.0
    step: float = 1.0

    @property
    def num_positions(self) -> int:
        """The number of positions, N."""
        return self.height * self.width

    def after_convolution(self, kernel: int, stride: int, key: str) -> "PositionGrid":
        """Return the grid of output positions of a convolution on this grid, without padding.

        Raises:
            ValueError: If the kernel does not fit into the grid. The message begins with `key`, the
                configuration key of the kernel.
        """
        return PositionGrid(
            height=count_positions(self.height, kernel, stride, key),
            width=count_positions(self.width, kernel, stride, key),
            first=self.first + self.step * (kernel - 1) / 2,
            step=self.step * stride,
        )


def list_fields(children: PositionGrid, kernel: int, stride: int) -> list[list[int]]:
    """List the child positions in the receptive field of each parent position.

    Args:
        children: Grid of the child positions.
        kernel: Height and width of the kernel.
        stride: Stride along both axes.

    Returns:
        M lists, one for each parent position. The parent positions are ordered row by row. Each
        list has K indices: the index of the child position at each kernel offset.
    """
    grid_HW = torch.arange(children.num_positions, device="cpu").view(children.height, -1)
    windows = grid_HW.unfold(0, kernel, stride).unfold(1, kernel, stride)
    return windows.flatten(2).flatten(0, 1).tolist()


def make_coordinate_offsets(
    children: PositionGrid, image: PositionGrid, numbers: int, place: str, scale: str
) -> Tensor | None:
    """Compute the offsets that coordinate addition adds to the votes of each child position.

    Source: Hinton, Sabour, Frosst 2018, "Matrix capsules with EM routing", section 4.1.

    Args:
        children: Grid of the child positions.
        image: Grid of the pixels.
        numbers: Number of elements of a vote, D.
        place: The two elements of a vote to which the coordinates are added; the first gets the row
            coordinate, the second the column coordinate.
            "right_column": the last elements of the first two rows of a 4x4 pose, as in the paper.
            "first": the first two elements, as in the authors' code.
            "none": no coordinate addition.
        scale: How the coordinates are computed.
            "pixels": the position of the centre of the child's receptive field relative to the
            centre of the image, divided by 100 pixels, as in the authors' code.
            "grid": (row + 1/2) / rows and (column + 1/2) / columns, for the child's row and column.

    Returns:
        Offsets [N, D], or None for the place "none".
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
    """Compute the coordinates of `size` positions along one axis of an image of `pixels` pixels."""
    if scale == "grid":
        return [(position + 0.5) / size for position in range(size)]
    centres = (children.first + children.step * position for position in range(size))
    return [(centre - (pixels - 1) / 2) / PIXELS_OF_A_UNIT for centre in centres]
