// sdpa_mma_dkv.cu - gradients of keys and values on tensor cores. A block owns the keys, a warp 16
// of them, and walks over all queries of the group that see them, 32 at a time, the next ones on
// their way: nothing is summed across blocks. Scores are computed with keys as rows, so that P^T
// and dS^T stay in registers as operands of the sums.
#include "kernels/cuda/sdpa_mma.cuh"
#include "kernels/cuda/sdpa_mma_backward.h"

// A stage: queries (QUERY_TILE, DK), dout (QUERY_TILE, DV), stats (QUERY_TILE, 2) floats.
template <int DK_, int DV_, int WARPS> struct KvShape {
    enum { DK = DK_, DV = DV_, KEYS = 16 * WARPS, THREADS = WARPS * WARP };
    enum { Q = QUERY_TILE * DK, STAGE = Q + QUERY_TILE * (DV + 4) };  // in bf16
    enum { SHARED_BYTES = (KEYS * (DK + DV) + 2 * STAGE) * 2, DS_BYTES = KEYS * QUERY_TILE * 2 };
};

// Queries from t0 on of head h on their way to a stage.
template <typename S>
__device__ __forceinline__ void copy_queries(bf16 *stage, const MmaGrad &g, int b, int h, int t0) {
    const SdpaArgs &a = g.a;
    const bf16 *q = g.q + b * a.q_batch + h * a.q_head + t0 * a.q_token;
    const bf16 *dout = g.dout + b * a.o_batch + h * a.o_head + t0 * a.o_token;
    copy_rows<S::DK, QUERY_TILE, S::THREADS>(stage, q, a.q_token, a.Tq - t0);
    copy_rows<S::DV, QUERY_TILE, S::THREADS>(stage + S::Q, dout, a.o_token, a.Tq - t0);
    const float *stats = g.stats + (((size_t)b * a.NH + h) * g.stats_rows + t0) * 2;
    int i = (int)opaque(threadIdx.x);
    if (i < QUERY_TILE / 2)
        cp_async_16(stage + S::Q + QUERY_TILE * S::DV + i * 8, stats + i * 4, 16);
}

// s = S^T becomes P^T, dp = (dout v^T)^T becomes dS^T. first_seen: of the queries, counted from the
// tile's first, the first that sees key 0 of the warp.
template <bool MASKED>
__device__ __forceinline__ void gradients(float (&s)[4][4], float (&dp)[4][4], const float *stats,
                                          int first_seen, float scale) {
    int lane = (int)opaque(threadIdx.x % WARP);
    first_seen += lane / 4;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        float st[4];  // lse, delta of two queries
        load_vec<4>(st, stats + (8 * j + lane % 4 * 2) * 2);
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int query = 8 * j + lane % 4 * 2 + e % 2;
            bool sees = !MASKED || query >= first_seen + e / 2 * 8;
            s[j][e] = sees ? exp2_approx(fmaf(s[j][e], scale, -st[e % 2 * 2])) : 0.0f;
            dp[j][e] = s[j][e] * (dp[j][e] - st[e % 2 * 2 + 1]);
        }
    }
}

// Where 16 bytes of dS^T (keys, 32 queries) lie: rows of 64 bytes, free of conflicts.
__device__ __forceinline__ bf16 *ds_at(bf16 *ds, int key, int chunk) {
    return ds + key * QUERY_TILE + (chunk ^ key / 2 % 4) * 8;
}

// The warp's dS^T, to be read by all.
__device__ __forceinline__ void put_ds(bf16 *ds, const float (&x)[4][4], int row) {
    int lane = (int)opaque(threadIdx.x % WARP);
#pragma unroll
    for (int j = 0; j < 4; j++) {
#pragma unroll
        for (int r = 0; r < 2; r++)
            store_vec<2>(ds_at(ds, row + lane / 4 + 8 * r, j) + lane % 4 * 2, x[j] + 2 * r);
    }
}

