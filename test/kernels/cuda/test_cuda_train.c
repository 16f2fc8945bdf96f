// test_cuda_train.c - training runs on the CUDA tables, by the code behind `train`: losses of 20
// steps follow the CPU's for every variant, runs cross over between devices, and a run in pieces
// ends as a run in one.
#include <math.h>
#include <string.h>

#include "gpt/checkpoint.h"
#include "gpt/plan.h"
#include "test/kernels/cuda/twin.h"
#include "test/tiny_run.h"

enum { STEPS = 20 };

// Two micro-batches a step, so that gradients add up.
static const char run_settings[] =
    "train.steps=20 batch.tokens=32 batch.micro_batch=1 optim.matrix.lr=0.01 optim.embed.lr=0.02";

static const Ops *cuda_ops(ElemType act) {
    static Ops table[2];
    Error err;
    if (!cuda_open(0, &err)) die("%s", err.text);
    table[act == TYPE_BF16] = tiny_unmeasured(ops_cuda(act));
    return &table[act == TYPE_BF16];
}

static void losses_follow(TestCtx *t, const char *label, const double *got, const double *want,
                          int n, double tol) {
    for (int i = 0; i < n; i++) {
        CHECK_MSG(t, fabs(got[i] - want[i]) <= tol * want[i],
                  "%s: loss %.7g at step %d, expected %.7g", label, got[i], i + 1, want[i]);
    }
}

// Losses of the run in the directory `run`, which is then DIR/name.
static void run_to_end(TestCtx *t, const TinyRun *r, const Config *c, const Ops *ops,
                       const char *name, double *losses, double *norm) {
    tiny_must_train(t, r, c, ops);
    int n = tiny_loss_values(r, "run", losses, STEPS);
    CHECK_MSG(t, n == STEPS, "%s: %d steps", name, n);
    *norm = tiny_last_metric(r, "run", "grad_norm");
    tiny_put_aside(r, name);
}

static void losses_follow_the_cpu(TestCtx *t) {
    set_threads(1);
    FOR_EACH_TINY(v) {
        Config c;
        TinyRun *r = tiny_open();
        double want[STEPS], got[STEPS], want_norm, got_norm;
        tiny_run_config(r, &c, v->settings, run_settings);
        run_to_end(t, r, &c, tiny_ops(), "cpu", want, &want_norm);
        CHECK_MSG(t, want[STEPS - 1] < want[0] - 0.2, "%s learns nothing", v->label);
        for (int bf16 = 0; bf16 < 2; bf16++) {
            double tol = bf16 ? 2e-2 : 1e-4;
            run_to_end(t, r, &c, cuda_ops(bf16 ? TYPE_BF16 : TYPE_F32), bf16 ? "bf16" : "fp32", got,
                       &got_norm);
            losses_follow(t, v->label, got, want, STEPS, tol);
            CHECK_MSG(t, fabs(got_norm - want_norm) <= 5 * tol * want_norm,
                      "%s: gradient norm %g, expected %g", v->label, got_norm, want_norm);
        }
        tiny_close(r);
    }
}

// Steps [0, 8) on the CPU, [8, 14) on CUDA, the rest on the CPU, with a change of its place in the
// data and of the optimizer's moments at each crossing.
static void runs_cross_over(TestCtx *t) {
    set_threads(1);
    FOR_EACH_TINY(v) {
        static const int until[] = {8, 14, STEPS};
        for (int bf16 = 0; bf16 < 2 - (v - tiny_variants) % 2; bf16++) {
            Config c;
            TinyRun *r = tiny_open();
            double want[STEPS], got[STEPS], norm;
            tiny_run_config(r, &c, v->settings, run_settings);
            run_to_end(t, r, &c, tiny_ops(), "straight", want, &norm);
            for (int i = 0; i < 3; i++) {
                c.train.steps = until[i];
                tiny_must_train(t, r, &c,
                                i == 1 ? cuda_ops(bf16 ? TYPE_BF16 : TYPE_F32) : tiny_ops());
            }
            CHECK_MSG(t, tiny_loss_values(r, "run", got, STEPS) == STEPS, "%s: steps", v->label);
            losses_follow(t, v->label, got, want, STEPS, bf16 ? 2e-2 : 1e-4);
            tiny_close(r);
        }
    }
}

// Bit for bit on one device: parameters, masters, moments, place in the data.
static void check_pieces(TestCtx *t, const TinyVariant *v, ElemType act, const char *more) {
    static const char *const files[] = {CHECKPOINT_MODEL, CHECKPOINT_OPTIMIZER, CHECKPOINT_STATE};
    TinyRun *r = tiny_open();
    Config c;
    tiny_run_config(r, &c, v->settings, run_settings);
    tiny_set(&c, more);
    c.train.steps = 5;
    tiny_must_train(t, r, &c, cuda_ops(act));
    tiny_put_aside(r, "straight");
    for (int steps = 1; steps <= 5; steps += 2) {
        c.train.steps = steps;
        tiny_must_train(t, r, &c, cuda_ops(act));
    }
    for (int i = 0; i < 3; i++) {
        char a[96], b[96];
        snprintf(a, sizeof a, "straight/step-00000005/%s", files[i]);
        snprintf(b, sizeof b, "run/step-00000005/%s", files[i]);
        tiny_same_file(t, r, a, b);
    }
    char *x = tiny_losses(r, "straight"), *y = tiny_losses(r, "run");
    CHECK_MSG(t, strlen(x) > 20 && strcmp(x, y) == 0, "%s:\n    %s\n    %s", v->label, x, y);
    mem_free(x);
    mem_free(y);
    tiny_close(r);
}

