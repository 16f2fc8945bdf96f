// sdpa_plain_backward.cu - gradients of causal attention, any head size, fp32 arithmetic, no
// atomics. With P = exp(scale S - lse), dP = dO V^T and delta = rowsum(dO O) (Dao et al. 2022):
//   dV = P^T dO,  dS = P (dP - delta),  dK = scale dS^T Q,  dQ = scale dS K
// One kernel owns a tile of keys and walks through the rows that see it (of all heads of the
// group); another owns a tile of rows and walks through its keys. Both recompute S and dP.
#include "kernels/cuda/sdpa_plain.cuh"
#include "kernels/cuda/sdpa_plain.h"

#define LOG2_E 1.4426950408889634f

template <typename T> struct Backward {
    T *dq, *dk, *dv;
    const T *dout, *out;
    const float *lse;  // (B, NH, T)
    float *delta;      // (B, NH, T)
    const T *q, *k, *v;
    SdpaArgs a;
    int tiles, chunks;
};

// One warp per row: delta = sum of dout * out.
template <typename T> __global__ void sdpa_delta_kernel(Backward<T> t) {
    const SdpaArgs &a = t.a;
    size_t row = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) / WARP;
    bool real = row < (size_t)a.B * a.NH * a.Tq;
    size_t n = row % a.Tq, h = row / a.Tq % a.NH, b = row / a.Tq / a.NH;
    size_t at = b * a.o_batch + n * a.o_token + h * a.o_head;
    float sum = 0.0f;
    for (int j = threadIdx.x % WARP; real && j < a.HV; j += WARP) {
        sum += to_float(t.dout[at + j]) * to_float(t.out[at + j]);
    }
    sum = warp_sum(sum);
    if (real && threadIdx.x % WARP == 0) t.delta[row] = sum;
}

// The matrices of one batch row and key/value head.
template <typename T> struct HeadViews {
    Rows<const T> q, k, v, dout;
    size_t stats;  // of (head G * kv, t = 0) in lse and delta
};
template <typename T>
__device__ __forceinline__ HeadViews<T> head_views(const Backward<T> &t, int b, int kv) {
    const SdpaArgs &a = t.a;
    int G = a.NH / a.NKV;
    size_t h = (size_t)kv * G;
    return {{t.q + b * a.q_batch + h * a.q_head, a.q_token, a.q_head, G, a.Tq * G},
            {t.k + b * a.k_batch + kv * a.k_head, a.k_token, 0, 1, a.Tk},
            {t.v + b * a.v_batch + kv * a.v_head, a.v_token, 0, 1, a.Tk},
            {t.dout + b * a.o_batch + h * a.o_head, a.o_token, a.o_head, G, a.Tq * G},
            ((size_t)b * a.NH + h) * a.Tq};
}

// This thread's pieces of P and of dP - delta (in dp), for rows `row` and keys `key` on.
template <int W, typename T>
__device__ __forceinline__ void tile_probabilities(float (&p)[4][2], float (&dp)[4][2],
                                                   const Backward<T> &t, const HeadViews<T> &x,
                                                   int row, int key, const SdpaShared &sh) {
    const SdpaArgs &a = t.a;
    int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
    tile_scores<W>(dp, x.dout, row, x.v, key, a.HV, sh);
    tile_scores<W>(p, x.q, row, x.k, key, a.HS, sh);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int m = row + 4 * ty + i, n = m / x.q.G;
        bool real = m < x.q.end;
        size_t at = x.stats + (size_t)(m % x.q.G) * a.Tq + n;
        float lse = real ? t.lse[at] * LOG2_E : 0.0f, delta = real ? t.delta[at] : 0.0f;
#pragma unroll
        for (int j = 0; j < 2; j++) {
            bool seen = key + tx + 16 * j <= n;  // 1 in rows that do not exist, whose dout is 0
            p[i][j] = seen ? exp2_approx(p[i][j] * (a.scale * LOG2_E) - lse) : 0.0f;
            dp[i][j] -= delta;
        }
    }
}

template <typename T, int W>
__global__ void __launch_bounds__(SDPA_THREADS, 1) sdpa_dkv_kernel(Backward<T> t) {
    SHARED(float, shared);
    SdpaShared sh = sdpa_shared(shared);
    const SdpaArgs &a = t.a;
    size_t i0 = blockIdx.x;  // early keys are seen by most rows: they come first
    int col = (int)(i0 % t.chunks) * CHUNK, kv = (int)(i0 / t.chunks % a.NKV);
    int b = (int)(i0 / t.chunks / a.NKV % a.B), key = (int)(i0 / t.chunks / a.NKV / a.B) * TILE;
    HeadViews<T> x = head_views(t, b, kv);
    float dk[4][8], dv[4][8], p[4][2], ds[4][2];
    zero(dk);
    zero(dv);
    for (int row = key * x.q.G / TILE * TILE; row < x.q.end; row += TILE) {
        tile_probabilities<W>(p, ds, t, x, row, key, sh);
        if (col < a.HV) {
            tile_put(sh.p, p);
            tile_load<W, CHUNK>(sh.chunk, x.dout, row, col, a.HV);
            __syncthreads();
            tile_accumulate_trans(dv, sh);
            __syncthreads();
        }
        if (col >= a.HS) continue;
#pragma unroll
        for (int i = 0; i < 4; i++)
            ds[i][0] *= p[i][0], ds[i][1] *= p[i][1];
        tile_put(sh.p, ds);
        tile_load<W, CHUNK>(sh.chunk, x.q, row, col, a.HS);
        __syncthreads();
        tile_accumulate_trans(dk, sh);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int n = key + (int)threadIdx.x / 16 * 4 + i;
        if (n >= a.Tk) continue;
        chunk_store<W>(t.dk + b * a.k_batch + n * a.k_token + kv * a.k_head, dk[i], a.scale, col,
                       a.HS);
        chunk_store<W>(t.dv + b * a.v_batch + n * a.v_token + kv * a.v_head, dv[i], 1.0f, col,
                       a.HV);
    }
}

