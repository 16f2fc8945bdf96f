// test_gemm.c - matrix products of every compiled instruction set against a double reference.
// Bounds follow from the roundings: a sum of K products made in any order is off by at most
// (K + a few) * 2^-24 * sum |a||b|.
#include <math.h>
#include <stdlib.h>
#include <string.h>
#ifdef _OPENMP
    #include <omp.h>
#endif

#include "test/kernels/gemm_isas.h"

static void set_threads(int n) {
#ifdef _OPENMP
    omp_set_num_threads(n);
#else
    (void)n;
#endif
}

static int threads_now(void) {
#ifdef _OPENMP
    return omp_get_max_threads();
#else
    return 1;
#endif
}

// Small reproducible numbers for shapes.
static int pick(uint64_t *state, int low, int high) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return low + (int)((*state >> 33) % (uint64_t)(high - low + 1));
}

static float to_bf16(float x) {  // nearest even
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    u = (u + 0x7fff + ((u >> 16) & 1)) & 0xffff0000;
    memcpy(&x, &u, sizeof u);
    return x;
}

// Everything one product needs, with margins of sentinels around C.
typedef struct Problem {
    GemmArgs g;
    float *a, *b, *c, *c0, *bias;
    void *panels;
    size_t c_size;
} Problem;

enum { MARGIN = 37 };

// trans_a, trans_b: that operand's K runs along rows. gap: extra elements between rows.
static Problem problem_make(const Isa *isa, int M, int N, int K, GemmType type, bool trans_a,
                            bool trans_b, bool panels, int gap) {
    Problem p = {.g = {.M = M, .N = N, .K = K, .alpha = 1, .type = type}};
    size_t lda = (size_t)((trans_a ? M : K) + gap), ldb = (size_t)((trans_b ? K : N) + gap);
    size_t na = lda * (size_t)(trans_a ? K : M), nb = ldb * (size_t)(trans_b ? N : K);
    p.g.ldc = (size_t)(N + gap);
    p.c_size = p.g.ldc * (size_t)M + 2 * MARGIN;
    p.a = exact_floats(na, 1);
    p.b = exact_floats(nb, 2);
    p.c = exact_floats(p.c_size, 3);
    p.c0 = exact_floats(p.c_size, 3);
    p.bias = exact_floats((size_t)N, 4);
    p.g.a = p.a;
    p.g.a_row = trans_a ? 1 : lda;
    p.g.a_col = trans_a ? lda : 1;
    p.g.b_row = trans_b ? 1 : ldb;
    p.g.b_col = trans_b ? ldb : 1;
    p.g.c = p.c + MARGIN;
    if (panels) {
        p.panels = mem_alloc(isa->panel_bytes(N, K, type), 1);
        isa->pack(p.panels, p.b, p.g.b_row, p.g.b_col, K, N, type);
        p.g.panels = p.panels;
    } else {
        p.g.b = p.b;
    }
    return p;
}

static void problem_free(Problem *p) {
    free(p->a);
    free(p->b);
    free(p->c);
    free(p->c0);
    free(p->bias);
    mem_free(p->panels);
}

// C(m, n) of the operands as they are and as the kernel rounds them, with the sum of absolute
// terms.
typedef struct Exact {
    double value, rounded, terms;
} Exact;

static Exact reference(const Problem *p, int m, int n) {
    const GemmArgs *g = &p->g;
    bool bf16 = g->type == GEMM_BF16;
    Exact e = {0};
    for (int k = 0; k < g->K; k++) {
        float a = p->a[(size_t)m * g->a_row + (size_t)k * g->a_col];
        float b = p->b[(size_t)k * g->b_row + (size_t)n * g->b_col];
        double term = (double)a * b;
        e.value += term;
        e.rounded += bf16 ? (double)to_bf16(a) * to_bf16(b) : term;
        e.terms += fabs(term);
    }
    double rest = 0;
    if (g->bias && n < g->n_bias) rest = g->bias[n];
    e.terms = e.terms * fabs(g->alpha) + fabs(rest);
    if (g->accumulate) {
        double old = p->c0[MARGIN + (size_t)m * g->ldc + (size_t)n];
        rest += old;
        e.terms += fabs(old);
    }
    e.value = e.value * g->alpha + rest;
    e.rounded = e.rounded * g->alpha + rest;
    return e;
}

