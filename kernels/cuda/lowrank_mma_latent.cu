// lowrank_mma_latent.cu - up to 8 new tokens over the cache of MLA with a reconstructed key on
// tensor cores. Its latents are too wide for B_h to stay in registers, as in lowrank_mma_decode; so
// a block keeps the latents of 64 positions in shared memory and streams the factors of some heads
// past them. Two by two warps have 32 positions and half of a head's columns each, in pairs (c, c +
// HS/2) that rotate together. Keys never leave registers. The same latents are the values: all
// heads and queries of the block are rows of one product with them (lowrank_combine does the rest).
#include "kernels/cuda/lowrank_mma_latent.cuh"
#include "kernels/cuda/rope.cuh"

// A warp's positions row ... row + 31, and which columns. Taken anew where needed, to save
// registers.
struct WarpPlace {
    int row, half;
};
__device__ __forceinline__ WarpPlace warp_place() {
    int warp = warp_index();
    return {warp / 2 * 32, warp % 2};
}

// Keys of a warp: positions row + 16 i, columns of tile j.
template <typename S> struct WarpKeys { float x[2][2 * S::QT][4]; };

template <typename S>
__device__ __forceinline__ void start_keys(WarpKeys<S> &k, const float *bias) {
    int lane = (int)opaque(threadIdx.x % WARP), half = warp_place().half;
#pragma unroll
    for (int j = 0; j < 2 * S::QT; j++) {
        float y[2] = {0.0f, 0.0f};
        if (bias) load_vec<2>(y, bias + column_of<S::HS>(half, j) + lane % 4 * 2);
#pragma unroll
        for (int i = 0; i < 2; i++) {
#pragma unroll
            for (int e = 0; e < 4; e++)
                k.x[i][j][e] = y[e % 2];
        }
    }
}

// k += z^T b^T for the ranks of one stage, from row `rank` of the latents on.
template <typename S>
__device__ __forceinline__ void add_ranks(WarpKeys<S> &k, const bf16 *z, const bf16 *stage,
                                          int rank, int n) {
    WarpPlace w = warp_place();
    LaneMap at = lane_map();
    for (int i = 0; i < n; i += 16) {
        unsigned a[2][4], b[4];
        load_a_trans<KEYS>(a[0], z, at, rank + i, w.row);
        load_a_trans<KEYS>(a[1], z, at, rank + i, w.row + 16);
#pragma unroll
        for (int j = 0; j < 2 * S::QT; j += 2) {
            load_b<RANKS>(b, stage, at, column_of<S::HS>(w.half, j), i);
#pragma unroll
            for (int m = 0; m < 2; m++) {
                mma_m16n8k16(k.x[m][j], a[m], b[0], b[1]);
                mma_m16n8k16(k.x[m][j + 1], a[m], b[2], b[3]);
            }
        }
    }
}

// rope: the table's rows of this tile, of which n exist.
template <typename S>
__device__ __forceinline__ void rotate_keys(WarpKeys<S> &k, const float *rope, int n) {
    WarpPlace w = warp_place();
    int lane = (int)opaque(threadIdx.x % WARP);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float *at =
            rope + (size_t)min(w.row + 8 * i + lane / 4, n - 1) * S::HS + lane % 4 * 4;
#pragma unroll
        for (int j = 0; j < S::QT; j++) {
            rotate_pairs<2>(&k.x[i / 2][j][i % 2 * 2], &k.x[i / 2][j + S::QT][i % 2 * 2],
                            at + 2 * column_of<S::HS>(w.half, j), 1.0f);
        }
    }
}