// sum += dS k for 16 of the 32 queries and a share of the columns, over the first n keys, in no
// fixed order. sum: of query 0; queries from n_queries on do not exist.
template <typename S>
__device__ __forceinline__ void add_dq(float *sum, bf16 *ds, const bf16 *k_tile, int n,
                                       int n_queries) {
    enum { SHARE = S::DK / (S::THREADS / WARP / 2) };  // half of the warps for 16 queries
    enum { COLS = SHARE > 48 ? SHARE / 2 : SHARE };    // at a time
    int lane = (int)opaque(threadIdx.x % WARP), warp = threadIdx.x / WARP, query = warp % 2 * 16;
    LaneMap at = lane_map();
#pragma unroll 1
    for (int col = warp / 2 * SHARE, end = col + SHARE; col < end; col += COLS) {
        float x[COLS / 8][4];
        clear_rows(x);
        for (int k = 0; k < n; k += 16) {
            unsigned a[4], b[4];
            ldmatrix_x4_trans(a, ds_at(ds, k + lane % 8 + lane / 16 * 8, query / 8 + lane / 8 % 2));
#pragma unroll
            for (int j = 0; j < COLS / 8; j += 2) {
                load_b_trans<S::DK>(b, k_tile, at, k, col + 8 * j);
                mma_m16n8k16(x[j], a, b[0], b[1]);
                mma_m16n8k16(x[j + 1], a, b[2], b[3]);
            }
        }
#pragma unroll
        for (int i = 0; i < COLS / 4; i++) {  // n8 tile i / 2, upper or lower row
            int row = query + lane / 4 + i % 2 * 8;
            float *to = sum + (size_t)row * S::DK + col + i / 2 * 8 + lane % 4 * 2;
            if (row < n_queries) red_add_2(to, x[i / 2][i % 2 * 2], x[i / 2][i % 2 * 2 + 1]);
        }
    }
}

// The block's keys: `key` on, of row b of the batch. Its first query head is kv*G. The first keys
// are seen by most queries: they come first. Computed anew where needed, to save registers.
struct KeyTile {
    int b, kv, G, key;
};
template <typename S> __device__ __forceinline__ KeyTile key_tile(const SdpaArgs &a) {
    unsigned block = opaque(blockIdx.x), pairs = a.B * a.NKV, pair = block % pairs;
    return {(int)(pair / a.NKV), (int)(pair % a.NKV), a.NH / a.NKV, (int)(block / pairs) * S::KEYS};
}

