// sdpa_mma_latent.cu - absorbed MLA on tensor cores: all heads attend to one cached row of 512
// latents and 64 rotated values, of which the latents are the value too. 16 MT packed rows to a
// block; a warp computes the scores of 16 of the tile's keys, then a share of the columns of the
// output. The tile serves both products; the next one is on its way meanwhile.
#include "kernels/cuda/sdpa_mma.cuh"
#include "kernels/cuda/sdpa_mma.h"

enum { DK = 576, DV = 512, P_WIDTH = 64 };  // P_WIDTH: of the tile of p, at least KEYS

template <int MT_, int WARPS_> struct LatentShape {
    enum { MT = MT_, WARPS = WARPS_, ROWS = 16 * MT, KEYS = 16 * WARPS, COLS = DV / WARPS };
    enum { THREADS = WARPS * WARP, TILE = KEYS * DK, P = ROWS * P_WIDTH };
    // Queries, two tiles of keys, p; WARPS floats for each row.
    enum { SHARED_BYTES = (ROWS * DK + 2 * TILE + P) * 2 + WARPS * ROWS * 4 };
};

struct LatentCall {
    bf16 *out;
    const bf16 *q, *k;
    SdpaArgs a;
    SplitRows split;
    int split_keys, row_tiles;
};

// Packed rows (t * NH + h) first ... first + n of a row of the batch, keys begin ... end.
struct LatentTile {
    int b, split, pos, first, n, begin, end;
};
template <typename S> __device__ __forceinline__ LatentTile latent_tile(const LatentCall &c) {
    LatentTile t;
    unsigned i = blockIdx.x;
    t.split = i % c.split.n_splits;
    i /= c.split.n_splits;
    t.b = i % c.a.B;
    t.first = (c.row_tiles - 1 - (int)(i / c.a.B)) * S::ROWS;  // the longest first
    t.pos = c.a.pos[t.b];
    t.n = min((int)S::ROWS, c.a.n_new[t.b] * c.a.NH - t.first);
    t.begin = t.split * c.split_keys;
    t.end = min(t.begin + c.split_keys, t.pos + (t.first + t.n - 1) / c.a.NH + 1);
    return t;
}

// What a warp keeps: o of all rows and its columns; m the same in all warps, l of its keys.
template <typename S> struct LatentRows {
    float o[S::MT][S::COLS / 8][4], m[S::MT][2], l[S::MT][2];
};

template <typename S>
__device__ __forceinline__ void latent_scores(float (&x)[S::MT][2][4], const bf16 *q, const bf16 *k,
                                              int key) {
    LaneMap at = lane_map();
#pragma unroll
    for (int i = 0; i < S::MT; i++)
        clear_rows(x[i]);
#pragma unroll 4
    for (int d = 0; d < DK; d += 16) {
        unsigned a[4], b[4];
        load_b<DK>(b, k, at, key, d);
#pragma unroll
        for (int i = 0; i < S::MT; i++) {
            load_a<DK>(a, q, at, 16 * i, d);
            mma_m16n8k16(x[i][0], a, b[0], b[1]);
            mma_m16n8k16(x[i][1], a, b[2], b[3]);
        }
    }
}

// Masks x and leaves the largest score of each row among the warp's keys in tops (WARPS, ROWS).
template <typename S>
__device__ __forceinline__ void latent_tops(float (&x)[S::MT][2][4], float *tops,
                                            const LatentTile &t, int NH, int key) {
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
#pragma unroll
    for (int i = 0; i < S::MT; i++) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int row = 16 * i + 8 * r + lane / 4, limit = t.pos + (t.first + row) / NH;
            float top = -INFINITY;
#pragma unroll
            for (int e = 0; e < 4; e++) {
                float *y = &x[i][e / 2][2 * r + e % 2];
                if (key + 16 * warp + e / 2 * 8 + lane % 4 * 2 + e % 2 > limit) *y = -INFINITY;
                top = fmaxf(top, *y);
            }
            top = warp_max<4>(top);
            if (lane % 4 == 0) tops[warp * S::ROWS + row] = top;
        }
    }
}

