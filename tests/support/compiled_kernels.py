"""Compiles our kernels for an H200, which need not be there.

Run without TRITON_INTERPRET. Prints what must not be in the machine's own language: atomic
additions, whose order is chance, and tensor cores, which round.
"""

import re

from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile

from capsweep.model import primary_kernels, squash_kernels
from capsweep.model.routing import dynamic_kernels
from capsweep.model.routing.dynamic_triton import LONGEST_UNROLLED
from capsweep.model.squash_kernels import FUSED

H200 = GPUTarget("cuda", 90, 32)
CHANNELS = "channel_BCHW", "by_channel_BCHW"  # tensors of the convolution's own type


def compiled(kernel, number: str, channel: str = "", **constants: int) -> str:
    """The PTX of a kernel for tensors of a type; in lower case without axes, integers."""
    types = {name: f"*{number}" if name[-1].isupper() else "i32" for name in kernel.arg_names}
    types |= {name: "i32" for name in types if name.startswith("stride_")}
    types |= {name: f"*{channel}" for name in CHANNELS if name in types}
    types |= dict.fromkeys(constants, "constexpr")
    source = ASTSource(kernel, types, constants)
    return compile(source, target=H200, options={"num_warps": 1, **FUSED}).asm["ptx"]


def main() -> None:
    """Both types, both switches, tiles that fit and tiles that do not."""
    fits = {"P": 8, "J": 10, "D": 16, "TILE_J": 16, "TILE_D": 16}
    loops = {"P": LONGEST_UNROLLED + 1, "J": 3, "D": 5, "TILE_J": 4, "TILE_D": 8}
    forwards = {"BACKWARD": False, "WITH_NONE": True}
    backwards = {"BACKWARD": True, "WITH_NONE": False}
    for number, channel, sizes, switches in (
        ("fp32", "bf16", fits, forwards),
        ("fp32", "bf16", fits, backwards),
        ("fp64", "fp64", loops, forwards),
    ):
        unrolled = min(LONGEST_UNROLLED, sizes["P"])
        iterate = sizes | switches | {"TILE_B": 2, "UNROLLED": unrolled}
        lay_out = {**sizes, "TILE_P": 4}
        terms = {"T": 2, "TILE_B": 2, "WITH_FIRST": True, "WITH_LOGITS": switches["BACKWARD"]}
        rows = {"D": 16, "TILE_D": 16, "TILE_R": 2, "TILE_X": 4, "WITH_BEFORE": True}
        channels = {"P": 8, "TILE_P": 8, "TILE_R": 4, "BACKWARD": switches["BACKWARD"]}
        texts = (
            compiled(dynamic_kernels.lay_out_kernel, number, **lay_out),
            compiled(dynamic_kernels.iterate_kernel, number, **iterate),
            compiled(dynamic_kernels.differentiate_kernel, number, **lay_out, **terms),
            compiled(squash_kernels.squash_sums_kernel, number, J=1, **rows),
            compiled(squash_kernels.differentiate_sums_kernel, number, WITH_LENGTH=True, **rows),
            compiled(primary_kernels.squash_channels_kernel, number, channel, **channels),
        )
        for found in re.findall(r"\b(?:atom|red|mma|wgmma)\.\S+", "".join(texts)):
            print(found)


if __name__ == "__main__":
    main()
