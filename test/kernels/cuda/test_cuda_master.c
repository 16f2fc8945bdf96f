// test_cuda_master.c - fp32 masters of bf16 parameters: they keep what bf16 would drop, parameters
// are their rounding after every step, and a checkpoint brings them back to the bit. Only the
// optimizer runs, on gradients of noise; test_cuda_train has whole runs.
#include <math.h>
#include <string.h>

#include "gpt/dirs.h"
#include "test/kernels/cuda/twin.h"
#include "test/tiny_run.h"

static const char settings[] = "model.n_layer=1 model.n_embd=16 model.n_head=2 model.ffn_dim=24 "
                               "model.vocab_size=263 optim.matrix.optimizer=muon";

static Trainer *trainer_new(const Config *c, const Ops *ops) {
    Trainer *t = mem_alloc(1, sizeof *t);
    t->cfg = *c;
    t->ops = ops;
    t->m = model_create(c, ops, true);
    t->opt = optim_create(t->m);
    return t;
}

static void trainer_free(Trainer *t) {
    optim_free(t->opt);
    model_free(t->m);
    mem_free(t);
}

static size_t values(const Trainer *t, int i) {
    return spec_logical(&t->m->params.tensor[i].spec);
}

// Values that bf16 can't hold.
static void set_all(Trainer *t) {
    for (int i = 0; i < t->m->params.n; i++) {
        float *x = mem_alloc(values(t, i), sizeof *x);
        test_noise(x, values(t, i), (uint64_t)i + 1, 1);
        model_set_tensor(t->m, i, x);
        optim_set_master(t->opt, i, x);
        mem_free(x);
    }
}

static float *master(const Trainer *t, int i) {
    float *x = mem_alloc(values(t, i), sizeof *x);
    optim_get_master(t->opt, i, x);
    return x;
}

static void step(Trainer *t, int64_t number, double lr_factor) {
    const Tensor *last = &t->m->params.tensor[t->m->params.n - 1];
    size_t n = last->offset + spec_stored(&last->spec);
    float *g = mem_alloc(n, sizeof *g);
    StepState state;
    model_step_begin(t->m);
    for (int i = 0; i < t->m->params.n; i++)  // rows that pad the vocabulary have none
        test_noise(g + t->m->params.tensor[i].offset, values(t, i), (uint64_t)(number * 100 + i),
                   1);
    t->ops->upload_bytes(t->m->grad_arena, g, n * sizeof *g);
    optim_step(t->opt, number, lr_factor, &state);
    mem_free(g);
}

// Parameters are the masters, rounded to the device's type.
static void check_rounded(TestCtx *t, const Trainer *r) {
    for (int i = 0; i < r->m->params.n; i++) {
        const TensorSpec *s = &r->m->params.tensor[i].spec;
        float *x = master(r, i), *p = mem_alloc(values(r, i), sizeof *p);
        model_get_tensor(r->m, i, p);
        bool half = s->type == TYPE_FX && r->ops->elem_size == 2;
        size_t bad = 0;
        for (size_t k = 0; k < values(r, i); k++)
            bad += p[k] != (half ? bf16_to_f32(bf16_from_f32(x[k])) : x[k]);
        CHECK_MSG(t, bad == 0, "%s: %zu parameters are not their masters'",
                  r->m->params.tensor[i].name, bad);
        mem_free(x);
        mem_free(p);
    }
}

static void masters_are_exact_and_parameters_their_rounding(TestCtx *t) {
    const Ops *g;
    FOR_EACH_TABLE(g) {
        Config c;
        tiny_config(&c, NULL, settings);
        Trainer *r = trainer_new(&c, g);
        set_all(r);
        for (int i = 0; i < r->m->params.n; i++) {
            float *x = master(r, i), *want = mem_alloc(values(r, i), sizeof *want);
            test_noise(want, values(r, i), (uint64_t)i + 1, 1);
            CHECK_SAME_BITS(t, x, want, values(r, i) * sizeof *x);
            mem_free(x);
            mem_free(want);
        }
        check_rounded(t, r);
        for (int64_t k = 0; k < 2; k++) {
            step(r, k, 1);
            check_rounded(t, r);
        }
        trainer_free(r);
    }
}

static size_t differing(const float *a, const float *b, size_t n) {
    size_t count = 0;
    for (size_t i = 0; i < n; i++)
        count += a[i] != b[i];
    return count;
}

// A step far below the last bit of bf16 moves the masters and few parameters.
static void small_steps_are_not_lost(TestCtx *t) {
    const Ops *g;
    FOR_EACH_TABLE(g) {
        Config c;
        tiny_config(&c, NULL, settings);
        Trainer *r = trainer_new(&c, g);
        set_all(r);
        size_t n = values(r, 0);
        float *was = master(r, 0), *param_was = mem_alloc(n, sizeof(float));
        model_get_tensor(r->m, 0, param_was);
        step(r, 0, 1e-4);
        float *is = master(r, 0), *param_is = mem_alloc(n, sizeof(float));
        model_get_tensor(r->m, 0, param_is);
        size_t masters = differing(was, is, n), params = differing(param_was, param_is, n);
        CHECK_MSG(t, masters > n * 9 / 10, "%zu of %zu masters moved", masters, n);
        CHECK_MSG(t, is_bf16(g) ? params < n / 10 : params == masters, "%zu of %zu moved", params,
                  n);
        mem_free(was), mem_free(is), mem_free(param_was), mem_free(param_is);
        trainer_free(r);
    }
}

static void a_checkpoint_keeps_masters_to_the_bit(TestCtx *t) {
    const Ops *g;
    FOR_EACH_TABLE(g) {
        Config c;
        Error err;
        TinyRun *dir = tiny_open();
        tiny_run_config(dir, &c, NULL, settings);
        Trainer *a = trainer_new(&c, g), *b = trainer_new(&c, g);
        CHECK(t, dir_make(c.checkpoint.dir, &err));
        set_all(a);
        step(a, 0, 1);
        a->n.step = 1;
        char *saved = tiny_path(dir, "run/step-00000001");
        CHECK_MSG(t, train_save(a, &err), "%s", err.text);
        CHECK_MSG(t, train_restore(b, saved, &err), "%s", err.text);
        // As they are, and after a step that both take.
        for (int64_t k = 1; k < 3; k++) {
            for (int i = 0; i < a->m->params.n; i++) {
                float *x = master(a, i), *y = master(b, i);
                CHECK_SAME_BITS(t, x, y, values(a, i) * sizeof *x);
                mem_free(x);
                mem_free(y);
            }
            check_rounded(t, b);
            step(a, k, 1);
            step(b, k, 1);
        }
        mem_free(saved);
        trainer_free(a);
        trainer_free(b);
        tiny_close(dir);
    }
}

TEST_MAIN({"masters_are_exact_and_parameters_their_rounding",
           masters_are_exact_and_parameters_their_rounding},
          {"small_steps_are_not_lost", small_steps_are_not_lost},
          {"a_checkpoint_keeps_masters_to_the_bit", a_checkpoint_keeps_masters_to_the_bit})
