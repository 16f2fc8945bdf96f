// lowrank_mma_decode.cu - up to 8 new tokens over the cache of LRKV on tensor cores. Keys are
// rebuilt exactly, 32 positions at a time: B_h stays in registers as operand of K_h = S + Z_h
// B_h^T; rotation and norm follow in the registers of the product. Two warps work for a head, each
// with half of its columns in pairs (c, c + HS/2) that rotate together; the heads of a block share
// its rows of S and of the rope table. Values stay factored (lowrank_combine).
#include "kernels/cuda/lowrank_mma_decode.cuh"
#include "kernels/cuda/rope.cuh"

// What a warp keeps: operands of its columns; sums of its half of the values, (columns, queries).
template <typename S> struct WarpState {
    unsigned bk[2 * S::QT][S::RS][2], q[S::QT][2];
    float o[S::QT][4], oz[S::ZT][4], m[2], l[2];  // m, l of queries 2 (lane%4) + {0, 1}
};

// Two neighbouring factors of a row, those below r; the others may be anything in memory.
__device__ __forceinline__ unsigned load_factors(const bf16 *row, int i, int r) {
    if (i >= r) return 0;
    unsigned both = load_raw<4>(row + i).w;
    return i + 1 < r ? both : both & 0xFFFFu;
}

template <typename S>
__device__ __forceinline__ void load_state(WarpState<S> &w, const LowRankCall &c,
                                           const LowRankTile &t, int h, int half) {
    int lane = threadIdx.x % WARP, query = lane / 4;
    const bf16 *bk = reinterpret_cast<const bf16 *>(c.c.bk) + (size_t)h * S::HS * c.c.ld_b;
    const bf16 *q = c.q + t.b * c.a.q_batch + query * c.a.q_token + h * c.a.q_head;
#pragma unroll
    for (int j = 0; j < 2 * S::QT; j++) {
        int col = column_of<S::HS>(half, j);
#pragma unroll
        for (int i = 0; i < 2 * S::RS; i++)
            w.bk[j][i / 2][i % 2] =
                load_factors(bk + (size_t)(col + lane / 4) * c.c.ld_b, 8 * i + lane % 4 * 2, c.c.r);
        w.q[j / 2][j % 2] = query < t.n_new ? load_raw<4>(q + col + lane % 4 * 2).w : 0;
    }
#pragma unroll
    for (int i = 0; i < S::QT; i++)
        w.o[i][0] = w.o[i][1] = w.o[i][2] = w.o[i][3] = 0.0f;
#pragma unroll
    for (int i = 0; i < S::ZT; i++)
        w.oz[i][0] = w.oz[i][1] = w.oz[i][2] = w.oz[i][3] = 0.0f;
    w.m[0] = w.m[1] = -INFINITY;
    w.l[0] = w.l[1] = 0.0f;
}

// k (16 positions from `row` on, the warp's columns) = S + Z B^T, rotated.
template <typename S>
__device__ __forceinline__ void build_keys(float (&k)[2 * S::QT][4], const WarpState<S> &w,
                                           const bf16 *stage, const bf16 *zk, bool has_rope,
                                           int row, int half) {
    int lane = (int)opaque(threadIdx.x % WARP);
#pragma unroll
    for (int j = 0; j < 2 * S::QT; j++) {
#pragma unroll
        for (int r = 0; r < 2; r++)
            load_vec<2>(&k[j][2 * r], chunk_at<S::HS>(stage + S::KS, row + lane / 4 + 8 * r,
                                                      column_of<S::HS>(half, j) / 8) +
                                          lane % 4 * 2);
    }
#pragma unroll
    for (int i = 0; i < S::RS; i++) {
        unsigned a[4];
        ldmatrix_x4_trans(a,
                          narrow_at(zk, 16 * i + lane % 8 + lane / 16 * 8, row / 8 + lane / 8 % 2));
#pragma unroll
        for (int j = 0; j < 2 * S::QT; j++)
            mma_m16n8k16(k[j], a, w.bk[j][i][0], w.bk[j][i][1]);
    }
#pragma unroll
    for (int j = 0; has_rope && j < S::QT; j++) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const bf16 *at = chunk_at<2 * S::HS>(stage + S::ROPE, row + lane / 4 + 8 * r,
                                                 column_of<S::HS>(half, j) / 2 + lane % 4);
            rotate_pairs<2>(&k[j][2 * r], &k[j + S::QT][2 * r], reinterpret_cast<const float *>(at),
                            1.0f);
        }
    }
}

