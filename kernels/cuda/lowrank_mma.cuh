// lowrank_mma.cuh - pieces of the tensor-core kernels for low-rank keys and values.
#pragma once

#include "kernels/cuda/lowrank_mma.h"
#include "kernels/cuda/sdpa_mma.cuh"

enum { QUERIES = 8 };  // new tokens over a cache, at most: the columns of one mma

// Bytes to copy of 8 values, the first `values` of which exist.
__device__ __forceinline__ int bytes_of(int values) {
    return min(max(values, 0), 8) * 2;
}

// Two warps share a head's columns such that each has both of a pair (c, c + HS/2), which rotate
// together: the first column of n8 tile j of a warp, which has HS/32 in each half of the head.
template <int HS> __device__ __forceinline__ int column_of(int warp, int j) {
    return j / (HS / 32) * (HS / 2) + warp * (HS / 4) + j % (HS / 32) * 8;
}

// What a block of a decoding kernel works on: heads h ... h_end - 1 of row b, keys begin ... end
// - 1.
struct LowRankTile {
    int b, h, h_end, split, pos, n_new, begin, end;
};
// Of a call with `heads` heads to a block and split_keys keys to a split. Taken anew where needed,
// to save registers.
template <typename Call> __device__ __forceinline__ LowRankTile lowrank_tile(const Call &c) {
    int groups = (c.a.NH + c.heads - 1) / c.heads;
    LowRankTile t;
    unsigned i = opaque(blockIdx.x);
    t.h = (int)(i % groups) * c.heads;
    t.h_end = min(t.h + c.heads, c.a.NH);
    i /= groups;
    t.split = i % c.parts.n_splits;
    t.b = i / c.parts.n_splits;
    t.pos = c.a.pos[t.b];
    t.n_new = c.a.n_new[t.b];
    t.begin = t.split * c.split_keys;
    t.end = min(t.begin + c.split_keys, t.pos + t.n_new);
    return t;
}
