// train.c - see train.h.
#define _POSIX_C_SOURCE 200809L
#include "gpt/train.h"

#include "data/prepare.h"
#include "gpt/plan.h"
#include "gpt/run.h"

#include <math.h>
#include <signal.h>
#include <string.h>

// Set by the signal handler; the loop ends after the step under way, evaluations and samples at
// once. The only state of its kind: a handler has no other way to speak.
static volatile int stop_signal;

static void on_signal(int number) {
    stop_signal = number;
}

static void watch_signals(void) {
    struct sigaction a = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND};
    stop_signal = 0;
    sigaction(SIGINT, &a, NULL);
    sigaction(SIGTERM, &a, NULL);
}

static DataLoader *open_data(const Config *c, const char *patterns, bool shuffle, Error *err) {
    DataLoaderOptions o = {.patterns = patterns,
                           .seq_len = c->model.seq_len,
                           .n_vocab = c->model.vocab_size,
                           .shuffle = shuffle,
                           .seed = (uint64_t)c->train.seed};
    return dataloader_open(&o, err);
}

static bool open_tokenizer(Trainer *t, Error *err) {
    const char *path = t->cfg.data.tokenizer;
    if (!path[0]) {
        if (!t->cfg.train.sample_every) return true;
        return error_set(err,
                         "train.sample_every is %lld but data.tokenizer is empty: samples of "
                         "text need the tokenizer; name it or set train.sample_every=0",
                         (long long)t->cfg.train.sample_every);
    }
    t->tok = tokenizer_load(path, err);
    if (!t->tok) return false;
    int n = tokenizer_n_ids(t->tok), V = t->cfg.model.vocab_size;
    if (n > V) {
        return error_set(err, "%s: has %d ids and model.vocab_size is %d; set model.vocab_size=%d",
                         path, n, V, n);
    }
    return true;
}

// What the ids in this directory mean, for generate and eval. A run that goes on has the tokenizer
// it began with (check_same_data); one that begins takes over nobody else's.
static bool keep_tokenizer(const Trainer *t, Error *err) {
    if (!t->tok) return true;
    char *copy = rundir_file(&t->run, "tokenizer.json");
    bool ok = (t->run.checkpoint && file_exists(copy)) || tokenizer_save(t->tok, copy, err);
    mem_free(copy);
    return ok;
}

// Shards that prepare wrote say which tokenizer made them: another one would read them as other
// text.
static bool check_prepared(const Trainer *t, const char *patterns, Error *err) {
    char first[CONFIG_TEXT_MAX];
    snprintf(first, sizeof first, "%.*s", (int)strcspn(patterns, " \t"), patterns);
    PrepareInfo info;
    Error none;
    if (!t->tok || !prepare_info_load(&info, first, &none))
        return true;  // shards of another origin
    if (info.tokenizer_hash == tokenizer_hash(t->tok)) return true;
    return error_set(
        err,
        "%s was made with another tokenizer than data.tokenizer=%s; give the tokenizer.json "
        "that lies beside the shards",
        first, t->cfg.data.tokenizer);
}

static bool open_loaders(Trainer *t, Error *err) {
    const Config *c = &t->cfg;
    if (!c->data.train[0]) {
        return error_set(err, "data.train is empty; give it the token shards that prepare wrote");
    }
    t->train = open_data(c, c->data.train, c->data.shuffle, err);
    if (!t->train) return error_prefix(err, "data.train");
    if (!check_prepared(t, c->data.train, err) || !check_prepared(t, c->data.val, err))
        return false;
    if (!c->data.val[0]) return true;
    t->val = open_data(c, c->data.val, false, err);
    return t->val || error_prefix(err, "data.val");
}

// The data must be the data that the run was made with: position counts its samples.
static bool check_same_data(const Trainer *t, Error *err) {
    const CheckpointState *s = &t->run.state;
    if (s->data_fingerprint != t->n.data_fingerprint) {
        return error_set(
            err,
            "%s: data.train holds other shards than this run was trained on; restore them, "
            "or start a new run with --fresh-aside or another checkpoint.dir",
            t->run.path);
    }
    if (s->tokenizer_hash != t->n.tokenizer_hash) {
        return error_set(
            err,
            "%s: data.tokenizer is another tokenizer than this run was trained with; "
            "restore it, or start a new run with --fresh-aside or another checkpoint.dir",
            t->run.path);
    }
    return true;
}

