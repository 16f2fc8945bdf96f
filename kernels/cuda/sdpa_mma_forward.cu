// sdpa_mma_forward.cu - causal attention on tensor cores: whole sequences, and many new tokens over
// a cache. FlashAttention-2 (Dao 2023) with mma.sync: a block has 128 rows, a warp 16 MT of them
// and all their keys, so a row's softmax stays within four lanes and P within registers. It walks
// from the diagonal backwards through tiles of KEYS keys, the next one on its way while it works on
// one: a single barrier for each. With MT = 2 a fragment of keys or values feeds two products.
#include "kernels/cuda/sdpa_mma.cuh"
#include "kernels/cuda/sdpa_mma.h"

enum { ROWS = 128 };

struct ForwardCall {
    bf16 *out;
    float *lse;  // natural logarithms, or NULL
    const bf16 *q, *k, *v;
    SdpaArgs a;
    SplitRows split;
    int split_keys, row_tiles;
};

// Rows first ... first + n of a key/value head, keys begin ... end.
struct RowTile {
    int b, kv, split, pos, G;
    int first, n, begin, end;
};

// Long tiles come first; blocks that read the same keys are neighbours.
__device__ __forceinline__ RowTile row_tile(const ForwardCall &c, unsigned i) {
    const SdpaArgs &a = c.a;
    RowTile t;
    t.split = i % c.split.n_splits;
    i /= c.split.n_splits;
    t.kv = i % a.NKV;
    i /= a.NKV;
    t.b = i % a.B;
    t.first = (c.row_tiles - 1 - (int)(i / a.B)) * ROWS;
    t.G = a.NH / a.NKV;
    t.pos = a.pos ? a.pos[t.b] : 0;
    t.n = min(ROWS, (a.n_new ? a.n_new[t.b] : a.Tq) * t.G - t.first);
    t.begin = t.split * c.split_keys;
    t.end = min(t.begin + c.split_keys, t.pos + (t.first + t.n - 1) / t.G + 1);
    return t;
}

// What a warp keeps of its rows: row lane/4 + 8 i of each m16 tile. m is the largest base-2 score,
// l this lane's part of the sum of p.
template <int DV, int MT> struct Rows16 { float o[MT][DV / 8][4], m[MT][2], l[MT][2]; };

template <int DV, int MT> __device__ __forceinline__ void rows_begin(Rows16<DV, MT> &rows) {
#pragma unroll
    for (int i = 0; i < MT; i++) {
        rows.m[i][0] = rows.m[i][1] = -INFINITY;
        rows.l[i][0] = rows.l[i][1] = 0.0f;
#pragma unroll
        for (int j = 0; j < DV / 8; j++)
            rows.o[i][j][0] = rows.o[i][j][1] = rows.o[i][j][2] = rows.o[i][j][3] = 0.0f;
    }
}

// l becomes the sum of the whole row.
template <int DV, int MT> __device__ __forceinline__ void rows_end(Rows16<DV, MT> &rows) {
#pragma unroll
    for (int i = 0; i < MT; i++) {
        rows.l[i][0] = warp_sum<4>(rows.l[i][0]);
        rows.l[i][1] = warp_sum<4>(rows.l[i][1]);
    }
}

// The keys of one tile: x[i][j] the scores of n8 tile j, row by row as mma leaves them.
template <int DK, int MT, int NT>
__device__ __forceinline__ void tile_scores(float (&x)[MT][NT][4], const bf16 *q, const bf16 *k,
                                            int row) {
    LaneMap at = lane_map();
#pragma unroll
    for (int i = 0; i < MT; i++) {
#pragma unroll
        for (int j = 0; j < NT; j++)
            x[i][j][0] = x[i][j][1] = x[i][j][2] = x[i][j][3] = 0.0f;
    }
#pragma unroll
    for (int d = 0; d < DK; d += 16) {
        unsigned a[MT][4];
#pragma unroll
        for (int i = 0; i < MT; i++)
            load_a<DK>(a[i], q, at, row + 16 * i, d);
#pragma unroll
        for (int j = 0; j < NT; j += 2) {
            unsigned b[4];
            load_b<DK>(b, k, at, 8 * j, d);
#pragma unroll
            for (int i = 0; i < MT; i++) {
                mma_m16n8k16(x[i][j], a[i], b[0], b[1]);
                mma_m16n8k16(x[i][j + 1], a[i], b[2], b[3]);
            }
        }
    }
}

