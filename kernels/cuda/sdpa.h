// sdpa.h - causal attention on CUDA: sdpa_forward, _backward, _extend, sdpa_lowrank_extend and
// lowrank_forward, _backward of kernels/ops.h. What the files sdpa*.cu and lowrank*.cu share with
// each other; everybody else goes through the op table.
// Deterministic: no float atomics, sums in a fixed order. Every head size in fp32 and bf16 runs on
// the plain kernels; bf16 with usual head sizes on tensor cores.
#pragma once

#include "kernels/cuda/device.h"

// Attention of whole sequences (pos NULL) or of new tokens over a cache (pos, n_new given). Strides
// and sizes are those of `a`; pointers to device memory.
template <typename T, typename KV> struct SdpaCall {
    T *out;
    float *lse;  // (B, NH, Tq), or NULL
    const T *q;
    const KV *k, *v;
    SdpaArgs a;
};
