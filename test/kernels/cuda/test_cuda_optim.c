// test_cuda_optim.c - optimizers and the scalars of a step, CUDA tables against the CPU's.
#include <math.h>
#include <string.h>

#include "test/kernels/cuda/twin.h"

static StepState *upload_state(const Ops *g, StepState s) {
    StepState *p = g->alloc(sizeof s);
    g->upload_bytes(p, &s, sizeof s);
    return p;
}

static StepState download_state(const Ops *g, const StepState *p) {
    StepState s;
    g->download_bytes(&s, p, sizeof s);
    return s;
}

static const size_t sizes[] = {1, 4, 67, 1024, 2051};
enum { N_SIZES = sizeof sizes / sizeof sizes[0] };

// The parameter in the table's type or fp32, with and without a master of its own.
static void check_adamw(TestCtx *t, const Ops *g, size_t n, ElemType type, bool with_master,
                        bool skip) {
    AdamWArgs a = {type, 0.01f, 0.9f, 0.95f, 1e-8f, 0.1f, 0.271f, 0.142625f, 0};
    AdamWArgs ca = a;
    ca.type = TYPE_F32;
    StepState state = {.clip = 0.5f, .skip = skip, .first_bad = -1};
    StepState *gstate = upload_state(g, state);
    Twin p = twin_noise(g, type, n, 1, 1), m = twin_noise(g, TYPE_F32, n, 2, 0.1f);
    Twin v = twin_noise(g, TYPE_F32, n, 3, 0.1f), grad = twin_noise(g, TYPE_F32, n, 4, 1);
    Twin master = with_master ? twin_of(g, TYPE_F32, p.cpu, n) : twin_null();
    for (size_t i = 0; i < n; i++)
        v.cpu[i] = fabsf(v.cpu[i]);
    g->upload_bytes(v.gpu, v.cpu, n * sizeof(float));

    ops_cpu()->adamw(p.cpu, master.cpu, m.cpu, v.cpu, grad.cpu, n, &ca, &state);
    g->adamw(p.gpu, master.gpu, m.gpu, v.gpu, grad.gpu, n, &a, gstate);
    TWIN_CHECK(t, g, m, twin_tol(g, TYPE_F32, 1), 0);
    TWIN_CHECK(t, g, v, twin_tol(g, TYPE_F32, 1), 0);
    // Without a master a bf16 value goes to either neighbour.
    TWIN_CHECK(t, g, p, twin_tol(g, type, 1) * (with_master ? 1 : 2), 0);
    if (with_master) TWIN_CHECK(t, g, master, twin_tol(g, TYPE_F32, 1), 0);
    TWIN_FREE(t, g, &p, &m, &v, &grad, &master);
    g->free(gstate);
}

static void adamw_matches(TestCtx *t) {
    const Ops *g;
    FOR_EACH_TABLE(g) {
        for (int i = 0; i < N_SIZES; i++) {
            check_adamw(t, g, sizes[i], TYPE_FX, true, false);
            check_adamw(t, g, sizes[i], TYPE_F32, false, false);
        }
        check_adamw(t, g, 64, TYPE_FX, false, false);
        check_adamw(t, g, 64, TYPE_FX, true, true);
        check_adamw(t, g, 3, TYPE_F32, false, true);
        for (int k = 1; k <= 5; k++) {
            twin_misalign(k);
            check_adamw(t, g, 16, TYPE_FX, true, false);
        }
    }
}

// Gradients of zero, huge, tiny and denormal size, from moments of the same kinds.
static void extreme_gradients_match(TestCtx *t) {
    const Ops *g;
    static const float kinds[] = {0, -0.0f, 1, -1e30f, 1e18f, 1e-25f, -1e-40f, 3e38f};
    enum { KINDS = 8, N = KINDS * KINDS };
    float grads[N], moments[N], squares[N];
    for (int i = 0; i < N; i++) {
        grads[i] = kinds[i % KINDS], moments[i] = kinds[i / KINDS];
        squares[i] = fabsf(moments[i]);
    }
    AdamWArgs a = {TYPE_F32, 0.01f, 0.9f, 0.95f, 1e-8f, 0.1f, 0.271f, 0.142625f, 0};
    StepState state = {.clip = 1, .first_bad = -1};
    FOR_EACH_TABLE(g) {
        StepState *gstate = upload_state(g, state);
        Twin p = twin_noise(g, TYPE_F32, N, 1, 1), grad = twin_of(g, TYPE_F32, grads, N);
        Twin m = twin_of(g, TYPE_F32, moments, N), v = twin_of(g, TYPE_F32, squares, N);
        ops_cpu()->adamw(p.cpu, NULL, m.cpu, v.cpu, grad.cpu, N, &a, &state);
        g->adamw(p.gpu, NULL, m.gpu, v.gpu, grad.gpu, N, &a, gstate);
        TWIN_CHECK_EACH(t, g, m, 1e-5, 1e-40);
        TWIN_CHECK_EACH(t, g, v, 1e-5, 1e-40);
        TWIN_CHECK_EACH(t, g, p, 1e-5, 1e-2);
        TWIN_FREE(t, g, &p, &grad, &m, &v);
        g->free(gstate);
    }
}

