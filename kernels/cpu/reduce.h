// reduce.h - sums over many rows or elements whose order depends on the sizes alone, never on the
// number of threads.
#pragma once

#include "kernels/cpu/isa.h"

#define rows_add    ISA_FN(rows_add)
#define columns_add ISA_FN(columns_add)
#define sum_squares ISA_FN(sum_squares)

// Elements below which starting threads costs more than it gives.
enum { SERIAL_ELEMENTS = 1 << 14 };
// Elements that a thread takes at a time in element-wise loops.
enum { SPAN = 1 << 13 };

// dst[c] += sum over i < n of src[row(i) * ld + c] for c0 <= c < c1, with row(i) = index[i], or i
// when index is NULL. On the calling thread.
void rows_add(float *dst, const float *src, size_t ld, const int *index, size_t n, size_t c0,
              size_t c1);

// N rows are cut into this many blocks for sums over rows. Block i is [N*i/blocks, N*(i+1)/blocks).
static inline size_t row_blocks(size_t N) {
    size_t blocks = N / 16;
    return blocks < 1 ? 1 : blocks > 128 ? 128 : blocks;
}
static inline size_t block_start(size_t N, size_t blocks, size_t i) {
    return (N / blocks) * i + (N % blocks) * i / blocks;
}

// dst (C) += the sum of the n rows of src, ld apart. Parallel over columns.
void columns_add(float *dst, const float *src, size_t ld, size_t n, size_t C);

// Sum of x^2 in double, at least 1e-13 exact; not finite exactly when some x is not. Parallel.
double sum_squares(const float *x, size_t n);
