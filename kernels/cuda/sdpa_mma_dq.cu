// sdpa_mma_dq.cu - gradients of queries on tensor cores, in a fixed order: a block owns packed rows
// (as in sdpa_plain.h), a warp 16 of them, whose queries and dout it keeps as operands in
// registers, and walks from the diagonal backwards over the keys, 32 at a time.
#include "kernels/cuda/sdpa_mma.cuh"
#include "kernels/cuda/sdpa_mma_backward.h"

enum { KEYS = 32 };

template <int DK_, int DV_, int WARPS> struct QShape {
    enum { DK = DK_, DV = DV_, ROWS = 16 * WARPS, THREADS = WARPS * WARP };
    enum { STAGE = KEYS * (DK + DV), SHARED_BYTES = (ROWS * (DK + DV) + 2 * STAGE) * 2 };
};

// Packed rows first ... first + n of a key/value head.
struct QueryRows {
    int b, kv, G, first, n;
};
template <typename S>
__device__ __forceinline__ QueryRows query_rows(const SdpaArgs &a, int row_tiles, unsigned i) {
    QueryRows r;
    r.G = a.NH / a.NKV;
    r.kv = i % a.NKV;
    i /= a.NKV;
    r.b = i % a.B;
    r.first = (row_tiles - 1 - (int)(i / a.B)) * S::ROWS;  // the longest first
    r.n = min((int)S::ROWS, a.Tq * r.G - r.first);
    return r;
}

// The warp's rows of q or dout, which lie as (token, head), to shared memory.
template <int D>
__device__ __forceinline__ void copy_warp_rows(bf16 *tile, const bf16 *from, size_t token,
                                               size_t head, const QueryRows &r, int row) {
#pragma unroll
    for (int i = 0; i < 16 * D / 8; i += WARP) {
        int at = i + (int)threadIdx.x % WARP, chunk = at % (D / 8), m;
        at = row + at / (D / 8), m = r.first + at;
        cp_async_16(chunk_at<D>(tile, at, chunk),
                    from + (size_t)(m / r.G) * token + m % r.G * head + chunk * 8,
                    at < r.n ? 16 : 0);
    }
}

template <typename S>
__device__ __forceinline__ void copy_keys(bf16 *stage, const MmaGrad &g, int b, int kv, int key) {
    const SdpaArgs &a = g.a;
    const bf16 *k = g.k + b * a.k_batch + kv * a.k_head + key * a.k_token;
    const bf16 *v = g.v + b * a.v_batch + kv * a.v_head + key * a.v_token;
    copy_rows<S::DK, KEYS, S::THREADS>(stage, k, a.k_token, a.Tk - key);
    copy_rows<S::DV, KEYS, S::THREADS>(stage + KEYS * S::DK, v, a.v_token, a.Tk - key);
}

// dp becomes dS. limit: the last key of each row, counted from the tile's first.
template <bool MASKED>
__device__ __forceinline__ void gradients(const float (&s)[4][4], float (&dp)[4][4],
                                          const float (&stats)[2][2], const int (&limit)[2],
                                          float scale) {
    int col = threadIdx.x % 4 * 2;
#pragma unroll
    for (int j = 0; j < 4; j++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            bool sees = !MASKED || 8 * j + col + e % 2 <= limit[e / 2];
            float p = sees ? exp2_approx(fmaf(s[j][e], scale, -stats[e / 2][0])) : 0.0f;
            dp[j][e] = p * (dp[j][e] - stats[e / 2][1]);
        }
    }
}

// What a warp keeps. Beside wide queries there are no registers for dout.
template <typename S> struct WarpRows {
    enum { HAS_DOUT = S::DK <= 128 };
    unsigned q[S::DK / 16][4], dout[HAS_DOUT ? S::DV / 16 : 1][4];
    float dq[S::DK / 8][4], stats[2][2];  // stats: of rows lane/4, lane/4 + 8
};

template <typename S>
__device__ __forceinline__ void key_tile(WarpRows<S> &w, const bf16 *dout, const bf16 *k,
                                         bool masked, const int (&limit)[2], float scale) {
    float s[4][4], dp[4][4];
    rows_dot<S::DK>(s, w.q, k);
    if constexpr (WarpRows<S>::HAS_DOUT)
        rows_dot<S::DV>(dp, w.dout, k + KEYS * S::DK);
    else
        rows_dot<S::DV>(dp, dout, warp_index() * 16, k + KEYS * S::DK);
    // The products stand once: a copy of them for each case would need more registers.
    if (masked)
        gradients<true>(s, dp, w.stats, limit, scale);
    else
        gradients<false>(s, dp, w.stats, limit, scale);
    add_product<S::DK>(w.dq, dp, k);
}