// A warp's own parts of shared memory, behind the stages.
template <typename S> struct WarpShared {
    bf16 *p;
    float *mine, *other;  // partial scores of this warp and of the other one of the head
};
template <typename S>
__device__ __forceinline__ WarpShared<S> warp_shared(bf16 *stages, int heads) {
    int warp = warp_index();
    bf16 *p = stages + 2 * S::stage(heads);
    float *scores = reinterpret_cast<float *>(p + 2 * heads * S::P);
    return {p + warp * S::P, scores + warp * S::SCORES, scores + (warp ^ 1) * S::SCORES};
}

// The warp's part of the scores and of the sums of squares, for both warps of the head.
template <typename S>
__device__ __forceinline__ void part_scores(const WarpState<S> &w, const bf16 *stage,
                                            const bf16 *zk, bool has_rope, float *mine, int half) {
    int lane = (int)opaque(threadIdx.x % WARP);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float k[2 * S::QT][4], s[4] = {};
        build_keys(k, w, stage, zk, has_rope, 16 * i, half);
#pragma unroll
        for (int j = 0; j < S::QT; j++) {
            unsigned a[4];
            pack_a(a, k[2 * j], k[2 * j + 1]);
            mma_m16n8k16(s, a, w.q[j][0], w.q[j][1]);
        }
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float sum = 0.0f;
#pragma unroll
            for (int j = 0; j < 2 * S::QT; j++)
                sum += k[j][2 * r] * k[j][2 * r] + k[j][2 * r + 1] * k[j][2 * r + 1];
            sum = warp_sum<4>(sum);
            int row = 16 * i + lane / 4 + 8 * r;
            store_vec<2>(mine + row * QUERIES + lane % 4 * 2, &s[2 * r]);
            if (lane % 4 == 0) mine[KEYS * QUERIES + row] = sum;
        }
    }
}

// s[i][e] = base-2 score of position lane/4 + 8 i and query 2 (lane%4) + e. limit: the last
// position that query 0 sees. Both warps of a head add in the same order.
template <typename S>
__device__ __forceinline__ void whole_scores(float (&s)[4][2], const WarpShared<S> &x,
                                             const LowRankCall &c, int limit) {
    int lane = (int)opaque(threadIdx.x % WARP);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int row = lane / 4 + 8 * i;
        float more[2], scale = c.a.scale * LOG2E;
        load_vec<2>(s[i], x.mine + row * QUERIES + lane % 4 * 2);
        load_vec<2>(more, x.other + row * QUERIES + lane % 4 * 2);
        if (c.c.norm) {
            float sum = x.mine[KEYS * QUERIES + row] + x.other[KEYS * QUERIES + row];
            scale *= rsqrtf(sum / S::HS + c.c.eps);
        }
#pragma unroll
        for (int e = 0; e < 2; e++) {
            bool sees = row <= limit + lane % 4 * 2 + e;
            s[i][e] = sees ? (s[i][e] + more[e]) * scale : -INFINITY;
        }
    }
}

// p into its tile (QUERIES, KEYS); sums are brought to the new maxima.
template <typename S>
__device__ __forceinline__ void softmax(WarpState<S> &w, const WarpShared<S> &x,
                                        const LowRankCall &c, int limit) {
    int lane = (int)opaque(threadIdx.x % WARP);
    float s[4][2], factor[2];
    whole_scores(s, x, c, limit);
#pragma unroll
    for (int e = 0; e < 2; e++) {
        float top = fmaxf(fmaxf(s[0][e], s[1][e]), fmaxf(s[2][e], s[3][e])), sum = 0.0f;
#pragma unroll
        for (int bits = 4; bits < WARP; bits *= 2)
            top = fmaxf(top, shuffle_xor(top, bits));
        top = fmaxf(w.m[e], top);
        float base = top == -INFINITY ? 0.0f : top;
        factor[e] = exp2_approx(w.m[e] - base);
        w.m[e] = top;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float y = exp2_approx(s[i][e] - base);
            sum += y;
            store_vec<1>(narrow_at(x.p, lane % 4 * 2 + e, i) + lane / 4, &y);
        }
        w.l[e] = w.l[e] * factor[e] + sum;
    }
#pragma unroll
    for (int i = 0; i < S::QT + S::ZT; i++) {
        float(&y)[4] = i < S::QT ? w.o[i] : w.oz[i - S::QT];
#pragma unroll
        for (int e = 0; e < 4; e++)
            y[e] *= factor[e % 2];
    }
}

