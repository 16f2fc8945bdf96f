// tile.cuh - products of matrices of any size and type by a block, in fp32: tiles of 64 x 64 floats
// in shared memory, 256 threads. Thread (y, x) of 16 x 16 has elements (y + 16 i, x + 16 j) of a
// product with 16 MR rows and 64 columns, so a row lies in 16 neighbouring lanes. A wider matrix is
// a row of tiles; element (r, c) of it lies at tile_at(16 MR, r, c).
#pragma once

#include "kernels/cuda/reduce.cuh"

enum { TILE_THREADS = 256, SIDE = 16, TILE = 64, LD = TILE + 1 };  // LD: row stride in a tile

static inline __host__ __device__ int tiles_of(int width) {
    return (width + TILE - 1) / TILE;
}
static inline __host__ __device__ int tiles_floats(int height, int width) {
    return tiles_of(width) * height * LD;
}
__device__ __forceinline__ int tile_at(int height, int row, int col) {
    return (col / TILE * height + row) * LD + col % TILE;
}
__device__ __forceinline__ int thread_y() {
    return threadIdx.x / SIDE;
}
__device__ __forceinline__ int thread_x() {
    return threadIdx.x % SIDE;
}

// tile (height, TILE) = the first n rows and cols columns at p, 0 outside of them. What lies
// outside is not read. col counts the columns that p points behind and may pass cols.
template <typename T>
__device__ __forceinline__ void load_tile(float *tile, int height, const T *p, size_t ld, int n,
                                          int cols) {
    for (int r = threadIdx.x / WARP; r < height; r += TILE_THREADS / WARP) {
        for (int c = threadIdx.x % WARP; c < TILE; c += WARP)
            tile[r * LD + c] = r < n && c < cols ? to_float(p[r * ld + c]) : 0.0f;
    }
}

// How an operand lies in its tile: (row, k) or (k, row).
enum Lie { BY_ROW, BY_K };

// acc[i][j] += sum over k < n of a(row i, k) b(column j, k). CAUSAL: row m only over k < seen + m.
template <Lie A, Lie B, bool CAUSAL = false, int MR>
__device__ __forceinline__ void multiply(float (&acc)[MR][4], const float *a, const float *b, int n,
                                         int seen = 0) {
    a += thread_y() * (A == BY_ROW ? LD : 1);
    b += thread_x() * (B == BY_ROW ? LD : 1);
    for (int k = 0; k < n; k++) {
        float u[MR], v[4];
#pragma unroll
        for (int i = 0; i < MR; i++)
            u[i] = A == BY_ROW ? a[SIDE * i * LD + k] : a[k * LD + SIDE * i];
#pragma unroll
        for (int j = 0; j < 4; j++)
            v[j] = B == BY_ROW ? b[SIDE * j * LD + k] : b[k * LD + SIDE * j];
#pragma unroll
        for (int i = 0; i < MR; i++) {
            if (CAUSAL && k >= seen + thread_y() + SIDE * i) continue;
#pragma unroll
            for (int j = 0; j < 4; j++)
                acc[i][j] = fmaf(u[i], v[j], acc[i][j]);
        }
    }
}

template <int MR> __device__ __forceinline__ void clear(float (&acc)[MR][4]) {
#pragma unroll
    for (int i = 0; i < MR; i++) {
#pragma unroll
        for (int j = 0; j < 4; j++)
            acc[i][j] = 0.0f;
    }
}

// tile (16 MR, TILE) = acc
template <int MR>
__device__ __forceinline__ void store_acc(float *tile, const float (&acc)[MR][4]) {
    tile += thread_y() * LD + thread_x();
#pragma unroll
    for (int i = 0; i < MR; i++) {
#pragma unroll
        for (int j = 0; j < 4; j++)
            tile[SIDE * i * LD + SIDE * j] = acc[i][j];
    }
}

// tile = tile * factor of its row + acc, each element by the thread that owns it.
template <int MR>
__device__ __forceinline__ void add_scaled(float *tile, const float (&factor)[MR],
                                           const float (&acc)[MR][4]) {
    tile += thread_y() * LD + thread_x();
#pragma unroll
    for (int i = 0; i < MR; i++) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            float *x = tile + SIDE * i * LD + SIDE * j;
            *x = *x * factor[i] + acc[i][j];
        }
    }
}

// A wide matrix (16 MR, width) becomes 0, by the threads that own its elements.
template <int MR> __device__ __forceinline__ void clear_tiles(float *tiles, int width) {
    float zero[MR][4];
    clear(zero);
    for (int t = 0; t < tiles_of(width); t++)
        store_acc(tiles + t * SIDE * MR * LD, zero);
}

// acc += the first n rows and cols columns at p.
template <int MR, typename T>
__device__ __forceinline__ void add_rows(float (&acc)[MR][4], const T *p, size_t ld, int n,
                                         int cols) {
#pragma unroll
    for (int i = 0; i < MR; i++) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            int r = thread_y() + SIDE * i, c = thread_x() + SIDE * j;
            if (r < n && c < cols) acc[i][j] += to_float(p[r * ld + c]);
        }
    }
}

// A warp rotates a row of a wide matrix, by the pairs of rope (HS/2, 2) or not at all, and returns
// 1 / rms of it, or 1. The row may be read by the whole warp afterwards.
__device__ __forceinline__ float finish_row(float *x, int height, int row, int HS,
                                            const float *rope, bool norm, float eps) {
    int lane = threadIdx.x % WARP, half = HS / 2;
    float sum = 0.0f;
    for (int i = lane; rope && i < half; i += WARP) {
        float *x1 = x + tile_at(height, row, i), *x2 = x + tile_at(height, row, i + half);
        float c = rope[2 * i], s = rope[2 * i + 1], y1 = *x1 * c + *x2 * s, y2 = *x2 * c - *x1 * s;
        *x1 = y1;
        *x2 = y2;
        sum += y1 * y1 + y2 * y2;
    }
    for (int i = lane; !rope && norm && i < HS; i += WARP) {
        float y = x[tile_at(height, row, i)];
        sum += y * y;
    }
    __syncwarp();
    return norm ? 1.0f / sqrtf(warp_sum(sum) / HS + eps) : 1.0f;
}
