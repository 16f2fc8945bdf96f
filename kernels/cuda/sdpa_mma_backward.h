// sdpa_mma_backward.h - what the kernels of the gradient on tensor cores share. Scores are computed
// again from q, k and lse:
//   P = exp(S - lse), dS = P (dout v^T - delta), dv = P^T dout, dk = scale dS^T q, dq = scale dS k
#pragma once

#include "kernels/cuda/sdpa_mma.h"

struct MmaGrad {
    bf16 *dq, *dk, *dv;
    const bf16 *dout, *q, *k, *v;
    const float *stats;  // (B, NH, stats_rows, 2): lse in base 2, delta; behind Tq: infinity, 0
    float *dq_sum;       // (B, NH, Tq, HS) sums of dS k, or NULL
    int stats_rows;      // Tq rounded up to tiles of queries
    SdpaArgs a;
};

enum { QUERY_TILE = 32 };  // stats_rows is a multiple of this

// dk, dv; with dq_sum also dq_sum +=, by atomics, in no fixed order.
void sdpa_mma_dkv(const MmaGrad &g);
// dq
void sdpa_mma_dq(const MmaGrad &g);
