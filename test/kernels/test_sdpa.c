// test_sdpa.c - causal attention over whole sequences, every instruction set against the double
// reference: lengths around the tile size, groups, head sizes, strides, extreme scores.
#include <math.h>
#include <string.h>

#include "test/arrays.h"
#include "test/ref_attention.h"

// Scores like those of a network; up to +-120; all the same.
typedef enum Kind { NOISE, LARGE, EQUAL } Kind;

typedef struct Case {
    int B, T, NH, NKV, HS, HV;
    Kind kind;
    bool prefix;  // v is a prefix of k
} Case;

// Inputs and outputs with gaps between heads, tokens and rows of the batch.
typedef struct Data {
    Case c;
    SdpaArgs a;
    size_t n_q, n_k, n_v, n_o, n_lse;
    float *q, *k, *v, *dout;
    float *out, *lse, *dq, *dk, *dv;
} Data;

static SdpaArgs args_of(const Case *c) {
    SdpaArgs a = {.B = c->B, .Tq = c->T, .Tk = c->T, .NH = c->NH, .NKV = c->NKV, .HS = c->HS};
    a.HV = c->HV;
    a.q_head = (size_t)c->HS + 1, a.k_head = (size_t)c->HS, a.v_head = (size_t)c->HV + 2;
    a.o_head = (size_t)c->HV;
    a.q_token = a.q_head * (size_t)c->NH + 3, a.k_token = a.k_head * (size_t)c->NKV;
    a.v_token = a.v_head * (size_t)c->NKV + 1, a.o_token = a.o_head * (size_t)c->NH + 5;
    size_t T = (size_t)c->T;
    a.q_batch = T * a.q_token + 4, a.k_batch = T * a.k_token, a.v_batch = T * a.v_token + 9;
    a.o_batch = T * a.o_token;
    if (c->prefix) a.v_token = a.k_token, a.v_head = a.k_head, a.v_batch = a.k_batch;
    a.scale = 1.7f / sqrtf((float)c->HS);
    return a;
}

static Data data_new(Case c) {
    Data d = {.c = c, .a = args_of(&c)};
    size_t B = (size_t)c.B;
    d.n_q = B * d.a.q_batch, d.n_k = B * d.a.k_batch, d.n_v = B * d.a.v_batch;
    d.n_o = B * d.a.o_batch, d.n_lse = B * (size_t)(c.NH * c.T);
    d.q = floats_noise(d.n_q, 1, c.kind == NOISE ? 1.5f : 0);
    d.k = floats_noise(d.n_k, 2, 1.5f);
    d.v = c.prefix ? d.k : floats_noise(d.n_v, 3, 1);
    d.dout = floats_noise(d.n_o, 4, 1);
    if (c.kind == LARGE) {
        for (size_t i = 0; i < d.n_q; i++)
            d.q[i] = 80.0f / (d.a.scale * (float)c.HS);
        for (size_t i = 0; i < d.n_k; i++)
            d.k[i] = (const float[]){1.5f, -1.5f, d.k[i]}[i / (size_t)c.HS % 3];
    }
    d.out = floats_new(d.n_o), d.lse = floats_new(d.n_lse);
    d.dq = floats_new(d.n_q), d.dk = floats_new(d.n_k), d.dv = floats_new(d.n_v);
    return d;
}

static void data_free(TestCtx *t, Data *d) {
    float *all[] = {d->q,  d->k, d->c.prefix ? NULL : d->v, d->dout, d->out, d->lse, d->dq,
                    d->dk, d->dv};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        floats_free(t, all[i]);
}

static void run(const Ops *ops, Data *d, bool backward) {
    ops->sdpa_forward(fx(d->out), d->lse, fx(d->q), fx(d->k), fx(d->v), &d->a);
    if (!backward) return;
    ops->sdpa_backward(fx(d->dq), fx(d->dk), fx(d->dv), fx(d->dout), fx(d->out), d->lse, fx(d->q),
                       fx(d->k), fx(d->v), &d->a);
}

// A strided tensor and its contiguous (B, T, heads, width) form.
typedef struct View {
    int B, T, heads, width;
    size_t batch, token, head;
} View;

