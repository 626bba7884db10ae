"""Compiles the kernels of dynamic routing for an H200, which need not be there.

Run without TRITON_INTERPRET. Prints what must not be in the machine's own language: atomic
additions, whose order is chance, and tensor cores, which round.
"""

import re

from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile

from capsweep.model.routing import dynamic_kernels
from capsweep.model.routing.dynamic_kernels import FUSED, LONGEST_UNROLLED

H200 = GPUTarget("cuda", 90, 32)
INTEGERS = ("num_images", "num_children", "children_per_part", "images_per_part")


def compiled(kernel, number: str, **constants: int) -> str:
    """The PTX of a kernel for tensors of a type."""
    types = dict.fromkeys(kernel.arg_names, f"*{number}")
    types |= dict.fromkeys(constants, "constexpr")
    types |= {name: "i32" for name in kernel.arg_names if name in INTEGERS}
    source = ASTSource(kernel, types, constants)
    return compile(source, target=H200, options={"num_warps": 1, **FUSED}).asm["ptx"]


def main() -> None:
    """Both types, both switches, tiles that fit and tiles that do not."""
    fits = {"P": 8, "J": 10, "D": 16, "TILE_J": 16, "TILE_D": 16}
    loops = {"P": LONGEST_UNROLLED + 1, "J": 3, "D": 5, "TILE_J": 4, "TILE_D": 8}
    forwards = {"BACKWARD": False, "WITH_NONE": True}
    backwards = {"BACKWARD": True, "WITH_NONE": False}
    for number, sizes, switches in (
        ("fp32", fits, forwards),
        ("fp32", fits, backwards),
        ("fp64", loops, forwards),
    ):
        unrolled = min(LONGEST_UNROLLED, sizes["P"])
        iterate = sizes | switches | {"TILE_B": 2, "UNROLLED": unrolled}
        differentiate = {**sizes, "T": 2, "TILE_P": 4}
        texts = (
            compiled(dynamic_kernels.iterate_kernel, number, **iterate),
            compiled(dynamic_kernels.differentiate_kernel, number, **differentiate),
        )
        for found in re.findall(r"\b(?:atom|red|mma|wgmma)\.\S+", "".join(texts)):
            print(found)


if __name__ == "__main__":
    main()
