// cache.cu - new rows into the KV cache, in fp32 or rounded to bf16 (nearest even).
#include "kernels/cuda/device.h"
#include "kernels/cuda/families.h"
#include "kernels/cuda/ptx.cuh"

enum { BLOCK = 256, TILE = 32 };

template <typename To, typename T, int W>
__global__ void cache_append_kernel(To *dst, size_t dst_batch, const T *src, size_t ld_src,
                                    int width, const int *pos, const int *n_new, int T_, size_t n) {
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    size_t pieces = (size_t)(width / W), row = i / pieces, b = row / T_;
    int t = (int)(row % T_), j = (int)(i % pieces) * W;
    if (t >= n_new[b]) return;
    float x[W];
    load_vec<W>(x, src + row * ld_src + j);
    store_vec<W>(dst + b * dst_batch + ((size_t)pos[b] + t) * width + j, x);
}

// Where new latent rows come from and go to.
template <typename To, typename T> struct Latent {
    To *dst;
    const T *src;
    size_t batch, ld_src;
    int groups, r, ld_group, T_;
    const int *pos, *n_new;
};

// A tile of 32 tokens by 32 rows goes through shared memory: tokens are neighbours in dst, rows in
// src.
template <typename To, typename T> __global__ void cache_append_latent_kernel(Latent<To, T> a) {
    SHARED(float, tile);  // (TILE tokens, TILE + 1)
    int rows = a.groups * a.r, row_tiles = (rows + TILE - 1) / TILE;
    int i0 = (int)(blockIdx.x % row_tiles) * TILE, lane = threadIdx.x;
    size_t rest = blockIdx.x / row_tiles, token_tiles = (size_t)((a.T_ + TILE - 1) / TILE);
    size_t b = rest / token_tiles;
    int t0 = (int)(rest % token_tiles) * TILE, n = a.n_new[b];
    for (int y = threadIdx.y; y < TILE; y += blockDim.y) {
        int i = i0 + lane, t = t0 + y;
        if (i >= rows || t >= n) continue;
        const T *token = a.src + (b * a.T_ + t) * a.ld_src;
        tile[y * (TILE + 1) + lane] = to_float(token[(size_t)(i / a.r) * a.ld_group + i % a.r]);
    }
    __syncthreads();
    for (int y = threadIdx.y; y < TILE; y += blockDim.y) {
        int i = i0 + y, t = t0 + lane;
        if (i >= rows || t >= n) continue;
        size_t p = (size_t)a.pos[b] + t;
        size_t at =
            p / LATENT_BLOCK * rows * LATENT_BLOCK + (size_t)i * LATENT_BLOCK + p % LATENT_BLOCK;
        a.dst[b * a.batch + at] = from_float<To>(tile[lane * (TILE + 1) + y]);
    }
}

template <typename To, typename T>
static void append(To *dst, size_t dst_batch, const T *src, size_t ld_src, int width,
                   const int *pos, const int *n_new, int B, int T_) {
    size_t n = (size_t)B * T_ * width;
    if ((dst_batch | ld_src | (size_t)width) % 8 == 0 && fits<8>(dst) && fits<8>(src)) {
        LAUNCH((cache_append_kernel<To, T, 8>), ceil_div(n / 8, BLOCK), BLOCK, 0, cuda_stream())
        (dst, dst_batch, src, ld_src, width, pos, n_new, T_, n / 8);
    } else {
        LAUNCH((cache_append_kernel<To, T, 1>), ceil_div(n, BLOCK), BLOCK, 0, cuda_stream())
        (dst, dst_batch, src, ld_src, width, pos, n_new, T_, n);
    }
}

template <typename T>
static void cache_append_cuda(void *dst, size_t dst_batch, ElemType type, const floatX *src,
                              size_t ld_src, int width, const int *pos, const int *n_new, int B,
                              int T_) {
    const T *x = (const T *)src;
    if (type == TYPE_BF16)
        append((bf16 *)dst, dst_batch, x, ld_src, width, pos, n_new, B, T_);
    else
        append((float *)dst, dst_batch, x, ld_src, width, pos, n_new, B, T_);
}

template <typename To, typename T> static void append_latent(const Latent<To, T> &a, int B) {
    size_t row_tiles = ceil_div((size_t)a.groups * (size_t)a.r, TILE);
    size_t blocks = row_tiles * ceil_div((size_t)a.T_, TILE) * (size_t)B;
    LAUNCH((cache_append_latent_kernel<To, T>), blocks, dim3(TILE, 8),
           TILE * (TILE + 1) * sizeof(float), cuda_stream())
    (a);
}

template <typename T>
static void cache_append_latent_cuda(void *dst, size_t dst_batch, ElemType type, const floatX *src,
                                     size_t ld_src, int groups, int r, int ld_group, const int *pos,
                                     const int *n_new, int B, int T_) {
    const T *x = (const T *)src;
    if (type == TYPE_BF16) {
        append_latent<bf16, T>(
            {(bf16 *)dst, x, dst_batch, ld_src, groups, r, ld_group, T_, pos, n_new}, B);
    } else {
        append_latent<float, T>(
            {(float *)dst, x, dst_batch, ld_src, groups, r, ld_group, T_, pos, n_new}, B);
    }
}

template <typename T> void cache_ops(Ops *o) {
    o->cache_append = cache_append_cuda<T>;
    o->cache_append_latent = cache_append_latent_cuda<T>;
}
template void cache_ops<float>(Ops *);
template void cache_ops<bf16>(Ops *);