static View view_q(const Data *d) {
    const SdpaArgs *a = &d->a;
    return (View){a->B, a->Tq, a->NH, a->HS, a->q_batch, a->q_token, a->q_head};
}
static View view_k(const Data *d) {
    const SdpaArgs *a = &d->a;
    return (View){a->B, a->Tk, a->NKV, a->HS, a->k_batch, a->k_token, a->k_head};
}
static View view_v(const Data *d) {
    const SdpaArgs *a = &d->a;
    return (View){a->B, a->Tk, a->NKV, a->HV, a->v_batch, a->v_token, a->v_head};
}
static View view_o(const Data *d) {
    const SdpaArgs *a = &d->a;
    return (View){a->B, a->Tq, a->NH, a->HV, a->o_batch, a->o_token, a->o_head};
}

static size_t view_size(const View *v) {
    return (size_t)v->B * (size_t)v->T * (size_t)v->heads * (size_t)v->width;
}

static float *gather(const float *x, View v) {
    float *out = floats_new(view_size(&v)), *to = out;
    for (int b = 0; b < v.B; b++) {
        for (int i = 0; i < v.T * v.heads; i++) {
            const float *from = x + (size_t)b * v.batch + (size_t)(i / v.heads) * v.token +
                                (size_t)(i % v.heads) * v.head;
            memcpy(to, from, (size_t)v.width * sizeof(float));
            to += v.width;
        }
    }
    return out;
}

static double *gather_doubles(TestCtx *t, const float *x, View v) {
    float *f = gather(x, v);
    double *d = doubles_of(f, view_size(&v));
    floats_free(t, f);
    return d;
}

static void check(TestCtx *t, const char *what, const float *x, View v, const double *expected,
                  double tol) {
    float *f = gather(x, v);
    int shape[] = {v.B, v.T, v.heads, v.width, 0};
    CHECK_CLOSE_F64(t, f, expected, .what = what, .n = view_size(&v), .shape = shape,
                    .rel_tol = tol, .abs_tol = tol * 0.1);
    floats_free(t, f);
}

typedef struct Expected {
    double *out, *lse, *dq, *dk, *dv;
} Expected;

static Expected expected_of(TestCtx *t, const Data *d) {
    const Case *c = &d->c;
    RefSdpa r = {.B = c->B, .Tq = c->T, .Tk = c->T, .NH = c->NH, .NKV = c->NKV, .HS = c->HS};
    r.HV = c->HV, r.scale = (double)d->a.scale;
    View vq = view_q(d), vk = view_k(d), vv = view_v(d), vo = view_o(d);
    double *q = gather_doubles(t, d->q, vq), *k = gather_doubles(t, d->k, vk);
    double *v = gather_doubles(t, d->v, vv), *dout = gather_doubles(t, d->dout, vo);
    Expected e = {doubles_new(view_size(&vo)), doubles_new(d->n_lse), doubles_new(view_size(&vq)),
                  doubles_new(view_size(&vk)), doubles_new(view_size(&vv))};
    ref_sdpa_forward(e.out, e.lse, q, k, v, &r);
    ref_sdpa_backward(e.dq, e.dk, e.dv, dout, q, k, v, &r);
    mem_free(q), mem_free(k), mem_free(v), mem_free(dout);
    return e;
}

static void expected_free(Expected *e) {
    mem_free(e->out), mem_free(e->lse), mem_free(e->dq), mem_free(e->dk), mem_free(e->dv);
}

// Scores near 120 carry roundings of 120 * 2^-24, and so do the logarithms of probabilities.
static void compare(TestCtx *t, const Data *d, const Expected *e) {
    double tol = d->c.kind == LARGE ? 6e-5 : 3e-6;
    check(t, "out", d->out, view_o(d), e->out, tol);
    CHECK_CLOSE_F64(t, d->lse, e->lse, .what = "lse", .n = d->n_lse, .rel_tol = 1e-6,
                    .abs_tol = 1e-6);
    check(t, "dq", d->dq, view_q(d), e->dq, tol);
    check(t, "dk", d->dk, view_k(d), e->dk, tol);
    check(t, "dv", d->dv, view_v(d), e->dv, tol);
}

static void same_bits(TestCtx *t, const Data *a, const Data *b) {
    CHECK_SAME_BITS(t, a->out, b->out, a->n_o * sizeof(float));
    CHECK_SAME_BITS(t, a->lse, b->lse, a->n_lse * sizeof(float));
    CHECK_SAME_BITS(t, a->dq, b->dq, a->n_q * sizeof(float));
    CHECK_SAME_BITS(t, a->dk, b->dk, a->n_k * sizeof(float));
    CHECK_SAME_BITS(t, a->dv, b->dv, a->n_v * sizeof(float));
}