template <typename S, bool WITH_DQ>
__global__ void __launch_bounds__(S::THREADS, S::DK == 64 ? 3 : 1) sdpa_mma_dkv_kernel(MmaGrad g) {
    SHARED(bf16, k_tile);
    bf16 *v_tile = k_tile + S::KEYS * S::DK, *stages = v_tile + S::KEYS * S::DV;
    bf16 *ds = stages + 2 * S::STAGE;
    const SdpaArgs &a = g.a;
    KeyTile w = key_tile<S>(a);
    int row = (int)threadIdx.x / WARP * 16;
    copy_rows<S::DK, S::KEYS, S::THREADS>(
        k_tile, g.k + w.b * a.k_batch + w.kv * a.k_head + w.key * a.k_token, a.k_token,
        a.Tk - w.key);
    copy_rows<S::DV, S::KEYS, S::THREADS>(
        v_tile, g.v + w.b * a.v_batch + w.kv * a.v_head + w.key * a.v_token, a.v_token,
        a.Tk - w.key);
    float dk[S::DK / 8][4], dv[S::DV / 8][4];
    clear_rows(dk);
    clear_rows(dv);
    int g_head = 0, t0 = w.key, stage = 0;
    copy_queries<S>(stages, g, w.b, w.kv * w.G, t0);
    cp_async_commit();
    while (g_head < a.NH / a.NKV) {
        w = key_tile<S>(a);
        bf16 *q = stages + stage * S::STAGE, *dout = q + S::Q;
        const float *stats = reinterpret_cast<const float *>(dout + QUERY_TILE * S::DV);
        int next = t0 + QUERY_TILE, next_head = g_head;
        if (next >= a.Tq) next = w.key, next_head++;
        cp_async_wait<0>();
        __syncthreads();  // the queries are here, and nobody reads those before any more
        if (next_head < w.G)
            copy_queries<S>(stages + (stage ^ 1) * S::STAGE, g, w.b, w.kv * w.G + next_head, next);
        cp_async_commit();
        int first_seen = w.key + row - t0;
        if (first_seen < QUERY_TILE) {
            float s[4][4], dp[4][4];
            rows_dot<S::DK>(s, k_tile, row, q);
            rows_dot<S::DV>(dp, v_tile, row, dout);
            if (first_seen + 15 > 0)
                gradients<true>(s, dp, stats, first_seen, a.scale * LOG2E);
            else
                gradients<false>(s, dp, stats, first_seen, a.scale * LOG2E);
            add_product<S::DV>(dv, s, dout);
            add_product<S::DK>(dk, dp, q);
            if (WITH_DQ) put_ds(ds, dp, row);
        }
        if (WITH_DQ) {
            __syncthreads();  // dS is here
            w = key_tile<S>(a);
            size_t query = ((size_t)w.b * a.NH + w.kv * w.G + g_head) * a.Tq + t0;
            add_dq<S>(g.dq_sum + query * S::DK, ds, k_tile,
                      min((int)S::KEYS, t0 + QUERY_TILE - w.key), a.Tq - t0);
        }
        if (t0 + QUERY_TILE >= a.Tq) g_head++;
        t0 = t0 + QUERY_TILE >= a.Tq ? key_tile<S>(a).key : t0 + QUERY_TILE;
        stage ^= 1;
    }
    __syncthreads();
    w = key_tile<S>(a);
    row = warp_index() * 16;
    bf16 *dk_rows = g.dk + w.b * a.k_batch + w.kv * a.k_head;
    bf16 *dv_rows = g.dv + w.b * a.v_batch + w.kv * a.v_head;
    float dk_factor[2] = {a.scale, a.scale}, dv_factor[2] = {1.0f, 1.0f};
    store_rows<S::DK>(dk, dk_factor, k_tile, row, PackedRows{dk_rows, a.k_token, 0, 1, w.key},
                      a.Tk - w.key);
    store_rows<S::DV>(dv, dv_factor, v_tile, row, PackedRows{dv_rows, a.v_token, 0, 1, w.key},
                      a.Tk - w.key);
}

template <typename S, bool WITH_DQ> struct KvKernel {
    enum { SHARED_BYTES = S::SHARED_BYTES + (WITH_DQ ? S::DS_BYTES : 0) };
    static void launch(const MmaGrad &g) {
        size_t blocks = ceil_div((size_t)g.a.Tk, S::KEYS) * g.a.B * g.a.NKV;
        LAUNCH((sdpa_mma_dkv_kernel<S, WITH_DQ>), blocks, S::THREADS, SHARED_BYTES, cuda_stream())
        (g);
    }
};

template <bool WITH_DQ> static void launch_size(const MmaGrad &g) {
    if (g.a.HS == 64)
        KvKernel<KvShape<64, 64, 4>, WITH_DQ>::launch(g);
    else if (g.a.HS == 128)
        launch_fitting<KvKernel<KvShape<128, 128, 8>, WITH_DQ>,
                       KvKernel<KvShape<128, 128, 4>, WITH_DQ>>(g);
    else
        launch_fitting<KvKernel<KvShape<192, 128, 8>, WITH_DQ>,
                       KvKernel<KvShape<192, 128, 4>, WITH_DQ>>(g);
}

void sdpa_mma_dkv(const MmaGrad &g) {
    if (g.dq_sum)
        launch_size<true>(g);
    else
        launch_size<false>(g);
}
