// rope.cuh - pairs of a head in registers: pair i is elements i and i + (HS+1)/2. An odd head
// (never rotated) has one pair whose second element is missing.
#pragma once

#include "kernels/cuda/reduce.cuh"

// W neighbouring pairs from pair i on. W > 1 needs an even HS.
template <int W, typename T>
__device__ __forceinline__ void load_pairs(float *x1, float *x2, const T *head, int i, int HS) {
    int half = (HS + 1) / 2;
    load_vec<W>(x1, head + i);
    if (W > 1 || i + half < HS)
        load_vec<W>(x2, head + half + i);
    else
        x2[0] = 0.0f;
}
template <int W, typename T>
__device__ __forceinline__ void store_pairs(T *head, const float *x1, const float *x2, int i,
                                            int HS) {
    int half = (HS + 1) / 2;
    store_vec<W>(head + i, x1);
    if (W > 1 || i + half < HS) store_vec<W>(head + half + i, x2);
}

// By +angle (sign 1) or -angle (sign -1); rope: cos, sin of these pairs.
template <int W>
__device__ __forceinline__ void rotate_pairs(float *x1, float *x2, const float *rope, float sign) {
    float cs[2 * W];
    load_vec<2 * W>(cs, rope);
#pragma unroll
    for (int j = 0; j < W; j++) {
        float c = cs[2 * j], s = sign * cs[2 * j + 1], a = x1[j], b = x2[j];
        x1[j] = a * c + b * s;
        x2[j] = b * c - a * s;
    }
}