template <typename S>
__global__ void __launch_bounds__(S::THREADS, S::DK == 64 ? 3 : 1)
    sdpa_mma_dq_kernel(MmaGrad g, int row_tiles) {
    SHARED(bf16, q_tile);
    bf16 *dout_tile = q_tile + S::ROWS * S::DK, *stages = dout_tile + S::ROWS * S::DV;
    const SdpaArgs &a = g.a;
    QueryRows r = query_rows<S>(a, row_tiles, blockIdx.x);
    int row = warp_index() * 16, end = (r.first + r.n - 1) / r.G + 1;
    int key = (end - 1) / KEYS * KEYS, stage = 0, limit[2];
    WarpRows<S> w;
    size_t head = (size_t)r.b * a.NH + r.kv * r.G;
    copy_warp_rows<S::DK>(q_tile, g.q + r.b * a.q_batch + (size_t)r.kv * r.G * a.q_head, a.q_token,
                          a.q_head, r, row);
    copy_warp_rows<S::DV>(dout_tile, g.dout + r.b * a.o_batch + (size_t)r.kv * r.G * a.o_head,
                          a.o_token, a.o_head, r, row);
    cp_async_commit();
    copy_keys<S>(stages, g, r.b, r.kv, key);
    cp_async_commit();
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int m = r.first + row + (int)threadIdx.x % WARP / 4 + 8 * i;
        bool exists = m < r.first + r.n;
        limit[i] = m / r.G - key;
        const float *st = g.stats + ((head + m % r.G) * g.stats_rows + m / r.G) * 2;
        w.stats[i][0] = exists ? st[0] : INFINITY;
        w.stats[i][1] = exists ? st[1] : 0.0f;
    }
    clear_rows(w.dq);
    cp_async_wait<1>();
    __syncwarp();  // the warp's own rows are here
    load_operands<S::DK>(w.q, q_tile, row);
    if constexpr (WarpRows<S>::HAS_DOUT) load_operands<S::DV>(w.dout, dout_tile, row);
    int warp_first = (r.first + row) / r.G, warp_last = (r.first + row + 15) / r.G;
    for (; key >= 0; key -= KEYS, stage ^= 1) {
        cp_async_wait<0>();
        __syncthreads();  // the keys are here, and nobody reads those before any more
        if (key > 0) copy_keys<S>(stages + (stage ^ 1) * S::STAGE, g, r.b, r.kv, key - KEYS);
        cp_async_commit();
        const bf16 *k = stages + stage * S::STAGE;
        if (key <= warp_last)
            key_tile(w, dout_tile, k, key + KEYS - 1 > warp_first, limit, a.scale * LOG2E);
        limit[0] += KEYS, limit[1] += KEYS;
    }
    r = query_rows<S>(a, row_tiles, opaque(blockIdx.x));
    bf16 *dq = g.dq + r.b * a.q_batch + (size_t)r.kv * r.G * a.q_head;
    float factor[2] = {a.scale, a.scale};
    store_rows<S::DK>(w.dq, factor, q_tile, warp_index() * 16,
                      PackedRows{dq, a.q_token, a.q_head, r.G, r.first}, r.n);
}

template <typename S> struct QKernel {
    enum { SHARED_BYTES = S::SHARED_BYTES };
    static void launch(const MmaGrad &g) {
        const SdpaArgs *a = &g.a;
        size_t row_tiles = ceil_div((size_t)a->Tq * (a->NH / a->NKV), S::ROWS);
        LAUNCH(sdpa_mma_dq_kernel<S>, row_tiles * a->B * a->NKV, S::THREADS, SHARED_BYTES,
               cuda_stream())
        (g, (int)row_tiles);
    }
};

void sdpa_mma_dq(const MmaGrad &g) {
    if (g.a.HS == 64)
        QKernel<QShape<64, 64, 4>>::launch(g);
    else if (g.a.HS == 128)
        QKernel<QShape<128, 128, 8>>::launch(g);
    else
        launch_fitting<QKernel<QShape<192, 128, 8>>, QKernel<QShape<192, 128, 4>>>(g);
}
