// test_cuda_train.c - whole tiny models on the CUDA tables: losses of 20 training steps and logits
// over a cache follow those of the CPU's table, for every variant.
#include <math.h>
#include <string.h>

#include "gpt/optim.h"
#include "test/kernels/cuda/twin.h"
#include "test/tiny_run.h"

enum { STEPS = 20, B = 2, T = TINY_SEQ };
static const char settings[] = "batch.tokens=32 optim.embed.lr=0.01 optim.matrix.lr=0.01";

static void train(const Config *c, const Ops *ops, double *losses, double *norms) {
    Model *m = model_create(c, ops, true);
    model_init(m, 1);
    model_alloc_acts(m, B, T);
    Optimizer *o = optim_create(m);
    int ids[B * T + 1];
    for (int step = 0; step < STEPS; step++) {
        StepState s;
        tiny_ids(ids, B * T + 1, TINY_VOCAB, (uint64_t)step % 5);
        ids[7] = ids[8];
        int targets[B * T];
        memcpy(targets, ids + 1, sizeof targets);
        targets[3] = -1;
        ops->step_begin(m->state);
        model_step(m, ids, targets, B * T - 1, true, true, NULL, NULL);
        optim_step(o, step, 1, &s);
        losses[step] = s.loss_sum;
        norms[step] = (double)s.grad_norm;
    }
    optim_free(o);
    model_free(m);
}

// Logits of a prefill of two rows of different length and three single tokens behind it.
static void extend(const Config *c, const Ops *ops, float *logits) {
    enum { PREFILL = 6 };
    Model *m = model_create(c, ops, false);
    model_init(m, 1);
    Cache *cache = cache_create(m, 2, T, PREFILL);
    int ids[2 * PREFILL], n_new[2] = {PREFILL, 4};
    size_t V = (size_t)m->V;
    tiny_ids(ids, 2 * PREFILL, TINY_VOCAB, 9);
    model_extend(m, cache, ids, PREFILL, n_new, logits, false);
    for (int i = 1; i < 4; i++) {
        n_new[0] = 1, n_new[1] = 1;
        model_extend(m, cache, ids + i, 1, n_new, logits + (size_t)i * 2 * V, false);
    }
    cache_free(m, cache);
    model_free(m);
}

// Attention of this variant needs only what the table has.
static bool has_ops(const Ops *g, const Config *c) {
    bool low_rank = !strcmp(c->attention.type, "lrkv") || !strcmp(c->attention.type, "mla");
    return !low_rank || (g->lowrank_forward && g->sdpa_lowrank_extend);
}

static void losses_follow_the_cpu(TestCtx *t) {
    FOR_EACH_TINY(v) {
        Config c;
        double want[STEPS], want_norm[STEPS], got[STEPS], got_norm[STEPS];
        tiny_config(&c, v->settings, settings);
        set_threads(1);
        train(&c, ops_cpu(), want, want_norm);
        CHECK_MSG(t, want[STEPS - 1] < want[0] - 0.2, "%s learns nothing", v->label);
        const Ops *g;
        for (int i = 4; (g = twin_table(i)) != NULL; i++) {  // in shuffled order
            if (!has_ops(g, &c)) continue;
            double tol = is_bf16(g) ? 2e-2 : 1e-4;
            train(&c, g, got, got_norm);
            for (int step = 0; step < STEPS; step++) {
                CHECK_MSG(t, fabs(got[step] - want[step]) <= tol * want[step],
                          "%s, %d bytes: loss %g at step %d, expected %g", v->label,
                          (int)g->elem_size, got[step], step, want[step]);
            }
            CHECK_MSG(t, fabs(got_norm[0] - want_norm[0]) <= 2 * tol * want_norm[0],
                      "%s, %d bytes: gradient norm %g, expected %g", v->label, (int)g->elem_size,
                      got_norm[0], want_norm[0]);
        }
    }
}

static void cached_logits_follow_the_cpu(TestCtx *t) {
    FOR_EACH_TINY(v) {
        for (int kv_bf16 = 0; kv_bf16 < 2; kv_bf16++) {
            Config c;
            tiny_config(&c, v->settings,
                        kv_bf16 ? "generate.kv_type=bf16" : "generate.kv_type=fp32");
            size_t n = (size_t)2 * 4 * TINY_VOCAB;
            float *want = mem_alloc(n, sizeof(float)), *got = mem_alloc(n, sizeof(float));
            extend(&c, ops_cpu(), want);
            const Ops *g;
            for (int i = 4; (g = twin_table(i)) != NULL; i++) {
                if (!has_ops(g, &c)) continue;
                extend(&c, g, got);
                double tol = is_bf16(g) ? 3e-2 : kv_bf16 ? 5e-3 : 1e-4;
                CHECK_CLOSE(t, got, want, .what = v->label, .n = n, .rel_tol = tol);
            }
            mem_free(want);
            mem_free(got);
        }
    }
}

TEST_MAIN({"losses_follow_the_cpu", losses_follow_the_cpu},
          {"cached_logits_follow_the_cpu", cached_logits_follow_the_cpu})