// All of C within the bound, all of the rest untouched.
static void check_product(TestCtx *t, const Problem *p) {
    const GemmArgs *g = &p->g;
    for (int m = 0; m < g->M; m++) {
        for (int n = 0; n < g->N; n++) {
            double got = g->c[(size_t)m * g->ldc + (size_t)n];
            Exact want = reference(p, m, n);
            // Rounding to bf16 moves each operand by at most 2^-8 of itself, the terms by 2^-7.
            double bf16 = g->type == GEMM_BF16 ? 0x1.02p-7 * want.terms : 0;
            double bound = (g->K + 8) * 0x1p-24 * (want.terms + bf16);
            CHECK_MSG(t, fabs(got - want.rounded) <= bound,
                      "%dx%dx%d [%d,%d]: %.9g, expected %.9g within %.3g", g->M, g->N, g->K, m, n,
                      got, want.rounded, bound);
            CHECK_MSG(t, fabs(got - want.value) <= bound + bf16,
                      "%dx%dx%d [%d,%d]: %.9g, without rounding %.9g", g->M, g->N, g->K, m, n, got,
                      want.value);
        }
    }
    for (size_t i = 0; i < p->c_size; i++) {
        bool inside = i >= MARGIN && i < p->c_size - MARGIN &&
                      (i - MARGIN) % g->ldc < (size_t)g->N && g->M > 0;
        CHECK_MSG(t, inside || p->c[i] == p->c0[i], "%dx%dx%d wrote outside C", g->M, g->N, g->K);
    }
}

static void odd_shapes(TestCtx *t, const Isa *isa) {
    uint64_t s = 7;
    for (int i = 0; i < 80; i++) {
        int limit = i % 3 == 0 ? 130 : i % 3 == 1 ? 34 : 9;
        int M = pick(&s, 1, limit), N = pick(&s, 1, limit);
        int K = i % 10 == 9 ? pick(&s, 250, 1100) : pick(&s, 1, limit);
        int bits = pick(&s, 0, 255);
        Problem p = problem_make(isa, M, N, K, bits & 1 ? GEMM_BF16 : GEMM_F32, bits & 2, bits & 4,
                                 bits & 8, bits & 16 ? 3 : 0);
        p.g.accumulate = bits & 32;
        if (bits & 64) p.g.alpha = -0.375f;
        if (bits & 128) {
            p.g.bias = p.bias;
            p.g.n_bias = pick(&s, 0, N);
        }
        isa->gemm(&p.g);
        check_product(t, &p);
        problem_free(&p);
    }
}

static void gemm_equals_the_double_reference_on_odd_shapes(TestCtx *t) {
    each_isa(t, odd_shapes);
}

// Longer than the chunks that are packed at a time, in each direction and with C accumulated.
static void long_sides(TestCtx *t, const Isa *isa) {
    static const int shapes[][3] = {{5, 3, 9000}, {515, 2, 4096}, {2, 1030, 4096}};
    for (int i = 0; i < 3; i++) {
        for (int type = 0; type < 2; type++) {
            Problem p = problem_make(isa, shapes[i][0], shapes[i][1], shapes[i][2] << type,
                                     (GemmType)type, i == 1, i == 2, false, 0);
            p.g.accumulate = true;
            p.g.bias = p.bias;
            p.g.n_bias = p.g.N - 1;
            isa->gemm(&p.g);
            check_product(t, &p);
            problem_free(&p);
        }
    }
}

static void gemm_is_right_beyond_the_packed_chunks(TestCtx *t) {
    each_isa(t, long_sides);
}

