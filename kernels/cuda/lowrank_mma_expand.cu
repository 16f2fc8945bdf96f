// lowrank_mma_expand.cu - x_h = norm(rope(S + Z_h B_h^T + bias_h)) on tensor cores, for tokens in
// training and for the rows of a cache, whose latents lie transposed in blocks of 64 positions. A
// block has 64 tokens and some heads, a warp 16 of the tokens; what the heads share stays in shared
// memory. Latents and factors come in pieces of 64 ranks, the next piece on its way.
#include "kernels/cuda/lowrank_mma.cuh"
#include "kernels/cuda/rope.cuh"

enum { ROWS = 64, RANKS = 64, THREADS = 128 };

struct ExpandCall {
    bf16 *out;          // token n at n * ld_out, head h at h * width
    float *rstd;        // (N, NH) or NULL
    const bf16 *s;      // (N, width) at ld_s, or NULL
    const bf16 *z;      // (N, NH * R) at ld_z; cached: blocks of (n_z, 64)
    const bf16 *b;      // (NH, width, ld_b)
    const float *bias;  // (NH, width) or NULL
    const float *rope;  // (positions, width/2, 2) or NULL
    size_t ld_out, ld_s, ld_z, ld_b;
    size_t N;                 // tokens; cached: rows of the batch times positions
    int T;                    // tokens of a row of the batch; cached: positions
    const int *pos, *n_new;   // of the first row of the batch
    size_t s_batch, z_batch;  // cached: between rows of the batch
    int NH, R, heads;         // ranks that count; heads of a block
    bool norm, shared_z;
    float eps;
};

// Rows of fp32 cosines and sines lie in chunks of 16 bytes like those of a bf16 tile.
template <int HS_, int STAGES_> struct ExpandShape {
    enum { HS = HS_, STAGES = STAGES_, STAGE = (ROWS + HS) * RANKS, ROPE = ROWS * HS * 2 };
    // Shared rows, output, rope, stages of [latents | factors]; in bf16
    enum { SHARED_BYTES = (2 * ROWS * HS + ROPE + STAGES * STAGE) * 2 };
};

// Tokens first ... first + n, which stand at `position` on; heads h ... end.
struct ExpandTile {
    size_t first;
    int n, b, position, h, end;
};
template <bool CACHED> __device__ __forceinline__ ExpandTile expand_tile(const ExpandCall &c) {
    int groups = (c.NH + c.heads - 1) / c.heads;
    ExpandTile t;
    t.h = (int)(blockIdx.x % groups) * c.heads;
    t.end = min(t.h + c.heads, c.NH);
    t.first = (size_t)(blockIdx.x / groups) * ROWS;
    t.b = (int)(t.first / c.T);
    t.position = (int)(t.first % c.T);
    t.n = CACHED ? min((int)ROWS, c.pos[t.b] + c.n_new[t.b] - t.position)
                 : (int)min((size_t)ROWS, c.N - t.first);
    return t;
}

// Starts to copy rows of chunks to a tile of D columns; chunk j of row i exists up to bytes(i, j).
template <int D, int HEIGHT, typename F>
__device__ __forceinline__ void copy_tile(bf16 *tile, F source) {
    for (int i = threadIdx.x; i < HEIGHT * D / 8; i += THREADS) {
        int row = i / (D / 8), chunk = i % (D / 8), bytes = 0;
        const void *p = source(row, chunk, &bytes);
        cp_async_16(chunk_at<D>(tile, row, chunk), p, bytes);
    }
}

// What all heads share: rows of s and of the rope table.
template <typename S, bool CACHED>
__device__ __forceinline__ void copy_shared(bf16 *s_tile, bf16 *rope_tile, const ExpandCall &c,
                                            const ExpandTile &t) {
    if (c.s) {
        const bf16 *s =
            CACHED ? c.s + t.b * c.s_batch + t.position * c.ld_s : c.s + t.first * c.ld_s;
        copy_tile<S::HS, ROWS>(s_tile, [&](int row, int chunk, int *bytes) {
            *bytes = row < t.n ? 16 : 0;
            return s + row * c.ld_s + chunk * 8;
        });
    }
    if (!c.rope) return;
    copy_tile<2 * S::HS, ROWS>(rope_tile, [&](int row, int chunk, int *bytes) {
        size_t token = t.first + row, position = t.position + row;
        *bytes = row < t.n ? 16 : 0;
        if (!CACHED) {
            position = token % c.T;
            if (c.pos && row < t.n) position += c.pos[token / c.T];
        }
        return c.rope + position * S::HS + chunk * 4;
    });
}

