"""Triton kernels for dynamic routing of linear votes on NVIDIA GPUs.

`dynamic_triton` launches the kernels. No kernel writes the votes to memory. A program computes the
votes of one child at a time in registers, and uses them there for the agreement and for the
weighted sum. If the votes were in memory, each iteration would have to read them. For 128 images
and the network of the paper, the votes are 94 MB, twice the size of the second-level cache of an
H200. The weights are 6 MB and stay in this cache. The price: each iteration computes the votes
again, with P multiplications for each number. An H200 has enough compute for these multiplications.

No kernel uses atomic additions. A program sums over some of the children or images and writes this
partial sum; the partial sums are added later. Products are computed number by number, not by tensor
cores, so TF32 is never used. Tile sizes are powers of two; the sizes of tensors need not be.
Elements of a tile that are outside the tensor count as 0.

Importing this module imports triton.

Shape letters: B batch, I children, J parents, P child pose, D parent pose, T iterations after the
first; X partial sums. Arguments in upper case (sizes, tile sizes and switches) are fixed when a
kernel is compiled. `by_x` is the gradient of the loss with respect to x.
"""

# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false
# The type checker does not know Triton's loops, nor which of Triton's functions return tuples.

import triton.language as tl

from capsweep.model.squash_kernels import divide, jit


@jit
def locate_parents(J: tl.constexpr, D: tl.constexpr, TILE_J: tl.constexpr, TILE_D: tl.constexpr):
    """Return the indices [J] of the parents of a tile, a mask [J, D] and memory offsets [J, D].

    The mask is true for the elements of the tile that are inside the tensor. An offset counts from
    the start of a tensor [J, D].
    """
    parent_J, number_D = tl.arange(0, TILE_J), tl.arange(0, TILE_D)
    inside_JD = (parent_J < J)[:, None] & (number_D < D)[None, :]
    return parent_J, inside_JD, parent_J[:, None] * D + number_D[None, :]


@jit
def transpose_weights_kernel(
    weight_IJDP,
    coupling_IJ,
    weight_IPJD,
    shared_IPJD,
    P: tl.constexpr,
    J: tl.constexpr,
    D: tl.constexpr,
    TILE_P: tl.constexpr,
    TILE_J: tl.constexpr,
    TILE_D: tl.constexpr,
):
    """Write the weights in the axis order [I, P, J, D], which the other kernels read.

    The kernel also writes the products c_ij W_ij, where c_ij are the couplings of the first
    iteration. All images share these couplings. The launch grid is (children, tiles of P).
    """
    child = tl.program_id(0).to(tl.int64)
    pose_P = tl.program_id(1) * TILE_P + tl.arange(0, TILE_P)
    parent_J, inside_JD, place_JD = locate_parents(J, D, TILE_J, TILE_D)
    inside_PJD = (pose_P < P)[:, None, None] & inside_JD[None, :, :]
    place_PJD = child * (P * J * D) + pose_P[:, None, None] * (J * D) + place_JD[None, :, :]
    read_PJD = child * (P * J * D) + place_JD[None, :, :] * P + pose_P[:, None, None]

    weight_PJD = tl.load(weight_IJDP + read_PJD, mask=inside_PJD, other=0.0)
    coupling_J = tl.load(coupling_IJ + child * J + parent_J, mask=parent_J < J, other=0.0)
    tl.store(weight_IPJD + place_PJD, weight_PJD, mask=inside_PJD)
    shared_PJD = weight_PJD * coupling_J[None, :, None]
    tl.store(shared_IPJD + place_PJD, shared_PJD, mask=inside_PJD)


@jit
def iterate_kernel(
    pose_BIP,
    weight_IPJD,
    prior_IJ,
    coupling_BIJ,
    parent_BJD,
    coefficient_BIJ,
    part_XBJD,
    num_images,
    num_children,
    children_per_part,
    P: tl.constexpr,
    J: tl.constexpr,
    D: tl.constexpr,
    TILE_B: tl.constexpr,
    TILE_J: tl.constexpr,
    TILE_D: tl.constexpr,
    UNROLLED: tl.constexpr,
    BACKWARD: tl.constexpr,
    WITH_NONE: tl.constexpr,
):
    """Write the sums sum_i coefficient_ij u_hat_ij over some children, for TILE_B images.

    The kernel first computes the products a_ij = u_hat_ij . parent_j. It then computes and writes
    the coefficients:

    - In the forward pass they are the couplings softmax_j (prior_ij + a_ij).
    - In the backward pass they are the gradient with respect to the logits, c_ij (a_ij - sum_k c_ik
      a_ik). The couplings c_ij are read from `coupling_BIJ`.

    The launch grid is (tiles of images, parts of the children).
    """
    image_B = tl.program_id(0).to(tl.int64) * TILE_B + tl.arange(0, TILE_B)
    parent_J, inside_JD, place_JD = locate_parents(J, D, TILE_J, TILE_D)
    is_image_B, is_parent_J = image_B < num_images, parent_J < J
    inside_BJ = is_image_B[:, None] & is_parent_J[None, :]
    inside_BJD = is_image_B[:, None, None] & inside_JD[None, :, :]
    place_BJD = image_B[:, None, None] * (J * D) + place_JD[None, :, :]

    parent = tl.load(parent_BJD + place_BJD, mask=inside_BJD, other=0.0)
    total = tl.zeros_like(parent)
    part = tl.program_id(1).to(tl.int64)
    first = part * children_per_part
    for child in range(first, tl.minimum(first + children_per_part, num_children)):
        row_B = image_B * num_children + child
        votes = tl.zeros_like(parent)
        for p in tl.range(0, P, loop_unroll_factor=UNROLLED):
            pose_B = tl.load(pose_BIP + row_B * P + p, mask=is_image_B, other=0.0)
            row_JD = weight_IPJD + (child * P + p) * (J * D) + place_JD
            weight_JD = tl.load(row_JD, mask=inside_JD, other=0.0)
            votes += pose_B[:, None, None] * weight_JD[None, :, :]
        agreement_BJ = tl.sum(votes * parent, axis=2)
        place_BJ = row_B[:, None] * J + parent_J[None, :]
        if BACKWARD:
            coupling = tl.load(coupling_BIJ + place_BJ, mask=inside_BJ, other=0.0)
            weighted = coupling * agreement_BJ
            coefficient = weighted - coupling * tl.sum(weighted, axis=1, keep_dims=True)
        else:
            prior_J = tl.load(prior_IJ + child * J + parent_J, mask=is_parent_J, other=0.0)
            logit = agreement_BJ + prior_J[None, :]
            logit = tl.where(is_parent_J[None, :], logit, float("-inf"))
            largest_B1 = tl.max(logit, axis=1, keep_dims=True)
            if WITH_NONE:
                largest_B1 = tl.maximum(largest_B1, 0.0)
            odds = tl.exp(logit - largest_B1)
            all_B1 = tl.sum(odds, axis=1, keep_dims=True)
            if WITH_NONE:
                all_B1 += tl.exp(-largest_B1)
            coefficient = divide(odds, all_B1)
        tl.store(coefficient_BIJ + place_BJ, coefficient, mask=inside_BJ)
        total += coefficient[:, :, None] * votes
    tl.store(part_XBJD + part * num_images * (J * D) + place_BJD, total, mask=inside_BJD)


