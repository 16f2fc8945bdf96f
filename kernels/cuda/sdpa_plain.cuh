// sdpa_plain.cuh - tiles of 32 rows for attention in fp32 on plain cores, for any head size and
// alignment. 128 threads: thread (ty, tx) of 8 x 16 owns rows 4 ty + {0..3}; of scores (32, 32)
// columns tx + {0, 16}, of results (32, 128) columns 4 tx + {0..3} and 64 more. Rows of shared
// tiles are padded by 4 floats, so that 16-byte accesses hit every bank once.
#pragma once

#include "kernels/cuda/reduce.cuh"

// Kernels say that one block to a multiprocessor is enough: left alone, ptxas spills for more.
enum { TILE = 32, SDPA_THREADS = 128, DEPTH = 32, LD_DEPTH = DEPTH + 4, LD_TILE = TILE + 4 };
enum { CHUNK = 128, LD_CHUNK = CHUNK + 4 };  // columns of results that a block computes

// Rows of a matrix in device memory: queries (m = t * G + g), or keys (G = 1).
template <typename T> struct Rows {
    T *p;
    size_t token, head;
    int G, end;  // rows from end on are zero
    __device__ T *at(int m) const { return p + (size_t)(m / G) * token + (size_t)(m % G) * head; }
};

// Floats of a block's shared memory.
struct SdpaShared {
    float *a, *b, *p, *chunk;  // (32, LD_DEPTH) twice, (32, LD_TILE), (32, LD_CHUNK)
};
enum { SDPA_SHARED = TILE * (2 * LD_DEPTH + LD_TILE + LD_CHUNK) };
__device__ __forceinline__ SdpaShared sdpa_shared(float *s) {
    return {s, s + TILE * LD_DEPTH, s + 2 * TILE * LD_DEPTH, s + TILE * (2 * LD_DEPTH + LD_TILE)};
}

// dst (32, WIDTH + 4) = rows first.., columns col.. of r, zero from row r.end and column n_cols on.
// W = 8: columns come in whole pieces of 8.
template <int W, int WIDTH, typename T>
__device__ __forceinline__ void tile_load(float *dst, const Rows<T> &r, int first, int col,
                                          int n_cols) {
    for (int i = threadIdx.x * 8; i < TILE * WIDTH; i += SDPA_THREADS * 8) {
        int m = first + i / WIDTH, c = col + i % WIDTH;
        float x[8] = {};
        if (m < r.end && W == 8 && c < n_cols) load_vec<8>(x, r.at(m) + c);
#pragma unroll
        for (int j = 0; W == 1 && j < 8; j++) {
            if (m < r.end && c + j < n_cols) x[j] = to_float(r.at(m)[c + j]);
        }
        store_vec<8>(dst + i / WIDTH * (WIDTH + 4) + i % WIDTH, x);
    }
}

// s[i][j] = row 4 ty + i of a times row tx + 16 j of b, over D columns.
template <int W, typename A, typename B>
__device__ __forceinline__ void tile_scores(float (&s)[4][2], const Rows<A> &a, int a_first,
                                            const Rows<B> &b, int b_first, int D,
                                            const SdpaShared &sh) {
    int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
#pragma unroll
    for (int i = 0; i < 4; i++)
        s[i][0] = s[i][1] = 0.0f;
    for (int d0 = 0; d0 < D; d0 += DEPTH) {
        __syncthreads();
        tile_load<W, DEPTH>(sh.a, a, a_first, d0, D);
        tile_load<W, DEPTH>(sh.b, b, b_first, d0, D);
        __syncthreads();
#pragma unroll
        for (int d = 0; d < DEPTH; d += 4) {
            float x[4][4], y[2][4];
#pragma unroll
            for (int i = 0; i < 4; i++)
                load_vec<4>(x[i], sh.a + (4 * ty + i) * LD_DEPTH + d);
#pragma unroll
            for (int j = 0; j < 2; j++)
                load_vec<4>(y[j], sh.b + (tx + 16 * j) * LD_DEPTH + d);
#pragma unroll
            for (int e = 0; e < 4; e++) {
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    s[i][0] += x[i][e] * y[0][e];
                    s[i][1] += x[i][e] * y[1][e];
                }
            }
        }
    }
}

// This thread's scores to (32, LD_TILE).
__device__ __forceinline__ void tile_put(float *p, const float (&s)[4][2]) {
    int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        p[(4 * ty + i) * LD_TILE + tx] = s[i][0];
        p[(4 * ty + i) * LD_TILE + tx + 16] = s[i][1];
    }
}

// Columns of result that this thread owns: the lower and the upper four.
__device__ __forceinline__ void chunk_row(float (&v)[8], const float *chunk, int row) {
    const float *at = chunk + row * LD_CHUNK + threadIdx.x % 16 * 4;
    load_vec<4>(v, at);
    load_vec<4>(v + 4, at + CHUNK / 2);
}

// o (32, 128) += p (32, 32) chunk (32, 128). MASKED: row i only keys up to limit[i], since behind
// them p is 0, but 0 times NaN or infinity is not.
template <bool MASKED = false>
__device__ __forceinline__ void tile_accumulate(float (&o)[4][8], const SdpaShared &sh,
                                                const int *limit = nullptr) {
    int ty = threadIdx.x / 16;
    for (int k = 0; k < TILE; k += 4) {
        float p[4][4], v[8];
#pragma unroll
        for (int i = 0; i < 4; i++)
            load_vec<4>(p[i], sh.p + (4 * ty + i) * LD_TILE + k);
#pragma unroll
        for (int e = 0; e < 4; e++) {
            chunk_row(v, sh.chunk, k + e);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                if (MASKED && k + e > limit[i]) continue;
#pragma unroll
                for (int j = 0; j < 8; j++)
                    o[i][j] += p[i][e] * v[j];
            }
        }
    }
}

// o (32, 128) += p^T (32, 32) chunk (32, 128)
__device__ __forceinline__ void tile_accumulate_trans(float (&o)[4][8], const SdpaShared &sh) {
    int ty = threadIdx.x / 16;
    for (int m = 0; m < TILE; m++) {
        float p[4], v[8];
        load_vec<4>(p, sh.p + m * LD_TILE + 4 * ty);
        chunk_row(v, sh.chunk, m);
#pragma unroll
        for (int i = 0; i < 4; i++) {
#pragma unroll
            for (int j = 0; j < 8; j++)
                o[i][j] += p[i] * v[j];
        }
    }
}

// Row 4 ty + i of a result times `factor`, into columns col + .. of dst, which has n_cols of them.
template <int W, typename T>
__device__ __forceinline__ void chunk_store(T *dst, const float (&o)[8], float factor, int col,
                                            int n_cols) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int c = col + (int)threadIdx.x % 16 * 4 + half * (CHUNK / 2);
        float x[4];
#pragma unroll
        for (int j = 0; j < 4; j++)
            x[j] = factor * o[4 * half + j];
        if (W == 8 && c < n_cols) store_vec<4>(dst + c, x);
#pragma unroll
        for (int j = 0; W == 1 && j < 4; j++) {
            if (c + j < n_cols) dst[c + j] = from_float<T>(x[j]);
        }
    }
}

__device__ __forceinline__ void zero(float (&o)[4][8]) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
#pragma unroll
        for (int j = 0; j < 8; j++)
            o[i][j] = 0.0f;
    }
}
