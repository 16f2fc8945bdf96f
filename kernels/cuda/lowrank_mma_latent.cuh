// lowrank_mma_latent.cuh - decoding of MLA with a reconstructed key: sizes, what a block works on,
// and how its shared memory is laid out and filled.
#pragma once

#include "kernels/cuda/lowrank_mma.cuh"

enum { KEYS = LATENT_BLOCK, RANKS = 64, ROWS = 16, WARPS = 4, THREADS = 128 };
enum { SCORES_LD = KEYS + 4 };  // of a row of scores: lanes write to different banks

struct LatentsCall {
    const bf16 *q, *b, *z;
    SdpaArgs a;
    LowRankCache c;
    LowRankParts parts;
    int split_keys, heads, stages;  // heads of a block; stages of factors
};

// MAX_R: ranks at most.
template <int HS_, int MAX_R> struct LatentsShape {
    // QT: n8 tiles of a warp in each of its two quarters of the columns; ZT: n16 tiles of latents.
    enum { HS = HS_, QT = HS / 32, ZT = MAX_R / 16 / WARPS, STAGE = HS * RANKS };
    enum { BLOCKS = MAX_R > 128 ? 2 : 3 };  // of a multiprocessor
};

// Shared memory: latents (ranks in steps of 16, KEYS), stages of factors (HS, RANKS), p (ROWS,
// KEYS); in fp32 scores (ROWS, KEYS) and sums of squares (ROWS, KEYS) of both halves of the
// columns, a number for each row.
struct LatentsShared {
    bf16 *z, *b, *p;
    float *scores, *squares, *rows;
};
enum { HALF_SCORES = ROWS * SCORES_LD, HALF_SQUARES = ROWS * KEYS };
template <typename S>
__device__ __forceinline__ LatentsShared latents_shared(bf16 *z, const LatentsCall &c) {
    LatentsShared s;
    s.z = z;
    s.b = z + (c.c.r + 15) / 16 * 16 * KEYS;
    s.p = s.b + c.stages * S::STAGE;
    s.scores = reinterpret_cast<float *>(s.p + ROWS * KEYS);
    s.squares = s.scores + 2 * HALF_SCORES;
    s.rows = s.squares + 2 * HALF_SQUARES;
    return s;
}
template <typename S> static size_t shared_bytes(int r, int stages) {
    size_t tiles = round_up((size_t)r, 16) * KEYS + (size_t)stages * S::STAGE + ROWS * KEYS;
    return tiles * sizeof(bf16) + (2 * HALF_SCORES + 2 * HALF_SQUARES + ROWS) * sizeof(float);
}

// Starts to copy the latents of positions key ... key + 63: rows are ranks.
__device__ __forceinline__ void copy_latents(bf16 *tile, const LatentsCall &c, const LowRankTile &t,
                                             int key) {
    const bf16 *z = c.z + t.b * c.c.zk_batch + (size_t)key * c.c.n_zk;
    int rows = (c.c.r + 15) / 16 * 16;
    for (int i = (int)opaque(threadIdx.x); i < rows * (KEYS / 8); i += THREADS) {
        int row = i / (KEYS / 8), chunk = i % (KEYS / 8);
        int bytes = row < c.c.r ? bytes_of(t.end - key - chunk * 8) : 0;
        cp_async_16(chunk_at<KEYS>(tile, row, chunk), z + i * 8, bytes);
    }
}

// The factors of head h for ranks i ... i + 63; zeros behind the last.
template <typename S>
__device__ __forceinline__ void copy_factors(bf16 *stage, const LatentsCall &c, int h, int i) {
    const bf16 *b = c.b + (size_t)h * S::HS * c.c.ld_b + i;
    for (int k = (int)opaque(threadIdx.x); k < S::HS * (RANKS / 8); k += THREADS) {
        int row = k / (RANKS / 8), chunk = k % (RANKS / 8);
        cp_async_16(chunk_at<RANKS>(stage, row, chunk), b + (size_t)row * c.c.ld_b + chunk * 8,
                    bytes_of(c.c.r - i - chunk * 8));
    }
}