static void row_alone(TestCtx *t, const Isa *isa) {
    static const int rows[] = {1, 2, 3, 4, 5, 7, 8, 12, 13, 66};
    enum { LAST = 9, N = 77, K = 1301 };
    for (int variant = 0; variant < 4; variant++) {
        GemmType type = variant & 1 ? GEMM_BF16 : GEMM_F32;
        Problem p = problem_make(isa, rows[LAST], N, K, type, false, true, variant & 2, 0);
        p.g.bias = p.bias;
        p.g.n_bias = N;
        p.g.alpha = 0.7f;
        isa->gemm(&p.g);
        float *all = mem_alloc((size_t)rows[LAST] * N, sizeof(float));
        memcpy(all, p.g.c, (size_t)rows[LAST] * N * sizeof(float));
        for (int i = 0; i < LAST; i++) {
            int first = rows[LAST] - rows[i];
            p.g.M = rows[i];
            p.g.a = p.a + (size_t)first * K;
            isa->gemm(&p.g);
            CHECK_SAME_BITS(t, p.g.c, all + (size_t)first * N, (size_t)rows[i] * N * sizeof(float));
        }
        mem_free(all);
        problem_free(&p);
    }
}

static void gemm_gives_a_row_the_same_bits_alone_and_among_others(TestCtx *t) {
    each_isa(t, row_alone);
}

static void one_to_three_threads(TestCtx *t, const Isa *isa) {
    int threads = threads_now();
    for (int variant = 0; variant < 8; variant++) {
        Problem p = problem_make(isa, variant & 4 ? 3 : 190, 201, 700, (GemmType)(variant & 1),
                                 variant & 2, false, variant & 2, 1);
        set_threads(1);
        isa->gemm(&p.g);
        memcpy(p.c0, p.c, p.c_size * sizeof(float));
        for (int n = 2; n <= 3; n++) {
            memset(p.c + MARGIN, 0, (p.c_size - 2 * MARGIN - 1) * sizeof(float));
            set_threads(n);
            isa->gemm(&p.g);
            for (int m = 0; m < p.g.M; m++) {
                size_t at = (size_t)m * p.g.ldc;
                CHECK_SAME_BITS(t, p.g.c + at, p.c0 + MARGIN + at, (size_t)p.g.N * sizeof(float));
            }
        }
        problem_free(&p);
    }
    set_threads(threads);
}

static void gemm_gives_the_same_bits_on_any_number_of_threads(TestCtx *t) {
    each_isa(t, one_to_three_threads);
}

// Products one after the other and each on its own thread; strided so that nothing is contiguous.
static void batches(TestCtx *t, const Isa *isa) {
    int threads = threads_now();
    for (int variant = 0; variant < 8; variant++) {
        enum { M = 21, N = 19, K = 45, BATCH = 5 };
        GemmType type = variant & 1 ? GEMM_BF16 : GEMM_F32;
        bool panels = variant & 2;
        Problem p = problem_make(isa, M * BATCH, N, K * BATCH, type, false, false, false, 2);
        Problem one = p;
        size_t bytes = isa->panel_bytes(N, K, type), b_stride = panels ? bytes : K * p.g.b_row;
        one.g.M = M;
        one.g.K = K;
        one.panels = mem_alloc(BATCH, bytes);
        for (int i = 0; i < BATCH; i++) {
            isa->pack((char *)one.panels + (size_t)i * bytes, p.b + (size_t)i * K * p.g.b_row,
                      p.g.b_row, p.g.b_col, K, N, type);
        }
        one.g.panels = panels ? one.panels : NULL;
        set_threads(variant & 4 ? 3 : 1);
        isa->batched(&one.g, BATCH, M * p.g.a_row, b_stride, M * p.g.ldc);
        for (int i = 0; i < BATCH; i++) {
            Problem part = one;
            part.a = p.a + (size_t)(i * M) * p.g.a_row;
            part.b = p.b + (size_t)(i * K) * p.g.b_row;
            part.c0 = p.c0 + (size_t)(i * M) * p.g.ldc;
            part.g.c = p.g.c + (size_t)(i * M) * p.g.ldc;
            part.c_size = 0;
            check_product(t, &part);
        }
        mem_free(one.panels);
        problem_free(&p);
    }
    set_threads(threads);
}