// x becomes p. limit[i][r]: the last key that the row sees, counted from the tile's first.
template <bool MASKED, int DV, int MT, int NT>
__device__ __forceinline__ void tile_softmax(float (&x)[MT][NT][4], Rows16<DV, MT> &rows,
                                             const int (&limit)[MT][2], float scale) {
    int col = threadIdx.x % 4 * 2;
    bool moved = false;
    float factor[MT][2];
#pragma unroll
    for (int i = 0; i < MT; i++) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float top = -INFINITY, sum = 0.0f;
#pragma unroll
            for (int j = 0; j < NT; j++) {
#pragma unroll
                for (int e = 2 * r; e < 2 * r + 2; e++) {
                    if (MASKED && 8 * j + col + e % 2 > limit[i][r]) x[i][j][e] = -INFINITY;
                    top = fmaxf(top, x[i][j][e]);
                }
            }
            top = fmaxf(rows.m[i][r], warp_max<4>(top) * scale);
            float base = MASKED && top == -INFINITY ? 0.0f : top;
            factor[i][r] = exp2_approx(rows.m[i][r] - base);
            moved |= factor[i][r] != 1.0f;
            rows.m[i][r] = top;
#pragma unroll
            for (int j = 0; j < NT; j++) {
#pragma unroll
                for (int e = 2 * r; e < 2 * r + 2; e++) {
                    x[i][j][e] = exp2_approx(fmaf(x[i][j][e], scale, -base));
                    sum += x[i][j][e];
                }
            }
            rows.l[i][r] = rows.l[i][r] * factor[i][r] + sum;
        }
    }
    // Maxima settle after a few tiles; then there is nothing to rescale.
    if (!warp_ballot(moved)) return;
#pragma unroll
    for (int i = 0; i < MT; i++) {
#pragma unroll
        for (int j = 0; j < DV / 8; j++) {
#pragma unroll
            for (int e = 0; e < 4; e++)
                rows.o[i][j][e] *= factor[i][e / 2];
        }
    }
}

// o += p v
template <int DV, int MT, int NT>
__device__ __forceinline__ void tile_values(float (&o)[MT][DV / 8][4], const float (&p)[MT][NT][4],
                                            const bf16 *v) {
    LaneMap at = lane_map();
#pragma unroll
    for (int k = 0; k < 8 * NT; k += 16) {
        unsigned a[MT][4];
#pragma unroll
        for (int i = 0; i < MT; i++)
            pack_a(a[i], p[i][k / 8], p[i][k / 8 + 1]);
#pragma unroll
        for (int j = 0; j < DV / 8; j += 2) {
            unsigned b[4];
            load_b_trans<DV>(b, v, at, k, 8 * j);
#pragma unroll
            for (int i = 0; i < MT; i++) {
                mma_m16n8k16(o[i][j], a[i], b[0], b[1]);
                mma_m16n8k16(o[i][j + 1], a[i], b[2], b[3]);
            }
        }
    }
}

// The sizes of a kernel: 128 rows, queries and two stages of keys and values in shared memory.
template <int DK_, int DV_, int MT_, int KEYS_> struct ForwardShape {
    enum { DK = DK_, DV = DV_, MT = MT_, KEYS = KEYS_, THREADS = ROWS / 16 / MT * WARP };
    enum { STAGE = KEYS * (DK + DV), SHARED_BYTES = (ROWS * DK + 2 * STAGE) * 2 };
    static_assert(SHARED_BYTES <= MMA_SHARED_BYTES, "fits small devices");
};

// Starts to copy n keys and values from `key` on to a stage.
template <typename S>
__device__ __forceinline__ void copy_keys(bf16 *stage, const ForwardCall &c, const RowTile &t,
                                          int key, int n) {
    const SdpaArgs &a = c.a;
    const bf16 *k = c.k + t.b * a.k_batch + t.kv * a.k_head + key * a.k_token;
    const bf16 *v = c.v + t.b * a.v_batch + t.kv * a.v_head + key * a.v_token;
    copy_rows<S::DK, S::KEYS, S::THREADS>(stage, k, a.k_token, n);
    copy_rows<S::DV, S::KEYS, S::THREADS>(stage + S::KEYS * S::DK, v, a.v_token, n);
}

// The last keys that a lane's rows see, counted from `key`.
template <int MT>
__device__ __forceinline__ void row_limits(int (&limit)[MT][2], const RowTile &t, int row,
                                           int key) {
    int m = t.first + row + (int)opaque(threadIdx.x % WARP) / 4;
#pragma unroll
    for (int i = 0; i < MT; i++)
        limit[i][0] = t.pos + (m + 16 * i) / t.G - key,
        limit[i][1] = t.pos + (m + 16 * i + 8) / t.G - key;
}

