// lowrank_plain_extend.cu - attention over cached low-rank rows in fp32 arithmetic, any size. Keys
// are rebuilt 64 at a time in shared memory, rounded as training rounds them; values stay factored
// until the end:
//   out_h = (sum p vs + (sum p zv_h) bv_h^T) / sum p + bias_v
// A block takes tokens of one head; a long cache is cut into splits when rows alone do not fill the
// device, and a second kernel adds those up.
#include "kernels/cuda/lowrank.h"
#include "kernels/cuda/tile.cuh"

#define LOG2E 1.44269504088896f

template <typename T, typename KV> struct ExtendCall {
    T *out;
    const T *q;
    SdpaArgs a;
    LowRankCache c;
    LowRankParts parts;  // n_splits 1: none, the output is written at once
    int split_keys, row_blocks;
};

// Tokens first ... first + n of head h, keys begin ... end.
struct Work {
    int b, h, split, pos, first, n, begin, end;
};
template <int ROWS, typename T, typename KV>
__device__ __forceinline__ Work work_of(const ExtendCall<T, KV> &c) {
    Work w;
    size_t i = blockIdx.x;
    w.h = (int)(i % c.a.NH);
    i /= c.a.NH;
    w.b = (int)(i % c.a.B);
    i /= c.a.B;
    w.split = (int)(i % c.parts.n_splits);
    w.first = (c.row_blocks - 1 - (int)(i / c.parts.n_splits)) * ROWS;  // the longest first
    w.pos = c.a.pos[w.b];
    w.n = min(ROWS, c.a.n_new[w.b] - w.first);
    w.begin = w.split * c.split_keys;
    w.end = min(w.begin + c.split_keys, w.pos + w.first + w.n);
    return w;
}

// The first of the r latent rows of a head in the block of positions that holds `key`.
template <typename KV>
__device__ __forceinline__ const KV *latents(const void *z, size_t batch, int n_z,
                                             const LowRankCache &c, const Work &w, int key) {
    size_t row = (size_t)(key / LATENT_BLOCK) * n_z + (c.shared_z ? 0 : (size_t)w.h * c.r);
    return static_cast<const KV *>(z) + w.b * batch + row * LATENT_BLOCK;
}

// kt (TILE, HS) = keys `key` on; rows from n on are undefined but finite. Needs two tiles.
template <typename T, typename KV>
__device__ __forceinline__ void build_keys(float *kt, float *z_tile, float *b_tile,
                                           const ExtendCall<T, KV> &call, const Work &w, int key,
                                           int n) {
    const LowRankCache &c = call.c;
    int HS = call.a.HS;
    const KV *z = latents<KV>(c.zk, c.zk_batch, c.n_zk, c, w, key);
    const KV *ks = static_cast<const KV *>(c.ks);
    if (ks) ks += w.b * c.ks_batch + (size_t)key * HS;
    const T *b = reinterpret_cast<const T *>(c.bk) + (size_t)w.h * HS * c.ld_b;
    for (int col = 0; col < HS; col += TILE) {
        float acc[4][4];
        clear(acc);
        for (int i = 0; i < c.r; i += TILE) {
            __syncthreads();
            load_tile(z_tile, TILE, z + i * LATENT_BLOCK, LATENT_BLOCK, c.r - i, n);
            load_tile(b_tile, TILE, b + (size_t)col * c.ld_b + i, (size_t)c.ld_b, HS - col,
                      c.r - i);
            __syncthreads();
            multiply<BY_K, BY_ROW>(acc, z_tile, b_tile, min(TILE, c.r - i));
        }
        if (ks) add_rows(acc, ks + col, (size_t)HS, n, HS - col);
        if (c.bias_k) add_rows(acc, c.bias_k + (size_t)w.h * HS + col, 0, TILE, HS - col);
        store_acc(kt + tile_at(TILE, 0, col), acc);
    }
    __syncthreads();
    for (int p = threadIdx.x / WARP; p < n; p += TILE_THREADS / WARP) {
        const float *rope = c.rope ? c.rope + (size_t)(key + p) * HS : nullptr;
        float rstd = finish_row(kt, TILE, p, HS, rope, c.norm, c.eps);
        for (int i = threadIdx.x % WARP; i < HS; i += WARP) {
            float *x = kt + tile_at(TILE, p, i);
            *x = to_float(from_float<T>(*x * rstd));
        }
    }
}

// Online softmax (Milakov and Gimelshein 2018) in base 2 of the rows of a thread. m: the largest
// score so far, the same in the 16 lanes of the row; l: this lane's part of the sum of p; factor:
// what the last tile does to sums made before it.
template <int MR> struct SoftmaxRows { float m[MR], l[MR], factor[MR]; };