static void batched_equals_one_product_after_the_other(TestCtx *t) {
    each_isa(t, batches);
}

static void empty_sides(TestCtx *t, const Isa *isa) {
    for (int variant = 0; variant < 4; variant++) {
        Problem p =
            problem_make(isa, 9, 21, 0, (GemmType)(variant & 1), false, false, variant & 2, 0);
        p.g.bias = p.bias;
        p.g.n_bias = 17;
        isa->gemm(&p.g);
        check_product(t, &p);
        memcpy(p.c, p.c0, p.c_size * sizeof(float));
        p.g.accumulate = true;
        isa->gemm(&p.g);
        check_product(t, &p);
        problem_free(&p);
        p = problem_make(isa, 5, 6, 7, (GemmType)(variant & 1), false, false, variant & 2, 0);
        GemmArgs none = p.g;
        none.M = 0;
        isa->gemm(&none);
        none.M = 5;
        none.N = 0;
        isa->gemm(&none);
        isa->batched(&p.g, 0, 1, 1, 1);
        CHECK_SAME_BITS(t, p.c, p.c0, p.c_size * sizeof(float));
        problem_free(&p);
    }
}

static void gemm_with_an_empty_side_sums_nothing(TestCtx *t) {
    each_isa(t, empty_sides);
}

// One bad element of A spoils its row, one of B its column, even against zeros, and nothing else.
static void bad_values(TestCtx *t, const Isa *isa) {
    static const uint32_t bad[] = {0x7fc00000, 0x7f800001, 0xff800001, 0x7f800000, 0xff800000};
    enum { M = 14, N = 35, K = 33, ROW = 9, COLUMN = 34 };
    for (int variant = 0; variant < 20; variant++) {
        Problem p = problem_make(isa, M, N, K, (GemmType)(variant & 1), false, false, false, 0);
        bool in_a = variant & 2;
        for (size_t i = 0; i < K * N && in_a; i++)
            p.b[i] = 0;
        for (size_t i = 0; i < M * K && !in_a; i++)
            p.a[i] = 0;
        memcpy(in_a ? &p.a[ROW * K + 32] : &p.b[7 * N + COLUMN], &bad[variant / 4], 4);
        isa->gemm(&p.g);
        for (int m = 0; m < M; m++) {
            for (int n = 0; n < N; n++) {
                bool spoilt = in_a ? m == ROW : n == COLUMN;
                float c = p.g.c[(size_t)m * p.g.ldc + (size_t)n];
                CHECK_MSG(t, spoilt ? isnan(c) : c == 0, "%08x in %s: [%d,%d] is %g",
                          bad[variant / 4], in_a ? "A" : "B", m, n, (double)c);
            }
        }
        problem_free(&p);
    }
}

static void nan_and_infinity_spoil_their_row_or_column_only(TestCtx *t) {
    each_isa(t, bad_values);
}

TEST_MAIN({"gemm_equals_the_double_reference_on_odd_shapes",
           gemm_equals_the_double_reference_on_odd_shapes},
          {"gemm_is_right_beyond_the_packed_chunks", gemm_is_right_beyond_the_packed_chunks},
          {"gemm_gives_a_row_the_same_bits_alone_and_among_others",
           gemm_gives_a_row_the_same_bits_alone_and_among_others},
          {"gemm_gives_the_same_bits_on_any_number_of_threads",
           gemm_gives_the_same_bits_on_any_number_of_threads},
          {"batched_equals_one_product_after_the_other",
           batched_equals_one_product_after_the_other},
          {"gemm_with_an_empty_side_sums_nothing", gemm_with_an_empty_side_sums_nothing},
          {"nan_and_infinity_spoil_their_row_or_column_only",
           nan_and_infinity_spoil_their_row_or_column_only})
