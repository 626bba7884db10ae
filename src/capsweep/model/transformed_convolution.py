"""Convolution by the bilinear form of `large_kernels`, as an autograd function.

Shape letters (see `large_kernels`): B images, H W pixels, C channels, O output channels, T tiles, n
frequencies, p positions, F components. `by_x` is the gradient of the loss with respect to x.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from capsweep.model.large_kernels import Tiling, Transform, make_transforms

CHANNELS_AT_ONCE = 512  # most columns of the matrices that are multiplied
# Most elements of an array. Each use of a larger array would need new memory: see
# `devices.keep_freed_memory`.
NUMBERS_AT_ONCE = 2**23 - 2**10
CACHED = 2**19  # most elements of tiles that are transformed together; these stay in the cache
MOST_KEPT = 2**24  # if all factors have more elements, none are kept for the backward pass

Block = tuple[slice, slice]  # rows of phases, and channels of the phases in each row
Factors = tuple[Tensor, Tensor]  # x_TFC and w_OFC, for one block and one pair of rows
WHOLE: Block = (slice(None), slice(None))


@dataclass(frozen=True)
class Operand:
    """A rule that cuts an array [B, H, W, C] into tiles and transforms the tiles.

    The array is the image, the weights or the outputs of a convolution.

    Attributes:
        transform: Transform of a tile.
        size: Number of positions of a tile along an axis, p.
        step: Number of positions from the start of a tile to the start of the next, along an axis.
        stride: Number of pixels of a position along an axis. Each pixel belongs to another phase.
        padding: Numbers of zeros to add left, right, above and below. Negative: pixels to cut off.
    """

    transform: Transform
    size: int
    step: int
    stride: int
    padding: tuple[int, int, int, int]

    def transform_rows(self, array_BHWC: Tensor, block: Block) -> Tensor:
        """Apply the first step of the transform, along the rows, to a block of channels.

        Returns:
            The transformed rows [T, n / 2, 2 p, C], grouped into n / 2 pairs.
        """
        rows = self.make_rows(array_BHWC, block)
        by_image = self._group_by_image(rows, len(array_BHWC))
        for images in _split_range(len(array_BHWC), CACHED // by_image[0].numel()):
            tiles = self.split(self.pad(array_BHWC[images]))[..., *block]
            tiles = tiles.reshape(-1, self.size, by_image.shape[3])
            torch.matmul(self.transform.rows_np, tiles, out=by_image[images].flatten(0, 1))
        return rows

    def make_rows(self, array_BHWC: Tensor, block: Block) -> Tensor:
        """Allocate an uninitialised tensor for the result of `transform_rows`."""
        shape = self.split(self.pad(array_BHWC[:1]))[..., *block].shape
        tiles, pairs = len(array_BHWC) * shape[:3].numel(), len(self.transform.rows_np) // 2
        return array_BHWC.new_empty(tiles, pairs, 2 * self.size, shape[5:].numel())

    def add_transposed_rows(self, rows: Tensor, array_BHWC: Tensor, block: Block) -> None:
        """Apply the transposed first step to rows; add the result to a block of `array_BHWC`.

        The rows are [T, n / 2, 2 p, C]. A pixel in several tiles gets the sum over these tiles.
        """
        rows_pn = self.transform.rows_np.t().contiguous()
        by_image = self._group_by_image(rows, len(array_BHWC))
        for images in _split_range(len(array_BHWC), CACHED // by_image[0].numel()):
            array = array_BHWC[images]
            padded = torch.zeros_like(self.pad(array)) if any(self.padding) else array
            tiles = self.split(padded)[..., *block]
            added = torch.matmul(rows_pn, by_image[images].flatten(0, 1)).view(tiles.shape)
            for row in range(tiles.shape[1]):
                for column in range(tiles.shape[2]):
                    tiles[:, row, column] += added[:, row, column]
            if any(self.padding):
                array += F.pad(padded, (0, 0, *(-count for count in self.padding)))

    def _group_by_image(self, rows: Tensor, count: int) -> Tensor:
        """Return the rows of `count` images as a view [B, tiles, n, p C]."""
        return rows.view(count, -1, 2 * rows.shape[1], self.size * rows.shape[3])

    def transform_columns(self, rows: Tensor, pair: int) -> Tensor:
        """Apply the second step (columns) to one pair of rows; return components [T, F, C]."""
        return _multiply(self.transform.columns[pair], rows[:, pair])

    def transpose_columns(self, components_FTC: Tensor, pair: int) -> Tensor:
        """Apply the transposed second step to one pair of rows; return rows [T, 2 p, C]."""
        return _multiply(self.transform.columns[pair].t(), components_FTC.transpose(0, 1))

    def pad(self, array_BHWC: Tensor) -> Tensor:
        """Add zeros at the borders or cut pixels off, so that all tiles are complete."""
        return F.pad(array_BHWC, (0, 0, *self.padding)) if any(self.padding) else array_BHWC

    def split(self, padded_BHWC: Tensor) -> Tensor:
        """Return a view of all tiles and their phases.

        The axes of the view are: image, row and column of tiles, row and column in a tile, row of
        phases, and the channels of all phases in that row.
        """
        batch, height, width, channels = padded_BHWC.shape
        stride = self.stride
        phases = batch, height // stride, stride, width // stride, stride * channels
        tiles = padded_BHWC.view(phases).unfold(1, self.size, self.step)
        return tiles.unfold(3, self.size, self.step).permute(0, 1, 3, 5, 6, 2, 4)


def _multiply(matrix: Tensor, batch: Tensor) -> Tensor:
    return torch.bmm(matrix.expand(len(batch), -1, -1), batch)


def _split_range(count: int, size: int) -> list[slice]:
    size = max(size, 1)
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]


@dataclass(frozen=True)
class BilinearForm:
    """A convolution of images [B, H, W, C] by weights [O, K, K, C] to outputs [B, H, W, O].

    Attributes:
        image: Tiles and transform of the image.
        weights: Tiles and transform of the weights.
        outputs: Tiles and transform of the outputs.
        places: Number of rows and number of columns of the outputs.
    """

    image: Operand
    weights: Operand
    outputs: Operand
    places: tuple[int, int]

    def list_blocks(self, image_BHWC: Tensor, outputs: int) -> list[Block]:
        """List the blocks of channels. The convolution multiplies one block at a time.

        A block has at most CHANNELS_AT_ONCE channels, counted over all phases. The transformed rows
        and the components of the block's weights have at most NUMBERS_AT_ONCE elements each.

        Args:
            image_BHWC: Images.
            outputs: Number of output channels.
        """
        stride, width = self.image.stride, self.image.stride * image_BHWC.shape[3]
        by_channel = outputs * self.weights.transform.rows_np.shape[0] * max(self.weights.size, 3)
        most = min(CHANNELS_AT_ONCE, max(NUMBERS_AT_ONCE // by_channel, 1))
        parts = _split_range(width, -(-width // -(-width // most)))
        rows = _split_range(stride, most // width)
        return [(phases, part) for phases in rows for part in parts]

    def list_parts(self, image_BHWC: Tensor, outputs: int) -> list[slice]:
        """List the parts of a batch. The convolution computes one part at a time.

        The transformed rows of a part, both of its images and of its outputs, have at most
        NUMBERS_AT_ONCE elements each. Only a part with a single image may have more.

        Args:
            image_BHWC: Images.
            outputs: Number of output channels.
        """
        rows = self.image.make_rows(image_BHWC[:1], self.list_blocks(image_BHWC, outputs)[0])
        y_rows = rows.shape[:2].numel() * 2 * max(self.outputs.size, 3) * outputs
        return _split_range(len(image_BHWC), NUMBERS_AT_ONCE // max(rows.numel(), y_rows))

    def count_factors(self, image_BHWC: Tensor, weight_OKKC: Tensor) -> int:
        """Return the number of elements in the factors of all products of images and weights.

        Each part of the batch has a copy of the factors of the weights.
        """
        pairs, components, _ = self.image.transform.columns.shape
        tiles = len(image_BHWC) * len(self.image.make_rows(image_BHWC[:1], WHOLE))
        weights = len(self.list_parts(image_BHWC, len(weight_OKKC))) * len(weight_OKKC)
        channels = self.image.stride**2 * image_BHWC.shape[3]
        return pairs * components * channels * (tiles + weights)

    def add_outputs(
        self, image_BHWC: Tensor, weight_OKKC: Tensor, y_BHWO: Tensor, factors: list[Factors] | None
    ) -> None:
        """Add the convolution of the images to the outputs, in place.

        The method handles one block of channels and one pair of rows of frequencies at a time.
        Memory therefore never holds all components of the image or of the weights together.

        Args:
            image_BHWC: Images.
            weight_OKKC: Weights.
            y_BHWO: Outputs to add to.
            factors: List to which all factors of the products are appended. None: the factors are
                not kept.
        """
        y_rows = self.outputs.make_rows(y_BHWO, WHOLE).zero_()
        for block in self.list_blocks(image_BHWC, len(weight_OKKC)):
            x_rows = self.image.transform_rows(image_BHWC, block)
            w_rows = self.weights.transform_rows(weight_OKKC, block)
            for pair in range(x_rows.shape[1]):
                x_TFC = self.image.transform_columns(x_rows, pair)
                w_OFC = self.weights.transform_columns(w_rows, pair)
                y_FTO = torch.bmm(x_TFC.transpose(0, 1), w_OFC.permute(1, 2, 0))
                y_rows[:, pair] += self.outputs.transpose_columns(y_FTO, pair)
                if factors is not None:
                    factors.append((x_TFC, w_OFC))
            del x_rows, w_rows  # freed before the next block allocates new ones
        self.outputs.add_transposed_rows(y_rows, y_BHWO, WHOLE)

    def add_gradients(
        self,
        image_BHWC: Tensor,
        weight_OKKC: Tensor,
        gradient_BHWO: Tensor,
        by_image: Tensor | None,
        by_weight: Tensor | None,
        factors: Iterator[Factors] | None,
    ) -> None:
        """Add the gradients with respect to image and weights, in place.

        Args:
            image_BHWC: Images.
            weight_OKKC: Weights.
            gradient_BHWO: Gradient with respect to the outputs.
            by_image: Gradient with respect to the image, to add to. None: not computed.
            by_weight: Gradient with respect to the weights, to add to. None: not computed.
            factors: The factors that `add_outputs` appended, in the same order. None: the method
                computes the factors again.
        """
        g_rows = self.outputs.transform_rows(gradient_BHWO, WHOLE)
        make_rows = Operand.transform_rows if factors is None else Operand.make_rows
        for block in self.list_blocks(image_BHWC, len(weight_OKKC)):
            x_rows = make_rows(self.image, image_BHWC, block)
            w_rows = make_rows(self.weights, weight_OKKC, block)
            for pair in range(x_rows.shape[1]):  # gradients overwrite this pair
                g_TFO = self.outputs.transform_columns(g_rows, pair)
                if factors is None:
                    x_TFC = self.image.transform_columns(x_rows, pair)
                    w_OFC = self.weights.transform_columns(w_rows, pair)
                else:
                    x_TFC, w_OFC = next(factors)
                if by_image is not None:
                    gx_FTC = torch.bmm(g_TFO.transpose(0, 1), w_OFC.transpose(0, 1))
                    x_rows[:, pair] = self.image.transpose_columns(gx_FTC, pair)
                if by_weight is not None:
                    gw_FOC = torch.bmm(g_TFO.permute(1, 2, 0), x_TFC.transpose(0, 1))
                    w_rows[:, pair] = self.weights.transpose_columns(gw_FOC, pair)
            if by_image is not None:
                self.image.add_transposed_rows(x_rows, by_image, block)
            if by_weight is not None:
                self.weights.add_transposed_rows(w_rows, by_weight, block)
            del x_rows, w_rows


def make_form(
    tiling: Tiling,
    size: torch.Size,
    before: tuple[int, int],
    places: tuple[int, int],
    dtype: torch.dtype,
) -> BilinearForm:
    """Make the bilinear form of a convolution.

    Below and to the right of the image, zeros are added or pixels are cut off, so that all tiles
    are complete.

    Args:
        tiling: Tiling of the outputs.
        size: Height and width of the images.
        before: Number of rows of zeros above the images, and number of columns of zeros left of the
            images.
        places: Number of rows and number of columns of the outputs.
        dtype: Type of the transforms.
    """
    stride, step, taps = tiling.stride, tiling.outputs, tiling.taps
    counts = [tiling.count_tiles(count) for count in places]
    below, right = (
        stride * (count * step + taps - 1) - pixels - zeros
        for count, pixels, zeros in zip(counts, size, before, strict=True)
    )
    missing_taps = taps * stride - tiling.kernel
    rows, columns = (count * step - exist for count, exist in zip(counts, places, strict=True))
    image, weights, outputs = make_transforms(tiling, dtype)
    return BilinearForm(
        Operand(image, tiling.positions, step, stride, (before[1], right, before[0], below)),
        Operand(weights, taps, taps, stride, (0, missing_taps, 0, missing_taps)),
        Operand(outputs, step, step, 1, (0, columns, 0, rows)),
        places,
    )


class TransformedConvolution(torch.autograd.Function):
    """An autograd function for a bilinear form and a bias; inside autocast it uses float32."""

    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)
    def forward(
        ctx: Any,
        image_BCHW: Tensor,
        weight_OCKK: Tensor,
        bias_O: Tensor,
        form: BilinearForm,
        is_trained: bool,
    ) -> Tensor:
        """Compute the outputs [B, O, H, W], in the memory layout "channels last".

        If `is_trained` and all factors fit into MOST_KEPT elements, `backward` reuses the factors.
        """
        image_BHWC, weight_OKKC = map(_put_channels_last, (image_BCHW, weight_OCKK))
        bias_BOHW = bias_O[:, None, None].expand(len(image_BHWC), -1, *form.places)
        # Not a view: ReLU changes the result in place, and autograd copies gradients of views.
        y_BOHW = bias_BOHW.clone(memory_format=torch.channels_last)
        y_BHWO = _put_channels_last(y_BOHW)
        is_kept = is_trained and form.count_factors(image_BHWC, weight_OKKC) <= MOST_KEPT
        factors: list[Factors] = []
        for images in form.list_parts(image_BHWC, len(weight_OKKC)):
            arrays = image_BHWC[images], weight_OKKC, y_BHWO[images]
            form.add_outputs(*arrays, factors if is_kept else None)
        ctx.save_for_backward(image_BHWC, weight_OKKC, *chain.from_iterable(factors))
        ctx.form = form
        return y_BOHW

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    @once_differentiable
    def backward(ctx: Any, gradient_BOHW: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Compute the gradients with respect to image, weights and bias; None if not needed."""
        gradient_BHWO = _put_channels_last(gradient_BOHW)
        image_BHWC, weight_OKKC, *kept = ctx.saved_tensors
        factors = iter(zip(kept[::2], kept[1::2], strict=True)) if kept else None
        form, (with_image, with_weight, with_bias, *_) = ctx.form, ctx.needs_input_grad
        by_image = torch.zeros_like(image_BHWC) if with_image else None
        by_weight = torch.zeros_like(weight_OKKC) if with_weight else None
        for images in form.list_parts(image_BHWC, len(weight_OKKC)):
            part = None if by_image is None else by_image[images]
            gradients = gradient_BHWO[images], part, by_weight
            form.add_gradients(image_BHWC[images], weight_OKKC, *gradients, factors)
        channels_second = (x if x is None else x.permute(0, 3, 1, 2) for x in (by_image, by_weight))
        by_bias = gradient_BHWO.sum((0, 1, 2)) if with_bias else None
        return *channels_second, by_bias, None, None


