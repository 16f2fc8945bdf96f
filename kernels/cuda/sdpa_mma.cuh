// sdpa_mma.cuh - pieces of the tensor-core attention kernels: bf16 tiles in shared memory and the
// fragments that mma.sync m16n8k16 takes from them, with the layouts of ptx.cuh.
//
// A tile has rows of D values, in chunks of 16 bytes; chunk c of row r lies at place c ^ (r % 8).
// Eight rows of one chunk then lie in different banks: copies and ldmatrix are free of conflicts.
// D is a multiple of 64, so that a chunk stays within its 128 bytes.
#pragma once

#include "kernels/cuda/reduce.cuh"

// The same value, which the compiler takes for another: it does not keep what follows from the
// first in registers until the second is used.
__device__ __forceinline__ unsigned opaque(unsigned x) {
#ifndef GPU_EMU
    asm volatile("" : "+r"(x));
#endif
    return x;
}

// The warp's number in its block. Taken anew where needed, to save registers.
__device__ __forceinline__ int warp_index() {
    return (int)opaque(threadIdx.x) / WARP;
}

#define LOG2E 1.44269504088896f
#define LN2   0.693147180559945f

template <int D, typename T> __device__ __forceinline__ T *chunk_at(T *tile, int row, int chunk) {
    return tile + row * D + (chunk ^ (row & 7)) * 8;
}

// Starts to copy n rows of D values, ld apart, to a tile of ROWS; the other rows become zero. Eight
// threads copy 128 bytes of a row. The caller commits.
template <int D, int ROWS, int THREADS>
__device__ __forceinline__ void copy_rows(bf16 *tile, const bf16 *src, size_t ld, int n) {
    enum { STEP = THREADS / 8 };
    static_assert(D % 64 == 0 && STEP % 8 == 0 && ROWS % STEP == 0, "whole passes of rows");
    int thread = (int)opaque(threadIdx.x), row = thread / 8, chunk = thread % 8;
    bf16 *to = chunk_at<D>(tile, row, chunk);
    src += row * ld + chunk * 8;
#pragma unroll
    for (int i = 0; i < ROWS; i += STEP) {
#pragma unroll
        for (int col = 0; col < D; col += 64)
            cp_async_16(to + i * D + col, src + col, i + row < n ? 16 : 0);
        src += STEP * ld;
    }
}

// Values that are not finite. A row does not see the keys behind it and has p = 0 for them, but 0
// times NaN or infinity is NaN. So in tiles that some row sees in part only, each thread clears
// such values among those it has copied, and rows that see them get them by addition.

// Zeros in place of values of these 16 bytes that are not finite; whether there were any.
__device__ __forceinline__ bool clear_not_finite(bf16 *chunk) {
    RawOf<16> r = load_raw<16>(chunk);
    unsigned odd[4];  // the sign bits of those with the largest exponent
#pragma unroll
    for (int i = 0; i < 4; i++)
        odd[i] = ((r.w[i] & 0x7F807F80u) + 0x00800080u) & 0x80008000u;
    if (!(odd[0] | odd[1] | odd[2] | odd[3])) return false;
#pragma unroll
    for (int i = 0; i < 4; i++)
        r.w[i] &= ~((odd[i] >> 15) * 0xFFFFu);
    store_raw<16>(chunk, r);
    return true;
}
// Of all that this thread has copied by copy_rows to columns below COLS, and that has arrived.
template <int D, int ROWS, int THREADS, int COLS = D>
__device__ __forceinline__ bool clear_not_finite_rows(bf16 *tile) {
    enum { STEP = THREADS / 8 };
    int thread = (int)opaque(threadIdx.x);
    bf16 *at = chunk_at<D>(tile, thread / 8, thread % 8);
    bool any = false;
#pragma unroll
    for (int i = 0; i < ROWS; i += STEP) {
#pragma unroll
        for (int col = 0; col < COLS; col += 64)
            any |= clear_not_finite(at + i * D + col);
    }
    return any;
}
// sum += x where x is not finite.
__device__ __forceinline__ void add_not_finite(float &sum, float x, bool sees) {
    if (sees && !(fabsf(x) < INFINITY)) sum += x;
}

// Where a lane's 16 bytes lie in ldmatrix: for operand a and transposed b at row lane % 16, column
// 8 (lane / 16), for b at row lane % 8 + 8 (lane / 16), column 8 (lane / 8 % 2). x is the chunk's
// place relative to an even chunk. Taken anew in every tile of keys: kept in registers, all the
// addresses that follow from it would be too many.
struct LaneMap {
    int row_a, x_a, row_b, x_b;
};
__device__ __forceinline__ LaneMap lane_map() {
    int lane = (int)opaque(threadIdx.x % WARP);
    return {lane % 16, lane / 16 ^ lane % 8, lane % 8 + lane / 16 * 8, lane / 8 % 2 ^ lane % 8};
}

