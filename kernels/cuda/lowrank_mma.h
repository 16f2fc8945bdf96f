// lowrank_mma.h - low-rank keys and values in bf16 on tensor cores, heads of 64 or 128. Every
// function returns false, with nothing done, for sizes, strides or alignments that it does not
// take.
#pragma once

#include "kernels/cuda/lowrank.h"

bool lowrank_mma_forward(bf16 *out, float *rstd, const bf16 *s, const bf16 *z, const bf16 *b,
                         const LowRankArgs *a);

// dz and db from the gradient before position and norm, as lowrank_plain_dz and _db.
bool lowrank_mma_backward(bf16 *dz, float *db, const bf16 *dx, const bf16 *z, const bf16 *b,
                          const LowRankArgs *a);

// Keys (with rotation, norm and bias) or values of cached low-rank rows: rows b ... b + n_b of the
// batch, positions below pos[b] + n_new[b], to out (n_b, positions, NH, width); rows behind the end
// of a sequence are left alone. `positions` is a multiple of 64, width 64 or 128, on a device with
// enough shared memory (sdpa_mma_takes).
struct CacheExpand {
    bf16 *out;  // at a multiple of 16 bytes
    int b, n_b, positions, width;
    bool keys;  // or values
};
bool lowrank_mma_expand(const CacheExpand *e, const LowRankCache *c, const SdpaArgs *a);

// Attention over such a cache: keys and values rebuilt in scratch; or, for up to 8 new tokens, keys
// rebuilt in registers as they are used and values left factored: of LRKV with up to 64 ranks, and
// of MLA with up to 512, where latents of keys and values are the same.
bool lowrank_mma_extend(bf16 *out, const bf16 *q, const LowRankCache *c, const SdpaArgs *a);
bool lowrank_mma_decode(bf16 *out, const bf16 *q, const LowRankCache *c, const SdpaArgs *a);
bool lowrank_mma_latent(bf16 *out, const bf16 *q, const LowRankCache *c, const SdpaArgs *a);
