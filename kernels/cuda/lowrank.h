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
