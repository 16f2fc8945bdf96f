// test_ref_ops.c - the references are right: every backward pass agrees with central differences of
// its forward pass, and forwards with values worked out by hand.
#include "test/ref_ops.h"

#include <math.h>

#include "test/arrays.h"

// loss(x) = sum of probe * output; x points into the inputs that `loss` reads.
typedef struct Gradient {
    const char *what;
    double (*loss)(void *ctx);
    void *ctx;
    double *x;
    const double *dx;
    size_t n;
} Gradient;

static void check_gradient(TestCtx *t, Gradient g) {
    double largest = 0;
    for (size_t i = 0; i < g.n; i++)
        largest = fmax(largest, fabs(g.dx[i]));
    CHECK_MSG(t, largest > 0, "%s: the gradient is zero", g.what);
    for (size_t i = 0; i < g.n; i++) {
        double kept = g.x[i], h = 1e-5;
        g.x[i] = kept + h;
        double up = g.loss(g.ctx);
        g.x[i] = kept - h;
        double down = g.loss(g.ctx);
        g.x[i] = kept;
        double numeric = (up - down) / (2 * h);
        CHECK_MSG(t, fabs(numeric - g.dx[i]) <= 1e-8 * (1 + largest),
                  "%s[%zu]: %.12g, differences say %.12g", g.what, i, g.dx[i], numeric);
    }
}

static double *noise(size_t n, uint64_t seed) {
    float *f = floats_new(n);
    test_noise(f, n, seed, 1.5f);
    double *d = doubles_of(f, n);
    TestCtx none = {0};
    floats_free(&none, f);
    return d;
}

