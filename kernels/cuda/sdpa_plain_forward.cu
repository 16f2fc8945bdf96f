// sdpa_plain_forward.cu - causal attention for training and over a cache, any head size, fp32
// arithmetic. Online softmax (Milakov and Gimelshein 2018; Dao et al. 2022) in base 2: a block
// walks through the keys of 32 rows. Over a cache the keys are cut into splits, as many as it takes
// to fill the device.
#include "kernels/cuda/sdpa_plain.cuh"
#include "kernels/cuda/sdpa_plain.h"

#include <limits.h>

enum { MIN_SPLIT = 128 };  // keys

#define LOG2_E 1.4426950408889634f
#define LN_2   0.6931471805599453f

template <typename T, typename KV> struct Attend {
    T *out;
    float *lse;  // natural, or NULL
    const T *q;
    const KV *k, *v;
    SdpaArgs a;
    SplitRows split;
    int keys;  // in a split, a multiple of TILE
    int row_tiles, chunks;
};

// What a block works on. Long rows come first; blocks that read the same keys are neighbours.
struct Block {
    int b, kv, row, split, col;
};
template <typename T, typename KV>
__device__ __forceinline__ Block block_here(const Attend<T, KV> &t) {
    size_t i = blockIdx.x;
    Block at;
    at.col = (int)(i % t.chunks) * CHUNK;
    i /= t.chunks;
    at.split = (int)(i % t.split.n_splits);
    i /= t.split.n_splits;
    at.kv = (int)(i % t.a.NKV);
    i /= t.a.NKV;
    at.b = (int)(i % t.a.B);
    at.row = (t.row_tiles - 1 - (int)(i / t.a.B)) * TILE;
    return at;
}

template <typename T, typename KV, int W>
__global__ void __launch_bounds__(SDPA_THREADS, 1) sdpa_rows_kernel(Attend<T, KV> t) {
    SHARED(float, shared);
    SdpaShared sh = sdpa_shared(shared);
    const SdpaArgs &a = t.a;
    Block at = block_here(t);
    int tx = threadIdx.x % 16, ty = threadIdx.x / 16, G = a.NH / a.NKV;
    int start = a.pos ? a.pos[at.b] : 0, n_rows = (a.n_new ? a.n_new[at.b] : a.Tq) * G;
    if (at.row >= n_rows) return;  // the whole block
    int last = min(at.row + TILE, n_rows) - 1;
    int begin = at.split * t.keys, end = min(begin + t.keys, start + last / G + 1);
    Rows<const T> q = {t.q + at.b * a.q_batch + (size_t)at.kv * G * a.q_head, a.q_token, a.q_head,
                       G, n_rows};
    Rows<const KV> k = {t.k + at.b * a.k_batch + at.kv * a.k_head, a.k_token, 0, 1, end};
    Rows<const KV> v = {t.v + at.b * a.v_batch + at.kv * a.v_head, a.v_token, 0, 1, end};

    int limit[4];  // the last key of a row, counted from the tile's first
    float o[4][8], s[4][2], top[4], sum[4];
    zero(o);
#pragma unroll
    for (int i = 0; i < 4; i++)
        top[i] = -INFINITY, sum[i] = 0.0f;
    for (int key = begin; key < end; key += TILE) {
        tile_scores<W>(s, q, at.row, k, key, a.HS, sh);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            limit[i] = start + (at.row + 4 * ty + i) / G - key;
#pragma unroll
            for (int j = 0; j < 2; j++)
                s[i][j] = tx + 16 * j <= limit[i] ? s[i][j] * (a.scale * LOG2_E) : -INFINITY;

            float best = fmaxf(top[i], warp_max<16>(fmaxf(s[i][0], s[i][1])));
            float from = best == -INFINITY ? 0.0f : best, shrink = exp2_approx(top[i] - from);
            s[i][0] = exp2_approx(s[i][0] - from);
            s[i][1] = exp2_approx(s[i][1] - from);
            sum[i] = sum[i] * shrink + s[i][0] + s[i][1];
            top[i] = best;
#pragma unroll
            for (int j = 0; j < 8; j++)
                o[i][j] *= shrink;
        }
        tile_put(sh.p, s);
        tile_load<W, CHUNK>(sh.chunk, v, key, at.col, a.HV);
        __syncthreads();
        if (key + TILE - 1 <= start + at.row / G)  // all rows see all keys
            tile_accumulate(o, sh);
        else
            tile_accumulate<true>(o, sh, limit);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float total = warp_sum<16>(sum[i]), factor = 1.0f / total;
        int m = at.row + 4 * ty + i;
        if (m >= n_rows) continue;
        int h = at.kv * G + m % G;
        size_t index = ((size_t)at.b * a.NH + h) * a.Tq + m / G;
        float lse = top[i] + log2f(total);
        if (t.split.n_splits > 1) {
            size_t to = at.split * t.split.rows + index;
            chunk_store<W>(t.split.out + to * a.HV, o[i], factor, at.col, a.HV);
            if (tx == 0 && at.col == 0) t.split.lse[to] = lse;
        } else {
            T *to = t.out + at.b * a.o_batch + (size_t)(m / G) * a.o_token + h * a.o_head;
            chunk_store<W>(to, o[i], factor, at.col, a.HV);
            if (t.lse && tx == 0 && at.col == 0) t.lse[index] = lse * LN_2;
        }
    }
}