// x becomes p, also in the tile p; o and l are brought to the new maxima.
template <typename S>
__device__ __forceinline__ void latent_softmax(float (&x)[S::MT][2][4], LatentRows<S> &rows,
                                               bf16 *p, const float *tops, float scale) {
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
#pragma unroll
    for (int i = 0; i < S::MT; i++) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int row = 16 * i + 8 * r + lane / 4;
            float top = -INFINITY, sum = 0.0f;
#pragma unroll
            for (int w = 0; w < S::WARPS; w++)
                top = fmaxf(top, tops[w * S::ROWS + row]);
            top = fmaxf(rows.m[i][r], top * scale);
            float base = top == -INFINITY ? 0.0f : top, factor = exp2_approx(rows.m[i][r] - base);
#pragma unroll
            for (int j = 0; j < 2; j++) {
                float y[2];
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    y[e] = exp2_approx(fmaf(x[i][j][2 * r + e], scale, -base));
                    sum += y[e];
                }
                store_vec<2>(chunk_at<P_WIDTH>(p, row, 2 * warp + j) + lane % 4 * 2, y);
            }
            rows.m[i][r] = top;
            rows.l[i][r] = rows.l[i][r] * factor + sum;
#pragma unroll
            for (int j = 0; j < S::COLS / 8; j++)
                rows.o[i][j][2 * r] *= factor, rows.o[i][j][2 * r + 1] *= factor;
        }
    }
}

// o += p v, the warp's columns.
template <typename S>
__device__ __forceinline__ void latent_values(LatentRows<S> &rows, const bf16 *p, const bf16 *k) {
    LaneMap at = lane_map();
    int col = (int)threadIdx.x / WARP * S::COLS;
#pragma unroll
    for (int key = 0; key < S::KEYS; key += 16) {
        unsigned a[S::MT][4], b[4];
#pragma unroll
        for (int i = 0; i < S::MT; i++)
            load_a<P_WIDTH>(a[i], p, at, 16 * i, key);
#pragma unroll
        for (int j = 0; j < S::COLS / 8; j += 2) {
            load_b_trans<DK>(b, k, at, key, col + 8 * j);
#pragma unroll
            for (int i = 0; i < S::MT; i++) {
                mma_m16n8k16(rows.o[i][j], a[i], b[0], b[1]);
                mma_m16n8k16(rows.o[i][j + 1], a[i], b[2], b[3]);
            }
        }
    }
}

// Values of the tile that were cleared because they are not finite, added for rows that see them.
template <typename S>
__device__ __forceinline__ void latent_add_cleared(LatentRows<S> &rows, const LatentCall &c,
                                                   const LatentTile &t, int key) {
    int lane = threadIdx.x % WARP, col = (int)threadIdx.x / WARP * S::COLS + lane % 4 * 2;
    const bf16 *v = c.k + t.b * c.a.k_batch + key * c.a.k_token + col;
    for (int k = key; k < min(key + (int)S::KEYS, t.end); k++, v += c.a.k_token) {
#pragma unroll
        for (int j = 0; j < S::COLS / 8; j++) {
            float y[2];
            load_vec<2>(y, v + 8 * j);
#pragma unroll
            for (int i = 0; i < S::MT; i++) {
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    int row = t.first + 16 * i + e / 2 * 8 + lane / 4;
                    add_not_finite(rows.o[i][j][e], y[e % 2], k <= t.pos + row / c.a.NH);
                }
            }
        }
    }
}

// Rows divided by their sums, whose parts of all warps lie in sums (WARPS, ROWS).
template <typename S>
__device__ __forceinline__ void latent_write(const LatentCall &c, const LatentTile &t,
                                             const LatentRows<S> &rows, const float *sums) {
    int lane = threadIdx.x % WARP, col = (int)threadIdx.x / WARP * S::COLS + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < S::MT; i++) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int row = 16 * i + 8 * r + lane / 4, at = t.first + row, h = at % c.a.NH;
            if (row >= t.n) continue;
            float sum = 0.0f;
#pragma unroll
            for (int w = 0; w < S::WARPS; w++)
                sum += sums[w * S::ROWS + row];
            float factor = 1.0f / sum;
            size_t part =
                t.split * c.split.rows + ((size_t)t.b * c.a.NH + h) * c.a.Tq + at / c.a.NH;
            bf16 *out =
                c.out + t.b * c.a.o_batch + at / c.a.NH * c.a.o_token + h * c.a.o_head + col;
#pragma unroll
            for (int j = 0; j < S::COLS / 8; j++) {
                float y[2] = {rows.o[i][j][2 * r] * factor, rows.o[i][j][2 * r + 1] * factor};
                if (c.split.n_splits > 1)
                    store_vec<2>(c.split.out + part * DV + col + 8 * j, y);
                else
                    store_vec<2>(out + 8 * j, y);
            }
            if (c.split.n_splits > 1 && col == 0) c.split.lse[part] = rows.m[i][r] + log2f(sum);
        }
    }
}