// Operand a: rows row ... row + 15, columns k ... k + 15 of a tile. row and k, n are multiples of
// 16 everywhere.
template <int D>
__device__ __forceinline__ void load_a(unsigned (&a)[4], const bf16 *tile, const LaneMap &at,
                                       int row, int k) {
    ldmatrix_x4(a, tile + (row + at.row_a) * D + (k / 8 ^ at.x_a) * 8);
}
// Operand b of two products: tile rows are its columns n ... n + 7 (b[0], b[1]) and n + 8 ... n +
// 15 (b[2], b[3]), tile columns k ... k + 15 its rows.
template <int D>
__device__ __forceinline__ void load_b(unsigned (&b)[4], const bf16 *tile, const LaneMap &at, int n,
                                       int k) {
    ldmatrix_x4(b, tile + (n + at.row_b) * D + (k / 8 ^ at.x_b) * 8);
}
// The same from a tile whose rows are the rows k ... k + 15 of b.
template <int D>
__device__ __forceinline__ void load_b_trans(unsigned (&b)[4], const bf16 *tile, const LaneMap &at,
                                             int k, int n) {
    ldmatrix_x4_trans(b, tile + (k + at.row_a) * D + (n / 8 ^ at.x_a) * 8);
}
// Operand a from the results of two neighbouring n8 tiles, which hold the same rows and columns.
__device__ __forceinline__ void pack_a(unsigned (&a)[4], const float (&x)[4], const float (&y)[4]) {
    a[0] = pack_bf16(x[0], x[1]);
    a[1] = pack_bf16(x[2], x[3]);
    a[2] = pack_bf16(y[0], y[1]);
    a[3] = pack_bf16(y[2], y[3]);
}

template <int N> __device__ __forceinline__ void clear_rows(float (&x)[N][4]) {
#pragma unroll
    for (int j = 0; j < N; j++)
        x[j][0] = x[j][1] = x[j][2] = x[j][3] = 0.0f;
}

// Operand a from a tile whose rows are its columns k ... k + 15, and columns its rows.
template <int D>
__device__ __forceinline__ void load_a_trans(unsigned (&a)[4], const bf16 *tile, const LaneMap &at,
                                             int k, int row) {
    ldmatrix_x4_trans(a, tile + (k + at.row_b) * D + (row / 8 ^ at.x_b) * 8);
}

// All operands a of rows row ... row + 15 of a tile.
template <int D>
__device__ __forceinline__ void load_operands(unsigned (&a)[D / 16][4], const bf16 *tile, int row) {
    LaneMap at = lane_map();
#pragma unroll
    for (int d = 0; d < D; d += 16)
        load_a<D>(a[d / 16], tile, at, row, d);
}

// x (16, 32) = rows row ... row + 15 of a tile times the 32 rows of another.
template <int D>
__device__ __forceinline__ void rows_dot(float (&x)[4][4], const bf16 *a_tile, int row,
                                         const bf16 *b_tile) {
    LaneMap at = lane_map();
    clear_rows(x);
#pragma unroll
    for (int d = 0; d < D; d += 16) {
        unsigned a[4], b[4];
        load_a<D>(a, a_tile, at, row, d);
#pragma unroll
        for (int j = 0; j < 4; j += 2) {
            load_b<D>(b, b_tile, at, 8 * j, d);
            mma_m16n8k16(x[j], a, b[0], b[1]);
            mma_m16n8k16(x[j + 1], a, b[2], b[3]);
        }
    }
}
// The same from operands.
template <int D>
__device__ __forceinline__ void rows_dot(float (&x)[4][4], const unsigned (&a)[D / 16][4],
                                         const bf16 *b_tile) {
    LaneMap at = lane_map();
    clear_rows(x);
#pragma unroll
    for (int d = 0; d < D; d += 16) {
        unsigned b[4];
#pragma unroll
        for (int j = 0; j < 4; j += 2) {
            load_b<D>(b, b_tile, at, 8 * j, d);
            mma_m16n8k16(x[j], a[d / 16], b[0], b[1]);
            mma_m16n8k16(x[j + 1], a[d / 16], b[2], b[3]);
        }
    }
}

// sum (16, D) += x (16, 32) tile (32, D)
template <int D>
__device__ __forceinline__ void add_product(float (&sum)[D / 8][4], const float (&x)[4][4],
                                            const bf16 *tile) {
    LaneMap at = lane_map();
#pragma unroll
    for (int k = 0; k < 32; k += 16) {
        unsigned a[4], b[4];
        pack_a(a, x[k / 8], x[k / 8 + 1]);
#pragma unroll
        for (int j = 0; j < D / 8; j += 2) {
            load_b_trans<D>(b, tile, at, k, 8 * j);
            mma_m16n8k16(sum[j], a, b[0], b[1]);
            mma_m16n8k16(sum[j + 1], a, b[2], b[3]);
        }
    }
}

// Rows in device memory: row i of a block is token (first + i) / G, head (first + i) % G.
struct PackedRows {
    bf16 *p;
    size_t token, head;
    int G, first;
    __device__ __forceinline__ bf16 *at(int i) const {
        return p + (size_t)((first + i) / G) * token + (first + i) % G * head;
    }
};

// Rows row ... row + 15 of `out` = factor * x, those below n and the first `chunks` of 8 columns,
// 16 bytes at a time: through the same rows of a tile, which nobody else reads or writes.
template <int D>
__device__ __forceinline__ void store_rows(const float (&x)[D / 8][4], const float (&factor)[2],
                                           bf16 *tile, int row, const PackedRows &out, int n,
                                           int chunks = D / 8) {
    int lane = threadIdx.x % WARP;
#pragma unroll
    for (int j = 0; j < D / 8; j++) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float y[2] = {x[j][2 * r] * factor[r], x[j][2 * r + 1] * factor[r]};
            store_vec<2>(chunk_at<D>(tile, row + lane / 4 + 8 * r, j) + lane % 4 * 2, y);
        }
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 16 * D / 8; i += WARP) {
        int at = row + (i + lane) / (D / 8), chunk = (i + lane) % (D / 8);
        if (at < n && chunk < chunks)
            store_raw<16>(out.at(at) + chunk * 8, load_raw<16>(chunk_at<D>(tile, at, chunk)));
    }
}
