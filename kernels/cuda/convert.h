// convert.h - small element-wise helpers that several files need; launched on the compute stream.
#pragma once

#include "kernels/cuda/device.h"

// out (n) = inp (n), rounded to nearest even. For bf16 and float, both ways.
template <typename To, typename From> void convert(To *out, const From *inp, size_t n);
// out (N, W at ld_out) += bias (W)
template <typename T> void bias_add(T *out, size_t ld_out, const float *bias, size_t N, int W);
