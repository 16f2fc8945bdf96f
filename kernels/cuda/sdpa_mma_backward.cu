// sdpa_mma_backward.cu - the gradient of attention on tensor cores: what its kernels need of each
// row, in which order they run, and the sums of the fast mode rounded.
#include "kernels/cuda/sdpa_mma_backward.h"

#include "kernels/cuda/sdpa_mma.cuh"

enum { BLOCK = 256 };

// stats (B, NH, stats_rows, 2): lse in base 2 and delta = sum of dout * out; infinity and 0 behind
// Tq, so that P is 0 there. LANES lanes read a row; blocks divide the stats_rows of a head.
template <int LANES>
__global__ void sdpa_mma_stats_kernel(float *stats, const float *lse, const bf16 *out, MmaGrad g) {
    static_assert(QUERY_TILE * LANES % BLOCK == 0, "no block passes the last row");
    const SdpaArgs &a = g.a;
    size_t row = ((size_t)blockIdx.x * BLOCK + threadIdx.x) / LANES, heads = row / g.stats_rows;
    int t = (int)(row % g.stats_rows), lane = threadIdx.x % LANES;
    bool exists = t < a.Tq;
    float x[8] = {}, y[8] = {}, sum = 0.0f;
    if (exists) {
        size_t at = heads / a.NH * a.o_batch + heads % a.NH * a.o_head + t * a.o_token + lane * 8;
        load_vec<8>(x, g.dout + at);
        load_vec<8>(y, out + at);
    }
#pragma unroll
    for (int j = 0; j < 8; j++)
        sum += x[j] * y[j];
    sum = warp_sum<LANES>(sum);
    if (lane > 0) return;
    float both[2] = {exists ? lse[heads * a.Tq + t] * LOG2E : INFINITY, sum};
    store_vec<2>(stats + row * 2, both);
}

// dq = scale * dq_sum, n pieces of 8.
__global__ void sdpa_mma_round_kernel(MmaGrad g, size_t n) {
    const SdpaArgs &a = g.a;
    size_t i = (size_t)blockIdx.x * BLOCK + threadIdx.x, row = i / (a.HS / 8), head = row / a.Tq;
    if (i >= n) return;
    int t = (int)(row % a.Tq), col = (int)(i % (a.HS / 8)) * 8;
    float x[8];
    load_vec<8>(x, g.dq_sum + i * 8);
#pragma unroll
    for (int j = 0; j < 8; j++)
        x[j] *= a.scale;
    store_vec<8>(g.dq + head / a.NH * a.q_batch + head % a.NH * a.q_head + t * a.q_token + col, x);
}

static void stats_of_rows(float *stats, const float *lse, const bf16 *out, const MmaGrad &g) {
    size_t rows = (size_t)g.a.B * g.a.NH * g.stats_rows;
    if (g.a.HV == 64) {
        LAUNCH(sdpa_mma_stats_kernel<8>, ceil_div(rows * 8, BLOCK), BLOCK, 0, cuda_stream())
        (stats, lse, out, g);
    } else {
        LAUNCH(sdpa_mma_stats_kernel<16>, ceil_div(rows * 16, BLOCK), BLOCK, 0, cuda_stream())
        (stats, lse, out, g);
    }
}

bool sdpa_mma_backward(bf16 *dq, bf16 *dk, bf16 *dv, const bf16 *dout, const bf16 *out,
                       const float *lse, const bf16 *q, const bf16 *k, const bf16 *v,
                       const SdpaArgs *a) {
    bool fit = fits<8>(dq) && fits<8>(dk) && fits<8>(dv) && fits<8>(dout) && fits<8>(out) &&
               fits<8>(q) && fits<8>(k) && fits<8>(v);
    if (!fit || !sdpa_mma_takes(a)) return false;
    MmaGrad g = {dq, dk, dv, dout, q, k, v, nullptr, nullptr, 0, *a};
    bool fast = a->any_order;
    g.stats_rows = (int)round_up((size_t)a->Tq, QUERY_TILE);
    size_t heads = (size_t)a->B * a->NH, n = heads * a->Tq * a->HS;
    size_t stats = round_up(heads * g.stats_rows * 2, 64);
    float *scratch = static_cast<float *>(cuda_scratch((stats + (fast ? n : 0)) * sizeof(float)));
    g.stats = scratch;
    stats_of_rows(scratch, lse, out, g);
    if (!fast) {
        sdpa_mma_dkv(g);
        sdpa_mma_dq(g);
        return true;
    }
    g.dq_sum = scratch + stats;
    CUDA_CHECK(cudaMemsetAsync(g.dq_sum, 0, n * sizeof(float), cuda_stream()));
    sdpa_mma_dkv(g);
    LAUNCH(sdpa_mma_round_kernel, ceil_div(n / 8, BLOCK), BLOCK, 0, cuda_stream())(g, n / 8);
    return true;
}