static bool start_or_resume(Trainer *t, Error *err) {
    t->n.data_fingerprint = dataloader_info(t->train).fingerprint;
    t->n.tokenizer_hash = t->tok ? tokenizer_hash(t->tok) : 0;
    t->saved_step = -1;
    if (!t->run.checkpoint) {
        model_init(t->m, (uint64_t)t->cfg.train.seed);
        for (int i = 0; i < t->m->params.n; i++) {
            // Masters start from the exact initial values, not from the device's rounding.
            float *values = mem_alloc(spec_logical(&t->m->params.tensor[i].spec), sizeof(float));
            tensor_init(values, &t->m->params.tensor[i], (uint64_t)t->cfg.train.seed);
            optim_set_master(t->opt, i, values);
            mem_free(values);
        }
        return true;
    }
    if (!check_same_data(t, err) || !train_restore(t, t->run.checkpoint, err)) return false;
    t->n = t->run.state;
    t->saved_step = t->n.step;
    return true;
}

static bool measure(Trainer *t, Error *err) {
    Plan plan;
    Peaks peaks;
    if (!plan_compute(&plan, &t->cfg, t->ops, 1, 0, err)) return false;
    t->flops_per_token = plan.flops.causal;
    plan_free(&plan);
    t->ops->measure_peaks(&peaks);
    t->peak_flops = t->cfg.train.compute == TYPE_BF16 ? peaks.bf16_flops : peaks.fma_flops;
    return true;
}

static bool open_all(Trainer *t, RunStart start, Error *err) {
    const Config *c = &t->cfg;
    program_threads(c->train.threads);
    if (!optim_check(c, t->ops, err)) return false;
    if (!rundir_open(&t->run, c->checkpoint.dir, c, start, err)) return false;
    if (t->run.notes.n) warn("%s", t->run.notes.text);
    if (!open_tokenizer(t, err) || !open_loaders(t, err)) return false;
    t->T = c->model.seq_len;
    t->B = config_micro_batch(c, 1);
    t->accumulate = (int)(c->batch.tokens / ((int64_t)t->B * t->T));
    size_t step = (size_t)t->accumulate * (size_t)t->B * (size_t)t->T;
    t->ids = mem_alloc(step, sizeof(int));
    t->targets = mem_alloc(step, sizeof(int));
    t->m = model_create(c, t->ops, true);
    t->opt = optim_create(t->m);
    model_alloc_acts(t->m, t->B, t->T);
    return start_or_resume(t, err) && keep_tokenizer(t, err) && train_check_sample(t, err) &&
           measure(t, err) && train_open_log(t, err);
}

static void close_all(Trainer *t) {
    if (t->logging) logger_close(&t->log);
    optim_free(t->opt);
    model_free(t->m);
    dataloader_close(t->train);
    dataloader_close(t->val);
    tokenizer_free(t->tok);
    mem_free(t->ids);
    mem_free(t->targets);
    rundir_close(&t->run);
}

// Back to the newest good checkpoint. The data goes on where it is: repeating the same samples from
// the same weights would repeat the fault. Place and count are saved at once, so that a run that is
// killed and started again does not meet those samples for ever.
static bool roll_back(Trainer *t, Error *err) {
    int64_t samples = t->n.samples, rollbacks = t->n.rollbacks + 1, at = t->n.step;
    if (rollbacks > t->cfg.train.max_rollbacks) {
        return error_set(
            err,
            "step %lld: loss or gradient was not finite in %lld steps in a row after %lld "
            "rollbacks; lower the learning rates or look at the data",
            (long long)at, (long long)t->n.skips_in_row, (long long)(rollbacks - 1));
    }
    CheckpointFound found;
    bool ok = checkpoint_find(t->run.path, CHECKPOINT_WHOLE, &found, err);
    if (ok && !found.dir) {
        ok = error_set(
            err,
            "step %lld: loss or gradient was not finite in %lld steps in a row and there is no "
            "checkpoint to go back to; lower the learning rates or look at the data",
            (long long)at, (long long)t->n.skips_in_row);
    }
    ok = ok && train_restore(t, found.dir, err) &&
         rundir_rewind_metrics(&t->run, found.state.step, err);
    if (ok) {
        t->n = found.state;
        t->n.samples = samples, t->n.rollbacks = rollbacks, t->n.skips_in_row = 0;
        ok = train_save(t, err);
        warn("step %lld: rolled back to step %lld; the data goes on behind the samples that failed",
             (long long)at, (long long)t->n.step);
    }
    checkpoint_found_free(&found);
    return ok;
}

