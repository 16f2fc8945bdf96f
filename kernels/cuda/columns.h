// columns.h - sums over rows in a fixed order: out (C) += sum over P rows of part (P, C) at stride
// ld.
#pragma once

#include "kernels/cuda/device.h"

void columns_add(float *out, const float *part, size_t ld, size_t P, size_t C);