// o += values of the tile that were cleared because they are not finite, for rows that see them.
template <typename S>
__device__ __forceinline__ void add_cleared(Rows16<S::DV, S::MT> &rows, const ForwardCall &c,
                                            const RowTile &t, int key, int row) {
    const SdpaArgs &a = c.a;
    const bf16 *v = c.v + t.b * a.v_batch + t.kv * a.v_head + key * a.v_token + threadIdx.x % 4 * 2;
    int limit[S::MT][2], n = min((int)S::KEYS, t.end - key);
    row_limits(limit, t, row, key);
    for (int k = 0; k < n; k++, v += a.v_token) {
#pragma unroll
        for (int j = 0; j < S::DV / 8; j++) {
            float y[2];
            load_vec<2>(y, v + 8 * j);
#pragma unroll
            for (int i = 0; i < S::MT; i++) {
#pragma unroll
                for (int e = 0; e < 4; e++)
                    add_not_finite(rows.o[i][j][e], y[e % 2], k <= limit[i][e / 2]);
            }
        }
    }
}

// A warp's rows, from `row` of the tile on, attend to the keys from `key` on, which are under way
// to `stage`.
template <typename S, bool MASKED>
__device__ __forceinline__ void attend_tile(Rows16<S::DV, S::MT> &rows, const ForwardCall &c,
                                            const RowTile &t, bf16 *shared, int stage, int key,
                                            int row) {
    bf16 *stages = shared + ROWS * S::DK, *k = stages + stage * S::STAGE;
    bool cleared = false;
    cp_async_wait<0>();
    // Behind the barrier the tile is here, and nobody reads the one before any more.
    if (MASKED)
        cleared = sync_any(clear_not_finite_rows<S::DV, S::KEYS, S::THREADS>(k + S::KEYS * S::DK));
    else
        __syncthreads();
    if (key - S::KEYS >= t.begin)
        copy_keys<S>(stages + (stage ^ 1) * S::STAGE, c, t, key - S::KEYS, S::KEYS);
    cp_async_commit();
    int limit[S::MT][2];  // the last key of a row, counted from `key`
    if (MASKED) {
        // No row of this warp sees any.
        if (t.pos + (t.first + row + 16 * S::MT - 1) / t.G < key) return;
        row_limits(limit, t, row, key);
    }
    float x[S::MT][S::KEYS / 8][4];
    tile_scores<S::DK>(x, shared, k, row);
    tile_softmax<MASKED>(x, rows, limit, c.a.scale * LOG2E);
    tile_values<S::DV>(rows.o, x, k + S::KEYS * S::DK);
    if (MASKED && cleared) add_cleared<S>(rows, c, t, key, row);
}

// Row m of the packed rows in the order of lse.
__device__ __forceinline__ size_t stats_row(const SdpaArgs &a, const RowTile &t, int m) {
    return ((size_t)t.b * a.NH + t.kv * t.G + m % t.G) * a.Tq + m / t.G;
}

// Rows divided by their sums, as partial results.
template <int DV, int MT>
__device__ __forceinline__ void write_split(const ForwardCall &c, const RowTile &t,
                                            const Rows16<DV, MT> &rows, int row) {
    int lane = threadIdx.x % WARP;
#pragma unroll
    for (int i = 0; i < MT; i++) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int at = row + 16 * i + 8 * r + lane / 4;
            if (at >= t.n) continue;
            size_t to = t.split * c.split.rows + stats_row(c.a, t, t.first + at);
            float l = rows.l[i][r], factor = 1.0f / l;
#pragma unroll
            for (int j = 0; j < DV / 8; j++) {
                float x[2] = {rows.o[i][j][2 * r] * factor, rows.o[i][j][2 * r + 1] * factor};
                store_vec<2>(c.split.out + to * DV + 8 * j + lane % 4 * 2, x);
            }
            if (lane % 4 == 0) c.split.lse[to] = rows.m[i][r] + log2f(l);
        }
    }
}

