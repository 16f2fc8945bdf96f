// train_report.c - what a run tells: header, steps, evaluations, samples. People read stderr,
// programs read metrics.jsonl.
#include "gpt/generate.h"
#include "gpt/plan.h"
#include "gpt/schedule.h"
#include "gpt/train.h"

#include <math.h>
#include <string.h>

bool train_open_log(Trainer *t, Error *err) {
    char *path = rundir_file(&t->run, "metrics.jsonl");
    LoggerArgs args = {.path = path,
                       .out = stderr,
                       .columns = LOGGER_DETECT,
                       .total_steps = t->cfg.train.steps,
                       .every = t->cfg.log.every};
    t->logging = logger_open(&t->log, &args, err);
    mem_free(path);
    return t->logging;
}

static void say_data(Trainer *t) {
    DataLoaderInfo d = dataloader_info(t->train);
    int64_t per_step = (int64_t)t->accumulate * t->B;
    double epochs = (double)(t->cfg.train.steps * per_step) / (double)d.n_samples;
    logger_say(
        &t->log,
        "data: %d shards, %lld tokens, %lld samples of %d, %lld tokens unused at shard ends; "
        "the run reads %.3g epochs",
        d.n_shards, (long long)d.n_tokens, (long long)d.n_samples, t->T, (long long)d.n_unused,
        epochs);
}

void train_print_header(Trainer *t) {
    const Config *c = &t->cfg;
    Plan plan;
    Error err = {0};
    if (plan_compute(&plan, c, t->ops, 1, 0, &err)) {
        logger_say(
            &t->log,
            "model: %s, %d layers x %d, %.2f M parameters, cache %zu values a token and layer",
            c->attention.type, c->model.n_layer, c->model.n_embd, (double)plan.parameters / 1e6,
            plan.cache.values);
        logger_say(&t->log,
                   "memory: %.1f MB (parameters %.1f, gradients %.1f, optimizer %.1f, activations "
                   "%.1f, prepared weights %.1f)",
                   (double)plan.bytes.total / 1e6, (double)plan.bytes.parameters / 1e6,
                   (double)plan.bytes.gradients / 1e6, (double)plan.bytes.optimizer / 1e6,
                   (double)plan.bytes.activations / 1e6,
                   (double)(plan.bytes.prepared + plan.bytes.derived) / 1e6);
        plan_free(&plan);
    }
    say_data(t);
    logger_say(&t->log, "device: %s (%s), %s products, measured peak %.1f GFLOP/s", t->ops->name,
               t->ops->isa, elem_name((ElemType)c->train.compute), t->peak_flops / 1e9);
    logger_say(&t->log,
               "step: %lld tokens = %d micro-batches of %d x %d; %s at step %lld of %lld in %s",
               (long long)c->batch.tokens, t->accumulate, t->B, t->T,
               t->run.checkpoint ? "going on" : "starting", (long long)t->n.step,
               (long long)c->train.steps, t->run.path);
}

static double shown_rate(const Trainer *t, int64_t step) {
    return t->cfg.optim.group[KIND_MATRIX].lr * schedule_factor(&t->cfg, step);
}

void train_report_step(Trainer *t, const StepState *state, double seconds) {
    double now = now_seconds(), tokens = (double)t->cfg.batch.tokens;
    double per_step = (now - t->start) / (double)(t->n.step - t->start_step);
    double flops = t->flops_per_token * tokens / seconds;
    StepLog s = {.step = t->n.step,
                 .loss = state->loss_sum,
                 .grad_norm = (double)state->grad_norm,
                 .lr = shown_rate(t, t->n.step - 1),
                 .tokens = t->n.tokens,
                 .tokens_per_s = tokens / seconds,
                 .flops_per_s = flops,
                 // A rate above the measured peak says that the peak is wrong, not the rate.
                 .mfu = flops < t->peak_flops ? flops / t->peak_flops : -1,
                 .elapsed_s = now - t->start,
                 .eta_s = per_step * (double)(t->cfg.train.steps - t->n.step),
                 .skipped = state->skip != 0,
                 .skipped_steps = t->n.skipped_steps};
    logger_step(&t->log, &s);
}

void train_report_eval(Trainer *t, const EvalSum *sum) {
    double loss = eval_loss(sum), bpb = eval_bits_per_byte(sum);
    LogField fields[] = {LOG_FIELD_REAL("val_loss", loss), LOG_FIELD_REAL("val_bits_per_byte", bpb),
                         LOG_FIELD_COUNT("val_tokens", sum->tokens),
                         LOG_FIELD_COUNT("val_bytes", sum->bytes)};
    logger_event(&t->log, t->n.step, "eval", fields, 4);
    if (sum->bad) {
        logger_say(&t->log, "step %lld: the loss of %lld validation tokens is not finite",
                   (long long)t->n.step, (long long)sum->bad);
    }
    char bytes[48] = "";
    if (isfinite(bpb)) snprintf(bytes, sizeof bytes, ", %.4f bits per byte", bpb);
    logger_say(&t->log, "step %lld: validation loss %.4f%s (%lld tokens)", (long long)t->n.step,
               loss, bytes, (long long)sum->tokens);
}

void train_print_end(Trainer *t, bool finished) {
    logger_say(&t->log, "%s at step %lld; checkpoint in %s",
               finished ? "finished" : "stopped by a signal", (long long)t->n.step, t->run.path);
}

static void collect(void *ctx, int sample, const char *text, size_t n) {
    (void)sample;
    buf_add(ctx, text, n);
}

static GenerateOptions sample_options(const Config *c) {
    return (GenerateOptions){
        .tokens = c->train.sample_tokens,
        .samples = 1,
        .seed = (uint64_t)c->train.seed,
        .sample = {.temperature = 0.8, .top_k = 50, .top_p = 1, .repetition_penalty = 1}};
}

bool train_check_sample(const Trainer *t, Error *err) {
    const char *prompt = t->cfg.train.sample_prompt;
    GenerateOptions o = sample_options(&t->cfg);
    if (!t->tok || !t->cfg.train.sample_every) return true;
    return generate_check(t->m, t->tok, prompt, strlen(prompt), &o, err) ||
           error_prefix(err, "train.sample_prompt");
}

void train_sample(Trainer *t) {
    GenerateOptions o = sample_options(&t->cfg);
    GenerateStats stats;
    Error err;
    Buf text = {0};
    const char *prompt = t->cfg.train.sample_prompt;
    bool ok = generate_text(t->m, t->tok, prompt, strlen(prompt), &o, collect, &text, t->stop,
                            &stats, &err);
    if (*t->stop) {
        buf_free(&text);
        return;
    }
    if (ok) {
        LogField field = LOG_FIELD_TEXT("text", text.text ? text.text : "");
        logger_event(&t->log, t->n.step, "sample", &field, 1);
        logger_say(&t->log, "sample: %s%s", prompt, text.text ? text.text : "");
    } else {
        logger_say(&t->log, "no sample: %s", err.text);
    }
    buf_free(&text);
}