static void check_muon(TestCtx *t, const Ops *g, size_t n, bool nesterov, bool skip) {
    const Ops *o = ops_cpu();
    StepState state = {.clip = 0.25f, .skip = skip, .first_bad = -1};
    StepState *gstate = upload_state(g, state);
    Twin out = twin_noise(g, TYPE_F32, n, 1, 1), momentum = twin_noise(g, TYPE_F32, n, 2, 1);
    Twin grad = twin_noise(g, TYPE_F32, n, 3, 1), master = twin_noise(g, TYPE_F32, n, 4, 1);
    Twin p = twin_of(g, TYPE_FX, master.cpu, n);
    double tol = twin_tol(g, TYPE_F32, 1);

    o->muon_momentum(out.cpu, momentum.cpu, grad.cpu, n, 0.95f, nesterov, &state);
    g->muon_momentum(out.gpu, momentum.gpu, grad.gpu, n, 0.95f, nesterov, gstate);
    TWIN_CHECK(t, g, momentum, tol, 0);
    TWIN_CHECK(t, g, out, tol, 0);
    o->muon_apply(p.cpu, master.cpu, TYPE_F32, out.cpu, n, 0.1f, 0.01f, 0, &state);
    g->muon_apply(p.gpu, master.gpu, TYPE_FX, out.gpu, n, 0.1f, 0.01f, 0, gstate);
    TWIN_CHECK(t, g, master, 2 * tol, 0);
    TWIN_CHECK(t, g, p, twin_tol(g, TYPE_FX, 1), 0);
    o->scale_copy(out.cpu, grad.cpu, n, -0.3f);
    g->scale_copy(out.gpu, grad.gpu, n, -0.3f);
    TWIN_CHECK(t, g, out, 0, 0);
    o->scale_copy(out.cpu, out.cpu, n, 3.0f);
    g->scale_copy(out.gpu, out.gpu, n, 3.0f);
    o->axpy(out.cpu, grad.cpu, n, 0.7f);
    g->axpy(out.gpu, grad.gpu, n, 0.7f);
    TWIN_CHECK(t, g, out, tol, 0);
    TWIN_FREE(t, g, &out, &momentum, &grad, &master, &p);
    g->free(gstate);
}

static void muon_parts_match(TestCtx *t) {
    const Ops *g;
    FOR_EACH_TABLE(g) {
        for (int i = 0; i < N_SIZES; i++)
            check_muon(t, g, sizes[i], i % 2, false);
        check_muon(t, g, 64, true, true);
        check_muon(t, g, 3, true, true);
        for (int k = 1; k <= 5; k++) {
            twin_misalign(k);
            check_muon(t, g, 16, false, false);
        }
    }
}

static void check_normalize(TestCtx *t, const Ops *g, size_t n, int batch) {
    size_t stride = n + 9;
    Twin x = twin_noise(g, TYPE_F32, (size_t)batch * stride, 1, 3);
    memset(x.cpu + (size_t)(batch - 1) * stride, 0, n * sizeof(float));
    g->upload_bytes(x.gpu, x.cpu, x.n * sizeof(float));
    ops_cpu()->muon_normalize(x.cpu, n, batch, stride, 1e-7f);
    g->muon_normalize(x.gpu, n, batch, stride, 1e-7f);
    TWIN_CHECK(t, g, x, twin_tol(g, TYPE_F32, 1), 0);
    twin_free(t, g, &x);
}

static void matrices_are_normalised_one_by_one(TestCtx *t) {
    const Ops *g;
    FOR_EACH_TABLE(g) {
        check_normalize(t, g, 391, 3);
        check_normalize(t, g, 5000, 2);
        check_normalize(t, g, 1, 2);
    }
}

