// test_far.c - offsets beyond 2^31 elements: rows lie so far apart that an offset counted in int
// wraps, and the results must have the bits that they have with the rows side by side. The arrays
// are address space of which only the rows themselves are ever touched.
#define _GNU_SOURCE
#include <math.h>
#include <string.h>
#include <sys/mman.h>

#include "test/arrays.h"

enum { B = 2, T = 70, ROWS = B * T, WIDTH = 32 };
static const size_t FAR = ((size_t)1 << 25) + 16;  // ROWS * FAR and even T * FAR pass 2^31

// ROWS rows of WIDTH values, `ld` apart.
typedef struct Array {
    float *p;
    size_t ld;
} Array;

static size_t bytes_of(size_t ld) {
    return (ROWS * ld + WIDTH) * sizeof(float);
}

static bool array_open(Array *a, size_t ld, uint64_t seed) {
    void *p = mmap(NULL, bytes_of(ld), PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return false;
    madvise(p, bytes_of(ld), MADV_NOHUGEPAGE);  // a row would take 2 MB
    *a = (Array){p, ld};
    for (size_t i = 0; i < ROWS; i++)
        test_noise(a->p + i * ld, WIDTH, seed + i, 1);
    return true;
}

enum { N_ARRAYS = 9 };

// The arrays of one run, all with the same stride.
typedef struct Set {
    Array x[N_ARRAYS];
    int n;
    float lse[ROWS * 2], dw[WIDTH * WIDTH], dbias[WIDTH], rstd[ROWS * 2];
} Set;

static void set_close(Set *s) {
    for (int i = 0; i < s->n; i++)
        munmap(s->x[i].p, bytes_of(s->x[i].ld));
    mem_free(s);
}

static Set *set_open(size_t ld) {
    Set *s = mem_alloc(1, sizeof *s);
    for (; s->n < N_ARRAYS; s->n++) {
        if (array_open(&s->x[s->n], ld, (uint64_t)s->n * 1000)) continue;
        set_close(s);
        return NULL;
    }
    return s;
}

static void same_set(TestCtx *t, const Set *a, const Set *b) {
    for (int k = 0; k < N_ARRAYS; k++) {
        for (size_t i = 0; i < ROWS; i++)
            CHECK_SAME_BITS(t, a->x[k].p + i * a->x[k].ld, b->x[k].p + i * b->x[k].ld,
                            WIDTH * sizeof(float));
    }
    CHECK_SAME_BITS(t, a->lse, b->lse, sizeof a->lse);
    CHECK_SAME_BITS(t, a->dw, b->dw, sizeof a->dw);
    CHECK_SAME_BITS(t, a->dbias, b->dbias, sizeof a->dbias);
    CHECK_SAME_BITS(t, a->rstd, b->rstd, sizeof a->rstd);
}

typedef void Run(const Ops *ops, Set *s);

// The bits of rows side by side.
static void check(TestCtx *t, Run *run) {
    const Ops *ops;
    FOR_EACH_SET(ops) {
        Set *near = set_open(WIDTH), *far = set_open(FAR);
        if (near && far) {
            run(ops, near);
            run(ops, far);
            same_set(t, near, far);
        } else {
            test_skip(t, "no address space for arrays of %zu bytes", bytes_of(FAR));
        }
        if (near) set_close(near);
        if (far) set_close(far);
    }
}

static SdpaArgs attention(const Set *s) {
    size_t ld = s->x[0].ld;
    SdpaArgs a = {.B = B, .Tq = T, .Tk = T, .NH = 2, .NKV = 1, .HS = 16, .HV = 12, .scale = 0.2f};
    a.q_token = a.k_token = a.v_token = a.o_token = ld;
    a.q_batch = a.k_batch = a.v_batch = a.o_batch = T * ld;
    a.q_head = a.k_head = 16, a.v_head = a.o_head = 12;
    return a;
}

static void train(const Ops *ops, Set *s) {
    SdpaArgs a = attention(s);
    floatX *x[N_ARRAYS];
    for (int i = 0; i < N_ARRAYS; i++)
        x[i] = fx(s->x[i].p);
    ops->sdpa_forward(x[0], s->lse, x[1], x[2], x[3], &a);
    ops->sdpa_backward(x[4], x[5], x[6], x[7], x[0], s->lse, x[1], x[2], x[3], &a);
}

static void attention_in_training(TestCtx *t) {
    check(t, train);
}

static void extend(const Ops *ops, Set *s) {
    SdpaArgs a = attention(s);
    int pos[B] = {T - 3, 20}, n_new[B] = {3, 40};
    a.pos = pos, a.n_new = n_new, a.max_pos = T, a.kv_type = TYPE_F32;
    ops->sdpa_extend(fx(s->x[0].p), fx(s->x[1].p), s->x[2].p, s->x[3].p, &a);
}

static void attention_over_a_cache(TestCtx *t) {
    check(t, extend);
}

static void products(const Ops *ops, Set *s) {
    Weight w = {.OC = 24, .IC = WIDTH, .compute = TYPE_F32};
    size_t ld = s->x[0].ld;
    static float values[24 * WIDTH];
    test_noise(values, 24 * WIDTH, 99, 1);
    w.data = fx(values);
    ops->matmul(fx(s->x[0].p), ld, fx(s->x[1].p), ld, &w, NULL, 0, ROWS);
    ops->matmul_dx(fx(s->x[2].p), ld, fx(s->x[0].p), ld, &w, ROWS, true);
    ops->matmul_dw(s->dw, fx(s->x[0].p), ld, fx(s->x[1].p), ld, &w, ROWS);
    ops->bias_dw(s->dbias, fx(s->x[0].p), ld, ROWS, WIDTH);
    // 20 x 32 times 32 x 30, and two products of a batch.
    GemmOp g = {.M = 20, .N = 30, .K = WIDTH, .batch = 2, .lda = ld, .ldb = ld, .ldc = ld};
    g.a_type = g.b_type = g.c_type = TYPE_F32, g.alpha = 1;
    g.stride_a = g.stride_b = g.stride_c = T * ld;
    ops->gemm(s->x[3].p, s->x[4].p, s->x[5].p, &g);
}

static void products_of_matrices(TestCtx *t) {
    check(t, products);
}

static void turn(const Ops *ops, Set *s) {
    static float rope[T * 16];
    test_noise(rope, T * 16, 5, 1);
    RopeArgs a = {.B = B, .T = T, .NH = 2, .HS = 16, .rope = rope, .norm = true, .eps = 1e-6f};
    a.ld_inp = a.ld_out = s->x[0].ld;
    ops->qk_norm_rope_forward(fx(s->x[0].p), s->rstd, fx(s->x[1].p), &a);
    ops->qk_norm_rope_backward(fx(s->x[2].p), fx(s->x[3].p), fx(s->x[0].p), s->x[0].ld, s->rstd,
                               &a);
}

static void queries_and_keys(TestCtx *t) {
    check(t, turn);
}

TEST_MAIN({"attention_in_training", attention_in_training},
          {"attention_over_a_cache", attention_over_a_cache},
          {"products_of_matrices", products_of_matrices}, {"queries_and_keys", queries_and_keys})
