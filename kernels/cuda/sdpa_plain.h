// sdpa_plain.h - causal attention in fp32 arithmetic on plain cores: any head size, alignment and
// type. The ops of the same names in kernels/ops.h, launched on the compute stream; the tensor-core
// kernels are held against these.
//
// Rows: the query heads that share a key/value head are packed, row m = t * G + g with G = NH /
// NKV, so that grouped and latent attention read their cache once, and decoding one token has G
// rows.
#pragma once

#include "kernels/cuda/device.h"

template <typename T>
void sdpa_plain_forward(floatX *out, float *lse, const floatX *q, const floatX *k, const floatX *v,
                        const SdpaArgs *a);
template <typename T>
void sdpa_plain_backward(floatX *dq, floatX *dk, floatX *dv, const floatX *dout, const floatX *out,
                         const float *lse, const floatX *q, const floatX *k, const floatX *v,
                         const SdpaArgs *a);
template <typename T>
void sdpa_plain_extend(floatX *out, const floatX *q, const void *k, const void *v,
                       const SdpaArgs *a);

// Partial results of rows whose keys were cut into splits.
typedef struct SplitRows {
    float *out;  // (n_splits, rows, HV), each normalised by itself; anything where there is no key
    float *lse;  // (n_splits, rows), base 2; -inf: no key
    int n_splits;
    size_t rows;  // B * NH * Tq, in the order of lse (B, NH, Tq)
} SplitRows;

// Splits of `keys` keys each (a multiple of 64), so many that `blocks` blocks without splits become
// enough to fill the device; one for whole sequences (pos NULL). Lies in cuda_scratch. Follows from
// the arguments alone, so that equal calls give equal bits.
SplitRows sdpa_splits(const SdpaArgs *a, size_t blocks, int *keys);

// out from the splits, for queries t < n_new[b].
template <typename T> void sdpa_combine(T *out, const SplitRows &s, const SdpaArgs *a);
