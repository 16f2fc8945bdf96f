// heads.cu - heads put together from two parts and taken apart again; biases and their gradients.
#include "kernels/cuda/columns.h"
#include "kernels/cuda/convert.h"
#include "kernels/cuda/families.h"
#include "kernels/cuda/ptx.cuh"

enum { BLOCK = 256, ROW_GROUPS = 8 };

// Piece i of W elements of the N * NH heads of `width` elements: token, head, first element.
struct Piece {
    size_t n;
    int h, j;
};
__device__ __forceinline__ Piece piece_of(size_t i, int width, int NH, int W) {
    size_t pieces = (size_t)(width / W), head = i / pieces;
    return {head / NH, (int)(head % NH), (int)(i % pieces) * W};
}

template <typename T, int W>
__global__ void concat_heads_kernel(T *out, const T *a, const T *b, ConcatArgs c, size_t n) {
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    Piece p = piece_of(i, c.W1 + c.W2, c.NH, W);
    bool first = p.j < c.W1;
    if (first && !a) return;
    float x[W];
    if (first)
        load_vec<W>(x, a + p.n * c.ld_a + p.h * c.a_head + p.j);
    else
        load_vec<W>(x, b + p.n * c.ld_b + p.h * c.b_head + (p.j - c.W1));
    store_vec<W>(out + p.n * c.ld_out + (size_t)p.h * (c.W1 + c.W2) + p.j, x);
}

// A shared b: the thread of head 0 sums over the heads.
template <typename T, int W>
__global__ void split_heads_kernel(T *da, T *db, const T *dout, ConcatArgs c, size_t n) {
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    Piece p = piece_of(i, c.W1 + c.W2, c.NH, W);
    const T *d = dout + p.n * c.ld_out + (size_t)p.h * (c.W1 + c.W2) + p.j;
    float x[W], y[W];
    load_vec<W>(x, d);
    if (p.j < c.W1) {
        store_vec<W>(da + p.n * c.ld_a + p.h * c.a_head + p.j, x);
        return;
    }
    bool shared = c.b_head == 0;
    if (shared && p.h > 0) return;
    for (int h = 1; shared && h < c.NH; h++) {
        load_vec<W>(y, d + (size_t)h * (c.W1 + c.W2));
#pragma unroll
        for (int j = 0; j < W; j++)
            x[j] += y[j];
    }
    store_vec<W>(db + p.n * c.ld_b + p.h * c.b_head + (p.j - c.W1), x);
}

template <typename T, int W>
__global__ void bias_add_kernel(T *out, size_t ld_out, const float *bias, size_t n, int width) {
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    size_t pieces = (size_t)(width / W), j0 = i % pieces * W;
    T *at = out + i / pieces * ld_out + j0;
    float x[W], b[W];
    load_vec<W>(x, at);
    load_vec<W>(b, bias + j0);
#pragma unroll
    for (int j = 0; j < W; j++)
        x[j] += b[j];
    store_vec<W>(at, x);
}

// part (P, OC): sums of the rows that block row p takes. A block has 32 lanes of W columns and 8
// groups of rows.
template <typename T, int W>
__global__ void bias_share_kernel(float *part, const T *dout, size_t ld, size_t N, int OC,
                                  int tiles) {
    SHARED(float, sums);
    int lane = threadIdx.x, group = threadIdx.y, tile = (int)(blockIdx.x % tiles);
    size_t p = blockIdx.x / tiles, P = gridDim.x / tiles;
    int col = (tile * WARP + lane) * W;
    float sum[W] = {}, x[W];
    for (size_t n = p * ROW_GROUPS + group; col < OC && n < N; n += P * ROW_GROUPS) {
        load_vec<W>(x, dout + n * ld + col);
#pragma unroll
        for (int j = 0; j < W; j++)
            sum[j] += x[j];
    }
#pragma unroll
    for (int j = 0; j < W; j++)
        sums[(group * W + j) * WARP + lane] = sum[j];
    __syncthreads();
    if (group > 0 || col >= OC) return;
    for (int g = 1; g < ROW_GROUPS; g++) {
#pragma unroll
        for (int j = 0; j < W; j++)
            sum[j] += sums[(g * W + j) * WARP + lane];
    }
    store_vec<W>(part + p * OC + col, sum);
}

