"""Convolution by the bilinear form of `large_kernels`, as a function of torch with its gradients.

Shape letters: as there.
"""

from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from capsweep.model.bilinear_form import BilinearForm, Factors, make_form
from capsweep.model.large_kernels import Tiling

MOST_KEPT = 2**24  # numbers of the factors that may wait for the backward pass


class TransformedConvolution(torch.autograd.Function):
    """`BilinearForm.convolve_reference` with a bias, and its gradients, in float32 even inside
    autocast.

    is_trained: whether gradients will be asked for.
    """

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
        """[B, O, H, W], channels last."""
        image_BHWC, weight_OKKC = map(_put_channels_last, (image_BCHW, weight_OCKK))
        bias_BOHW = bias_O[:, None, None].expand(len(image_BHWC), -1, *form.places)
        # Not a view: ReLU works in place on it, and autograd copies the gradients of views.
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
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        """By image, weights and bias; None where it is not needed."""
        return *_differentiate(ctx, _put_channels_last(grad_outputs[0])), None, None


@once_differentiable
def _differentiate(ctx: Any, gradient_BHWO: Tensor) -> tuple[Tensor | None, ...]:
    image_BHWC, weight_OKKC, *kept = ctx.saved_tensors
    factors = iter(zip(kept[::2], kept[1::2], strict=True)) if kept else None
    by_image, by_weight = (
        torch.zeros_like(array) if is_needed else None
        for array, is_needed in zip((image_BHWC, weight_OKKC), ctx.needs_input_grad, strict=False)
    )
    form: BilinearForm = ctx.form
    for images in form.list_parts(image_BHWC, len(weight_OKKC)):
        part = None if by_image is None else by_image[images]
        gradients = gradient_BHWO[images], part, by_weight
        form.add_gradients(image_BHWC[images], weight_OKKC, *gradients, factors)
    channels_second = (
        None if gradient is None else gradient.permute(0, 3, 1, 2)
        for gradient in (by_image, by_weight)
    )
    by_bias = gradient_BHWO.sum((0, 1, 2)) if ctx.needs_input_grad[2] else None
    return *channels_second, by_bias


def _put_channels_last(array_BCHW: Tensor) -> Tensor:
    """[B, H, W, C]; a view where they are already."""
    return array_BCHW.permute(0, 2, 3, 1).contiguous()


def convolve(
    image_BCHW: Tensor,
    weight_OCKK: Tensor,
    bias_O: Tensor,
    tiling: Tiling,
    before: tuple[int, int],
    places: tuple[int, int],
) -> Tensor:
    """Feature maps [B, O, H, W], channels last, of so many places in rows and columns; of the type
    of autocast inside it.

    before: zeros above and left of the image; below and right there are as many as are needed.
    """
    height, width = image_BCHW.shape[2:]
    form = make_form(tiling, (height, width), before, places, weight_OCKK.dtype)
    is_trained = torch.is_grad_enabled()
    arguments = image_BCHW, weight_OCKK, bias_O, form, is_trained
    features_BCHW: Tensor = TransformedConvolution.apply(*arguments)
    is_mixed = torch.is_autocast_enabled("cpu")
    return features_BCHW.to(torch.get_autocast_dtype("cpu")) if is_mixed else features_BCHW