// Rows divided by their sums: through the warp's part of shared memory, so that 16 bytes are
// written at a time.
template <int DV, int MT>
__device__ __forceinline__ void write_rows(const ForwardCall &c, const RowTile &t,
                                           const Rows16<DV, MT> &rows, int row, bf16 *buffer) {
    int lane = threadIdx.x % WARP;
    __syncwarp();  // the warp's queries lay there
#pragma unroll
    for (int i = 0; i < MT; i++) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int at = row + 16 * i + 8 * r + lane / 4;
            float factor = 1.0f / rows.l[i][r];
#pragma unroll
            for (int j = 0; j < DV / 8; j++) {
                float x[2] = {rows.o[i][j][2 * r] * factor, rows.o[i][j][2 * r + 1] * factor};
                store_vec<2>(chunk_at<DV>(buffer, at, j) + lane % 4 * 2, x);
            }
            if (c.lse && lane % 4 == 0 && at < t.n)
                c.lse[stats_row(c.a, t, t.first + at)] = (rows.m[i][r] + log2f(rows.l[i][r])) * LN2;
        }
    }
    __syncwarp();
    bf16 *out = c.out + t.b * c.a.o_batch + (size_t)t.kv * t.G * c.a.o_head;
    for (int i = lane; i < 16 * MT * DV / 8; i += WARP) {
        int at = row + i / (DV / 8), chunk = i % (DV / 8), m = t.first + at;
        if (at >= t.n) continue;
        store_raw<16>(out + (size_t)(m / t.G) * c.a.o_token + m % t.G * c.a.o_head + chunk * 8,
                      load_raw<16>(chunk_at<DV>(buffer, at, chunk)));
    }
}

// Rows of the tile that this warp owns, to shared memory.
template <int DK, int MT>
__device__ __forceinline__ void copy_queries(bf16 *q, const ForwardCall &c, const RowTile &t,
                                             int row) {
    const bf16 *from = c.q + t.b * c.a.q_batch + (size_t)t.kv * t.G * c.a.q_head;
    for (int i = threadIdx.x % WARP; i < 16 * MT * DK / 8; i += WARP) {
        int at = row + i / (DK / 8), chunk = i % (DK / 8), m = t.first + at;
        const bf16 *p = from + (size_t)(m / t.G) * c.a.q_token + m % t.G * c.a.q_head + chunk * 8;
        cp_async_16(chunk_at<DK>(q, at, chunk), p, at < t.n ? 16 : 0);
    }
}

template <typename S>
__global__ void __launch_bounds__(S::THREADS) sdpa_mma_forward_kernel(ForwardCall c) {
    SHARED(bf16, shared);
    RowTile t = row_tile(c, blockIdx.x);
    if (t.n <= 0) return;  // the whole block
    int row = (int)threadIdx.x / WARP * 16 * S::MT;
    Rows16<S::DV, S::MT> rows;
    rows_begin(rows);
    int key = (t.end - 1) / S::KEYS * S::KEYS, stage = 0;
    if (t.begin < t.end) {
        copy_queries<S::DK, S::MT>(shared, c, t, row);
        copy_keys<S>(shared + ROWS * S::DK, c, t, key, t.end - key);
    }
    cp_async_commit();
    // Tiles that some row sees in part, then those that all rows see.
    int all = t.pos + t.first / t.G;
    for (; key >= t.begin && key + S::KEYS - 1 > all; key -= S::KEYS, stage ^= 1)
        attend_tile<S, true>(rows, c, t, shared, stage, key, row);
    for (; key >= t.begin; key -= S::KEYS, stage ^= 1)
        attend_tile<S, false>(rows, c, t, shared, stage, key, row);
    t = row_tile(c, opaque(blockIdx.x));  // not worth registers during the loop
    rows_end(rows);
    if (c.split.n_splits > 1)
        write_split(c, t, rows, row);
    else
        write_rows(c, t, rows, row, shared + row * (S::DK - S::DV));
}

template <typename S> static void launch(const ForwardCall &c, size_t blocks) {
    LAUNCH(sdpa_mma_forward_kernel<S>, blocks, S::THREADS, S::SHARED_BYTES, cuda_stream())(c);
}

bool sdpa_mma_forward(bf16 *out, float *lse, const bf16 *q, const bf16 *k, const bf16 *v,
                      const SdpaArgs *a) {
    if (!sdpa_mma_takes(a) || !fits<8>(out) || !fits<8>(q) || !fits<8>(k) || !fits<8>(v))
        return false;
    ForwardCall c = {out, lse, q, k, v, *a, {}, 0, 0};
    c.row_tiles = (int)ceil_div((size_t)a->Tq * (size_t)(a->NH / a->NKV), ROWS);
    size_t blocks = (size_t)c.row_tiles * a->B * a->NKV;
    c.split = sdpa_splits(a, blocks, &c.split_keys);
    blocks *= (size_t)c.split.n_splits;
    switch (a->HS) {
    case 64:
        launch<ForwardShape<64, 64, 2, 64>>(c, blocks);
        break;
    case 128:
        launch<ForwardShape<128, 128, 2, 32>>(c, blocks);
        break;
    case 192:
        launch<ForwardShape<192, 128, 2, 32>>(c, blocks);
        break;
    default:
        return false;
    }
    if (c.split.n_splits > 1) sdpa_combine(out, c.split, a);
    return true;
}
