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