// o += vs^T p, oz += zv p
template <typename S>
__device__ __forceinline__ void add_values(WarpState<S> &w, const bf16 *stage, const bf16 *zv,
                                           const bf16 *p, int half) {
    int lane = (int)opaque(threadIdx.x % WARP);
    LaneMap at = lane_map();
    unsigned b[4];
    ldmatrix_x4(b, narrow_at(p, lane % 8, lane / 8));
#pragma unroll
    for (int k = 0; k < 2; k++) {
#pragma unroll
        for (int i = 0; i < S::QT; i++) {
            unsigned a[4];
            load_a_trans<S::HS>(a, stage + S::VS, at, 16 * k, half * (S::HS / 2) + 16 * i);
            mma_m16n8k16(w.o[i], a, b[2 * k], b[2 * k + 1]);
        }
#pragma unroll
        for (int i = 0; i < S::ZT; i++) {
            unsigned a[4];
            int tile = half * S::ZT + i;
            if (tile >= S::RS) continue;
            ldmatrix_x4(a, narrow_at(zv, 16 * tile + lane % 16, 2 * k + lane / 16));
            mma_m16n8k16(w.oz[i], a, b[2 * k], b[2 * k + 1]);
        }
    }
}

// What clear_stage cleared, added for the queries that see it. limit: as for softmax.
template <typename S>
__device__ __forceinline__ void add_cleared(WarpState<S> &w, const LowRankCall &c,
                                            const LowRankTile &t, int h, int half, int key,
                                            int limit) {
    int lane = (int)opaque(threadIdx.x % WARP), query = lane % 4 * 2;
    const bf16 *vs = static_cast<const bf16 *>(c.c.vs) + t.b * c.c.vs_batch;
    const bf16 *zv = static_cast<const bf16 *>(c.c.zv) + t.b * c.c.zv_batch +
                     (key / LATENT_BLOCK * (size_t)c.c.n_zv + (size_t)h * c.c.r) * LATENT_BLOCK;
    for (int k = 0; k < min((int)KEYS, t.end - key); k++) {
#pragma unroll
        for (int i = 0; i < S::QT + S::ZT; i++) {
#pragma unroll
            for (int r = 0; r < 2; r++) {
                int row = 8 * r + lane / 4, col = half * (S::HS / 2) + 16 * i + row;
                int rank = 16 * (half * S::ZT + i - S::QT) + row;
                float y = 0.0f;
                if (i < S::QT)
                    y = to_float(vs[(size_t)(key + k) * S::HS + col]);
                else if (rank < c.c.r)
                    y = to_float(zv[(size_t)rank * LATENT_BLOCK + (key + k) % LATENT_BLOCK]);
                float(&sum)[4] = i < S::QT ? w.o[i] : w.oz[i - S::QT];
#pragma unroll
                for (int e = 0; e < 2; e++)
                    add_not_finite(sum[2 * r + e], y, k <= limit + query + e);
            }
        }
    }
}

// The warp's half of the partial result of each query.
template <typename S>
__device__ __forceinline__ void write_part(WarpState<S> &w, const LowRankCall &c,
                                           const LowRankTile &t, int h, int half) {
    int lane = threadIdx.x % WARP;
#pragma unroll
    for (int e = 0; e < 2; e++) {
        float l = w.l[e];
#pragma unroll
        for (int bits = 4; bits < WARP; bits *= 2)
            l += shuffle_xor(l, bits);
        int query = lane % 4 * 2 + e;
        if (query >= t.n_new) continue;
        size_t row = ((size_t)t.b * c.a.NH + h) * c.a.Tq + query;
        size_t part = row * c.parts.n_splits + t.split;
        float *to = c.parts.part + part * c.parts.width, factor = 1.0f / l;
#pragma unroll
        for (int r = 0; r < 2; r++) {
#pragma unroll
            for (int i = 0; i < S::QT; i++)
                to[half * (S::HS / 2) + 16 * i + 8 * r + lane / 4] = w.o[i][2 * r + e] * factor;
#pragma unroll
            for (int i = 0; i < S::ZT; i++) {
                int rank = 16 * (half * S::ZT + i) + 8 * r + lane / 4;
                if (rank < c.c.r) to[S::HS + rank] = w.oz[i][2 * r + e] * factor;
            }
        }
        if (half == 0 && lane < 4) c.parts.lse[part] = w.m[e] + log2f(l);
    }
}

