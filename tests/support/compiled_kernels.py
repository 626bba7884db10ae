"""Compiles the kernels of dynamic routing for an H200, which need not be there.

Run without TRITON_INTERPRET. Prints what must not be in the machine's own language: atomic
additions, whose order is chance, and tensor cores, which round.
"""

import itertools
import re

from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile

from capsweep.model.routing.kernels import dynamic_programs
from capsweep.model.routing.kernels.dynamic_launches import FUSED, LONGEST_UNROLLED

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
    """All types and switches, tiles that fit and tiles that do not."""
    shapes = [
        {"P": 8, "J": 10, "D": 16, "TILE_J": 16, "TILE_D": 16},
        {"P": 1, "J": 1, "D": 1, "TILE_J": 1, "TILE_D": 1},
        {"P": LONGEST_UNROLLED + 1, "J": 3, "D": 5, "TILE_J": 4, "TILE_D": 8},
    ]
    switches = [(False, False, False), (False, True, True), (True, False, False)]
    for number, shape in itertools.product(["fp32", "fp64"], shapes):
        texts = [
            compiled(
                dynamic_programs.iterate,
                number,
                **shape,
                TILE_B=2,
                UNROLLED=min(LONGEST_UNROLLED, shape["P"]),
                BACKWARD=backward,
                WITH_PRIOR=prior,
                WITH_NONE=none,
            )
            for backward, prior, none in switches
        ]
        texts += [
            compiled(dynamic_programs.differentiate, number, **shape, T=2, TILE_P=4, FULL=full)
            for full in (True, False)
        ]
        for text in texts:
            for found in re.findall(r"\b(?:atom|red|mma|wgmma)\.\S+", text):
                print(found)


if __name__ == "__main__":
    main()