static void same_state(TestCtx *t, StepState a, StepState b) {
    CHECK(t, fabs(a.loss_sum - b.loss_sum) <= 1e-12 * fabs(b.loss_sum) || !isfinite(b.loss_sum));
    CHECK(t, fabs(a.grad_sumsq - b.grad_sumsq) <= 1e-12 * b.grad_sumsq || !isfinite(b.grad_sumsq));
    CHECK(t, isfinite(a.grad_sumsq) == isfinite(b.grad_sumsq));
    CHECK(t, fabsf(a.grad_norm - b.grad_norm) <= 1e-6f * b.grad_norm || !isfinite(b.grad_norm));
    CHECK(t, fabsf(a.clip - b.clip) <= 1e-6f || b.skip);
    CHECK(t, a.skip == b.skip);
    CHECK(t, a.first_bad == b.first_bad);
}

// bad: a value that is put into the gradient of tensor 3, 0 for none.
static void check_step(TestCtx *t, const Ops *g, float bad, float loss, float max_norm) {
    const Ops *o = ops_cpu();
    StepState state, *gstate = g->alloc(sizeof state);
    Twin big = twin_noise(g, TYPE_F32, 5003, 1, 1), small = twin_noise(g, TYPE_F32, 3, 2, 1);
    Twin losses = twin_noise(g, TYPE_F32, 1500, 3, 5);
    if (bad != 0) big.cpu[4567] = bad;
    if (loss != 0) losses.cpu[77] = loss;
    g->upload_bytes(big.gpu, big.cpu, big.n * sizeof(float));
    g->upload_bytes(losses.gpu, losses.cpu, losses.n * sizeof(float));
    o->step_begin(&state);
    o->loss_add(&state, losses.cpu, losses.n, 0.001);
    o->grad_sumsq(&state, small.cpu, small.n, 5);
    o->grad_sumsq(&state, big.cpu, big.n, 3);
    o->grad_finish(&state, max_norm);
    g->step_begin(gstate);
    g->loss_add(gstate, losses.gpu, losses.n, 0.001);
    g->grad_sumsq(gstate, small.gpu, small.n, 5);
    g->grad_sumsq(gstate, big.gpu, big.n, 3);
    g->grad_finish(gstate, max_norm);
    same_state(t, download_state(g, gstate), state);
    TWIN_FREE(t, g, &big, &small, &losses);
    g->free(gstate);
}

// The bad tensor with the lowest number is remembered, whichever comes first.
static void the_first_bad_tensor_is_named(TestCtx *t) {
    const Ops *g;
    float bad[] = {1, NAN}, good[] = {1, 2};
    FOR_EACH_TABLE(g) {
        StepState *state = g->alloc(sizeof *state);
        Twin x = twin_of(g, TYPE_F32, bad, 2), y = twin_of(g, TYPE_F32, good, 2);
        for (int lowest = 0; lowest <= 3; lowest += 3) {
            for (int turned = 0; turned < 2; turned++) {
                g->step_begin(state);
                g->grad_sumsq(state, y.gpu, 2, 7);
                g->grad_sumsq(state, x.gpu, 2, turned ? 9 : lowest);
                g->grad_sumsq(state, x.gpu, 2, turned ? lowest : 9);
                CHECK(t, download_state(g, state).first_bad == lowest);
            }
        }
        TWIN_FREE(t, g, &x, &y);
        g->free(state);
    }
}

static void the_scalars_of_a_step_match(TestCtx *t) {
    const Ops *g;
    FOR_EACH_TABLE(g) {
        check_step(t, g, 0, 0, 0);
        check_step(t, g, 0, 0, 1.0f);
        check_step(t, g, 0, 0, 1000.0f);
        check_step(t, g, 3e38f, 0, 1.0f);
        check_step(t, g, NAN, 0, 1.0f);
        check_step(t, g, -INFINITY, 0, 0);
        check_step(t, g, 0, INFINITY, 0);
        check_step(t, g, 0, NAN, 1.0f);
    }
}

TEST_MAIN({"adamw_matches", adamw_matches}, {"extreme_gradients_match", extreme_gradients_match},
          {"muon_parts_match", muon_parts_match},
          {"matrices_are_normalised_one_by_one", matrices_are_normalised_one_by_one},
          {"the_first_bad_tensor_is_named", the_first_bad_tensor_is_named},
          {"the_scalars_of_a_step_match", the_scalars_of_a_step_match})