// This half's part of the scores of a head's queries and of the sums of squares of its keys.
template <typename S>
__device__ __forceinline__ void write_scores(const WarpKeys<S> &k, const LatentsShared &s,
                                             const LatentsCall &c, const LowRankTile &t, int h) {
    WarpPlace w = warp_place();
    int lane = (int)opaque(threadIdx.x % WARP), query = lane / 4, Tq = c.a.Tq;
    const bf16 *q = c.q + t.b * c.a.q_batch + query * c.a.q_token + h * c.a.q_head + lane % 4 * 2;
    float *scores = s.scores + w.half * HALF_SCORES + (h - t.h) * Tq * SCORES_LD;
    float *squares = s.squares + w.half * HALF_SQUARES + (h - t.h) * KEYS, x[2][4] = {};
#pragma unroll
    for (int j = 0; j < S::QT; j++) {
        unsigned a[4], b[2];
#pragma unroll
        for (int i = 0; i < 2; i++)
            b[i] = query < t.n_new ? load_raw<4>(q + column_of<S::HS>(w.half, 2 * j + i)).w : 0;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            pack_a(a, k.x[i][2 * j], k.x[i][2 * j + 1]);
            mma_m16n8k16(x[i], a, b[0], b[1]);
        }
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int at = w.row + 8 * i + lane / 4;
        float sum = 0.0f;
#pragma unroll
        for (int j = 0; j < 2 * S::QT; j++) {
            const float *y = &k.x[i / 2][j][i % 2 * 2];
            sum += y[0] * y[0] + y[1] * y[1];
        }
        sum = warp_sum<4>(sum);
        if (lane % 4 == 0) squares[at] = sum;
#pragma unroll
        for (int e = 0; e < 2; e++) {
            int to = lane % 4 * 2 + e;
            if (to < Tq) scores[to * SCORES_LD + at] = x[i / 2][i % 2 * 2 + e];
        }
    }
}

// Scores of all heads of the block with the latents, which are on their way like the first factors.
template <typename S>
__device__ __forceinline__ void score_heads(const LatentsShared &s, const LatentsCall &c,
                                            const LowRankTile &t, int key, int &stage) {
    WarpKeys<S> k;
    for (int h = t.h, i = 0; h < t.h_end;) {
        bool last = i + RANKS >= c.c.r, all = last && h + 1 == t.h_end;
        int next = last ? 0 : i + RANKS, next_h = all ? t.h : h + last;
        bool more = !all || key + KEYS < t.end;
        cp_async_wait<0>();
        __syncthreads();  // the factors are here, and nobody reads those before any more
        if (c.stages == 2 && more) copy_factors<S>(s.b + (stage ^ 1) * S::STAGE, c, next_h, next);
        cp_async_commit();
        if (i == 0) start_keys(k, c.c.bias_k ? c.c.bias_k + h * S::HS : nullptr);
        add_ranks(k, s.z, s.b + stage * S::STAGE, i, min((int)RANKS, c.c.r - i));
        if (c.stages == 2) {
            stage ^= 1;
        } else {
            __syncthreads();  // nobody reads the factors any more
            if (more) copy_factors<S>(s.b, c, next_h, next);
            cp_async_commit();
        }
        if (last) {
            LowRankTile here = lowrank_tile(c);
            if (c.c.rope) rotate_keys(k, c.c.rope + (size_t)key * S::HS, here.end - key);
            write_scores(k, s, c, here, h);
        }
        h += last, i = next;
    }
}

// A warp's rows of the softmax: row 4 warp + i is query (row % Tq) of head h + row / Tq. l: this
// lane's part of the sum.
struct LatentsRows {
    float m[4], l[4];
};

// The sums of what the two halves of the columns gave for two positions.
__device__ __forceinline__ void load_both(float (&x)[2], const float *first, int half) {
    float more[2];
    load_vec<2>(x, first);
    load_vec<2>(more, first + half);
    x[0] += more[0], x[1] += more[1];
}

