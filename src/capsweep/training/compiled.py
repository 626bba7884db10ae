"""torch.compile of a cell's network."""

import os
import shutil
import sys

from torch import nn

from capsweep.errors import ConfigError

KEY = "trainer.compile"


def compile_network(network: nn.Module, mode: str | None) -> None:
    """Compile `network` and its decoder in place, in a mode of torch.compile; None: leave them.

    The keys of its `state_dict` stay. Each size of a batch has code of its own, so that what a
    batch gives does not depend on the batches before it, nor on whether the run was resumed.
    Routing runs as it is, between compiled parts. Raises ConfigError without a C++ compiler.
    """
    if mode is None:
        return
    if shutil.which(compiler()) is None:
        raise ConfigError(
            f"{KEY}={mode} needs a C++ compiler, and there is no {compiler()} here; install one, "
            f"name it in CXX, or set {KEY}=null"
        )
    network.compile(mode=mode, dynamic=False)
    for name, decoder in network.named_children():
        if name == "decoder":  # which the objective calls by itself
            decoder.compile(mode=mode, dynamic=False)


def compiler() -> str:
    """The C++ compiler that torch calls."""
    return os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")
