// lowrank.cu - low-rank keys and values in the op table: which kernel runs, and the element-wise
// part of the gradient. Norm and rotation of all heads of a token are undone by one group of 2, 4,
// ... 32 lanes, which keeps the sum over heads in registers, in fp32.
#include "kernels/cuda/lowrank.h"

#include "kernels/cuda/families.h"
#include "kernels/cuda/lowrank_mma.h"
#include "kernels/cuda/rope.cuh"

enum { BLOCK = 256, FEW = 8, MANY = 16 };  // pairs in a lane, for heads up to 512 values, 1024

template <typename T> struct UndoCall {
    T *ds, *dout;
    const T *y;
    const float *rstd;
    LowRankArgs a;
    size_t rows;
    int lanes;
};

// With y = x / rms(x) and d = dy: dx = rstd (d - y mean(d y)), then the rotation backwards.
template <typename T, int W, int VALUES> __global__ void lowrank_undo_kernel(UndoCall<T> c) {
    const LowRankArgs &a = c.a;
    size_t row = ((size_t)blockIdx.x * BLOCK + threadIdx.x) / c.lanes;
    int first = (int)(threadIdx.x % c.lanes) * W, step = c.lanes * W;
    int pairs = row < c.rows ? (a.HS + 1) / 2 : 0;
    size_t position = row % a.T + (a.pos && pairs ? a.pos[row / a.T] : 0);
    const float *rope = a.rope ? a.rope + position * a.HS : nullptr;
    float ds[2][VALUES] = {};
    for (int h = 0; h < a.NH; h++) {
        size_t at = row * a.ld_out + (size_t)h * a.HS;
        float d[2][VALUES], y[2][VALUES], sum = 0.0f;
#pragma unroll
        for (int p = 0, i = first; p < VALUES; p += W, i += step) {
            if (i >= pairs) continue;
            load_pairs<W>(d[0] + p, d[1] + p, c.dout + at, i, a.HS);
            if (!a.norm) continue;
            load_pairs<W>(y[0] + p, y[1] + p, c.y + at, i, a.HS);
#pragma unroll
            for (int j = p; j < p + W; j++)
                sum += d[0][j] * y[0][j] + d[1][j] * y[1][j];
        }
        float mean = a.norm ? group_sum(sum, c.lanes) / a.HS : 0.0f;
        float rstd = a.norm && pairs ? c.rstd[row * a.NH + h] : 1.0f;
#pragma unroll
        for (int p = 0, i = first; p < VALUES; p += W, i += step) {
            if (i >= pairs) continue;
#pragma unroll
            for (int j = p; a.norm && j < p + W; j++) {
                d[0][j] = rstd * (d[0][j] - y[0][j] * mean);
                d[1][j] = rstd * (d[1][j] - y[1][j] * mean);
            }
            if (rope) rotate_pairs<W>(d[0] + p, d[1] + p, rope + 2 * i, -1.0f);
            if (rope || a.norm) store_pairs<W>(c.dout + at, d[0] + p, d[1] + p, i, a.HS);
#pragma unroll
            for (int j = p; j < p + W; j++)
                ds[0][j] += d[0][j], ds[1][j] += d[1][j];
        }
    }
#pragma unroll
    for (int p = 0, i = first; p < VALUES; p += W, i += step) {
        if (c.ds && i < pairs) store_pairs<W>(c.ds + row * a.ld_s, ds[0] + p, ds[1] + p, i, a.HS);
    }
}

template <typename T>
void lowrank_undo(T *ds, T *dout, const T *y, const float *rstd, const LowRankArgs *a) {
    UndoCall<T> c = {ds, dout, y, rstd, *a, (size_t)a->B * a->T, 2};
    int pairs = (a->HS + 1) / 2;
    bool wide = a->HS % 16 == 0 && (a->ld_out | (ds ? a->ld_s : 0)) % 8 == 0 && fits<8>(ds) &&
                fits<8>(dout) && fits<8>(y) && fits<8>(a->rope);
    int pieces = wide ? pairs / 8 : pairs;
    while (c.lanes < WARP && c.lanes < pieces)
        c.lanes *= 2;
    if (pairs > MANY * WARP)
        die("CUDA: heads of %d values: at most %d are supported", a->HS, 2 * MANY * WARP);
    bool few = pairs <= FEW * c.lanes;
    size_t blocks = ceil_div(c.rows * (size_t)c.lanes, BLOCK);
    if (wide && few)
        LAUNCH((lowrank_undo_kernel<T, 8, FEW>), blocks, BLOCK, 0, cuda_stream())(c);
    else if (wide)
        LAUNCH((lowrank_undo_kernel<T, 8, MANY>), blocks, BLOCK, 0, cuda_stream())(c);
    else if (few)
        LAUNCH((lowrank_undo_kernel<T, 1, FEW>), blocks, BLOCK, 0, cuda_stream())(c);
    else
        LAUNCH((lowrank_undo_kernel<T, 1, MANY>), blocks, BLOCK, 0, cuda_stream())(c);
}

template <typename T>
static void lowrank_forward_cuda(floatX *out, float *rstd, const floatX *s, const floatX *z,
                                 const floatX *b, const LowRankArgs *a) {
    if constexpr (sizeof(T) == 2) {
        if (lowrank_mma_forward((T *)out, rstd, (const T *)s, (const T *)z, (const T *)b, a))
            return;
    }
    lowrank_plain_forward((T *)out, rstd, (const T *)s, (const T *)z, (const T *)b, a);
}

template <typename T>
static void lowrank_backward_cuda(floatX *ds, floatX *dz, float *db, floatX *dout, const floatX *y,
                                  const float *rstd, const floatX *z, const floatX *b,
                                  const LowRankArgs *a) {
    if (ds || a->rope || a->norm) lowrank_undo((T *)ds, (T *)dout, (const T *)y, rstd, a);
    if constexpr (sizeof(T) == 2) {
        if (lowrank_mma_backward((T *)dz, db, (const T *)dout, (const T *)z, (const T *)b, a))
            return;
    }
    lowrank_plain_dz((T *)dz, (const T *)dout, (const T *)b, a);
    lowrank_plain_db(db, (const T *)dout, (const T *)z, a);
}

template <typename T>
static void sdpa_lowrank_extend_cuda(floatX *out, const floatX *q, const LowRankCache *c,
                                     const SdpaArgs *a) {
    if constexpr (sizeof(T) == 2) {
        T *y = (T *)out;
        const T *x = (const T *)q;
        bool fit = a->kv_type == TYPE_BF16;
        if (fit && (lowrank_mma_decode(y, x, c, a) || lowrank_mma_latent(y, x, c, a) ||
                    lowrank_mma_extend(y, x, c, a)))
            return;
    }
    lowrank_plain_extend((T *)out, (const T *)q, c, a);
}

template <typename T> void lowrank_ops(Ops *o) {
    o->lowrank_forward = lowrank_forward_cuda<T>;
    o->lowrank_backward = lowrank_backward_cuda<T>;
    o->sdpa_lowrank_extend = sdpa_lowrank_extend_cuda<T>;
}
template void lowrank_ops<float>(Ops *);
template void lowrank_ops<bf16>(Ops *);
