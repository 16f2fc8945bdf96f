// vexp.h - exp, tanh, sigmoid and natural logarithm of float vectors, within about 2 ulp.
// NaN gives NaN, infinities give their limits, and every lane is computed the same way whatever its
// neighbours hold. exp flushes results below 1.7e-38 to zero, so that no softmax meets subnormals.
//
// Coefficients are minimax fits (Remez exchange) of the functions named beside them. Reduction by
// Cody and Waite, "Software Manual for the Elementary Functions" (1980).
#pragma once

#include <math.h>

#include "kernels/cpu/vec.h"

// x = n ln 2 + r with n an integer, |r| <= ln(2)/2: returns e^r - 1, and 2^(n-1) in half_scale.
// n must lie in -126..128; n = -126 gives half_scale 0.
static inline VecF vexp_reduce(VecF x, VecF *half_scale) {
    const VecF magic = vec_set(0x1.8p23f);  // pushes the fraction out of the mantissa
    VecF t = x * 0x1.715476p+0f + magic;
    VecF n = t - magic;
    VecF r = x - n * 0x1.62e4p-1f;
    r = r - n * 0x1.7f7d1cp-20f;
    // (e^r - 1 - r) / r^2
    VecF p = r * 0x1.6d99bep-10f + 0x1.12288p-7f;
    p = p * r + 0x1.555486p-5f;
    p = p * r + 0x1.5554aep-3f;
    p = p * r + 0x1p-1f;
    VecU exponent = (VecU)t - 0x4B400000u + 126u;
    *half_scale = (VecF)(exponent << 23);
    return r * r * p + r;
}

static inline VecF vec_exp(VecF x) {
    x = vec_min(vec_max(x, vec_set(-87.3f)), vec_set(89.0f));
    VecF half, em1 = vexp_reduce(x, &half);
    VecF y = em1 * half + half;
    return y + y;  // overflows to infinity here, for x > 88.72
}

// 1 / (1 + e^-x)
static inline VecF vec_sigmoid(VecF x) {
    return 1.0f / (1.0f + vec_exp(-x));
}

// Through e^(2|x|) - 1, which keeps the relative error small near 0.
static inline VecF vec_tanh(VecF x) {
    VecF a = vec_min(vec_abs(x), vec_set(10.0f));
    VecF half, em1 = vexp_reduce(a + a, &half);
    VecF scale = half + half;
    em1 = em1 * scale + (scale - 1.0f);
    VecF y = em1 / (em1 + 2.0f);
    return (VecF)((VecI)y | ((VecI)x & INT32_MIN));
}

static inline VecF vec_log(VecF x) {
    VecI tiny = x < 0x1p-126f;
    VecU bits = (VecU)vec_select(tiny, x * 0x1p23f, x);
    // mantissa in [sqrt(1/2), sqrt(2))
    bits += 0x3F800000u - 0x3F3504F3u;
    VecI e = (VecI)(bits >> 23) - 127 - (tiny & 23);
    VecF f = (VecF)((bits & 0x007FFFFFu) + 0x3F3504F3u) - 1.0f;
    VecF n = __builtin_convertvector(e, VecF);
    // log(1 + f) = f - f^2/2 + s (f^2/2 + R(s^2)), s = f/(2+f), R = (2 atanh(s) - 2 s) / s
    VecF s = f / (2.0f + f), z = s * s;
    VecF p = z * 0x1.e2fdd2p-3f + 0x1.2438a8p-2f;
    p = p * z + 0x1.999a7cp-2f;
    p = p * z + 0x1.555554p-1f;
    VecF half = 0.5f * f * f;
    VecF y = n * 0x1.62e4p-1f + (f - (half - (s * (half + z * p) + n * 0x1.7f7d1cp-20f)));
    y = vec_select(x > 0.0f, y, vec_set(NAN));
    y = vec_select(x == 0.0f, vec_set(-INFINITY), y);
    return vec_select(x == INFINITY, x, y);
}