// Latents and factors of head h, ranks i ... i + 63.
template <typename S, bool CACHED>
__device__ __forceinline__ void copy_piece(bf16 *stage, const ExpandCall &c, const ExpandTile &t,
                                           int h, int i) {
    const bf16 *b = c.b + (size_t)h * S::HS * c.ld_b + i;
    int left = c.R - i;
    if (CACHED) {
        const bf16 *z = c.z + t.b * c.z_batch + t.position * c.ld_z +
                        ((c.shared_z ? 0 : h * c.R) + i) * LATENT_BLOCK;
        copy_tile<ROWS, RANKS>(stage, [&](int row, int chunk, int *bytes) {
            *bytes = row < left ? bytes_of(t.n - chunk * 8) : 0;
            return z + row * LATENT_BLOCK + chunk * 8;
        });
    } else {
        const bf16 *z = c.z + t.first * c.ld_z + (size_t)h * c.R + i;
        copy_tile<RANKS, ROWS>(stage, [&](int row, int chunk, int *bytes) {
            *bytes = row < t.n ? bytes_of(left - chunk * 8) : 0;
            return z + row * c.ld_z + chunk * 8;
        });
    }
    copy_tile<RANKS, S::HS>(stage + ROWS * RANKS, [&](int row, int chunk, int *bytes) {
        *bytes = bytes_of(left - chunk * 8);
        return b + row * c.ld_b + chunk * 8;
    });
}

// x = s + bias of the warp's rows.
template <int HS>
__device__ __forceinline__ void start_head(float (&x)[HS / 8][4], const bf16 *s_tile,
                                           const float *bias, int row) {
    int lane = (int)opaque(threadIdx.x % WARP);
#pragma unroll
    for (int j = 0; j < HS / 8; j++) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float y[2] = {0.0f, 0.0f}, z[2] = {0.0f, 0.0f};
            if (s_tile)
                load_vec<2>(y, chunk_at<HS>(s_tile, row + lane / 4 + 8 * r, j) + lane % 4 * 2);
            if (bias) load_vec<2>(z, bias + 8 * j + lane % 4 * 2);
            x[j][2 * r] = y[0] + z[0];
            x[j][2 * r + 1] = y[1] + z[1];
        }
    }
}

// x += z b^T for ranks of one piece.
template <int HS, bool CACHED>
__device__ __forceinline__ void add_piece(float (&x)[HS / 8][4], const bf16 *stage, int row,
                                          int ranks) {
    LaneMap at = lane_map();
    for (int i = 0; i < ranks; i += 16) {
        unsigned a[4], b[4];
        if (CACHED)  // rows of the tile are ranks
            load_a_trans<ROWS>(a, stage, at, i, row);
        else
            load_a<RANKS>(a, stage, at, row, i);
#pragma unroll
        for (int j = 0; j < HS / 8; j += 2) {
            load_b<RANKS>(b, stage + ROWS * RANKS, at, 8 * j, i);
            mma_m16n8k16(x[j], a, b[0], b[1]);
            mma_m16n8k16(x[j + 1], a, b[2], b[3]);
        }
    }
}

// Rotates pairs (column c, c + HS/2).
template <int HS>
__device__ __forceinline__ void rotate(float (&x)[HS / 8][4], const bf16 *rope_tile, int row) {
    int lane = (int)opaque(threadIdx.x % WARP);
#pragma unroll
    for (int j = 0; j < HS / 16; j++) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const bf16 *at = chunk_at<2 * HS>(rope_tile, row + lane / 4 + 8 * r, 4 * j + lane % 4);
            rotate_pairs<2>(&x[j][2 * r], &x[j + HS / 16][2 * r],
                            reinterpret_cast<const float *>(at), 1.0f);
        }
    }
}

// 1 / rms of the two rows of a lane.
template <int HS>
__device__ __forceinline__ void inverse_norms(float (&rstd)[2], const float (&x)[HS / 8][4],
                                              float eps) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float sum = 0.0f;
#pragma unroll
        for (int j = 0; j < HS / 8; j++)
            sum += x[j][2 * r] * x[j][2 * r] + x[j][2 * r + 1] * x[j][2 * r + 1];
        rstd[r] = 1.0f / sqrtf(warp_sum<4>(sum) / HS + eps);
    }
}

template <typename S, bool CACHED>
__global__ void __launch_bounds__(THREADS) lowrank_mma_expand_kernel(ExpandCall c) {
    enum { HS = S::HS };
    SHARED(bf16, s_tile);
    bf16 *out_tile = s_tile + ROWS * HS, *rope_tile = out_tile + ROWS * HS;
    bf16 *stages = rope_tile + S::ROPE;
    ExpandTile t = expand_tile<CACHED>(c);
    if (t.n <= 0) return;  // the whole block
    int row = (int)threadIdx.x / WARP * 16, lane = threadIdx.x % WARP, stage = 0;
    copy_shared<S, CACHED>(s_tile, rope_tile, c, t);
    copy_piece<S, CACHED>(stages, c, t, t.h, 0);
    cp_async_commit();
    float x[HS / 8][4];
    for (int h = t.h, i = 0; h < t.end;) {
        bool last = i + RANKS >= c.R;
        int next = last ? 0 : i + RANKS, next_h = last ? h + 1 : h;
        cp_async_wait<0>();
        __syncthreads();  // the piece is here, and nobody reads the one before any more
        if (S::STAGES == 2 && next_h < t.end)
            copy_piece<S, CACHED>(stages + (stage ^ 1) * S::STAGE, c, t, next_h, next);
        cp_async_commit();
        if (i == 0)
            start_head<HS>(x, c.s ? s_tile : nullptr, c.bias ? c.bias + h * HS : nullptr, row);
        add_piece<HS, CACHED>(x, stages + stage * S::STAGE, row, min((int)RANKS, c.R - i));
        if (S::STAGES == 1) {
            __syncthreads();  // nobody reads the piece any more
            if (next_h < t.end) copy_piece<S, CACHED>(stages, c, t, next_h, next);
            cp_async_commit();
        } else {
            stage ^= 1;
        }
        if (last) {
            float rstd[2] = {1.0f, 1.0f};
            if (c.rope) rotate<HS>(x, rope_tile, row);
            if (c.norm) inverse_norms<HS>(rstd, x, c.eps);
#pragma unroll
            for (int r = 0; r < 2; r++) {
                int at = row + lane / 4 + 8 * r;
                if (c.rstd && c.norm && lane % 4 == 0 && at < t.n)
                    c.rstd[(t.first + at) * c.NH + h] = rstd[r];
            }
            store_rows<HS>(x, rstd, out_tile, row,
                           PackedRows{c.out + t.first * c.ld_out + h * HS, c.ld_out, 0, 1, 0}, t.n);
        }
        h = next_h, i = next;
    }
}

