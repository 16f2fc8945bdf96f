// test_ref_attention.c - the attention references are right: a two-key softmax worked out by hand,
// and every backward pass against central differences of its forward pass.
#include "test/ref_attention.h"

#include <math.h>

#include "test/arrays.h"

static double *noise(TestCtx *t, size_t n, uint64_t seed) {
    float *f = floats_noise(n, seed, 1.5f);
    double *d = doubles_of(f, n);
    floats_free(t, f);
    return d;
}

static double dot(const double *a, const double *b, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

typedef double Loss(const void *ctx);

// dx against central differences of loss(ctx), which reads x.
static void check_gradient(TestCtx *t, const char *what, Loss *loss, const void *ctx, double *x,
                           const double *dx, size_t n) {
    double largest = 0;
    for (size_t i = 0; i < n; i++)
        largest = fmax(largest, fabs(dx[i]));
    CHECK_MSG(t, largest > 0, "%s: the gradient is zero", what);
    for (size_t i = 0; i < n; i++) {
        double kept = x[i], h = 1e-5;
        x[i] = kept + h;
        double up = loss(ctx);
        x[i] = kept - h;
        double down = loss(ctx);
        x[i] = kept;
        double numeric = (up - down) / (2 * h);
        CHECK_MSG(t, fabs(numeric - dx[i]) <= 1e-8 * (1 + largest),
                  "%s[%zu]: %.12g, differences say %.12g", what, i, dx[i], numeric);
    }
}

typedef struct Sdpa {
    RefSdpa a;
    size_t n_q, n_k, n_v, n_out;
    double *q, *k, *v, *out, *probe;
} Sdpa;

static Sdpa sdpa_new(TestCtx *t, RefSdpa a) {
    Sdpa s = {.a = a};
    size_t queries = (size_t)(a.B * a.Tq * a.NH), keys = (size_t)(a.B * a.Tk * a.NKV);
    s.n_q = queries * (size_t)a.HS, s.n_out = queries * (size_t)a.HV;
    s.n_k = keys * (size_t)a.HS, s.n_v = keys * (size_t)a.HV;
    s.q = noise(t, s.n_q, 1), s.k = noise(t, s.n_k, 2), s.v = noise(t, s.n_v, 3);
    s.probe = noise(t, s.n_out, 4), s.out = doubles_new(s.n_out);
    return s;
}

static void sdpa_free(Sdpa *s) {
    mem_free(s->q), mem_free(s->k), mem_free(s->v), mem_free(s->probe), mem_free(s->out);
}

static double sdpa_loss(const void *ctx) {
    const Sdpa *s = ctx;
    ref_sdpa_forward(s->out, NULL, s->q, s->k, s->v, &s->a);
    return dot(s->probe, s->out, s->n_out);
}

static void check_sdpa(TestCtx *t, RefSdpa a) {
    Sdpa s = sdpa_new(t, a);
    double *dq = doubles_new(s.n_q), *dk = doubles_new(s.n_k), *dv = doubles_new(s.n_v);
    ref_sdpa_backward(dq, dk, dv, s.probe, s.q, s.k, s.v, &s.a);
    check_gradient(t, "dq", sdpa_loss, &s, s.q, dq, s.n_q);
    check_gradient(t, "dk", sdpa_loss, &s, s.k, dk, s.n_k);
    check_gradient(t, "dv", sdpa_loss, &s, s.v, dv, s.n_v);
    mem_free(dq), mem_free(dk), mem_free(dv);
    sdpa_free(&s);
}

static void attention_gradients_agree_with_differences(TestCtx *t) {
    check_sdpa(
        t, (RefSdpa){.B = 2, .Tq = 5, .Tk = 5, .NH = 4, .NKV = 2, .HS = 3, .HV = 4, .scale = 0.7});
    check_sdpa(
        t, (RefSdpa){.B = 1, .Tq = 4, .Tk = 4, .NH = 3, .NKV = 1, .HS = 5, .HV = 2, .scale = 1.3});
}

static void attention_gradients_agree_with_differences_behind_a_cache(TestCtx *t) {
    static const int pos[2] = {3, 1};
    check_sdpa(t, (RefSdpa){.B = 2,
                            .Tq = 2,
                            .Tk = 6,
                            .NH = 2,
                            .NKV = 2,
                            .HS = 3,
                            .HV = 3,
                            .scale = 0.5,
                            .pos = pos});
}

// Scores 0 and ln 3: weights 1/4 and 3/4, the log of the sum is ln 4.
static void attention_of_two_keys_is_what_arithmetic_says(TestCtx *t) {
    RefSdpa a = {.B = 1, .Tq = 1, .Tk = 2, .NH = 1, .NKV = 1, .HS = 1, .HV = 1, .scale = 2};
    static const int pos[1] = {1};
    a.pos = pos;
    double q = 1, k[2] = {0, log(3) / 2}, v[2] = {8, -4}, out, lse;
    ref_sdpa_forward(&out, &lse, &q, k, v, &a);
    CHECK(t, fabs(out - (8 * 0.25 - 4 * 0.75)) < 1e-14);
    CHECK(t, fabs(lse - log(4)) < 1e-14);
}

typedef struct LowRank {
    RefLowRank a;
    size_t n_s, n_z, n_b, n_out;
    double *s, *z, *b, *out, *probe;
} LowRank;

static double lowrank_loss(const void *ctx) {
    const LowRank *l = ctx;
    ref_lowrank_forward(l->out, l->s, l->z, l->b, &l->a);
    return dot(l->probe, l->out, l->n_out);
}

static void check_lowrank(TestCtx *t, RefLowRank a, bool shared) {
    LowRank l = {.a = a};
    size_t rows = (size_t)(a.B * a.T);
    l.n_s = rows * (size_t)a.HS, l.n_z = rows * (size_t)(a.NH * a.R);
    l.n_b = (size_t)(a.NH * a.HS * a.R), l.n_out = rows * (size_t)(a.NH * a.HS);
    l.s = shared ? noise(t, l.n_s, 1) : NULL;
    l.z = noise(t, l.n_z, 2), l.b = noise(t, l.n_b, 3), l.probe = noise(t, l.n_out, 4);
    l.out = doubles_new(l.n_out);
    double *ds = doubles_new(l.n_s), *dz = doubles_new(l.n_z), *db = doubles_new(l.n_b);
    ref_lowrank_backward(shared ? ds : NULL, dz, db, l.probe, l.s, l.z, l.b, &l.a);
    if (shared) check_gradient(t, "ds", lowrank_loss, &l, l.s, ds, l.n_s);
    check_gradient(t, "dz", lowrank_loss, &l, l.z, dz, l.n_z);
    check_gradient(t, "db", lowrank_loss, &l, l.b, db, l.n_b);
    mem_free(ds), mem_free(dz), mem_free(db);
    mem_free(l.s), mem_free(l.z), mem_free(l.b), mem_free(l.probe), mem_free(l.out);
}

static void low_rank_gradients_agree_with_differences(TestCtx *t) {
    float *rope = ref_rope_table(16, 4, 100);
    static const int pos[2] = {7, 2};
    RefLowRank a = {.B = 2, .T = 3, .NH = 2, .HS = 4, .R = 3, .eps = 1e-6f};
    check_lowrank(t, a, true);
    check_lowrank(t, a, false);
    a.norm = true;
    check_lowrank(t, a, true);
    a.rope = rope;
    a.pos = pos;
    check_lowrank(t, a, true);
    a.norm = false;
    check_lowrank(t, a, true);
    mem_free(rope);
}

TEST_MAIN({"attention_of_two_keys_is_what_arithmetic_says",
           attention_of_two_keys_is_what_arithmetic_says},
          {"attention_gradients_agree_with_differences",
           attention_gradients_agree_with_differences},
          {"attention_gradients_agree_with_differences_behind_a_cache",
           attention_gradients_agree_with_differences_behind_a_cache},
          {"low_rank_gradients_agree_with_differences", low_rank_gradients_agree_with_differences})
