// lowrank_plain.cu - low-rank keys and values of whole sequences in fp32 arithmetic, any size:
// x_h = norm(rope(S + Z_h B_h^T)) in one pass over the latents, and the products of its gradient.
#include "kernels/cuda/columns.h"
#include "kernels/cuda/lowrank.h"
#include "kernels/cuda/tile.cuh"

template <typename T> struct LowRankForwardCall {
    T *out;
    float *rstd;
    const T *s, *z, *b;
    LowRankArgs a;
    size_t rows;
};

// 16 MR tokens of one head.
template <typename T, int MR>
__global__ void __launch_bounds__(TILE_THREADS)
    lowrank_plain_forward_kernel(LowRankForwardCall<T> c) {
    enum { ROWS = SIDE * MR };
    SHARED(float, a_tile);
    float *b_tile = a_tile + ROWS * LD, *x = b_tile + TILE * LD;
    const LowRankArgs &a = c.a;
    int h = (int)(blockIdx.x % a.NH);
    size_t n0 = (size_t)(blockIdx.x / a.NH) * ROWS;
    int n = (int)min((size_t)ROWS, c.rows - n0);
    const T *z = c.z + n0 * a.ld_z + (size_t)h * a.R, *b = c.b + (size_t)h * a.HS * a.R;
    for (int col = 0; col < a.HS; col += TILE) {
        float acc[MR][4];
        clear(acc);
        for (int i = 0; i < a.R; i += TILE) {
            __syncthreads();
            load_tile(a_tile, ROWS, z + i, a.ld_z, n, a.R - i);
            load_tile(b_tile, TILE, b + (size_t)col * a.R + i, (size_t)a.R, a.HS - col, a.R - i);
            __syncthreads();
            multiply<BY_ROW, BY_ROW>(acc, a_tile, b_tile, min(TILE, a.R - i));
        }
        if (c.s) add_rows(acc, c.s + n0 * a.ld_s + col, a.ld_s, n, a.HS - col);
        store_acc(x + tile_at(ROWS, 0, col), acc);
    }
    __syncthreads();
    for (int r = threadIdx.x / WARP; r < n; r += TILE_THREADS / WARP) {
        size_t row = n0 + r, position = row % a.T + (a.pos ? a.pos[row / a.T] : 0);
        float rstd = finish_row(x, ROWS, r, a.HS, a.rope ? a.rope + position * a.HS : nullptr,
                                a.norm, a.eps);
        T *out = c.out + row * a.ld_out + (size_t)h * a.HS;
        for (int i = threadIdx.x % WARP; i < a.HS; i += WARP)
            out[i] = from_float<T>(x[tile_at(ROWS, r, i)] * rstd);
        if (c.rstd && a.norm && threadIdx.x % WARP == 0) c.rstd[row * a.NH + h] = rstd;
    }
}

// dz of 64 tokens and 64 latents of one head.
template <typename T>
__global__ void __launch_bounds__(TILE_THREADS)
    lowrank_plain_dz_kernel(T *dz, const T *dx, const T *b, LowRankArgs a, size_t rows) {
    SHARED(float, a_tile);
    float *b_tile = a_tile + TILE * LD, acc[4][4];
    int r_tiles = tiles_of(a.R), r0 = (int)(blockIdx.x % r_tiles) * TILE;
    int h = (int)(blockIdx.x / r_tiles % a.NH);
    size_t n0 = (size_t)(blockIdx.x / r_tiles / a.NH) * TILE;
    int n = (int)min((size_t)TILE, rows - n0);
    dx += n0 * a.ld_out + (size_t)h * a.HS;
    b += (size_t)h * a.HS * a.R + r0;
    clear(acc);
    for (int k = 0; k < a.HS; k += TILE) {
        __syncthreads();
        load_tile(a_tile, TILE, dx + k, a.ld_out, n, a.HS - k);
        load_tile(b_tile, TILE, b + (size_t)k * a.R, (size_t)a.R, a.HS - k, a.R - r0);
        __syncthreads();
        multiply<BY_ROW, BY_K>(acc, a_tile, b_tile, min(TILE, a.HS - k));
    }
    dz += n0 * a.ld_z + (size_t)h * a.R + r0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int row = thread_y() + SIDE * i;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            int col = thread_x() + SIDE * j;
            if (row < n && col < a.R - r0) dz[row * a.ld_z + col] = from_float<T>(acc[i][j]);
        }
    }
}

