// lowrank_mma_decode.cuh - decoding of LRKV: sizes, what a block works on, and how its stages of
// shared memory are laid out and filled.
#pragma once

#include "kernels/cuda/lowrank_mma.cuh"

enum { KEYS = 32, MAX_HEADS = 6 };

struct LowRankCall {
    const bf16 *q;
    SdpaArgs a;
    LowRankCache c;
    LowRankParts parts;
    int split_keys, heads;  // of a block
};

// RS: ranks in steps of 16.
template <int HS_, int RS_> struct LowRankShape {
    // QT: n8 tiles of a warp in each of its two quarters of the columns; ZT: m16 tiles of latents.
    enum { HS = HS_, RS = RS_, QT = HS / 32, ZT = (RS + 1) / 2, Z = 16 * RS * KEYS };
    // A stage: shared keys, shared values, rope; latents of keys and values of each head.
    enum { KS = 0, VS = KEYS * HS, ROPE = 2 * KEYS * HS, LATENTS = 4 * KEYS * HS };
    // Of a warp: partial scores (KEYS, QUERIES) and sums of squares (KEYS) in fp32; p in bf16.
    enum { SCORES = KEYS * QUERIES + KEYS, P = QUERIES * KEYS };
    static constexpr __host__ __device__ int stage(int heads) { return LATENTS + heads * 2 * Z; }
    static constexpr size_t shared_bytes(int heads) {
        return 4 * (size_t)stage(heads) + 2 * (size_t)heads * (SCORES * 4 + P * 2);
    }
};

// 16 bytes of a tile whose rows are 32 positions: free of conflicts.
template <typename T> __device__ __forceinline__ T *narrow_at(T *tile, int row, int chunk) {
    return tile + row * KEYS + (chunk ^ row / 2 % 4) * 8;
}

// Starts to copy positions key ... key + 31 of everything to a stage. Here and in clear_stage i is
// opaque: places computed for one stage are not kept for the next, for lack of registers.
template <typename S>
__device__ __forceinline__ void copy_stage(bf16 *stage, const LowRankCall &c, const LowRankTile &t,
                                           int key) {
    const LowRankCache &l = c.c;
    int n = t.end - key, heads = t.h_end - t.h;
    const bf16 *ks = static_cast<const bf16 *>(l.ks) + t.b * l.ks_batch + (size_t)key * S::HS;
    const bf16 *vs = static_cast<const bf16 *>(l.vs) + t.b * l.vs_batch + (size_t)key * S::HS;
    for (int i = (int)opaque(threadIdx.x); i < KEYS * S::HS / 8; i += blockDim.x) {
        int row = i / (S::HS / 8), chunk = i % (S::HS / 8), bytes = row < n ? 16 : 0;
        cp_async_16(chunk_at<S::HS>(stage + S::KS, row, chunk), ks + i * 8, bytes);
        cp_async_16(chunk_at<S::HS>(stage + S::VS, row, chunk), vs + i * 8, bytes);
    }
    for (int i = (int)opaque(threadIdx.x); l.rope && i < KEYS * S::HS / 4; i += blockDim.x) {
        int row = i / (S::HS / 4), chunk = i % (S::HS / 4);
        cp_async_16(chunk_at<2 * S::HS>(stage + S::ROPE, row, chunk),
                    l.rope + (size_t)key * S::HS + i * 4, row < n ? 16 : 0);
    }
    for (int i = (int)opaque(threadIdx.x); i < heads * 2 * S::RS * 16 * 4; i += blockDim.x) {
        int chunk = i % 4, row = i / 4 % (16 * S::RS), plane = i / 4 / (16 * S::RS), h = plane / 2;
        bool values = plane % 2;
        size_t n_z = (size_t)(values ? l.n_zv : l.n_zk);
        const bf16 *z = static_cast<const bf16 *>(values ? l.zv : l.zk) +
                        t.b * (values ? l.zv_batch : l.zk_batch) +
                        (key / LATENT_BLOCK * n_z + (size_t)(t.h + h) * l.r + row) * LATENT_BLOCK;
        int bytes = row < l.r ? bytes_of(n - chunk * 8) : 0;
        cp_async_16(narrow_at(stage + S::LATENTS + plane * S::Z, row, chunk),
                    z + key % LATENT_BLOCK + chunk * 8, bytes);
    }
    cp_async_commit();
}

// Of a stage whose keys not all queries see: values and latents of values that are not finite are
// cleared, by the threads that copied them; whether there were any.
template <typename S>
__device__ __forceinline__ bool clear_stage(bf16 *stage, const LowRankTile &t) {
    int heads = t.h_end - t.h;
    bool any = false;
    for (int i = (int)opaque(threadIdx.x); i < KEYS * S::HS / 8; i += blockDim.x)
        any |= clear_not_finite(chunk_at<S::HS>(stage + S::VS, i / (S::HS / 8), i % (S::HS / 8)));
    for (int i = (int)opaque(threadIdx.x); i < heads * 2 * S::RS * 16 * 4; i += blockDim.x) {
        int chunk = i % 4, row = i / 4 % (16 * S::RS), plane = i / 4 / (16 * S::RS);
        if (plane % 2)
            any |= clear_not_finite(narrow_at(stage + S::LATENTS + plane * S::Z, row, chunk));
    }
    return any;
}
