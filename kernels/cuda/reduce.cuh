// reduce.cuh - sums and maxima over a warp, a part of a warp, or a block, in a fixed order.
// Every thread of the block (or warp) must call; every thread gets the result.
#pragma once

#include "kernels/cuda/ptx.cuh"

// Over groups of LANES neighbouring lanes (a power of two).
template <int LANES = WARP, typename T> __device__ __forceinline__ T warp_sum(T x) {
#pragma unroll
    for (int bits = LANES / 2; bits > 0; bits /= 2)
        x += shuffle_xor(x, bits);
    return x;
}
// The same for a number of lanes known at run time.
__device__ __forceinline__ float group_sum(float x, int lanes) {
    for (int bits = lanes / 2; bits > 0; bits /= 2)
        x += shuffle_xor(x, bits);
    return x;
}
template <int LANES = WARP> __device__ __forceinline__ float warp_max(float x) {
#pragma unroll
    for (int bits = LANES / 2; bits > 0; bits /= 2)
        x = fmaxf(x, shuffle_xor(x, bits));
    return x;
}

// A barrier of the block that says whether p holds for any of its threads.
__device__ __forceinline__ bool sync_any(bool p) {
    return __syncthreads_or(p) != 0;
}

// scratch: one T per warp in shared memory, free again when the call returns. The block is a
// multiple of 32 threads, in x alone.
template <typename T> __device__ __forceinline__ T block_sum(T x, T *scratch) {
    int lane = threadIdx.x % WARP, n_warps = blockDim.x / WARP;
    x = warp_sum(x);
    if (lane == 0) scratch[threadIdx.x / WARP] = x;
    __syncthreads();
    x = warp_sum(lane < n_warps ? scratch[lane] : T(0));
    __syncthreads();
    return x;
}
__device__ __forceinline__ float block_max(float x, float *scratch) {
    int lane = threadIdx.x % WARP, n_warps = blockDim.x / WARP;
    x = warp_max(x);
    if (lane == 0) scratch[threadIdx.x / WARP] = x;
    __syncthreads();
    x = warp_max(lane < n_warps ? scratch[lane] : -INFINITY);
    __syncthreads();
    return x;
}
