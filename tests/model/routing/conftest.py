"""Where there is no GPU, kernels are interpreted: Triton decides that when it meets them."""

import os

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