template <typename S>
__global__ void __launch_bounds__(2 * MAX_HEADS * WARP) lowrank_mma_decode_kernel(LowRankCall c) {
    SHARED(bf16, stages);
    LowRankTile t = lowrank_tile(c);
    if (t.n_new <= 0) return;  // the whole block
    int warp = threadIdx.x / WARP, half = warp % 2, stage = 0;
    bool works = t.h + warp / 2 < c.a.NH;
    WarpState<S> w;
    if (works) load_state(w, c, t, t.h + warp / 2, half);
    if (t.begin < t.end) copy_stage<S>(stages, c, t, t.begin);
    // t is taken anew for each stage: during the products there are no registers for it.
    for (int key = t.begin; key < t.end; key += KEYS, stage ^= 1, t = lowrank_tile(c)) {
        bf16 *at = stages + stage * S::stage(c.heads);
        cp_async_wait<0>();
        bool cleared = false;  // at most the last keys are not seen by all queries
        if (key + KEYS > t.end - QUERIES) cleared = clear_stage<S>(at, t);
        // The stage is here, and nobody reads the one before any more.
        cleared = sync_any(cleared);
        if (key + KEYS < t.end)
            copy_stage<S>(stages + (stage ^ 1) * S::stage(c.heads), c, t, key + KEYS);
        if (works)
            part_scores(w, at, at + S::LATENTS + warp / 2 * 2 * S::Z, c.c.rope != nullptr,
                        warp_shared<S>(stages, c.heads).mine, half);
        __syncthreads();  // the parts of the scores are here
        if (!works) continue;
        WarpShared<S> x = warp_shared<S>(stages, c.heads);
        softmax(w, x, c, c.a.pos[lowrank_tile(c).b] - key);
        __syncwarp();  // p is here
        add_values(w, at, at + S::LATENTS + (warp / 2 * 2 + 1) * S::Z, x.p, half);
        if (cleared) {
            LowRankTile here = lowrank_tile(c);
            add_cleared(w, c, here, here.h + warp / 2, half, key, here.pos - key);
        }
    }
    t = lowrank_tile(c);
    if (works) write_part(w, c, t, t.h + warp / 2, half);
}

// As many heads in a block as fit and share out evenly.
template <typename S> static void launch(bf16 *out, LowRankCall c) {
    const SdpaArgs *a = &c.a;
    int most = min_int(a->NH, MAX_HEADS);
    static_assert(S::shared_bytes(1) <= MMA_SHARED_BYTES, "fits small devices");
    while (S::shared_bytes(most) > cuda_device()->shared_limit)
        most--;
    c.heads = (int)ceil_div((size_t)a->NH, ceil_div((size_t)a->NH, (size_t)most));
    size_t blocks = (size_t)a->B * ceil_div((size_t)a->NH, (size_t)c.heads);
    c.parts = lowrank_parts(&c.c, a, blocks, false, &c.split_keys);
    LAUNCH(lowrank_mma_decode_kernel<S>, blocks * c.parts.n_splits, 2 * c.heads * WARP,
           S::shared_bytes(c.heads), cuda_stream())
    (c);
    lowrank_combine(out, c.parts, &c.c, a);
}

template <int HS> static void launch_rank(bf16 *out, const LowRankCall &c) {
    if (c.c.r <= 16)
        launch<LowRankShape<HS, 1>>(out, c);
    else if (c.c.r <= 32)
        launch<LowRankShape<HS, 2>>(out, c);
    else if (c.c.r <= 48)
        launch<LowRankShape<HS, 3>>(out, c);
    else
        launch<LowRankShape<HS, 4>>(out, c);
}

bool lowrank_mma_decode(bf16 *out, const bf16 *q, const LowRankCache *l, const SdpaArgs *a) {
    size_t strides = l->ks_batch | l->vs_batch | l->zk_batch | l->zv_batch;
    size_t even = a->q_token | a->q_head | a->q_batch | (size_t)l->ld_b;
    bool fit = fits<8>(static_cast<const bf16 *>(l->ks)) && fits<4>(l->rope) && fits<2>(q) &&
               fits<8>(static_cast<const bf16 *>(l->vs)) && fits<2>((const bf16 *)l->bk) &&
               fits<8>(static_cast<const bf16 *>(l->zk)) &&
               fits<8>(static_cast<const bf16 *>(l->zv));
    bool sizes = a->Tq <= QUERIES && a->HS == a->HV && l->r <= 64;
    if (!sizes || !l->ks || !l->vs || l->shared_z || l->bias_k) return false;
    if (!fit || strides % 8 || even % 2 || !has_mma_shared()) return false;
    LowRankCall c = {q, *a, *l, {}, 0, 0};
    if (a->HS == 64)
        launch_rank<64>(out, c);
    else if (a->HS == 128)
        launch_rank<128>(out, c);
    else
        return false;
    return true;
}
