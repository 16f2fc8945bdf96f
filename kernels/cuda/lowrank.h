// lowrank.h - low-rank keys and values on CUDA; contracts in kernels/ops.h. The plain kernels take
// every size and type in fp32 arithmetic, the tensor-core kernels are held against them.
#pragma once

#include "kernels/cuda/device.h"

template <typename T>
void lowrank_plain_forward(T *out, float *rstd, const T *s, const T *z, const T *b,
                           const LowRankArgs *a);

// dz (N, NH*R) = dx_h b_h; dx (N, NH*HS at ld_out) is the gradient before position and norm.
template <typename T> void lowrank_plain_dz(T *dz, const T *dx, const T *b, const LowRankArgs *a);
// db (NH, HS, R) += dx_h^T z_h
template <typename T>
void lowrank_plain_db(float *db, const T *dx, const T *z, const LowRankArgs *a);
// dout (N, NH*HS) becomes the gradient before norm and rotation, in place; ds (N, HS), unless NULL,
// its sum over heads, in fp32 until it is rounded once.
template <typename T>
void lowrank_undo(T *ds, T *dout, const T *y, const float *rstd, const LowRankArgs *a);

template <typename T>
void lowrank_plain_extend(T *out, const T *q, const LowRankCache *c, const SdpaArgs *a);

// Partial results of a cache whose keys are cut into splits: row (b, h, t), split i at
// (row * n_splits + i) * width, as [plain values (HV or 0) | latent values (r)], normalised; lse in
// base 2, -inf without keys (the values are then anything, and not read).
struct LowRankParts {
    int n_splits, plain, width;
    float *part, *lse;
};
// Splits of *keys keys (a multiple of 64), enough for `blocks` blocks without splits to fill the
// device. Lies in cuda_scratch; with one_is_none a single split gets no memory.
LowRankParts lowrank_parts(const LowRankCache *c, const SdpaArgs *a, size_t blocks,
                           bool one_is_none, int *keys);
// out = sum over the splits of plain + bv latent, + bias_v
template <typename T>
void lowrank_combine(T *out, const LowRankParts &p, const LowRankCache *c, const SdpaArgs *a);
