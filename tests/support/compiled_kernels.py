"""Compiles our kernels for an H200, which need not be there.

Run without TRITON_INTERPRET. Prints what must not be in the machine's own language: atomic
additions, whose order is chance, and tensor cores, which round; and whether the kernel of the
gradients keeps numbers in memory for want of registers.
"""

import re
import subprocess
import tempfile
from collections.abc import Iterator

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile

from capsweep.model import squash_kernels
from capsweep.model.routing import dynamic_kernels
from capsweep.model.routing.dynamic_triton import COLUMN_REGISTERS, LONGEST_UNROLLED
from capsweep.model.squash_kernels import FUSED

H200 = GPUTarget("cuda", 90, 32)
CHANNELS = "channel_BCHW", "by_channel_BCHW"  # tensors of the convolution's own type
MULTIPLES_OF_16 = "num_images", "num_children", "images_per_part"
EVEN = [["tt.divisibility", 16]]  # what Triton sees in the addresses and sizes of a launch
LARGEST_STACK = 64  # bytes: a few addresses


def compile_for_gpu(kernel, number: str, channel: str = "", maxnreg=None, **constants: int):
    """A kernel for tensors of a type; arguments in lower case, without axes, are integers."""
    types = {name: f"*{number}" if name[-1].isupper() else "i32" for name in kernel.arg_names}
    types |= {name: "i32" for name in types if name.startswith("stride_")}
    types |= {name: f"*{channel}" for name in CHANNELS if name in types}
    types |= dict.fromkeys(constants, "constexpr")
    even = [name for name, kind in types.items() if kind[0] == "*" or name in MULTIPLES_OF_16]
    places = [(kernel.arg_names.index(name),) for name in even]
    source = ASTSource(kernel, types, constants, dict.fromkeys(places, EVEN))
    return compile(source, target=H200, options={"num_warps": 1, "maxnreg": maxnreg, **FUSED})


def compiled(*arguments, **constants: int) -> str:
    """The PTX of a kernel."""
    return compile_for_gpu(*arguments, **constants).asm["ptx"]


def list_spilled() -> Iterator[str]:
    """What `differentiate_kernel` needs beyond its registers, in bytes, of the paper's CapsNet."""
    sizes = {"P": 8, "J": 10, "D": 16, "TILE_J": 16, "TILE_D": 16}
    terms = {"T": 2, "TILE_P": 8, "WITH_FIRST": True, "WITH_LOGITS": True}
    kernel = dynamic_kernels.differentiate_kernel
    made = compile_for_gpu(kernel, "fp32", maxnreg=COLUMN_REGISTERS, **sizes, **terms)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(made.asm["cubin"])
        file.flush()
        command = [triton.knobs.nvidia.cuobjdump.path, "-res-usage", file.name]
        usage = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    for stack in re.findall(r"STACK:(\d+)", usage):
        if int(stack) > LARGEST_STACK:
            yield f"{kernel.__name__}: {stack} bytes"


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
        terms = {"T": 2, "WITH_FIRST": True, "WITH_LOGITS": switches["BACKWARD"]}
        rows = {"D": 16, "TILE_D": 16, "TILE_R": 2, "TILE_X": 4, "WITH_BEFORE": True}
        channels = {"P": 8, "TILE_P": 8, "TILE_R": 4, "BACKWARD": switches["BACKWARD"]}
        texts = (
            compiled(dynamic_kernels.transpose_weights_kernel, number, **lay_out),
            compiled(dynamic_kernels.iterate_kernel, number, **iterate),
            compiled(dynamic_kernels.differentiate_kernel, number, **lay_out, **terms),
            compiled(squash_kernels.squash_sums_kernel, number, J=1, **rows),
            compiled(squash_kernels.differentiate_sums_kernel, number, WITH_LENGTH=True, **rows),
            compiled(squash_kernels.squash_channels_kernel, number, channel, **channels),
        )
        for found in re.findall(r"\b(?:atom|red|mma|wgmma)\.\S+", "".join(texts)):
            print(found)
    for spilled in list_spilled():
        print(spilled)


if __name__ == "__main__":
    main()