// Everything that an access of 8 elements needs.
static bool strides_fit(const ConcatArgs *c) {
    size_t all =
        (size_t)c->W1 | (size_t)c->W2 | c->ld_out | c->ld_a | c->ld_b | c->a_head | c->b_head;
    return all % 8 == 0;
}

template <typename T>
static void concat_heads_cuda(floatX *out, const floatX *a, const floatX *b, const ConcatArgs *c) {
    size_t n = c->N * (size_t)c->NH * (size_t)(c->W1 + c->W2);
    T *y = (T *)out;
    const T *x1 = (const T *)a, *x2 = (const T *)b;
    if (strides_fit(c) && fits<8>(y) && fits<8>(x1) && fits<8>(x2)) {
        LAUNCH((concat_heads_kernel<T, 8>), ceil_div(n / 8, BLOCK), BLOCK, 0, cuda_stream())
        (y, x1, x2, *c, n / 8);
    } else {
        LAUNCH((concat_heads_kernel<T, 1>), ceil_div(n, BLOCK), BLOCK, 0, cuda_stream())
        (y, x1, x2, *c, n);
    }
}

template <typename T>
static void split_heads_cuda(floatX *da, floatX *db, const floatX *dout, const ConcatArgs *c) {
    size_t n = c->N * (size_t)c->NH * (size_t)(c->W1 + c->W2);
    T *y1 = (T *)da, *y2 = (T *)db;
    const T *d = (const T *)dout;
    if (strides_fit(c) && fits<8>(y1) && fits<8>(y2) && fits<8>(d)) {
        LAUNCH((split_heads_kernel<T, 8>), ceil_div(n / 8, BLOCK), BLOCK, 0, cuda_stream())
        (y1, y2, d, *c, n / 8);
    } else {
        LAUNCH((split_heads_kernel<T, 1>), ceil_div(n, BLOCK), BLOCK, 0, cuda_stream())
        (y1, y2, d, *c, n);
    }
}

template <typename T> void bias_add(T *y, size_t ld_out, const float *bias, size_t N, int W) {
    size_t n = N * (size_t)W;
    if ((ld_out | (size_t)W) % 8 == 0 && fits<8>(y) && fits<8>(bias)) {
        LAUNCH((bias_add_kernel<T, 8>), ceil_div(n / 8, BLOCK), BLOCK, 0, cuda_stream())
        (y, ld_out, bias, n / 8, W);
    } else {
        LAUNCH((bias_add_kernel<T, 1>), ceil_div(n, BLOCK), BLOCK, 0, cuda_stream())
        (y, ld_out, bias, n, W);
    }
}

template void bias_add<float>(float *, size_t, const float *, size_t, int);
template void bias_add<bf16>(bf16 *, size_t, const float *, size_t, int);

template <typename T>
static void bias_add_cuda(floatX *out, size_t ld_out, const float *bias, size_t N, int W) {
    bias_add((T *)out, ld_out, bias, N, W);
}

template <typename T>
static void bias_dw_cuda(float *dbias, const floatX *dout, size_t ld_dout, size_t N, int OC) {
    const T *d = (const T *)dout;
    bool wide = (ld_dout | (size_t)OC) % 8 == 0 && fits<8>(d);
    size_t width = wide ? 8 : 1, tiles = ceil_div((size_t)OC, WARP * width);
    size_t P = grid_fill(ceil_div(N, 4 * ROW_GROUPS), (int)ceil_div(8, tiles));
    float *part = static_cast<float *>(cuda_scratch(P * (size_t)OC * sizeof(float)));
    dim3 block(WARP, ROW_GROUPS);
    size_t bytes = ROW_GROUPS * WARP * width * sizeof(float);
    if (wide) {
        LAUNCH((bias_share_kernel<T, 8>), P * tiles, block, bytes, cuda_stream())
        (part, d, ld_dout, N, OC, (int)tiles);
    } else {
        LAUNCH((bias_share_kernel<T, 1>), P * tiles, block, bytes, cuda_stream())
        (part, d, ld_dout, N, OC, (int)tiles);
    }
    columns_add(dbias, part, (size_t)OC, P, (size_t)OC);
}

template <typename T> void heads_ops(Ops *o) {
    o->concat_heads = concat_heads_cuda<T>;
    o->split_heads = split_heads_cuda<T>;
    o->bias_add = bias_add_cuda<T>;
    o->bias_dw = bias_dw_cuda<T>;
}
template void heads_ops<float>(Ops *);
template void heads_ops<bf16>(Ops *);