static double dot(const double *a, const double *b, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

// --- norms
typedef struct Norm {
    NormArgs a;
    double *residual, *inp, *weight, *bias, *probe, *probe_residual, *out, *sum, *rstd;
} Norm;

// The probe of the residual stands for the gradient that arrives from above.
static double norm_loss(void *ctx) {
    Norm *n = ctx;
    size_t all = n->a.N * (size_t)n->a.C;
    ref_add_norm_forward(n->out, n->sum, NULL, n->rstd, n->residual, n->inp, n->weight, n->bias,
                         &n->a);
    return dot(n->out, n->probe, all) + dot(n->sum, n->probe_residual, all);
}

static void norm_case(TestCtx *t, NormKind kind, bool affine) {
    enum { ROWS = 3, C = 7, ALL = ROWS * C };
    Norm n = {.a = {kind, ROWS, C, 1e-3f},
              .residual = noise(ALL, 1),
              .inp = noise(ALL, 2),
              .weight = affine ? noise(C, 3) : NULL,
              .bias = affine ? noise(C, 4) : NULL,
              .probe = noise(ALL, 5),
              .probe_residual = noise(ALL, 6),
              .out = doubles_new(ALL),
              .sum = doubles_new(ALL),
              .rstd = doubles_new(ROWS)};
    double *dx = noise(ALL, 6), *dw = doubles_new(C), *db = doubles_new(C);
    norm_loss(&n);
    ref_add_norm_backward(dx, affine ? dw : NULL, affine ? db : NULL, n.probe, n.sum, n.weight,
                          &n.a);
    check_gradient(t, (Gradient){"dresidual", norm_loss, &n, n.residual, dx, ALL});
    check_gradient(t, (Gradient){"dinp", norm_loss, &n, n.inp, dx, ALL});
    if (affine) {
        check_gradient(t, (Gradient){"dweight", norm_loss, &n, n.weight, dw, C});
        check_gradient(t, (Gradient){"dbias", norm_loss, &n, n.bias, db, C});
    }
    double *all[] = {n.residual, n.inp, n.weight, n.bias, n.probe, n.probe_residual,
                     n.out,      n.sum, n.rstd,   dx,     dw,      db};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        mem_free(all[i]);
}

static void norm_gradients_match_differences(TestCtx *t) {
    norm_case(t, NORM_RMS, false);
    norm_case(t, NORM_RMS, true);
    norm_case(t, NORM_LAYER, true);
    norm_case(t, NORM_LAYER, false);
}

static void norm_values_are_those_of_the_formula(TestCtx *t) {
    double x[2] = {3, 4}, out[2], rstd, mean;
    NormArgs rms = {NORM_RMS, 1, 2, 0}, layer = {NORM_LAYER, 1, 2, 0};
    ref_add_norm_forward(out, NULL, NULL, &rstd, x, NULL, NULL, NULL, &rms);
    CHECK(t, fabs(rstd - 1 / sqrt(12.5)) < 1e-15 && fabs(out[1] - 4 / sqrt(12.5)) < 1e-15);
    ref_add_norm_forward(out, NULL, &mean, &rstd, x, NULL, NULL, NULL, &layer);
    CHECK(t, mean == 3.5 && out[0] == -1 && out[1] == 1);
}

// --- rope
typedef struct Rope {
    RopeArgs a;
    double *inp, *probe, *out;
} Rope;

static double rope_loss(void *ctx) {
    Rope *r = ctx;
    ref_qk_norm_rope_forward(r->out, NULL, r->inp, &r->a);
    double sum = 0;
    for (size_t n = 0; n < (size_t)(r->a.B * r->a.T); n++) {
        for (size_t h = 0; h < (size_t)r->a.NH; h++) {
            size_t at = n * r->a.ld_out + h * r->a.head_stride;
            sum += dot(r->out + at, r->probe + at, (size_t)r->a.HS);
        }
    }
    return sum;
}

static void rope_case(TestCtx *t, bool rotate, bool norm) {
    enum { B = 2, T = 3, NH = 2, HS = 6, STRIDE = 7, LD_IN = 15, LD_OUT = 13, ROWS = B * T };
    float table[8 * HS];
    for (int i = 0; i < 8 * HS / 2; i++) {
        table[2 * i] = cosf((float)i);
        table[2 * i + 1] = sinf((float)i);
    }
    const int pos[B] = {0, 4};
    Rope r = {.a = {.B = B,
                    .T = T,
                    .NH = NH,
                    .HS = HS,
                    .head_stride = STRIDE,
                    .ld_inp = LD_IN,
                    .ld_out = LD_OUT,
                    .rope = rotate ? table : NULL,
                    .pos = pos,
                    .norm = norm,
                    .eps = 1e-3f},
              .inp = noise(ROWS * LD_IN, 1),
              .probe = noise(ROWS * LD_OUT, 2),
              .out = doubles_new(ROWS * LD_OUT)};
    double *dx = doubles_new(ROWS * LD_IN);
    ref_qk_norm_rope_backward(dx, r.probe, r.inp, &r.a);
    check_gradient(t, (Gradient){"dinp", rope_loss, &r, r.inp, dx, ROWS * LD_IN});
    mem_free(r.inp);
    mem_free(r.probe);
    mem_free(r.out);
    mem_free(dx);
}

static void rope_gradients_match_differences(TestCtx *t) {
    rope_case(t, true, true);
    rope_case(t, true, false);
    rope_case(t, false, true);
    rope_case(t, false, false);
}

static void rope_turns_pairs_of_the_two_halves(TestCtx *t) {
    float table[4] = {0, 1, 1, 0};  // a quarter turn of pair 0, none of pair 1
    double x[4] = {1, 2, 3, 4}, y[4];
    RopeArgs a = {.B = 1, .T = 1, .NH = 1, .HS = 4, .ld_inp = 4, .ld_out = 4, .rope = table};
    ref_qk_norm_rope_forward(y, NULL, x, &a);
    CHECK(t, y[0] == 3 && y[1] == 2 && y[2] == -1 && y[3] == 4);
}

// --- heads in two parts
typedef struct Concat {
    ConcatArgs c;
    double *a, *b, *probe, *out;
    size_t n_out;
} Concat;

static double concat_loss(void *ctx) {
    Concat *x = ctx;
    ref_concat_heads(x->out, x->a, x->b, &x->c);
    return dot(x->out, x->probe, x->n_out);
}

static void concat_gradients_match_differences(TestCtx *t) {
    enum { N = 3, NH = 2, W1 = 4, W2 = 3 };
    for (int shared = 0; shared < 2; shared++) {
        size_t ld_a = NH * W1, ld_b = shared ? W2 : NH * W2, ld = NH * (W1 + W2);
        Concat x = {.c = {N, NH, W1, W2, ld, ld_a, ld_b, W1, shared ? 0 : W2},
                    .a = noise(N * ld_a, 1),
                    .b = noise(N * ld_b, 2),
                    .probe = noise(N * ld, 3),
                    .out = doubles_new(N * ld),
                    .n_out = N * ld};
        double *da = doubles_new(N * ld_a), *db = doubles_new(N * ld_b);
        ref_split_heads(da, db, x.probe, &x.c);
        check_gradient(t, (Gradient){"da", concat_loss, &x, x.a, da, N * ld_a});
        check_gradient(t, (Gradient){"db", concat_loss, &x, x.b, db, N * ld_b});
        double *all[] = {x.a, x.b, x.probe, x.out, da, db};
        for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
            mem_free(all[i]);
    }
}

// --- activations
typedef struct Act {
    ActKind kind;
    double *inp, *probe, *out;
} Act;
enum { ACT_N = 5, ACT_F = 9, ACT_OUT = ACT_N * ACT_F };

static double act_loss(void *ctx) {
    Act *a = ctx;
    ref_act_forward(a->out, a->inp, a->kind, ACT_N, ACT_F);
    return dot(a->out, a->probe, ACT_OUT);
}

static void act_gradients_match_differences(TestCtx *t) {
    for (int kind = ACT_GELU; kind <= ACT_SWIGLU; kind++) {
        size_t n = kind == ACT_SWIGLU ? 2 * ACT_OUT : ACT_OUT;
        Act a = {(ActKind)kind, noise(n, 1), noise(ACT_OUT, 2), doubles_new(ACT_OUT)};
        double *dx = doubles_new(n);
        ref_act_backward(dx, a.probe, a.inp, a.kind, ACT_N, ACT_F);
        check_gradient(t, (Gradient){"dinp", act_loss, &a, a.inp, dx, n});
        mem_free(a.inp);
        mem_free(a.probe);
        mem_free(a.out);
        mem_free(dx);
    }
}

static void act_values_are_known(TestCtx *t) {
    double x[2] = {1, 2}, y;
    ref_act_forward(&y, x, ACT_GELU, 1, 1);
    CHECK(t, fabs(y - 0.841191990608276) < 1e-12);
    ref_act_forward(&y, x, ACT_SWIGLU, 1, 1);
    CHECK(t, fabs(y - 2 / (1 + exp(-1.0))) < 1e-15);
    ref_act_forward(&y, x + 1, ACT_RELU2, 1, 1);
    CHECK(t, y == 4);
}

// --- embedding and classifier
typedef struct Embed {
    double *wte, *wpe, *probe, *out;
} Embed;
enum { E_B = 2, E_T = 4, E_C = 3, E_V = 5, E_OUT = E_B * E_T * E_C };
static const int E_IDS[E_B * E_T] = {0, 3, 3, 1, 4, 3, 2, 0};

static double embed_loss(void *ctx) {
    Embed *e = ctx;
    ref_embed_forward(e->out, E_IDS, e->wte, e->wpe, E_T, NULL, E_B, E_T, E_C);
    return dot(e->out, e->probe, E_OUT);
}

static void embed_gradients_match_differences(TestCtx *t) {
    Embed e = {noise(E_V * E_C, 1), noise(E_T * E_C, 2), noise(E_OUT, 3), doubles_new(E_OUT)};
    double *dwte = doubles_new(E_V * E_C), *dwpe = doubles_new(E_T * E_C);
    ref_embed_backward(dwte, dwpe, e.probe, E_IDS, E_B, E_T, E_C);
    check_gradient(t, (Gradient){"dwte", embed_loss, &e, e.wte, dwte, E_V * E_C});
    check_gradient(t, (Gradient){"dwpe", embed_loss, &e, e.wpe, dwpe, E_T * E_C});
    double *all[] = {e.wte, e.wpe, e.probe, e.out, dwte, dwpe};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        mem_free(all[i]);
}

typedef struct Loss {
    double *logits, losses[4], softcap;
} Loss;
enum { L_N = 4, L_V = 6, L_VP = 8 };
static const int L_TARGETS[L_N] = {5, 0, -1, 2};

static double classifier_loss(void *ctx) {
    Loss *l = ctx;
    ref_classifier(NULL, l->losses, l->logits, L_TARGETS, L_N, L_V, L_VP, l->softcap, 0);
    return 0.3 * (l->losses[0] + l->losses[1] + l->losses[2] + l->losses[3]);
}

static void classifier_gradients_match_differences(TestCtx *t) {
    for (int cap = 0; cap < 2; cap++) {
        Loss l = {.logits = noise(L_N * L_VP, 1), .softcap = cap ? 2.0 : 0.0};
        double *dx = doubles_new(L_N * L_VP);
        ref_classifier(dx, l.losses, l.logits, L_TARGETS, L_N, L_V, L_VP, l.softcap, 0.3);
        check_gradient(t, (Gradient){"dlogits", classifier_loss, &l, l.logits, dx, L_N * L_VP});
        CHECK(t, l.losses[2] == 0);
        mem_free(dx);
        mem_free(l.logits);
    }
    double flat[4] = {1, 1, 1, 1}, loss;
    ref_classifier(NULL, &loss, flat, &L_TARGETS[1], 1, 4, 4, 0, 0);
    CHECK(t, fabs(loss - log(4.0)) < 1e-15);
}

// --- products and optimizers, against values by hand
static void gemm_transposes_and_strides(TestCtx *t) {
    const double a[] = {1, 2, 3, 4, 5, 6}, b[] = {1, 0, 2, -1, 3, 1};
    double c[4] = {10, 10, 10, 10};
    GemmOp g = {.M = 2, .N = 2, .K = 3, .batch = 1, .lda = 3, .ldb = 2, .ldc = 2, .alpha = 2};
    ref_gemm(c, a, b, &g);  // [1 2 3; 4 5 6] [1 0; 2 -1; 3 1]
    CHECK(t, c[0] == 28 && c[1] == 2 && c[2] == 64 && c[3] == 2);
    g.ta = g.tb = true;
    g.lda = 2, g.ldb = 3, g.beta = 1;
    ref_gemm(c, a, b, &g);  // [1 3 5; 2 4 6] [1 -1; 0 3; 2 1]
    CHECK(t, c[0] == 28 + 22 && c[1] == 2 + 26 && c[2] == 64 + 28 && c[3] == 2 + 32);
}

static void optimizer_steps_match_hand_values(TestCtx *t) {
    AdamWArgs a = {TYPE_F32, 0.5f, 0.5f, 0.75f, 0, 0.25f, 0.5f, 0.25f, 0};
    double p = 2, m = 0, v = 0;
    ref_adamw(&p, &m, &v, 4, 0.5, &a);
    // g 2, m 1, v 1; m/c1 2, sqrt(v/c2) 2; p = 2 - 0.5 (1 + 0.5)
    CHECK(t, m == 1 && v == 1 && p == 1.25);
    double momentum = 2;
    CHECK(t, ref_muon_momentum(&momentum, 4, 0.5, 0.5, false) == 2 && momentum == 2);
    CHECK(t, ref_muon_momentum(&momentum, 8, 0.5, 0.5, true) == 3.5 && momentum == 3);
}

TEST_MAIN({"norm_gradients_match_differences", norm_gradients_match_differences},
          {"norm_values_are_those_of_the_formula", norm_values_are_those_of_the_formula},
          {"rope_gradients_match_differences", rope_gradients_match_differences},
          {"rope_turns_pairs_of_the_two_halves", rope_turns_pairs_of_the_two_halves},
          {"concat_gradients_match_differences", concat_gradients_match_differences},
          {"act_gradients_match_differences", act_gradients_match_differences},
          {"act_values_are_known", act_values_are_known},
          {"embed_gradients_match_differences", embed_gradients_match_differences},
          {"classifier_gradients_match_differences", classifier_gradients_match_differences},
          {"gemm_transposes_and_strides", gemm_transposes_and_strides},
          {"optimizer_steps_match_hand_values", optimizer_steps_match_hand_values})