static void a_run_in_pieces_ends_as_a_run_in_one(TestCtx *t) {
    set_threads(1);
    FOR_EACH_TINY(v) {
        if ((v - tiny_variants) % 2) check_pieces(t, v, TYPE_F32, NULL);
        check_pieces(t, v, TYPE_BF16, NULL);
    }
}

static const char no_masters[] = "optim.master=none train.compute=bf16";

// Parameters in bf16 alone: the loss follows, resuming is exact, and the memory is what plan says.
static void masters_can_be_left_out(TestCtx *t) {
    set_threads(1);
    for (int i = 0; i < 5; i += 2) {
        const TinyVariant *v = &tiny_variants[i];
        TinyRun *r = tiny_open();
        Config c;
        double want[STEPS], got[STEPS], norm;
        tiny_run_config(r, &c, v->settings, run_settings);
        run_to_end(t, r, &c, tiny_ops(), "cpu", want, &norm);
        tiny_set(&c, no_masters);
        run_to_end(t, r, &c, cuda_ops(TYPE_BF16), "none", got, &norm);
        losses_follow(t, v->label, got, want, STEPS, 4e-2);
        tiny_close(r);
        check_pieces(t, v, TYPE_BF16, no_masters);
    }
}

static void plan_counts_masters(TestCtx *t) {
    Config c;
    Plan with, without;
    Error err;
    size_t masters = 0;
    const Ops *ops = cuda_ops(TYPE_BF16);
    tiny_config(&c, tiny_variants[4].settings, NULL);
    CHECK(t, plan_compute(&with, &c, ops, 1, 0, &err));
    for (int i = 0; i < with.table.n; i++) {
        const TensorSpec *s = &with.table.tensor[i].spec;
        if (s->type == TYPE_FX) masters += round_up(spec_stored(s) * sizeof(float), 256);
    }
    tiny_set(&c, no_masters);
    CHECK(t, plan_compute(&without, &c, ops, 1, 0, &err));
    CHECK_MSG(t, masters && with.bytes.optimizer - without.bytes.optimizer == masters,
              "%zu - %zu, not %zu", with.bytes.optimizer, without.bytes.optimizer, masters);
    plan_free(&with);
    plan_free(&without);
}

// fp32 parameters have no masters to leave out.
static void leaving_out_masters_is_refused_elsewhere(TestCtx *t) {
    TinyRun *r = tiny_open();
    Config c;
    Error err;
    tiny_run_config(r, &c, NULL, "optim.master=none");
    for (int cuda = 0; cuda < 2; cuda++) {
        CHECK(t,
              !tiny_train(r, &c, cuda ? cuda_ops(TYPE_F32) : tiny_ops(), RUN_RESUME, NULL, &err));
        CHECK_ERROR(t, err, "optim.master is none but the parameters on");
        Plan p;
        CHECK(t, !plan_compute(&p, &c, tiny_ops(), 1, 0, &err));
    }
    tiny_close(r);
}

// Whatever a step needs from the host is enqueued; the one wait is for the step's result.
static void micro_steps_do_not_wait(TestCtx *t) {
    FOR_EACH_TINY(v) {
        for (int bf16 = 0; bf16 < 2; bf16++) {
            Config c;
            int ids[TINY_SEQ + 1];
            StepState state;
            tiny_config(&c, v->settings, "batch.tokens=16");
            Model *m = model_create(&c, cuda_ops(bf16 ? TYPE_BF16 : TYPE_F32), true);
            model_init(m, 1);
            model_alloc_acts(m, 1, TINY_SEQ);
            Optimizer *o = optim_create(m);
            for (int step = 0; step < 2; step++) {  // scratch grows in the first
                size_t waits = cuda_waits();
                model_step_begin(m);
                for (int k = 0; k < 3; k++) {
                    tiny_ids(ids, TINY_SEQ + 1, TINY_VOCAB, (uint64_t)k);
                    model_step(m, ids, ids + 1, 3 * TINY_SEQ, true, k == 2, NULL, NULL);
                }
                if (step) CHECK_MSG(t, cuda_waits() == waits, "%s waits in a micro-step", v->label);
                optim_step(o, step, 1, &state);
                if (step) CHECK_MSG(t, cuda_waits() == waits + 1, "%s waits more", v->label);
            }
            CHECK(t, !state.skip);
            optim_free(o);
            model_free(m);
        }
    }
}

TEST_MAIN({"masters_can_be_left_out", masters_can_be_left_out},
          {"plan_counts_masters", plan_counts_masters},
          {"leaving_out_masters_is_refused_elsewhere", leaving_out_masters_is_refused_elsewhere},
          {"micro_steps_do_not_wait", micro_steps_do_not_wait},
          {"losses_follow_the_cpu", losses_follow_the_cpu}, {"runs_cross_over", runs_cross_over},
          {"a_run_in_pieces_ends_as_a_run_in_one", a_run_in_pieces_ends_as_a_run_in_one})