@jit
def differentiate_kernel(
    pose_BIP,
    weight_IPJD,
    coupling_IJ,
    coupling_TBIJ,
    by_logit_TBIJ,
    by_sums_TBJD,
    pose_sum_TBJD,
    by_pose_BIP,
    by_weight_XIJDP,
    num_images,
    num_children,
    images_per_part,
    T: tl.constexpr,
    P: tl.constexpr,
    J: tl.constexpr,
    D: tl.constexpr,
    TILE_P: tl.constexpr,
    TILE_J: tl.constexpr,
    TILE_D: tl.constexpr,
    WITH_FIRST: tl.constexpr,
    WITH_LOGITS: tl.constexpr,
):
    """Write the gradients with respect to weights and poses of a child, for one tile of the axis P.

    A program sums the gradient with respect to the weights over some images. The gradient with
    respect to the votes is sum_t (coupling_ij by_sums_j + by_logit_ij pose_sum_j). In the first
    iteration all images share the couplings, and the product with by_logit_ij is left out. The
    launch grid is (children, parts of the images, tiles of P).
    """
    child = tl.program_id(0).to(tl.int64)
    pose_P = tl.program_id(2) * TILE_P + tl.arange(0, TILE_P)
    parent_J, inside_JD, place_JD = locate_parents(J, D, TILE_J, TILE_D)
    is_pose_P, is_parent_J = pose_P < P, parent_J < J
    inside_PJD = is_pose_P[:, None, None] & inside_JD[None, :, :]
    place_PJD = pose_P[:, None, None] * (J * D) + place_JD[None, :, :]

    weight = tl.load(weight_IPJD + child * (P * J * D) + place_PJD, mask=inside_PJD, other=0.0)
    first_J = tl.load(coupling_IJ + child * J + parent_J, mask=is_parent_J, other=0.0)
    by_weight = tl.zeros_like(weight)
    part = tl.program_id(1).to(tl.int64)
    first = part * images_per_part
    for image in range(first, tl.minimum(first + images_per_part, num_images)):
        by_votes_JD = tl.zeros((TILE_J, TILE_D), weight.dtype)
        if WITH_FIRST:
            place = image * (J * D) + place_JD
            by_sums_JD = tl.load(by_sums_TBJD + place, mask=inside_JD, other=0.0)
            by_votes_JD += first_J[:, None] * by_sums_JD
        for t in tl.static_range(T):
            place_J = ((image + t * num_images) * num_children + child) * J + parent_J
            coupling_J = tl.load(coupling_TBIJ + place_J, mask=is_parent_J, other=0.0)
            place = (image + (t + WITH_FIRST) * num_images) * (J * D) + place_JD
            by_sums_JD = tl.load(by_sums_TBJD + place, mask=inside_JD, other=0.0)
            by_votes_JD += coupling_J[:, None] * by_sums_JD
            if WITH_LOGITS:
                by_logit_J = tl.load(by_logit_TBIJ + place_J, mask=is_parent_J, other=0.0)
                place = (image + t * num_images) * (J * D) + place_JD
                pose_sum_JD = tl.load(pose_sum_TBJD + place, mask=inside_JD, other=0.0)
                by_votes_JD += by_logit_J[:, None] * pose_sum_JD
        place_P = (image * num_children + child) * P + pose_P
        pose = tl.load(pose_BIP + place_P, mask=is_pose_P, other=0.0)
        by_weight += pose[:, None, None] * by_votes_JD[None, :, :]
        by_pose_P = tl.sum(tl.sum(weight * by_votes_JD[None, :, :], axis=2), axis=1)
        tl.store(by_pose_BIP + place_P, by_pose_P, mask=is_pose_P)
    row_PJD = (part * num_children + child) * (P * J * D) + place_JD[None, :, :] * P
    tl.store(by_weight_XIJDP + row_PJD + pose_P[:, None, None], by_weight, mask=inside_PJD)