// part (shares, NH, HS, R): sums over every share-th run of 64 tokens, a tile of 64 x 64 of a head.
template <typename T>
__global__ void __launch_bounds__(TILE_THREADS)
    lowrank_plain_db_kernel(float *part, const T *dx, const T *z, LowRankArgs a, size_t rows) {
    SHARED(float, a_tile);
    float *b_tile = a_tile + TILE * LD, acc[4][4];
    int r_tiles = tiles_of(a.R), tiles = r_tiles * tiles_of(a.HS), tile = (int)(blockIdx.x % tiles);
    int r0 = tile % r_tiles * TILE, k0 = tile / r_tiles * TILE,
        h = (int)(blockIdx.x / tiles % a.NH);
    size_t share = blockIdx.x / tiles / a.NH, shares = gridDim.x / tiles / a.NH;
    dx += (size_t)h * a.HS + k0;
    z += (size_t)h * a.R + r0;
    clear(acc);
    for (size_t n0 = share * TILE; n0 < rows; n0 += shares * TILE) {
        int n = (int)min((size_t)TILE, rows - n0);
        __syncthreads();
        load_tile(a_tile, TILE, dx + n0 * a.ld_out, a.ld_out, n, a.HS - k0);
        load_tile(b_tile, TILE, z + n0 * a.ld_z, a.ld_z, n, a.R - r0);
        __syncthreads();
        multiply<BY_K, BY_K>(acc, a_tile, b_tile, n);
    }
    part += ((share * a.NH + h) * a.HS + k0) * a.R + r0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int row = thread_y() + SIDE * i;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            int col = thread_x() + SIDE * j;
            if (row < a.HS - k0 && col < a.R - r0) part[(size_t)row * a.R + col] = acc[i][j];
        }
    }
}

static size_t forward_bytes(int MR, int HS) {
    return (size_t)(tiles_floats(SIDE * MR, HS) + (SIDE * MR + TILE) * LD) * sizeof(float);
}

template <typename T, int MR> static void launch_forward(const LowRankForwardCall<T> &c) {
    size_t blocks = ceil_div(c.rows, (size_t)(SIDE * MR)) * c.a.NH;
    LAUNCH((lowrank_plain_forward_kernel<T, MR>), blocks, TILE_THREADS, forward_bytes(MR, c.a.HS),
           cuda_stream())
    (c);
}

template <typename T>
void lowrank_plain_forward(T *out, float *rstd, const T *s, const T *z, const T *b,
                           const LowRankArgs *a) {
    LowRankForwardCall<T> c = {out, rstd, s, z, b, *a, (size_t)a->B * a->T};
    size_t limit = cuda_device()->shared_limit;
    if (forward_bytes(4, a->HS) <= limit)
        launch_forward<T, 4>(c);
    else if (forward_bytes(1, a->HS) <= limit)
        launch_forward<T, 1>(c);
    else
        die("CUDA: heads of %d elements do not fit into shared memory", a->HS);
}

template <typename T> void lowrank_plain_dz(T *dz, const T *dx, const T *b, const LowRankArgs *a) {
    size_t rows = (size_t)a->B * a->T, blocks = ceil_div(rows, TILE) * a->NH * tiles_of(a->R);
    LAUNCH(lowrank_plain_dz_kernel<T>, blocks, TILE_THREADS, 2 * TILE * LD * sizeof(float),
           cuda_stream())
    (dz, dx, b, *a, rows);
}

template <typename T>
void lowrank_plain_db(float *db, const T *dx, const T *z, const LowRankArgs *a) {
    size_t rows = (size_t)a->B * a->T, n = (size_t)a->NH * a->HS * a->R;
    size_t tiles = (size_t)a->NH * tiles_of(a->HS) * tiles_of(a->R);
    size_t wanted = ceil_div(4 * (size_t)cuda_device()->n_sm, tiles);
    size_t shares = min_size(wanted, ceil_div(rows, TILE));
    float *part = static_cast<float *>(cuda_scratch(shares * n * sizeof(float)));
    LAUNCH(lowrank_plain_db_kernel<T>, tiles * shares, TILE_THREADS, 2 * TILE * LD * sizeof(float),
           cuda_stream())
    (part, dx, z, *a, rows);
    columns_add(db, part, n, shares, n);
}

#define INSTANTIATE(T)                                                                             \
    template void lowrank_plain_forward(T *, float *, const T *, const T *, const T *,             \
                                        const LowRankArgs *);                                      \
    template void lowrank_plain_dz(T *, const T *, const T *, const LowRankArgs *);                \
    template void lowrank_plain_db(float *, const T *, const T *, const LowRankArgs *);
INSTANTIATE(float)
INSTANTIATE(bf16)
