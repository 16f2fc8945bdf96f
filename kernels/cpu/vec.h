// vec.h - small helpers on VecF: partial loads and stores, selection, minimum, maximum, sums across
// the lanes. Masks are VecI with all bits set where true, as comparisons make them.
#pragma once

#include "kernels/cpu/isa.h"

// The first n lanes (0 <= n <= LANES); the others are zero, or left alone in memory.
static inline VecF vec_load_n(const float *p, int n) {
    VecF v = {0};
    for (int i = 0; i < n; i++)
        v[i] = p[i];
    return v;
}
static inline void vec_store_n(float *p, VecF v, int n) {
    for (int i = 0; i < n; i++)
        p[i] = v[i];
}
// The same with the number of elements that are left, which may be more than LANES.
static inline VecF vec_get(const float *p, size_t left) {
    return left >= LANES ? vec_load(p) : vec_load_n(p, (int)left);
}
static inline void vec_put(float *p, VecF v, size_t left) {
    if (left >= LANES)
        vec_store(p, v);
    else
        vec_store_n(p, v, (int)left);
}
// True in the first n lanes.
static inline VecI vec_first(int n) {
    VecI lane;
    for (int i = 0; i < LANES; i++)
        lane[i] = i;
    return lane < n;
}

static inline VecF vec_select(VecI mask, VecF yes, VecF no) {
    return (VecF)((mask & (VecI)yes) | (~mask & (VecI)no));
}
// A NaN in v stays, a NaN in limit is ignored.
static inline VecF vec_min(VecF v, VecF limit) {
    return vec_select(v > limit, limit, v);
}
static inline VecF vec_max(VecF v, VecF limit) {
    return vec_select(v < limit, limit, v);
}
static inline VecF vec_abs(VecF v) {
    return (VecF)((VecI)v & 0x7FFFFFFF);
}

// Half as many doubles, from LANES/2 floats in memory.
typedef double VecD __attribute__((vector_size(LANES * 4)));
typedef float VecHalfU __attribute__((vector_size(LANES * 2), aligned(4)));
static inline VecD vec_load_double(const float *p) {
    return __builtin_convertvector(*(const VecHalfU *)p, VecD);
}

// Across the lanes, in a fixed order.
static inline float vec_sum(VecF v) {
    float s[LANES];
    memcpy(s, &v, sizeof s);
    for (int half = LANES / 2; half > 0; half /= 2) {
        for (int i = 0; i < half; i++)
            s[i] += s[i + half];
    }
    return s[0];
}
static inline float vec_largest(VecF v) {
    float best = v[0];
    for (int i = 1; i < LANES; i++)
        best = v[i] > best ? v[i] : best;
    return best;
}