// p into its tile, and for each row the factor that brings sums to the new maximum.
__device__ __forceinline__ void latents_softmax(LatentsRows &rows, const LatentsShared &s,
                                                const LatentsCall &c, const LowRankTile &t, int HS,
                                                int key) {
    int lane = (int)opaque(threadIdx.x % WARP);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int row = warp_index() * 4 + i, head = row / c.a.Tq, limit = t.pos + row % c.a.Tq - key;
        float x[2] = {-INFINITY, -INFINITY};
        if (head < t.h_end - t.h) {
            load_both(x, s.scores + row * SCORES_LD + 2 * lane, HALF_SCORES);
            float squares[2], scale = c.a.scale * LOG2E;
            if (c.c.norm) load_both(squares, s.squares + head * KEYS + 2 * lane, HALF_SQUARES);
#pragma unroll
            for (int e = 0; e < 2; e++) {
                float y = x[e] * scale;
                if (c.c.norm) y *= rsqrtf(squares[e] / HS + c.c.eps);
                if (y == -INFINITY) y = NAN;  // of latents that are not finite
                x[e] = 2 * lane + e <= limit ? y : -INFINITY;
            }
        }
        float top = fmaxf(rows.m[i], warp_max(fmaxf(x[0], x[1])));
        float base = top == -INFINITY ? 0.0f : top, factor = exp2_approx(rows.m[i] - base);
        x[0] = exp2_approx(x[0] - base), x[1] = exp2_approx(x[1] - base);
        store_vec<2>(chunk_at<KEYS>(s.p, row, lane / 4) + lane % 4 * 2, x);
        rows.m[i] = top;
        rows.l[i] = rows.l[i] * factor + x[0] + x[1];
        if (lane == 0) s.rows[row] = factor;
    }
}

// First latent of n16 tile i of a warp: the warps take turns.
__device__ __forceinline__ int latent_of(int i) {
    return (i * WARPS + warp_index()) * 16;
}

// o = o * factor + p z
template <int N>
__device__ __forceinline__ void add_latents(float (&o)[N][4], const LatentsShared &s, int r) {
    LaneMap at = lane_map();
    unsigned a[KEYS / 16][4], b[4];
    load_operands<KEYS>(a, s.p, 0);
    int lane = (int)opaque(threadIdx.x % WARP);
    float factor[2] = {s.rows[lane / 4], s.rows[lane / 4 + 8]};
#pragma unroll
    for (int i = 0; i < N / 2; i++) {
        if (latent_of(i) >= r) break;
#pragma unroll
        for (int e = 0; e < 8; e++)
            o[2 * i + e / 4][e % 4] *= factor[e % 4 / 2];
#pragma unroll
        for (int k = 0; k < KEYS / 16; k++) {
            load_b<KEYS>(b, s.z, at, latent_of(i), 16 * k);
            mma_m16n8k16(o[2 * i], a[k], b[0], b[1]);
            mma_m16n8k16(o[2 * i + 1], a[k], b[2], b[3]);
        }
    }
}

// Latents that are not finite are cleared once the keys are built: p is 0 for positions that a row
// does not see, but 0 times NaN or infinity is not. Rows that see them got p = NaN from the key.
__device__ __forceinline__ void clear_latents(bf16 *z, int r) {
    for (int i = (int)opaque(threadIdx.x); i < r * (KEYS / 8); i += THREADS)
        clear_not_finite(z + i * 8);
}

// Partial results; s.rows holds the sums of p.
template <int N>
__device__ __forceinline__ void write_parts(const float (&o)[N][4], const LatentsRows &rows,
                                            const LatentsShared &s, const LatentsCall &c,
                                            const LowRankTile &t) {
    int lane = (int)opaque(threadIdx.x % WARP), Tq = c.a.Tq, n = (t.h_end - t.h) * Tq;
    size_t first = ((size_t)t.b * c.a.NH + t.h) * Tq;  // rows of a head lie side by side
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int row = warp_index() * 4 + i;
        if (row < n && lane == 0)
            c.parts.lse[(first + row) * c.parts.n_splits + t.split] =
                rows.m[i] + log2f(s.rows[row]);
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int row = lane / 4 + 8 * r;
        if (row >= n) continue;
        float factor = 1.0f / s.rows[row];  // without keys anything, which nobody reads
        float *to = c.parts.part + ((first + row) * c.parts.n_splits + t.split) * c.parts.width;
#pragma unroll
        for (int i = 0; i < N; i++) {
#pragma unroll
            for (int e = 0; e < 2; e++) {
                int rank = latent_of(i / 2) + i % 2 * 8 + lane % 4 * 2 + e;
                if (rank < c.c.r) to[rank] = o[i][2 * r + e] * factor;
            }
        }
    }
}