template <typename T, int W>
__global__ void __launch_bounds__(SDPA_THREADS, 1) sdpa_dq_kernel(Backward<T> t) {
    SHARED(float, shared);
    SdpaShared sh = sdpa_shared(shared);
    const SdpaArgs &a = t.a;
    size_t i0 = blockIdx.x;  // late rows see most keys: they come first
    int col = (int)(i0 % t.chunks) * CHUNK, kv = (int)(i0 / t.chunks % a.NKV);
    int b = (int)(i0 / t.chunks / a.NKV % a.B);
    int row = (t.tiles - 1 - (int)(i0 / t.chunks / a.NKV / a.B)) * TILE;
    HeadViews<T> x = head_views(t, b, kv);
    float dq[4][8], p[4][2], ds[4][2];
    zero(dq);
    int last = min(row + TILE, x.q.end) - 1;
    for (int key = 0; key <= last / x.q.G; key += TILE) {
        tile_probabilities<W>(p, ds, t, x, row, key, sh);
#pragma unroll
        for (int i = 0; i < 4; i++)
            ds[i][0] *= p[i][0], ds[i][1] *= p[i][1];
        tile_put(sh.p, ds);
        tile_load<W, CHUNK>(sh.chunk, x.k, key, col, a.HS);
        __syncthreads();
        tile_accumulate(dq, sh);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int m = row + (int)threadIdx.x / 16 * 4 + i;
        if (m >= x.q.end) continue;
        size_t h = (size_t)kv * x.q.G + m % x.q.G;
        T *to = t.dq + b * a.q_batch + (size_t)(m / x.q.G) * a.q_token + h * a.q_head;
        chunk_store<W>(to, dq[i], a.scale, col, a.HS);
    }
}

template <typename T, int W> static void backward(Backward<T> t) {
    const SdpaArgs *a = &t.a;
    size_t rows = (size_t)a->B * a->NH * a->Tq, heads = (size_t)a->B * a->NKV;
    size_t bytes = SDPA_SHARED * sizeof(float);
    LAUNCH(sdpa_delta_kernel<T>, ceil_div(rows, 8), 8 * WARP, 0, cuda_stream())(t);
    t.tiles = (int)ceil_div((size_t)a->Tk, TILE);
    t.chunks = (int)ceil_div((size_t)max_int(a->HS, a->HV), CHUNK);
    LAUNCH((sdpa_dkv_kernel<T, W>), heads * t.tiles * t.chunks, SDPA_THREADS, bytes, cuda_stream())
    (t);
    t.tiles = (int)ceil_div((size_t)a->Tq * (size_t)(a->NH / a->NKV), TILE);
    t.chunks = (int)ceil_div((size_t)a->HS, CHUNK);
    LAUNCH((sdpa_dq_kernel<T, W>), heads * t.tiles * t.chunks, SDPA_THREADS, bytes, cuda_stream())
    (t);
}

template <typename T>
void sdpa_plain_backward(floatX *dq, floatX *dk, floatX *dv, const floatX *dout, const floatX *out,
                         const float *lse, const floatX *q, const floatX *k, const floatX *v,
                         const SdpaArgs *a) {
    float *delta = static_cast<float *>(cuda_scratch((size_t)a->B * a->NH * a->Tq * sizeof(float)));
    Backward<T> t = {(T *)dq,
                     (T *)dk,
                     (T *)dv,
                     (const T *)dout,
                     (const T *)out,
                     lse,
                     delta,
                     (const T *)q,
                     (const T *)k,
                     (const T *)v,
                     *a,
                     0,
                     0};
    size_t all = (size_t)a->HS | (size_t)a->HV | a->q_token | a->k_token | a->v_token | a->o_token |
                 a->q_head | a->k_head | a->v_head | a->o_head | a->q_batch | a->k_batch |
                 a->v_batch | a->o_batch;
    bool wide = all % 8 == 0 && fits<8>(t.dq) && fits<8>(t.dk) && fits<8>(t.dv) &&
                fits<8>(t.dout) && fits<8>(t.q) && fits<8>(t.k) && fits<8>(t.v);
    if (wide)
        backward<T, 8>(t);
    else
        backward<T, 1>(t);
}

template void sdpa_plain_backward<float>(floatX *, floatX *, floatX *, const floatX *,
                                         const floatX *, const float *, const floatX *,
                                         const floatX *, const floatX *, const SdpaArgs *);
template void sdpa_plain_backward<bf16>(floatX *, floatX *, floatX *, const floatX *,
                                        const floatX *, const float *, const floatX *,
                                        const floatX *, const floatX *, const SdpaArgs *);
