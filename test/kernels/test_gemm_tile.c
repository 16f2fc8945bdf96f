// test_gemm_tile.c - products of cached tiles against a double reference, and the peak
// measurements.
#include <math.h>
#include <string.h>

#include "kernels/cpu/peak.h"
#include "test/kernels/gemm_isas.h"

typedef struct TileShape {
    int M, N, K;
    size_t a_row, a_col, ldb, ldc;
    bool accumulate;
} TileShape;

static void check_tile(TestCtx *t, const Isa *isa, const TileShape *s) {
    size_t na = s->K ? (size_t)(s->M - 1) * s->a_row + (size_t)(s->K - 1) * s->a_col + 1 : 0;
    size_t nb = s->K ? (size_t)(s->K - 1) * s->ldb + (size_t)s->N : 0;
    size_t nc = (size_t)(s->M - 1) * s->ldc + (size_t)s->N;
    float *a = exact_floats(na, 5), *b = exact_floats(nb, 6);
    float *c = exact_floats(nc, 7), *c0 = exact_floats(nc, 7);
    isa->tile(c, s->ldc, a, s->a_row, s->a_col, b, s->ldb, s->M, s->N, s->K, s->accumulate);
    for (size_t i = 0; i < nc; i++) {
        size_t m = i / s->ldc, n = i % s->ldc;
        if (n >= (size_t)s->N) {
            CHECK_MSG(t, c[i] == c0[i], "wrote between the rows of C");
            continue;
        }
        double want = s->accumulate ? c0[i] : 0, size = fabs(want);
        for (size_t k = 0; k < (size_t)s->K; k++) {
            double term = (double)a[m * s->a_row + k * s->a_col] * b[k * s->ldb + n];
            want += term;
            size += fabs(term);
        }
        CHECK_MSG(t, fabs(c[i] - want) <= (s->K + 2) * 0x1p-24 * size,
                  "%dx%dx%d [%zu,%zu]: %.9g, expected %.9g", s->M, s->N, s->K, m, n, (double)c[i],
                  want);
    }
    free(a);
    free(b);
    free(c);
    free(c0);
}

static void tiles(TestCtx *t, const Isa *isa) {
    for (int i = 0; i < 700; i++) {
        int M = 1 + i % 14, N = 1 + i * 7 % 75, K = i * 5 % 41;
        size_t gap = (size_t)(i % 3);
        TileShape s = {.M = M, .N = N, .K = K, .ldb = (size_t)N + gap, .ldc = (size_t)N + gap};
        s.accumulate = i % 2;
        s.a_row = i % 5 < 3 ? (size_t)K + gap : 1;
        s.a_col = i % 5 < 3 ? 1 : (size_t)M + gap;
        check_tile(t, isa, &s);
    }
    check_tile(t, isa, &(TileShape){64, 64, 128, 128, 1, 64, 64, false});
}

static void tile_equals_the_double_reference(TestCtx *t) {
    each_isa(t, tiles);
}

static void nan_tile(TestCtx *t, const Isa *isa) {
    float a[6] = {0, 0, 0, 0, 0, NAN}, b[3 * 9] = {0}, c[2 * 9] = {0};
    isa->tile(c, 9, a, 3, 1, b, 9, 2, 9, 3, true);
    for (int i = 0; i < 18; i++)
        CHECK_MSG(t, i < 9 ? c[i] == 0 : isnan(c[i]), "[%d]", i);
}

static void tile_lets_nan_through(TestCtx *t) {
    each_isa(t, nan_tile);
}

// A row of a tile has the same bits whatever rows are computed with it.
static void tile_rows(TestCtx *t, const Isa *isa) {
    enum { M = 13, N = 75, K = 40 };
    float a[M * K], b[K * N], c[M * N], one[N];
    test_noise(a, M * K, 8, 1);
    test_noise(b, K * N, 9, 1);
    isa->tile(c, N, a, K, 1, b, N, M, N, K, false);
    for (int m = 0; m < M; m++) {
        isa->tile(one, N, a + m * K, K, 1, b, N, 1, N, K, false);
        CHECK_SAME_BITS(t, one, c + m * N, sizeof one);
    }
}

static void tile_gives_a_row_the_same_bits_alone_and_among_others(TestCtx *t) {
    each_isa(t, tile_rows);
}

// Of the plainest set, whose functions these names are here. How fast is not a test's business.
static void peaks_are_finite_and_positive(TestCtx *t) {
    double fma = peak_fma_flops(), read = peak_read_bytes(), bf16 = peak_bf16_flops();
    CHECK(t, isfinite(fma) && fma > 0);
    CHECK(t, isfinite(bf16) && bf16 > 0);
    CHECK(t, isfinite(read) && read > 0);
    CHECK(t, !peak_has_bf16());
}

TEST_MAIN({"tile_equals_the_double_reference", tile_equals_the_double_reference},
          {"tile_lets_nan_through", tile_lets_nan_through},
          {"tile_gives_a_row_the_same_bits_alone_and_among_others",
           tile_gives_a_row_the_same_bits_alone_and_among_others},
          {"peaks_are_finite_and_positive", peaks_are_finite_and_positive})