template <typename S>
__global__ void __launch_bounds__(THREADS, S::BLOCKS) lowrank_mma_latent_kernel(LatentsCall c) {
    SHARED(bf16, z);
    LowRankTile t = lowrank_tile(c);
    if (t.n_new <= 0) return;  // the whole block
    LatentsShared s = latents_shared<S>(z, c);
    LatentsRows rows;
    float o[2 * S::ZT][4];
    clear_rows(o);
#pragma unroll
    for (int i = 0; i < 4; i++)
        rows.m[i] = -INFINITY, rows.l[i] = 0.0f;
    if (t.begin < t.end) {
        copy_latents(s.z, c, t, t.begin);
        copy_factors<S>(s.b, c, t.h, 0);
    }
    cp_async_commit();
    int stage = 0;
    for (int key = t.begin; key < t.end; key += KEYS, t = lowrank_tile(c)) {
        score_heads<S>(s, c, t, key, stage);
        __syncthreads();  // both halves of the scores are here
        t = lowrank_tile(c);
        latents_softmax(rows, s, c, t, S::HS, key);
        if (key + KEYS > t.pos + 1) clear_latents(s.z, c.c.r);
        __syncthreads();  // p is here
        add_latents(o, s, c.c.r);
        __syncthreads();  // nobody reads the latents any more
        if (key + KEYS < t.end) copy_latents(s.z, c, t, key + KEYS);
        cp_async_commit();
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float l = warp_sum(rows.l[i]);
        if (threadIdx.x % WARP == 0) s.rows[warp_index() * 4 + i] = l;
    }
    __syncthreads();
    write_parts(o, rows, s, c, t);
}

// As many heads in a block as its rows hold, fewer where that leaves the device idle.
template <typename S> static bool launch(bf16 *out, LatentsCall c) {
    const SdpaArgs *a = &c.a;
    size_t limit = cuda_device()->shared_limit, NH = (size_t)a->NH;
    c.stages = shared_bytes<S>(c.c.r, 2) <= limit ? 2 : 1;
    if (shared_bytes<S>(c.c.r, c.stages) > limit) return false;
    size_t runs = (size_t)a->B * ceil_div((size_t)a->max_pos, 2 * KEYS);
    size_t groups = ceil_div(S::BLOCKS * (size_t)cuda_device()->n_sm, runs);
    c.heads = (int)min_size(ROWS / (size_t)a->Tq, ceil_div(NH, min_size(groups, NH)));
    c.heads = (int)ceil_div(NH, ceil_div(NH, (size_t)c.heads));  // shared out evenly
    size_t blocks = (size_t)a->B * ceil_div(NH, (size_t)c.heads);
    c.parts = lowrank_parts(&c.c, a, blocks, false, &c.split_keys);
    LAUNCH(lowrank_mma_latent_kernel<S>, blocks * c.parts.n_splits, THREADS,
           shared_bytes<S>(c.c.r, c.stages), cuda_stream())
    (c);
    lowrank_combine(out, c.parts, &c.c, a);
    return true;
}

bool lowrank_mma_latent(bf16 *out, const bf16 *q, const LowRankCache *l, const SdpaArgs *a) {
    const bf16 *b = reinterpret_cast<const bf16 *>(l->bk), *z = static_cast<const bf16 *>(l->zk);
    bool one = l->shared_z && l->zk == l->zv;
    bool fit = fits<8>(b) && fits<8>(z) && fits<4>(l->rope) && fits<2>(q) && fits<2>(l->bias_k);
    size_t even = a->q_token | a->q_head | a->q_batch;
    if (!one || l->ks || l->vs || a->Tq > QUERIES) return false;
    if (!fit || (l->zk_batch | (size_t)l->ld_b) % 8 || even % 2) return false;
    LatentsCall c = {q, b, z, *a, *l, {}, 0, 0, 0};
    if (a->HS == 64 && l->r <= 128) return launch<LatentsShape<64, 128>>(out, c);
    if (a->HS == 64 && l->r <= 512) return launch<LatentsShape<64, 512>>(out, c);
    if (a->HS == 128 && l->r <= 128) return launch<LatentsShape<128, 128>>(out, c);
    if (a->HS == 128 && l->r <= 512) return launch<LatentsShape<128, 512>>(out, c);
    return false;
}