// What a step that wrote nothing leads to.
static bool guard(Trainer *t, const StepState *state, Error *err) {
    if (!state->skip) return true;
    const char *name = state->first_bad >= 0 ? t->m->params.tensor[state->first_bad].name : "";
    // Values that are finite can have a norm that is not.
    const char *what = *name                       ? "the gradient of "
                       : isfinite(state->loss_sum) ? "the norm of the gradient"
                                                   : "the loss";
    warn("step %lld: skipped, %s%s is not finite (%lld in a row)", (long long)t->n.step, what, name,
         (long long)t->n.skips_in_row);
    if (t->n.skips_in_row < t->cfg.train.max_skips) return true;
    return roll_back(t, err);
}

static bool due(int64_t step, int64_t every) {
    return every > 0 && step % every == 0;
}

// Data that can't be read ends the run, but not what was reached. Returns false.
static bool keep_steps(Trainer *t) {
    Error why;
    if (t->saved_step == t->n.step || t->n.step == 0 || t->n.skips_in_row) return false;
    if (train_save(t, &why))
        warn("step %lld was saved in %s", (long long)t->n.step, t->run.path);
    else
        warn("%s", why.text);
    return false;
}

static bool evaluate_and_report(Trainer *t, Error *err) {
    EvalSum sum;
    if (!t->val) return true;
    if (!train_evaluate(t, &sum, err)) return keep_steps(t);
    if (!stop_signal) train_report_eval(t, &sum);  // else it may lack some batches
    return true;
}

static bool loop(Trainer *t, Error *err) {
    const Config *c = &t->cfg;
    bool ok = true, evaluated = true;
    t->start = now_seconds(), t->start_step = t->n.step;
    if (t->n.step == 0 && c->train.eval_every > 0) ok = evaluate_and_report(t, err);
    while (ok && t->n.step < c->train.steps && !stop_signal) {
        StepState state;
        int64_t rollbacks = t->n.rollbacks;
        double before = now_seconds();
        ok = train_step(t, &state, err) || keep_steps(t);
        if (!ok) break;
        train_report_step(t, &state, now_seconds() - before);
        ok = guard(t, &state, err);
        if (!ok || t->n.rollbacks != rollbacks) continue;
        evaluated = due(t->n.step, c->train.eval_every);
        if (evaluated) ok = evaluate_and_report(t, err);
        if (ok && due(t->n.step, c->train.sample_every)) train_sample(t);
        // Checkpoints between skipped steps would push out those from before the trouble.
        if (ok && due(t->n.step, c->checkpoint.every) && !t->n.skips_in_row)
            ok = train_save(t, err);
    }
    bool finished = t->n.step >= c->train.steps;
    if (ok && finished && !evaluated && c->train.eval_every > 0) ok = evaluate_and_report(t, err);
    if (ok && t->saved_step != t->n.step) ok = train_save(t, err);
    if (ok) train_print_end(t, finished);
    return ok;
}

bool train_run(const Config *c, const Ops *ops, RunStart start, Error *err) {
    Trainer t = {.cfg = *c, .ops = ops, .run = {.lock = -1}, .stop = &stop_signal};
    bool ok = open_all(&t, start, err);
    if (ok) {
        train_print_header(&t);
        watch_signals();
        ok = loop(&t, err);
    }
    close_all(&t);
    return ok;
}
