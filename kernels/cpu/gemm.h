// gemm.h - fp32 matrix products on the CPU: C = alpha * A B (+ C) (+ bias), any sizes and strides.
// Operands are fp32 in memory; GEMM_BF16 rounds them to bf16 (nearest even) and sums in fp32.
//
// Every element of C is summed over K in one fixed order by one thread: the bits depend neither on
// the number of threads, nor on M, N or the row's place among other rows. NaN and Inf propagate;
// nothing is skipped for being zero. Inside a parallel region a call runs on the calling thread.
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "kernels/cpu/isa.h"

#define gemm             ISA_FN(gemm)
#define gemm_batched     ISA_FN(gemm_batched)
#define gemm_pack        ISA_FN(gemm_pack)
#define gemm_panel_bytes ISA_FN(gemm_panel_bytes)
#define gemm_tile        ISA_FN(gemm_tile)

typedef enum GemmType { GEMM_F32, GEMM_BF16 } GemmType;

// A(m,k) = a[m*a_row + k*a_col]. B(k,n) = b[k*b_row + n*b_col] when panels is NULL, else B is what
// gemm_pack made of the same K, N and type. c (M, N) with rows ldc apart; overlaps neither operand.
typedef struct GemmArgs {
    int M, N, K;
    const float *a;
    size_t a_row, a_col;
    const float *b;
    size_t b_row, b_col;
    const void *panels;
    float *c;
    size_t ldc;
    float alpha;
    bool accumulate;  // add to C instead of setting it
    // M = N, and AB as well as the C that it is added to equal their transposes: only the part
    // below the diagonal is summed, then mirrored. The bits are those of the whole product.
    bool symmetric;
    const float *bias;  // (n_bias) added to the first n_bias columns of C after alpha, or NULL
    int n_bias;
    GemmType type;
} GemmArgs;

// Panels hold B in the order in which the kernels read it, in fp32 or bf16: the form of weights.
// The caller owns the memory; 64-byte alignment is faster, not needed.
size_t gemm_panel_bytes(int N, int K, GemmType type);
// Element (k, n) of B at b[k*row_stride + n*col_stride]. Parallel.
void gemm_pack(void *panels, const float *b, size_t row_stride, size_t col_stride, int K, int N,
               GemmType type);

void gemm(const GemmArgs *g);

// `batch` products; matrix i at a + i*a_stride, b + i*b_stride (panels: i*b_stride bytes), c +
// i*c_stride.
void gemm_batched(const GemmArgs *g, int batch, size_t a_stride, size_t b_stride, size_t c_stride);

// C (M, N) = A B, or += when accumulate, on the calling thread, without packing or allocating: for
// tiles that lie in the cache. B (K, N) has contiguous rows ldb apart, A is strided as above.
void gemm_tile(float *c, size_t ldc, const float *a, size_t a_row, size_t a_col, const float *b,
               size_t ldb, int M, int N, int K, bool accumulate);
