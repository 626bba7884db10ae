"""Dynamic routing of linear votes by Triton kernels, for NVIDIA GPUs; the mathematics is `dynamic`.

The logits of iteration t are prior_ij + u_hat_ij . V_j with V = v_0 + ... + v_(t-1), so none are
kept. Backwards, with gs the gradient by s, from the last iteration to the first:

    gs_j  = gradient of squash at s_j, of the sum of all gV_j of the iterations after it
    gl_ij = c_ij (u_hat_ij . gs_j - sum_k c_ik u_hat_ik . gs_k)
    gV_j  = sum_i gl_ij u_hat_ij
    g u_hat_ij = sum_t c_ij gs_j + gl_ij V_j        dW_ij = sum_b g u_hat_ij u_i^T
                                                    du_i  = sum_j W_ij^T g u_hat_ij

`dynamic_autograd` does this, and keeps no votes; they are never in memory: `dynamic_programs` says
how, `dynamic_launches` what is left to torch. Two runs on one machine have the same bits.

Triton is imported when a layer is routed, and with it all that needs it. Its interpreter,
TRITON_INTERPRET=1 before that, routes on a CPU: exact, and slow.

Shape letters: B batch, I children, J parents, P child pose, D parent pose, T iterations.
"""

from types import ModuleType

from torch import Tensor

from capsweep.errors import ConfigError
from capsweep.model.routing.dynamic_iterations import Options, check
from capsweep.model.votes import LocalVotes, Routed, Votes

INSTEAD = "set routing.impl=fast or routing.impl=reference"


def triton_route(
    votes: LocalVotes,
    num_iters: int,
    bias_JD: Tensor | None = None,
    with_trace: bool = False,
    *,
    prior_LJ: Tensor | None = None,
    none_of_the_above: bool = False,
    gradient: str = "full",
) -> Routed:
    """The same as `dynamic.reference`, on a GPU, and in single precision inside autocast.

    Couplings and trace have no gradients. Raises ValueError as the reference does, and ConfigError
    for votes that are not linear, without triton, and on another device than a GPU.
    """
    check(num_iters, gradient)
    if not isinstance(votes, Votes):
        raise ConfigError(
            f"routing.impl=triton routes linear votes alone (model=capsnet); {INSTEAD}"
        )
    autograd = _autograd(votes.pose_BIP)
    options = Options(num_iters, none_of_the_above, gradient == "full")
    return autograd.route(votes, options, bias_JD, prior_LJ, with_trace)


def _autograd(pose_BIP: Tensor) -> ModuleType:
    """What routes where the poses are. Raises ConfigError where nothing can."""
    try:
        from capsweep.model.routing.kernels import dynamic_autograd, dynamic_launches
    except ModuleNotFoundError as error:
        if error.name != "triton":
            raise
        raise ConfigError(
            f"routing.impl=triton needs triton, which is not installed: install it, or {INSTEAD}"
        ) from error
    launched = pose_BIP.is_cuda or dynamic_launches.INTERPRETED
    if not launched and dynamic_launches.has_numbers(pose_BIP):
        raise ConfigError(
            f"routing.impl=triton needs a GPU, and these votes are on {pose_BIP.device.type}: set "
            f"trainer.accelerator=gpu, or {INSTEAD} (TRITON_INTERPRET=1 in the environment "
            "interprets the kernels on a CPU, for tests)"
        )
    return dynamic_autograd