// Gaps of the outputs keep their NaN, so equal bits also say that nothing was written there.
static void check_case(TestCtx *t, Case c) {
    Data one = data_new(c);
    Expected e = expected_of(t, &one);
    const Ops *ops;
    FOR_EACH_SET(ops) {
        set_threads(1);
        run(ops, &one, true);
        compare(t, &one, &e);
        for (int threads = 2; threads <= 3; threads++) {
            Data other = data_new(c);
            set_threads(threads);
            run(ops, &other, true);
            same_bits(t, &one, &other);
            data_free(t, &other);
        }
    }
    set_threads(0);
    if (t->failures)
        printf("  (T %d, heads %d/%d, HS %d, HV %d, kind %d)\n", c.T, c.NH, c.NKV, c.HS, c.HV,
               c.kind);
    expected_free(&e);
    data_free(t, &one);
}

static void sdpa_agrees_with_the_reference_at_every_length(TestCtx *t) {
    static const int lengths[] = {1, 2, 15, 63, 64, 65, 127, 128, 129, 192, 193, 257};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++)
        check_case(t, (Case){.B = 2, .T = lengths[i], .NH = 2, .NKV = 1, .HS = 16, .HV = 16});
}

static void sdpa_agrees_with_the_reference_for_every_group(TestCtx *t) {
    static const int heads[][2] = {{1, 1}, {6, 6}, {6, 3}, {6, 2}, {6, 1}, {18, 1}};
    for (size_t i = 0; i < sizeof heads / sizeof heads[0]; i++)
        check_case(
            t, (Case){.B = 1, .T = 70, .NH = heads[i][0], .NKV = heads[i][1], .HS = 24, .HV = 24});
}

