// lowrank_combine.cu - cached low-rank rows: how the keys are cut into splits, and their sum, where
// the values leave latent space: one product for all splits, since it is linear.
#include "kernels/cuda/lowrank.h"
#include "kernels/cuda/reduce.cuh"

#include <limits.h>

enum { THREADS = 128, MIN_KEYS = 2 * LATENT_BLOCK };

LowRankParts lowrank_parts(const LowRankCache *c, const SdpaArgs *a, size_t blocks,
                           bool one_is_none, int *keys) {
    LowRankParts p = {1, c->vs ? a->HV : 0, 0, nullptr, nullptr};
    size_t max = (size_t)a->max_pos, wanted = ceil_div(4 * (size_t)cuda_device()->n_sm, blocks);
    size_t n = min_size(wanted, max / MIN_KEYS), rows = (size_t)a->B * a->NH * a->Tq;
    p.width = p.plain + c->r;
    *keys = INT_MAX / LATENT_BLOCK * LATENT_BLOCK;
    if (n > 1) {
        *keys = (int)round_up(ceil_div(max, n), LATENT_BLOCK);
        p.n_splits = (int)ceil_div(max, (size_t)*keys);
    }
    if (p.n_splits == 1 && one_is_none) return p;
    rows *= p.n_splits;
    p.part = static_cast<float *>(cuda_scratch(rows * (size_t)(p.width + 1) * sizeof(float)));
    p.lse = p.part + rows * p.width;
    return p;
}

template <typename T> struct CombineCall {
    T *out;
    LowRankParts p;
    SdpaArgs a;
    const T *bv;        // (NH, HV, ld_b)
    const float *bias;  // (NH, HV) or NULL
    int r, ld_b;
};

// One row (b, h, t) to a block; then a warp for each value, whose lanes share out the latents.
template <typename T>
__global__ void __launch_bounds__(THREADS) lowrank_combine_kernel(CombineCall<T> c) {
    SHARED(float, o);  // (width)
    const LowRankParts &p = c.p;
    size_t row = blockIdx.x, b = row / c.a.Tq / c.a.NH;
    int t = (int)(row % c.a.Tq), h = (int)(row / c.a.Tq % c.a.NH), lane = threadIdx.x % WARP;
    if (t >= c.a.n_new[b]) return;  // the whole block
    const float *lse = p.lse + row * p.n_splits, *part = p.part + row * p.n_splits * p.width;
    float top = -INFINITY, sum = 0.0f;
    for (int i = 0; i < p.n_splits; i++)
        top = fmaxf(top, lse[i]);
    for (int i = 0; i < p.n_splits; i++)
        sum += exp2_approx(lse[i] - top);
    for (int col = threadIdx.x; col < p.width; col += THREADS) {
        float x = 0.0f;
        for (int i = 0; i < p.n_splits; i++) {
            if (lse[i] == -INFINITY) continue;
            x += exp2_approx(lse[i] - top) * part[(size_t)i * p.width + col];
        }
        o[col] = x / sum;
    }
    __syncthreads();
    T *out = c.out + b * c.a.o_batch + t * c.a.o_token + h * c.a.o_head;
    for (int col = threadIdx.x / WARP; col < c.a.HV; col += THREADS / WARP) {
        size_t at = (size_t)h * c.a.HV + col;
        const T *bv = c.bv + at * c.ld_b;
        float x = 0.0f;
        for (int i = lane; i < c.r; i += WARP)
            x += to_float(bv[i]) * o[p.plain + i];
        x = warp_sum(x);
        if (p.plain) x += o[col];
        if (c.bias) x += c.bias[at];
        if (lane == 0) out[col] = from_float<T>(x);
    }
}

template <typename T>
void lowrank_combine(T *out, const LowRankParts &p, const LowRankCache *c, const SdpaArgs *a) {
    size_t rows = (size_t)a->B * a->NH * a->Tq;
    LAUNCH(lowrank_combine_kernel<T>, rows, THREADS, p.width * sizeof(float), cuda_stream())
    (CombineCall<T>{out, p, *a, reinterpret_cast<const T *>(c->bv), c->bias_v, c->r, c->ld_b});
}
template void lowrank_combine(float *, const LowRankParts &, const LowRankCache *,
                              const SdpaArgs *);
template void lowrank_combine(bf16 *, const LowRankParts &, const LowRankCache *, const SdpaArgs *);
