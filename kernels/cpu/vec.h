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