// One warp per row.
template <typename T> __global__ void sdpa_combine_kernel(T *out, SplitRows s, SdpaArgs a) {
    size_t row = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) / WARP;
    int lane = threadIdx.x % WARP;
    if (row >= s.rows) return;
    int t = (int)(row % a.Tq), h = (int)(row / a.Tq % a.NH), b = (int)(row / a.Tq / a.NH);
    if (t >= a.n_new[b]) return;
    float top = -INFINITY, sum = 0.0f;
    for (int i = 0; i < s.n_splits; i++)
        top = fmaxf(top, s.lse[i * s.rows + row]);
    for (int i = 0; i < s.n_splits; i++)
        sum += exp2_approx(s.lse[i * s.rows + row] - top);
    T *to = out + b * a.o_batch + t * a.o_token + h * a.o_head;
    for (int j = lane; j < a.HV; j += WARP) {
        float x = 0.0f;
        for (int i = 0; i < s.n_splits; i++) {
            float weight = exp2_approx(s.lse[i * s.rows + row] - top) / sum;
            if (weight != 0.0f) x += weight * s.out[(i * s.rows + row) * a.HV + j];
        }
        to[j] = from_float<T>(x);
    }
}

template <typename T> void sdpa_combine(T *out, const SplitRows &s, const SdpaArgs *a) {
    LAUNCH(sdpa_combine_kernel<T>, ceil_div(s.rows, 8), 8 * WARP, 0, cuda_stream())(out, s, *a);
}
template void sdpa_combine<float>(float *, const SplitRows &, const SdpaArgs *);
template void sdpa_combine<bf16>(bf16 *, const SplitRows &, const SdpaArgs *);

static bool strides_fit(const SdpaArgs *a) {
    size_t all = (size_t)a->HS | (size_t)a->HV | a->q_token | a->k_token | a->v_token | a->o_token |
                 a->q_head | a->k_head | a->v_head | a->o_head | a->q_batch | a->k_batch |
                 a->v_batch | a->o_batch;
    return all % 8 == 0;
}

SplitRows sdpa_splits(const SdpaArgs *a, size_t blocks, int *keys) {
    SplitRows s = {nullptr, nullptr, 1, (size_t)a->B * a->NH * a->Tq};
    *keys = INT_MAX;
    if (!a->pos) return s;
    // Shorter splits cost more than they give.
    size_t wanted = ceil_div(4 * (size_t)cuda_device()->n_sm, blocks);
    size_t n = min_size(wanted, ceil_div((size_t)a->max_pos, MIN_SPLIT));
    if (n < 2) return s;
    *keys = (int)round_up(ceil_div((size_t)a->max_pos, n), 64);
    s.n_splits = (int)ceil_div((size_t)a->max_pos, (size_t)*keys);
    size_t rows = s.n_splits * s.rows;
    s.out = static_cast<float *>(cuda_scratch(rows * (size_t)(a->HV + 1) * sizeof(float)));
    s.lse = s.out + rows * a->HV;
    return s;
}

template <typename T, typename KV> static void attend(Attend<T, KV> t) {
    const SdpaArgs *a = &t.a;
    t.row_tiles = (int)ceil_div((size_t)a->Tq * (size_t)(a->NH / a->NKV), TILE);
    t.chunks = (int)ceil_div((size_t)a->HV, CHUNK);
    size_t blocks = (size_t)t.row_tiles * t.chunks * a->B * a->NKV;
    t.split = sdpa_splits(a, blocks, &t.keys);
    blocks *= (size_t)t.split.n_splits;
    size_t bytes = SDPA_SHARED * sizeof(float);
    if (strides_fit(a) && fits<8>(t.q) && fits<8>(t.k) && fits<8>(t.v) && fits<8>(t.out)) {
        LAUNCH((sdpa_rows_kernel<T, KV, 8>), blocks, SDPA_THREADS, bytes, cuda_stream())(t);
    } else {
        LAUNCH((sdpa_rows_kernel<T, KV, 1>), blocks, SDPA_THREADS, bytes, cuda_stream())(t);
    }
    if (t.split.n_splits > 1) sdpa_combine(t.out, t.split, a);
}

template <typename T>
void sdpa_plain_forward(floatX *out, float *lse, const floatX *q, const floatX *k, const floatX *v,
                        const SdpaArgs *a) {
    Attend<T, T> t = {(T *)out, lse, (const T *)q, (const T *)k, (const T *)v, *a, {}, 0, 0, 0};
    t.a.pos = t.a.n_new = nullptr;
    attend(t);
}

template <typename T, typename KV>
static void extend(floatX *out, const floatX *q, const void *k, const void *v, const SdpaArgs *a) {
    Attend<T, KV> t = {(T *)out, nullptr, (const T *)q, (const KV *)k, (const KV *)v, *a, {}, 0,
                       0,        0};
    attend(t);
}

template <typename T>
void sdpa_plain_extend(floatX *out, const floatX *q, const void *k, const void *v,
                       const SdpaArgs *a) {
    if (a->kv_type == TYPE_BF16)
        extend<T, bf16>(out, q, k, v, a);
    else
        extend<T, float>(out, q, k, v, a);
}

template void sdpa_plain_forward<float>(floatX *, float *, const floatX *, const floatX *,
                                        const floatX *, const SdpaArgs *);
template void sdpa_plain_extend<float>(floatX *, const floatX *, const void *, const void *,
                                       const SdpaArgs *);
template void sdpa_plain_forward<bf16>(floatX *, float *, const floatX *, const floatX *,
                                       const floatX *, const SdpaArgs *);
template void sdpa_plain_extend<bf16>(floatX *, const floatX *, const void *, const void *,
                                      const SdpaArgs *);