// x = scores becomes p, 0 from column seen of the row on. scale: of scores, to base 2.
template <int MR>
__device__ __forceinline__ void softmax_tile(SoftmaxRows<MR> &s, float (&x)[MR][4], int first_seen,
                                             float scale) {
#pragma unroll
    for (int i = 0; i < MR; i++) {
        int seen = first_seen + thread_y() + SIDE * i;
        float top = -INFINITY, sum = 0.0f;
#pragma unroll
        for (int j = 0; j < 4; j++)
            top = fmaxf(top, thread_x() + SIDE * j < seen ? x[i][j] * scale : -INFINITY);
        top = fmaxf(s.m[i], warp_max<SIDE>(top));
        float base = top == -INFINITY ? 0.0f : top;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            bool sees = thread_x() + SIDE * j < seen;
            x[i][j] = sees ? exp2_approx(fmaf(x[i][j], scale, -base)) : 0.0f;
            sum += x[i][j];
        }
        s.factor[i] = exp2_approx(s.m[i] - base);
        s.m[i] = top;
        s.l[i] = s.l[i] * s.factor[i] + sum;
    }
}

// o = o * factor + p values, for values of n keys: (n, width) rows, or (width, 64) latents. Row m
// sees keys below seen + m; behind them p is 0, but 0 times NaN or infinity is not.
template <Lie LIE, int MR, typename KV>
__device__ __forceinline__ void add_values(float *o, const float *p, float *b_tile, const KV *v,
                                           size_t ld, int n, int width, int seen,
                                           const float (&factor)[MR]) {
    for (int col = 0; col < width; col += TILE) {
        float acc[MR][4];
        __syncthreads();
        if (LIE == BY_K)
            load_tile(b_tile, TILE, v + col, ld, n, width - col);
        else
            load_tile(b_tile, TILE, v + col * ld, ld, width - col, n);
        __syncthreads();
        clear(acc);
        if (n <= seen)
            multiply<BY_ROW, LIE>(acc, p, b_tile, n);
        else
            multiply<BY_ROW, LIE, true>(acc, p, b_tile, n, seen);
        add_scaled(o + tile_at(SIDE * MR, 0, col), factor, acc);
    }
}

// Partial results, normalised.
template <typename T, typename KV, int MR>
__device__ __forceinline__ void write_part(const ExtendCall<T, KV> &call, const Work &w,
                                           const SoftmaxRows<MR> &s, const float *o,
                                           const float *oz) {
#pragma unroll
    for (int i = 0; i < MR; i++) {
        int r = thread_y() + SIDE * i;
        if (r >= w.n) continue;
        size_t row = ((size_t)w.b * call.a.NH + w.h) * call.a.Tq + w.first + r;
        size_t part = row * call.parts.n_splits + w.split;
        float factor = 1.0f / s.l[i], *to = call.parts.part + part * call.parts.width;
        for (int col = thread_x(); col < call.parts.plain; col += SIDE)
            to[col] = o[tile_at(SIDE * MR, r, col)] * factor;
        for (int col = thread_x(); col < call.c.r; col += SIDE)
            to[call.parts.plain + col] = oz[tile_at(SIDE * MR, r, col)] * factor;
        if (thread_x() == 0) call.parts.lse[part] = s.m[i] + log2f(s.l[i]);
    }
}

// out = (o + oz bv^T) / l + bias
template <typename T, typename KV, int MR>
__device__ __forceinline__ void write_out(const ExtendCall<T, KV> &call, const Work &w,
                                          const SoftmaxRows<MR> &s, const float *o, const float *oz,
                                          float *b_tile) {
    const LowRankCache &c = call.c;
    int HV = call.a.HV;
    const T *bv = reinterpret_cast<const T *>(c.bv) + (size_t)w.h * HV * c.ld_b;
    T *out = call.out + w.b * call.a.o_batch + w.first * call.a.o_token + w.h * call.a.o_head;
    for (int col = 0; col < HV; col += TILE) {
        float acc[MR][4];
        clear(acc);
        for (int i = 0; i < c.r; i += TILE) {
            __syncthreads();
            load_tile(b_tile, TILE, bv + (size_t)col * c.ld_b + i, (size_t)c.ld_b, HV - col,
                      c.r - i);
            __syncthreads();
            multiply<BY_ROW, BY_ROW>(acc, oz + tile_at(SIDE * MR, 0, i), b_tile,
                                     min(TILE, c.r - i));
        }
#pragma unroll
        for (int i = 0; i < MR; i++) {
            int r = thread_y() + SIDE * i;
#pragma unroll
            for (int j = 0; j < 4; j++) {
                int at = col + thread_x() + SIDE * j;
                if (r >= w.n || at >= HV) continue;
                float x = acc[i][j] + (call.parts.plain ? o[tile_at(SIDE * MR, r, at)] : 0.0f);
                x /= s.l[i];
                if (c.bias_v) x += c.bias_v[(size_t)w.h * HV + at];
                out[r * call.a.o_token + at] = from_float<T>(x);
            }
        }
    }
}

