// bench_step.c - a whole training step: forward, backward, gradient norm, AdamW on all tensors, and
// the packing of the new weights; and the memory that it takes beside what plan says.
// The learning rate is next to zero: the work is the same, and the loss stays what it was.
#include "gpt/bench.h"
#include "gpt/optim.h"

#include <math.h>
#include <string.h>

static const double LR_FACTOR = 1e-9;

typedef struct StepBench {
    Config c;
    Model *m;
    Optimizer *opt;
    int *ids, *targets;
    int64_t steps;
    double loss;
} StepBench;

static void all_adamw(Config *c) {
    for (int k = 0; k < N_KINDS; k++)
        c->optim.group[k].optimizer = OPTIM_ADAMW;
}

static void step_open(StepBench *s, const Ops *ops) {
    size_t N = (size_t)s->c.batch.tokens;
    int V = s->c.model.vocab_size;
    s->m = model_create(&s->c, ops, true);
    bench_fill(s->m);
    s->opt = optim_create(s->m);
    model_alloc_acts(s->m, s->c.batch.micro_batch, s->c.model.seq_len);
    s->ids = bench_ids(N, V);
    s->targets = bench_ids(N, V);
}

static void step_close(StepBench *s) {
    optim_free(s->opt);
    model_free(s->m);
    mem_free(s->ids);
    mem_free(s->targets);
}

static double pass(StepBench *s, bool backward) {
    double start = now_seconds();
    if (backward) model_step_begin(s->m);
    model_step(s->m, s->ids, s->targets, (double)s->c.batch.tokens, backward, true, NULL, NULL);
    s->m->ops->sync();
    return now_seconds() - start;
}

static bool update(StepBench *s, double *seconds, Error *err) {
    StepState state;
    double start = now_seconds();
    optim_step(s->opt, s->steps++, LR_FACTOR, &state);
    s->m->ops->sync();
    *seconds = now_seconds() - start;
    s->loss = state.loss_sum;
    return !state.skip || error_set(err, "the loss or the gradient of the measured step is not "
                                         "finite, so the optimizer did not run");
}

typedef struct StepTimes {
    BenchTimes step, pass, update, forward, prepare;
} StepTimes;

// What is new waits for its memory when it is first written. A forward pass and an update from
// gradients of zero touch all of it but a few buffers, in a third of a step's time.
static bool measure(StepBench *s, StepTimes *t, int repeat, double seconds, Error *err) {
    double start = now_seconds(), u;
    model_step_begin(s->m);
    pass(s, false);
    if (!update(s, &u, err)) return false;
    bench_add(&t->forward, pass(s, false));
    double left = seconds - (now_seconds() - start);
    while (bench_more(&t->step, repeat, left)) {
        double before = bench_processor_seconds();
        double p = pass(s, true);
        if (!update(s, &u, err)) return false;
        t->step.processor += bench_processor_seconds() - before;
        bench_add(&t->pass, p);
        bench_add(&t->update, u);
        bench_add(&t->step, p + u);
        if (t->step.n > 1 && bench_more(&t->step, repeat, left))
            bench_add(&t->forward, pass(s, false));
    }
    for (int i = 0; i < 3; i++) {
        double before = now_seconds();
        model_prepare(s->m);
        s->m->ops->sync();
        bench_add(&t->prepare, now_seconds() - before);
    }
    return true;
}

// A part that was not timed by itself; on a busy machine the rest may have taken longer than all.
static double difference(double all, double rest) {
    return all > rest ? all - rest : NAN;
}

static void report(BenchTable *t, int row, const StepBench *s, const StepTimes *times) {
    double seconds = bench_median(&times->step), forward = bench_median(&times->forward);
    double prepare = bench_median(&times->prepare), tokens = (double)s->c.batch.tokens;
    double flops = bench_get(t, row, STEP_FLOPS);
    bench_set(t, row, STEP_BATCH, s->c.batch.micro_batch);
    bench_set(t, row, STEP_TOKENS, s->c.model.seq_len);
    bench_set(t, row, STEP_SECONDS, seconds);
    bench_set(t, row, STEP_TOKEN_SPEED, tokens / seconds);
    bench_set(t, row, STEP_SPEED, flops * tokens / seconds);
    bench_set(t, row, STEP_CPU, bench_processor_share(&times->step));
    bench_set(t, row, STEP_PASS, bench_median(&times->pass));
    bench_set(t, row, STEP_FORWARD, forward);
    bench_set(t, row, STEP_BACKWARD, difference(bench_median(&times->pass), forward));
    bench_set(t, row, STEP_OPTIMIZER, difference(bench_median(&times->update), prepare));
    bench_set(t, row, STEP_PREPARE, prepare);
    bench_set(t, row, STEP_REPETITIONS, times->step.n);
    bench_set(t, row, STEP_LOSS, s->loss);
}

static bool measure_config(Bench *b, const BenchConfig *bc, int k, Error *err) {
    BenchTable *t = &b->table[BENCH_STEP];
    const Ops *ops = b->ops[k];
    StepBench s = {.c = bench_step_config(b, &bc->c, b->compute[k])};
    StepTimes times = {0};
    Plan plan;
    all_adamw(&s.c);
    if (!plan_compute(&plan, &s.c, ops, 1, 0, err)) return error_prefix(err, bc->name);
    int row = bench_row(t);
    bench_set_text(t, row, STEP_CONFIG, bc->name);
    bench_set_text(t, row, STEP_COMPUTE, elem_name(b->compute[k]));
    bench_set(t, row, STEP_FLOPS, plan.flops.causal);
    bench_set(t, row, STEP_PLAN_BYTES, (double)plan.bytes.total);
    // Resident memory is the host's: it says nothing about another device's.
    bool host = strcmp(ops->name, "cpu") == 0 && bench_rss_reset();
    step_open(&s, ops);
    bool ok = measure(&s, &times, b->repeat, bench_item_seconds(b), err);
    if (ok) report(t, row, &s, &times);
    if (ok && host) {
        double peak = (double)bench_rss_peak();
        bench_set(t, row, STEP_PEAK_BYTES, peak);
        bench_set(t, row, STEP_OVER_PLAN, bench_share(peak, (double)plan.bytes.total));
    }
    step_close(&s);
    plan_free(&plan);
    return ok || error_prefix(err, bc->name);
}

bool bench_step(Bench *b, Error *err) {
    b->items = b->n_configs * b->n_compute;
    for (int i = 0; i < b->n_configs; i++) {
        for (int k = 0; k < b->n_compute; k++) {
            bench_progress(b, "step", b->config[i].name, elem_name(b->compute[k]));
            if (!measure_config(b, &b->config[i], k, err)) return false;
        }
    }
    return true;
}
