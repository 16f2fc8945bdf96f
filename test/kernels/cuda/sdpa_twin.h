// sdpa_twin.h - attention of a CUDA table against the CPU's, for the tests of both kinds of
// kernels: whole sequences with gradients, and new tokens over a cache.
#pragma once

#include "test/kernels/cuda/twin.h"

// q, k, v lie side by side in one row per token, with `pad` elements behind.
typedef struct SdpaCase {
    int B, T, NH, NKV, HS, HV, pad;
    Scores scores;
    bool any_order;
    // Unused elements in front of k and v, and of their gradients; out of the pad.
    int k_gap, v_gap, dk_gap, dv_gap;
    // Not 0: the arrays lie one behind the other, and one stride is not a multiple of 8: of q
    // (1 between heads, 2 tokens, 3 rows of the batch), k (4, 5, 6), v (7, 8, 9) or out.
    int odd_stride;
    float scale;  // 0: 1 / sqrt(HS)
} SdpaCase;
enum { SDPA_STRIDES = 12 };

void sdpa_twin_training(TestCtx *t, const Ops *g, SdpaCase c);

// T new tokens of three rows: none in a full row, behind no keys (one token less), behind `far`
// keys up to the cache's end. A cache of its own for keys and values, or one whose rows serve as
// both (v a prefix of k); NaN behind every row's end.
typedef struct SdpaCache {
    bool bf16, prefix;
    int far;
    size_t shift;  // elements of the cache behind its alignment
    // Of a prefix: v's tokens lie 64 elements closer together than k's; v is the first row's in
    // all.
    bool close_values, one_row;
    bool idle_last;  // the row without new tokens is the last, not the first
} SdpaCache;
void sdpa_twin_extend(TestCtx *t, const Ops *g, SdpaCase c, SdpaCache cache);

// NaN as key or value of the first head of a token, or infinity in its value, changes no bit of the
// outputs of tokens before it, and spoils its own. Of the sequence's token `at`, or of the new
// token `at` behind `far` keys, whose place in the cache it takes.
void sdpa_twin_poison(TestCtx *t, const Ops *g, SdpaCase c, int at);
void sdpa_twin_extend_poison(TestCtx *t, const Ops *g, SdpaCase c, SdpaCache cache, int at);

// Outputs and gradients of a case on the device, all in one array: (bytes) freed with mem_free.
void *sdpa_twin_bits(TestCtx *t, const Ops *g, SdpaCase c, size_t *bytes);