// The 1: left alone, ptxas spills to fit more blocks.
template <typename T, typename KV, int MR>
__global__ void __launch_bounds__(TILE_THREADS, 1)
    lowrank_plain_extend_kernel(ExtendCall<T, KV> call) {
    enum { ROWS = SIDE * MR };
    const SdpaArgs &a = call.a;
    const LowRankCache &c = call.c;
    SHARED(float, a_tile);  // latents, queries, then p
    float *b_tile = a_tile + TILE * LD, *kt = b_tile + TILE * LD;
    float *o = kt + tiles_floats(TILE, a.HS), *oz = o + tiles_floats(ROWS, call.parts.plain);
    Work w = work_of<ROWS>(call);
    if (w.n <= 0) return;  // the whole block
    const T *q = call.q + w.b * a.q_batch + w.first * a.q_token + w.h * a.q_head;
    SoftmaxRows<MR> s;
    float x[MR][4];
#pragma unroll
    for (int i = 0; i < MR; i++)
        s.m[i] = -INFINITY, s.l[i] = 0.0f;
    clear_tiles<MR>(o, call.parts.plain);
    clear_tiles<MR>(oz, c.r);
    for (int key = w.begin; key < w.end; key += TILE) {
        int n = min(TILE, w.end - key);
        build_keys(kt, a_tile, b_tile, call, w, key, n);
        clear(x);
        for (int col = 0; col < a.HS; col += TILE) {
            __syncthreads();
            load_tile(a_tile, ROWS, q + col, a.q_token, w.n, a.HS - col);
            __syncthreads();
            multiply<BY_ROW, BY_ROW>(x, a_tile, kt + tile_at(TILE, 0, col), min(TILE, a.HS - col));
        }
        int seen = w.pos + w.first + 1 - key;
        softmax_tile(s, x, seen, a.scale * LOG2E);
        __syncthreads();
        store_acc(a_tile, x);
        const KV *vs = static_cast<const KV *>(c.vs);
        if (vs) vs += w.b * c.vs_batch + (size_t)key * a.HV;
        add_values<BY_K>(o, a_tile, b_tile, vs, (size_t)a.HV, n, call.parts.plain, seen, s.factor);
        add_values<BY_ROW>(oz, a_tile, b_tile, latents<KV>(c.zv, c.zv_batch, c.n_zv, c, w, key),
                           LATENT_BLOCK, n, c.r, seen, s.factor);
    }
#pragma unroll
    for (int i = 0; i < MR; i++)
        s.l[i] = warp_sum<SIDE>(s.l[i]);
    if (call.parts.n_splits > 1)
        write_part(call, w, s, o, oz);
    else
        write_out(call, w, s, o, oz, b_tile);
}

static size_t shared_bytes(int MR, const LowRankCache *c, const SdpaArgs *a) {
    int rows = SIDE * MR;
    return (size_t)(2 * TILE * LD + tiles_floats(TILE, a->HS) +
                    tiles_floats(rows, c->vs ? a->HV : 0) + tiles_floats(rows, c->r)) *
           sizeof(float);
}

template <typename T, typename KV, int MR> static void launch(ExtendCall<T, KV> c) {
    const SdpaArgs *a = &c.a;
    c.row_blocks = (int)ceil_div((size_t)a->Tq, (size_t)(SIDE * MR));
    size_t blocks = (size_t)a->B * a->NH * c.row_blocks;
    c.parts = lowrank_parts(&c.c, a, blocks, true, &c.split_keys);
    LAUNCH((lowrank_plain_extend_kernel<T, KV, MR>), blocks * c.parts.n_splits, TILE_THREADS,
           shared_bytes(MR, &c.c, a), cuda_stream())
    (c);
    if (c.parts.n_splits > 1) lowrank_combine(c.out, c.parts, &c.c, a);
}

template <typename T, typename KV> static void extend(const ExtendCall<T, KV> &c) {
    size_t limit = cuda_device()->shared_limit;
    if (c.a.Tq > SIDE && shared_bytes(4, &c.c, &c.a) <= limit)
        launch<T, KV, 4>(c);
    else if (shared_bytes(1, &c.c, &c.a) <= limit)
        launch<T, KV, 1>(c);
    else
        die("CUDA: keys of %d values from %d latents do not fit into shared memory", c.a.HS, c.c.r);
}

template <typename T>
void lowrank_plain_extend(T *out, const T *q, const LowRankCache *c, const SdpaArgs *a) {
    if (a->kv_type == TYPE_BF16)
        extend(ExtendCall<T, bf16>{out, q, *a, *c, {}, 0, 0});
    else
        extend(ExtendCall<T, float>{out, q, *a, *c, {}, 0, 0});
}
template void lowrank_plain_extend(float *, const float *, const LowRankCache *, const SdpaArgs *);
template void lowrank_plain_extend(bf16 *, const bf16 *, const LowRankCache *, const SdpaArgs *);
