// bench_muon.c - the optimizer by itself, on gradients of noise: as the config has it, and with
// AdamW on every tensor. Newton-Schulz costs the same whatever the tokens of a step, so its share
// depends on them: that of the measured step, and that of a step of the config's own batch.tokens.
#include "gpt/bench.h"
#include "gpt/optim.h"

#include <math.h>
#include <string.h>

static const double LR_FACTOR = 1e-9;

static bool uses_muon(const Config *c) {
    for (int k = 0; k < N_KINDS; k++) {
        if (c->optim.group[k].optimizer == OPTIM_MUON) return true;
    }
    return false;
}

static void fill_gradients(Model *m) {
    size_t most = 0;
    for (int i = 0; i < m->params.n; i++) {
        size_t n = spec_stored(&m->params.tensor[i].spec);
        if (n > most) most = n;
    }
    float *noise = bench_noise(most);
    model_step_begin(m);
    for (int i = 0; i < m->params.n; i++) {
        const Tensor *t = &m->params.tensor[i];
        m->ops->upload_bytes(m->grad_arena + t->offset, noise,
                             spec_stored(&t->spec) * sizeof(float));
    }
    m->ops->sync();
    mem_free(noise);
}

// Writes the state once, so that no step waits for its memory.
static void touch_state(Optimizer *o) {
    for (int i = 0; i < optim_n_tensors(o); i++) {
        float *zeros = mem_alloc(spec_logical(optim_tensor_spec(o, i)), sizeof(float));
        optim_set_tensor(o, i, zeros);
        mem_free(zeros);
    }
}

// Median seconds of the optimizer that the model's config asks for now. The norm is summed anew at
// each step, so the step's sums are cleared, outside of the time.
static double optimizer_seconds(Model *m, int repeat, double seconds, int *n) {
    StepState state;
    BenchTimes t = {.n = 0};
    Optimizer *o = optim_create(m);
    touch_state(o);
    for (int64_t step = 0; bench_more(&t, repeat, seconds); step++) {
        m->ops->step_begin(m->state);
        double start = now_seconds();
        optim_step(o, step, LR_FACTOR, &state);
        m->ops->sync();
        bench_add(&t, now_seconds() - start);
    }
    optim_free(o);
    *n = t.n;
    return bench_median(&t);
}

// Seconds of forward and backward for one token, from the step table; NaN when not measured.
static double token_seconds(const Bench *b, const char *config) {
    const BenchTable *t = &b->table[BENCH_STEP];
    for (int i = 0; i < t->n_rows; i++) {
        if (strcmp(bench_get_text(t, i, STEP_CONFIG), config)) continue;
        double tokens = bench_get(t, i, STEP_BATCH) * bench_get(t, i, STEP_TOKENS);
        return bench_get(t, i, STEP_PASS) / tokens;
    }
    return NAN;
}

static bool measure_config(Bench *b, const BenchConfig *bc, Error *err) {
    BenchTable *t = &b->table[BENCH_MUON];
    Config c = bench_step_config(b, &bc->c, b->compute[0]);
    Plan plan;
    int n, n_adamw;
    if (!plan_compute(&plan, &c, b->ops[0], 1, 0, err)) return error_prefix(err, bc->name);
    int row = bench_row(t);
    Model *m = model_create(&c, b->ops[0], true);
    bench_fill(m);
    fill_gradients(m);
    double seconds = bench_item_seconds(b);
    double own = optimizer_seconds(m, b->repeat, seconds * 0.8, &n);
    for (int k = 0; k < N_KINDS; k++)
        m->cfg.optim.group[k].optimizer = OPTIM_ADAMW;
    double adamw = optimizer_seconds(m, b->repeat, seconds * 0.2, &n_adamw);
    model_free(m);
    double token = token_seconds(b, bc->name);
    bench_set_text(t, row, MUON_CONFIG, bc->name);
    bench_set(t, row, MUON_SECONDS, own);
    bench_set(t, row, MUON_ADAMW, adamw);
    bench_set(t, row, MUON_FLOPS, plan.flops.optimizer_step);
    bench_set(t, row, MUON_SPEED, plan.flops.optimizer_step / own);
    bench_set(t, row, MUON_OF_STEP, bench_share(own, own + token * (double)c.batch.tokens));
    bench_set(t, row, MUON_STEP_TOKENS, (double)bc->c.batch.tokens);
    bench_set(t, row, MUON_OF_FULL_STEP,
              bench_share(own, own + token * (double)bc->c.batch.tokens));
    bench_set(t, row, MUON_REPETITIONS, n);
    plan_free(&plan);
    return true;
}

bool bench_muon(Bench *b, Error *err) {
    int left = 0;
    for (int i = 0; i < b->n_configs; i++)
        left += uses_muon(&b->config[i].c);
    b->items = min_int(left, b->muon_configs);
    for (int i = 0; i < b->n_configs; i++) {
        const char *what = !uses_muon(&b->config[i].c) ? "left out: no tensor uses muon"
                           : b->items == 0             ? "left out unless the config is named"
                                                       : NULL;
        bench_progress(b, "muon", b->config[i].name, what ? what : "");
        if (!what && !measure_config(b, &b->config[i], err)) return false;
    }
    return true;
}