static void sdpa_agrees_with_the_reference_for_every_head_size(TestCtx *t) {
    static const int sizes[][2] = {{8, 8},   {10, 6},    {16, 64},   {40, 32}, {64, 16},
                                   {96, 96}, {128, 128}, {192, 128}, {33, 1}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        check_case(
            t, (Case){.B = 1, .T = 67, .NH = 2, .NKV = 2, .HS = sizes[i][0], .HV = sizes[i][1]});
}

static void sdpa_takes_values_that_are_a_prefix_of_keys(TestCtx *t) {
    check_case(t, (Case){.B = 2, .T = 66, .NH = 3, .NKV = 1, .HS = 24, .HV = 16, .prefix = true});
}

static void sdpa_survives_scores_of_120(TestCtx *t) {
    check_case(t, (Case){.B = 1, .T = 130, .NH = 2, .NKV = 1, .HS = 16, .HV = 16, .kind = LARGE});
    check_case(t, (Case){.B = 1, .T = 64, .NH = 1, .NKV = 1, .HS = 64, .HV = 8, .kind = LARGE});
}

static void sdpa_of_equal_scores_is_the_mean(TestCtx *t) {
    check_case(t, (Case){.B = 1, .T = 130, .NH = 2, .NKV = 2, .HS = 16, .HV = 16, .kind = EQUAL});
}

static void sdpa_past_does_not_see_the_future(TestCtx *t) {
    Case c = {.B = 2, .T = 135, .NH = 4, .NKV = 2, .HS = 16, .HV = 12};
    static const int cuts[] = {1, 40, 64, 100, 134};
    const Ops *ops;
    FOR_EACH_SET(ops) {
        Data a = data_new(c);
        run(ops, &a, false);
        for (size_t i = 0; i < sizeof cuts / sizeof cuts[0]; i++) {
            Data b = data_new(c);
            for (int row = 0; row < c.B; row++) {
                size_t cut = (size_t)cuts[i], r = (size_t)row;
                test_noise(b.q + r * b.a.q_batch + cut * b.a.q_token, (c.T - cut) * b.a.q_token, 9,
                           5);
                test_noise(b.k + r * b.a.k_batch + cut * b.a.k_token, (c.T - cut) * b.a.k_token, 8,
                           5);
                test_noise(b.v + r * b.a.v_batch + cut * b.a.v_token, (c.T - cut) * b.a.v_token, 7,
                           5);
            }
            run(ops, &b, false);
            for (size_t row = 0; row < (size_t)c.B; row++)
                CHECK_SAME_BITS(t, a.out + row * a.a.o_batch, b.out + row * a.a.o_batch,
                                (size_t)cuts[i] * a.a.o_token * sizeof(float));
            CHECK(t, memcmp(a.out, b.out, a.n_o * sizeof(float)) != 0);
            data_free(t, &b);
        }
        data_free(t, &a);
    }
}

// Not even through a weight of 0 times what is not finite: keys and values from token `cut` on are.
static void sdpa_past_does_not_see_a_bad_future(TestCtx *t) {
    static const int cuts[] = {1, 40, 63, 64, 100, 134};
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    const Ops *ops;
    FOR_EACH_SET(ops) {
        for (size_t i = 0; i < sizeof cuts / sizeof cuts[0]; i++) {
            // With one head a row has its own limit, with more several rows share one.
            Case c = {.B = 1, .T = 135, .NH = 1 + (int)i % 3, .NKV = 1, .HS = 16, .HV = 20};
            Data a = data_new(c), b = data_new(c);
            size_t cut = (size_t)cuts[i], T = (size_t)c.T;
            run(ops, &a, false);
            for (size_t j = cut * b.a.k_token; j < T * b.a.k_token; j++)
                b.k[j] = bad[j % 3];
            for (size_t j = cut * b.a.v_token; j < T * b.a.v_token; j++)
                b.v[j] = bad[j % 3];
            run(ops, &b, false);
            CHECK_SAME_BITS(t, a.out, b.out, cut * a.a.o_token * sizeof(float));
            for (int h = 0; h < c.NH; h++)
                CHECK_SAME_BITS(t, a.lse + h * c.T, b.lse + h * c.T, cut * sizeof(float));
            CHECK(t, isnan(b.out[cut * b.a.o_token]) && isnan(b.out[(T - 1) * b.a.o_token]));
            data_free(t, &a);
            data_free(t, &b);
        }
    }
}

// Without a loss from token `cut` on, its keys and values get exactly no gradient.
static void sdpa_gradient_does_not_reach_the_future(TestCtx *t) {
    Case c = {.B = 1, .T = 135, .NH = 4, .NKV = 2, .HS = 16, .HV = 12};
    const size_t cut = 70;
    const Ops *ops;
    FOR_EACH_SET(ops) {
        Data d = data_new(c);
        memset(d.dout + cut * d.a.o_token, 0, (c.T - cut) * d.a.o_token * sizeof(float));
        run(ops, &d, true);
        float *dk = gather(d.dk, view_k(&d)), *dv = gather(d.dv, view_v(&d));
        size_t nk = (size_t)(c.NKV * c.HS), nv = (size_t)(c.NKV * c.HV), bad = 0;
        for (size_t i = cut * nk; i < (size_t)c.T * nk; i++)
            bad += !(dk[i] == 0);
        for (size_t i = cut * nv; i < (size_t)c.T * nv; i++)
            bad += !(dv[i] == 0);
        CHECK_MSG(t, bad == 0, "%zu gradients of the future are not zero", bad);
        CHECK(t, dk[(cut - 1) * nk] != 0 && dv[(cut - 1) * nv] != 0);
        floats_free(t, dk), floats_free(t, dv);
        data_free(t, &d);
    }
}

// A NaN among the inputs must be seen in the outputs.
static void sdpa_does_not_hide_a_nan(TestCtx *t) {
    Case c = {.B = 1, .T = 80, .NH = 1, .NKV = 1, .HS = 16, .HV = 16};
    const Ops *ops;
    FOR_EACH_SET(ops) {
        Data d = data_new(c);
        d.k[3 * d.a.k_token + 2] = NAN;
        run(ops, &d, false);
        for (size_t row = 3; row < 80; row++)
            CHECK(t, isnan(d.out[row * d.a.o_token]) && isnan(d.lse[row]));
        data_free(t, &d);
    }
}

TEST_MAIN({"sdpa_agrees_with_the_reference_at_every_length",
           sdpa_agrees_with_the_reference_at_every_length},
          {"sdpa_agrees_with_the_reference_for_every_group",
           sdpa_agrees_with_the_reference_for_every_group},
          {"sdpa_agrees_with_the_reference_for_every_head_size",
           sdpa_agrees_with_the_reference_for_every_head_size},
          {"sdpa_takes_values_that_are_a_prefix_of_keys",
           sdpa_takes_values_that_are_a_prefix_of_keys},
          {"sdpa_survives_scores_of_120", sdpa_survives_scores_of_120},
          {"sdpa_of_equal_scores_is_the_mean", sdpa_of_equal_scores_is_the_mean},
          {"sdpa_past_does_not_see_the_future", sdpa_past_does_not_see_the_future},
          {"sdpa_past_does_not_see_a_bad_future", sdpa_past_does_not_see_a_bad_future},
          {"sdpa_gradient_does_not_reach_the_future", sdpa_gradient_does_not_reach_the_future},
          {"sdpa_does_not_hide_a_nan", sdpa_does_not_hide_a_nan})
