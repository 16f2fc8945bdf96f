// gemm_isas.h - the gemm functions of every compiled instruction set, for tests. The set "wide" is
// compiled for tests only: 16 lanes and pairs of bf16, as on AVX-512, on a processor without them.
#pragma once

#include <stdlib.h>

#include "kernels/cpu/gemm.h"
#include "kernels/ops.h"
#include "test/test.h"

#undef gemm
#undef gemm_batched
#undef gemm_pack
#undef gemm_panel_bytes
#undef gemm_tile

typedef struct Isa {
    const char *name, *needs;  // needs: the set the processor must have
    size_t (*panel_bytes)(int N, int K, GemmType type);
    void (*pack)(void *panels, const float *b, size_t row, size_t col, int K, int N, GemmType type);
    void (*gemm)(const GemmArgs *g);
    void (*batched)(const GemmArgs *g, int batch, size_t a, size_t b, size_t c);
    void (*tile)(float *c, size_t ldc, const float *a, size_t a_row, size_t a_col, const float *b,
                 size_t ldb, int M, int N, int K, bool accumulate);
} Isa;

#define DECLARE(isa)                                                                               \
    size_t gemm_panel_bytes_##isa(int N, int K, GemmType type);                                    \
    void gemm_pack_##isa(void *panels, const float *b, size_t row, size_t col, int K, int N,       \
                         GemmType type);                                                           \
    void gemm_##isa(const GemmArgs *g);                                                            \
    void gemm_batched_##isa(const GemmArgs *g, int batch, size_t a, size_t b, size_t c);           \
    void gemm_tile_##isa(float *c, size_t ldc, const float *a, size_t a_row, size_t a_col,         \
                         const float *b, size_t ldb, int M, int N, int K, bool accumulate);
#define ROW(isa, needs)                                                                            \
    {                                                                                              \
        #isa,                                                                                      \
        needs,                                                                                     \
        gemm_panel_bytes_##isa,                                                                    \
        gemm_pack_##isa,                                                                           \
        gemm_##isa,                                                                                \
        gemm_batched_##isa,                                                                        \
        gemm_tile_##isa},
#ifdef HAVE_ISA_avx2
    #define WIDE_NEEDS "avx2"
    #define AVX2(X)    X(avx2, "avx2")
#else
    #define WIDE_NEEDS NULL
    #define AVX2(X)
#endif
#ifdef HAVE_ISA_avx512
    #define AVX512(X) X(avx512, "avx512")
#else
    #define AVX512(X)
#endif
#ifdef HAVE_ISA_avx512bf16
    #define AVX512BF16(X) X(avx512bf16, "avx512bf16")
#else
    #define AVX512BF16(X)
#endif
#ifdef HAVE_ISA_base
    #define BASE(X) X(base, "base")
#else
    #define BASE(X)
#endif
#define ALL(X)            BASE(X) AVX2(X) AVX512(X) AVX512BF16(X) X(wide, WIDE_NEEDS)
#define DECLARE_ROW(s, n) DECLARE(s)
ALL(DECLARE_ROW)
static const Isa isas[] = {ALL(ROW)};

// Memory that ends where the array does (mem_alloc rounds up), so that a sanitizer sees any access
// beyond it. Freed with free().
static inline float *exact_floats(size_t n, uint64_t seed) {
    float *p = malloc(n ? n * sizeof(float) : 1);
    if (!p) die("out of memory");
    test_noise(p, n, seed, 1);
    return p;
}

// Runs a test for each set that this processor has.
typedef void IsaTest(TestCtx *t, const Isa *isa);

static inline void each_isa(TestCtx *t, IsaTest *test) {
    for (size_t i = 0; i < sizeof isas / sizeof isas[0]; i++) {
        int before = t->failures;
        if (isas[i].needs && !ops_cpu_isa(isas[i].needs)) continue;
        test(t, &isas[i]);
        CHECK_MSG(t, t->failures == before, "in the instruction set %s", isas[i].name);
    }
}