def _put_channels_last(array_BCHW: Tensor) -> Tensor:
    """Return the array as [B, H, W, C], without a copy if channels are last in memory already."""
    return array_BCHW.permute(0, 2, 3, 1).contiguous()


def convolve(
    image_BCHW: Tensor,
    weight_OCKK: Tensor,
    bias_O: Tensor,
    tiling: Tiling,
    before: tuple[int, int],
    places: tuple[int, int],
) -> Tensor:
    """Convolve images with the bilinear form that belongs to a tiling.

    Args:
        image_BCHW: Images.
        weight_OCKK: Weights.
        bias_O: Bias.
        tiling: Tiling of the outputs.
        before: Number of rows of zeros above the images, and number of columns of zeros left of the
            images. Below and to the right, as many zeros are added as needed.
        places: Number of rows and number of columns of the outputs.

    Returns:
        Feature maps [B, O, H, W] in the memory layout "channels last". Inside autocast, the maps
        have the type of autocast.
    """
    form = make_form(tiling, image_BCHW.shape[2:], before, places, weight_OCKK.dtype)
    arguments = image_BCHW, weight_OCKK, bias_O, form, torch.is_grad_enabled()
    features_BCHW: Tensor = TransformedConvolution.apply(*arguments)
    is_mixed = torch.is_autocast_enabled("cpu")
    return features_BCHW.to(torch.get_autocast_dtype("cpu")) if is_mixed else features_BCHW