template <typename S>
__global__ void __launch_bounds__(S::THREADS) sdpa_mma_latent_kernel(LatentCall c) {
    SHARED(bf16, q);
    bf16 *tiles = q + S::ROWS * DK, *p = tiles + 2 * S::TILE;
    float *tops = reinterpret_cast<float *>(p + S::P);  // (WARPS, ROWS)
    LatentTile t = latent_tile<S>(c);
    if (t.n <= 0) return;  // the whole block
    const bf16 *k = c.k + t.b * c.a.k_batch;
    for (int i = threadIdx.x; i < S::ROWS * DK / 8; i += S::THREADS) {
        int row = i / (DK / 8), chunk = i % (DK / 8), at = t.first + row;
        cp_async_16(chunk_at<DK>(q, row, chunk),
                    c.q + t.b * c.a.q_batch + at / c.a.NH * c.a.q_token + at % c.a.NH * c.a.q_head +
                        chunk * 8,
                    row < t.n ? 16 : 0);
    }
    copy_rows<DK, S::KEYS, S::THREADS>(tiles, k + t.begin * c.a.k_token, c.a.k_token,
                                       t.end - t.begin);
    cp_async_commit();
    LatentRows<S> rows;
#pragma unroll
    for (int i = 0; i < S::MT; i++) {
        clear_rows(rows.o[i]);
        rows.m[i][0] = rows.m[i][1] = -INFINITY;
        rows.l[i][0] = rows.l[i][1] = 0.0f;
    }
    int stage = 0, lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    for (int key = t.begin; key < t.end; key += S::KEYS, stage ^= 1) {
        bf16 *tile = tiles + stage * S::TILE;
        int next = key + S::KEYS;
        float x[S::MT][2][4];
        cp_async_wait<0>();
        __syncthreads();  // the keys are here, and nobody reads those before or p any more
        if (next < t.end)
            copy_rows<DK, S::KEYS, S::THREADS>(tiles + (stage ^ 1) * S::TILE,
                                               k + next * c.a.k_token, c.a.k_token, t.end - next);
        cp_async_commit();
        latent_scores<S>(x, q, tile, 16 * warp);
        latent_tops<S>(x, tops, t, c.a.NH, key);
        __syncthreads();  // the maxima are here
        latent_softmax<S>(x, rows, p, tops, c.a.scale * LOG2E);
        bool cleared = next > t.pos + 1 && clear_not_finite_rows<DK, S::KEYS, S::THREADS, DV>(tile);
        cleared = sync_any(cleared);  // p is here
        latent_values<S>(rows, p, tile);
        if (cleared) latent_add_cleared<S>(rows, c, t, key);
    }
    cp_async_wait<0>();
#pragma unroll
    for (int i = 0; i < 2 * S::MT; i++) {  // all warps have read the maxima before p was ready
        float l = warp_sum<4>(rows.l[i / 2][i % 2]);
        if (lane % 4 == 0) tops[warp * S::ROWS + i * 8 + lane / 4] = l;
    }
    __syncthreads();
    latent_write<S>(c, t, rows, tops);
}

template <typename S> static bool launch(LatentCall c) {
    const SdpaArgs *a = &c.a;
    if (S::SHARED_BYTES > cuda_device()->shared_limit) return false;
    c.row_tiles = (int)ceil_div((size_t)a->Tq * a->NH, S::ROWS);
    size_t blocks = (size_t)c.row_tiles * a->B;
    c.split = sdpa_splits(a, blocks, &c.split_keys);
    LAUNCH(sdpa_mma_latent_kernel<S>, blocks * c.split.n_splits, S::THREADS, S::SHARED_BYTES,
           cuda_stream())
    (c);
    if (c.split.n_splits > 1) sdpa_combine(c.out, c.split, a);
    return true;
}

bool sdpa_mma_latent(bf16 *out, const bf16 *q, const bf16 *k, const bf16 *v, const SdpaArgs *a) {
    size_t strides = a->q_token | a->k_token | a->o_token | a->q_head | a->o_head | a->q_batch |
                     a->k_batch | a->o_batch;
    bool sizes = a->HS == DK && a->HV == DV && a->NKV == 1 && a->scale > 0.0f;
    bool prefix = k == v && a->k_token == a->v_token && a->k_batch == a->v_batch;
    if (!sizes || !prefix || strides % 8 || !fits<8>(out) || !fits<8>(q) || !fits<8>(k))
        return false;
    static_assert(LatentShape<1, 2>::SHARED_BYTES <= MMA_SHARED_BYTES, "fits small devices");
    LatentCall c = {out, q, k, *a, {}, 0, 0};
    bool many = (size_t)a->Tq * a->NH > 16;
    return (many && launch<LatentShape<2, 4>>(c)) || launch<LatentShape<1, 4>>(c) ||
           launch<LatentShape<1, 2>>(c);
}
