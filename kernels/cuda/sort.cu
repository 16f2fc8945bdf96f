// sort.cu - radix sort by 8-bit digits, lowest first: three passes of count, scan, scatter.
// One warp owns a tile of keys and walks through it 32 at a time; lanes with the same digit find
// each other by ballots, so ranks need no atomics and the sort is stable.
#include "kernels/cuda/sort.h"

#include "kernels/cuda/reduce.cuh"

enum { DIGITS = 256, DIGIT_BITS = 8, PASSES = 3, TILE = 512, WARPS = 4, SCAN_BLOCK = 1024 };

// Lanes whose digit is the same; 0 for a lane without a key.
__device__ __forceinline__ unsigned same_digit(int digit, bool real) {
    unsigned peers = warp_ballot(real);
#pragma unroll
    for (int b = 0; b < DIGIT_BITS; b++) {
        unsigned set = warp_ballot((digit >> b & 1) != 0);
        peers &= digit >> b & 1 ? set : ~set;
    }
    return real ? peers : 0;
}

// The warp's tile and its DIGITS counters in shared memory.
struct Tile {
    size_t index, first, end;
    int *counter;
};
__device__ __forceinline__ Tile tile_here(int *counters, size_t n) {
    int warp = threadIdx.x / WARP;
    size_t index = (size_t)blockIdx.x * WARPS + warp, first = index * TILE;
    return {index, first, first + TILE < n ? first + TILE : n, counters + warp * DIGITS};
}

// counts (DIGITS, tiles): how often each digit occurs in each tile.
__global__ void sort_count_kernel(int *counts, const int *keys, size_t n, size_t tiles, int shift) {
    SHARED(int, counters);
    Tile t = tile_here(counters, n);
    int lane = threadIdx.x % WARP;
    for (int d = lane; d < DIGITS; d += WARP)
        t.counter[d] = 0;
    __syncwarp();
    for (size_t at = t.first; at < t.end; at += WARP) {
        bool real = at + lane < t.end;
        int digit = real ? keys[at + lane] >> shift & (DIGITS - 1) : 0;
        unsigned peers = same_digit(digit, real);
        if (real && __ffs((int)peers) - 1 == lane) t.counter[digit] += __popc(peers);
        __syncwarp();
    }
    for (int d = lane; d < DIGITS && t.index < tiles; d += WARP)
        counts[d * tiles + t.index] = t.counter[d];
}

// In place: each count becomes the sum of those before it. One block.
__global__ void sort_scan_kernel(int *counts, size_t n) {
    SHARED(int, sums);
    size_t share = (n + blockDim.x - 1) / blockDim.x;
    size_t first = min(threadIdx.x * share, n), end = min(first + share, n);
    int mine = 0, i = threadIdx.x;
    for (size_t j = first; j < end; j++)
        mine += counts[j];
    sums[i] = mine;
    __syncthreads();
    for (int step = 1; step < (int)blockDim.x; step *= 2) {
        int before = i >= step ? sums[i - step] : 0;
        __syncthreads();
        sums[i] += before;
        __syncthreads();
    }
    int sum = sums[i] - mine;
    for (size_t j = first; j < end; j++) {
        int count = counts[j];
        counts[j] = sum;
        sum += count;
    }
}

// index NULL: the positions themselves.
__global__ void sort_scatter_kernel(int *key_out, int *index_out, const int *keys, const int *index,
                                    const int *counts, size_t n, size_t tiles, int shift) {
    SHARED(int, counters);
    Tile t = tile_here(counters, n);
    int lane = threadIdx.x % WARP;
    for (int d = lane; d < DIGITS && t.index < tiles; d += WARP)
        t.counter[d] = counts[d * tiles + t.index];
    __syncwarp();
    for (size_t at = t.first; at < t.end; at += WARP) {
        bool real = at + lane < t.end;
        int key = real ? keys[at + lane] : 0, digit = key >> shift & (DIGITS - 1);
        unsigned peers = same_digit(digit, real);
        int to = real ? t.counter[digit] + __popc(peers & ((1u << lane) - 1)) : 0;
        if (real) {
            key_out[to] = key;
            index_out[to] = index ? index[at + lane] : (int)(at + lane);
        }
        __syncwarp();
        if (real && __ffs((int)peers) - 1 == lane) t.counter[digit] += __popc(peers);
        __syncwarp();
    }
}

static size_t tiles_of(size_t n) {
    return ceil_div(n, TILE);
}

size_t sort_bytes(size_t n) {
    return (4 * n + DIGITS * tiles_of(n)) * sizeof(int);
}

Sorted sort_keys(const int *keys, size_t n, void *scratch) {
    size_t tiles = tiles_of(n), blocks = ceil_div(tiles, WARPS),
           bytes = WARPS * DIGITS * sizeof(int);
    int *key[2] = {static_cast<int *>(scratch), static_cast<int *>(scratch) + n};
    int *index[2] = {key[1] + n, key[1] + 2 * n}, *counts = index[1] + n;
    const int *from = keys, *from_index = nullptr;
    for (int pass = 0; pass < PASSES; pass++) {
        int shift = pass * DIGIT_BITS, to = pass % 2;
        LAUNCH(sort_count_kernel, blocks, WARPS * WARP, bytes, cuda_stream())
        (counts, from, n, tiles, shift);
        LAUNCH(sort_scan_kernel, 1, SCAN_BLOCK, SCAN_BLOCK * sizeof(int), cuda_stream())
        (counts, DIGITS * tiles);
        LAUNCH(sort_scatter_kernel, blocks, WARPS * WARP, bytes, cuda_stream())
        (key[to], index[to], from, from_index, counts, n, tiles, shift);
        from = key[to];
        from_index = index[to];
    }
    return {from, from_index};
}
