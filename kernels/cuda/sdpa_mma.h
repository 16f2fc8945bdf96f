// sdpa_mma.h - causal attention in bf16 on tensor cores, for the head sizes that models use. Every
// function returns false, with nothing done, for sizes, strides or alignments that it does not
// take; the plain kernels (sdpa_plain.h) then do.
#pragma once

#include "kernels/cuda/device.h"
#include "kernels/cuda/sdpa_plain.h"

// Whole sequences (pos NULL), or new tokens over a bf16 cache. Rows are packed as in sdpa_plain.h.
// lse (B, NH, Tq) or NULL.
bool sdpa_mma_forward(bf16 *out, float *lse, const bf16 *q, const bf16 *k, const bf16 *v,
                      const SdpaArgs *a);
// The same for few packed rows over a cache: each 16 rows read it once.
enum { DECODE_ROWS = 32 };  // for more, sdpa_mma_forward is faster
bool sdpa_mma_decode(bf16 *out, const bf16 *q, const bf16 *k, const bf16 *v, const SdpaArgs *a);

// Absorbed MLA over a cache: HS = 576, HV = 512, v the prefix of k, one key/value head.
bool sdpa_mma_latent(bf16 *out, const bf16 *q, const bf16 *k, const bf16 *v, const SdpaArgs *a);

// Whichever of the three fits.
bool sdpa_mma_extend(bf16 *out, const bf16 *q, const bf16 *k, const bf16 *v, const SdpaArgs *a);

// Gradients in a fixed order: recomputed scores twice, once for keys and once for queries. With
// any_order once, dq by atomics.
bool sdpa_mma_backward(bf16 *dq, bf16 *dk, bf16 *dv, const bf16 *dout, const bf16 *out,
                       const float *lse, const bf16 *q, const bf16 *k, const bf16 *v,
                       const SdpaArgs *a);

// Sizes and strides suit the kernels: (HS, HV) is (64, 64), (128, 128) or (192, 128), and rows
// begin at multiples of 16 bytes. So does the device.
static inline bool sdpa_mma_takes(const SdpaArgs *a) {
    size_t strides = a->q_token | a->k_token | a->v_token | a->o_token | a->q_head | a->k_head |
                     a->v_head | a->o_head | a->q_batch | a->k_batch | a->v_batch | a->o_batch;
    bool sizes = (a->HS == 64 && a->HV == 64) || ((a->HS == 128 || a->HS == 192) && a->HV == 128);
    return sizes && strides % 8 == 0 && a->scale > 0.0f && has_mma_shared();
}