template <typename S, bool CACHED> struct ExpandKernel {
    enum { SHARED_BYTES = S::SHARED_BYTES };
    static void launch(const ExpandCall &c, size_t blocks) {
        LAUNCH((lowrank_mma_expand_kernel<S, CACHED>), blocks, THREADS, SHARED_BYTES, cuda_stream())
        (c);
    }
};

template <int HS, bool CACHED> static void launch(ExpandCall c) {
    size_t tiles = ceil_div(c.N, ROWS), want = ceil_div(2 * (size_t)cuda_device()->n_sm, tiles);
    c.heads = (int)ceil_div((size_t)c.NH, min_size(want, (size_t)c.NH));
    size_t blocks = tiles * ceil_div((size_t)c.NH, (size_t)c.heads);
    launch_fitting<ExpandKernel<ExpandShape<HS, 2>, CACHED>,
                   ExpandKernel<ExpandShape<HS, 1>, CACHED>>(c, blocks);
}

bool lowrank_mma_forward(bf16 *out, float *rstd, const bf16 *s, const bf16 *z, const bf16 *b,
                         const LowRankArgs *a) {
    bool fit = fits<8>(out) && fits<8>(s) && fits<8>(z) && fits<8>(b) && fits<4>(a->rope) &&
               has_mma_shared();
    size_t strides = a->ld_out | a->ld_z | (s ? a->ld_s : 0) | (size_t)a->R;
    if (!fit || strides % 8 || (a->HS != 64 && a->HS != 128)) return false;
    ExpandCall c = {};
    c.out = out, c.rstd = rstd, c.s = s, c.z = z, c.b = b, c.rope = a->rope, c.pos = a->pos;
    c.ld_out = a->ld_out, c.ld_s = a->ld_s, c.ld_z = a->ld_z, c.ld_b = (size_t)a->R;
    c.N = (size_t)a->B * a->T, c.T = a->T, c.NH = a->NH, c.R = a->R;
    c.norm = a->norm, c.eps = a->eps;
    if (a->HS == 64)
        launch<64, false>(c);
    else
        launch<128, false>(c);
    return true;
}

bool lowrank_mma_expand(const CacheExpand *e, const LowRankCache *l, const SdpaArgs *a) {
    const void *s = e->keys ? l->ks : l->vs, *z = e->keys ? l->zk : l->zv;
    const bf16 *b = reinterpret_cast<const bf16 *>(e->keys ? l->bk : l->bv);
    ExpandCall c = {};
    c.out = e->out, c.s = static_cast<const bf16 *>(s), c.z = static_cast<const bf16 *>(z), c.b = b;
    c.bias = e->keys ? l->bias_k : l->bias_v;
    c.rope = e->keys ? l->rope : nullptr;
    c.ld_out = (size_t)a->NH * e->width, c.ld_s = (size_t)e->width;
    c.ld_z = (size_t)(e->keys ? l->n_zk : l->n_zv), c.ld_b = (size_t)l->ld_b;
    c.s_batch = e->keys ? l->ks_batch : l->vs_batch;
    c.z_batch = e->keys ? l->zk_batch : l->zv_batch;
    c.N = (size_t)e->n_b * e->positions, c.T = e->positions;
    c.pos = a->pos + e->b, c.n_new = a->n_new + e->b;
    c.NH = a->NH, c.R = l->r, c.shared_z = l->shared_z;
    c.norm = e->keys && l->norm, c.eps = l->eps;
    size_t strides = c.ld_b | c.s_batch | c.z_batch;
    bool fit = fits<8>(c.s) && fits<8>(c.z) && fits<8>(b) && fits<4>(c.rope) && fits<2>(c.bias);
    if (!fit || strides % 8) return false;
    if (c.s) c.s += e->b * c.s_batch;
    c.z += e->b * c.z_batch;
    if (e->width == 64)
        launch<64, true>(c);
    else
        launch<128, true>(c);
    return true;
}
