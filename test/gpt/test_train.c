// test_train.c - train_run from start to end: it learns, evaluation and samples leave no trace in
// it, its bits depend on the config alone, it reads every sample of every epoch, and it counts
// right. (Resuming is in test_resume, non-finite steps in test_guard.)
#define _POSIX_C_SOURCE 200809L
#include "gpt/plan.h"
#include "test/arrays.h"
#include "test/tiny_run.h"

#include <math.h>
#include <string.h>

static void check_same_weights(TestCtx *t, const TinyRun *r, const char *a, const char *b,
                               const char *step) {
    Buf x = {0};
    buf_printf(&x, "%s/%s/optimizer.safetensors", a, step);
    Buf y = {0};
    buf_printf(&y, "%s/%s/optimizer.safetensors", b, step);
    tiny_same_file(t, r, x.text, y.text);  // without settings, so that they may differ
    buf_free(&x);
    buf_free(&y);
}

static void check_same_losses(TestCtx *t, const TinyRun *r, const char *a, const char *b) {
    char *x = tiny_losses(r, a), *y = tiny_losses(r, b);
    CHECK_MSG(t, strlen(x) > 10 && strcmp(x, y) == 0, "%s: %s\n    %s: %s", a, x, b, y);
    mem_free(x);
    mem_free(y);
}

static void train_and_put_aside(TestCtx *t, const TinyRun *r, const char *settings,
                                const char *more, const char *name) {
    Config c;
    tiny_run_config(r, &c, settings, more);
    tiny_must_train(t, r, &c, tiny_ops());
    tiny_put_aside(r, name);
}

// Only four different tokens: what follows one is told by those before it.
static void one_batch_is_learnt_by_heart(TestCtx *t) {
    enum { TOKENS = TINY_BATCH * TINY_SEQ + 1 };
    TinyRun *r = tiny_open();
    int ids[TOKENS];
    tiny_ids(ids, TOKENS, 4, 5);
    tiny_shard(r, "one.bin", ids, TOKENS);
    FOR_EACH_TINY(v) {
        Config c;
        Buf more = {0};
        buf_printf(&more, "data.train=%s/one.bin data.val= train.steps=40 optim.head.lr=0.02",
                   r->dir);
        tiny_run_config(r, &c, v->settings, more.text);
        tiny_must_train(t, r, &c, tiny_ops());
        double loss = tiny_last_metric(r, "run", "loss");
        CHECK_MSG(t, loss < 0.2, "%s: loss %g after 40 steps", v->label, loss);
        tiny_put_aside(r, v->label);
        buf_free(&more);
    }
    tiny_close(r);
}

// --- evaluation and samples

static void evaluation_and_samples_leave_no_trace(TestCtx *t) {
    static const char *const how[] = {
        "train.eval_every=0",
        "train.eval_every=1",
        "train.eval_every=7 train.eval_tokens=40",
        "train.eval_every=3 train.sample_every=2 train.sample_tokens=5 train.sample_prompt=hello",
    };
    FOR_EACH_TINY(v) {
        TinyRun *r = tiny_open();
        for (int i = 0; i < 4; i++) {
            Buf more = {0};
            char name[] = "run0";
            name[3] = (char)('0' + i);
            buf_printf(&more, "train.steps=8 %s", how[i]);
            train_and_put_aside(t, r, v->settings, more.text, name);
            buf_free(&more);
            if (i == 0) continue;
            check_same_losses(t, r, "run0", name);
            check_same_weights(t, r, "run0", name, "step-00000008");
        }
        tiny_close(r);
    }
}

static void events_come_when_they_are_due(TestCtx *t) {
    TinyRun *r = tiny_open();
    Config c;
    // 7 samples of validation data; 40 tokens end in the third.
    tiny_run_config(r, &c, NULL,
                    "train.steps=11 train.eval_every=4 train.eval_tokens=40 "
                    "train.sample_every=5 train.sample_tokens=3");
    tiny_must_train(t, r, &c, tiny_ops());
    // Before the first step, at 4 and 8, and at the end.
    CHECK(t, tiny_events(r, "run", "eval", "") == 4);
    CHECK(t, tiny_events(r, "run", "eval", "{\"step\":0,") == 1);
    CHECK(t, tiny_events(r, "run", "eval", "{\"step\":11,") == 1);
    CHECK(t, tiny_events(r, "run", "eval", "\"val_tokens\":40,") == 4);
    CHECK(t, tiny_events(r, "run", "sample", "\"text\":\"") == 2);
    tiny_put_aside(r, "a");
    tiny_run_config(r, &c, NULL, "train.steps=2 train.eval_every=2 train.eval_tokens=5");
    tiny_must_train(t, r, &c, tiny_ops());
    CHECK(t, tiny_events(r, "run", "eval", "\"val_tokens\":5,") == 2);
    tiny_put_aside(r, "b");
    tiny_run_config(r, &c, NULL, "train.steps=2 train.eval_every=2 train.eval_tokens=100000");
    tiny_must_train(t, r, &c, tiny_ops());
    CHECK(t, tiny_events(r, "run", "eval", "\"val_tokens\":112,") == 2);
    tiny_close(r);
}

// --- bits

static void threads_and_repetition_change_no_bit(TestCtx *t) {
    static const struct {
        int variant;
        const char *more;
    } how[] = {{4, "train.threads=1"},
               {4, "train.threads=1"},
               {4, "train.threads=2"},
               {0, "train.threads=1"},
               {0, "train.threads=3"}};
    TinyRun *r = tiny_open();
    for (int i = 0; i < 5; i++) {
        Buf more = {0};
        char name[] = "run0", first[] = "run0";
        name[3] = (char)('0' + i), first[3] = i < 3 ? '0' : '3';
        buf_printf(&more, "train.steps=2 %s", how[i].more);
        train_and_put_aside(t, r, tiny_variants[how[i].variant].settings, more.text, name);
        buf_free(&more);
        check_same_losses(t, r, first, name);
        check_same_weights(t, r, first, name, "step-00000002");
    }
    tiny_close(r);
    set_threads(1);
}

// --- data

enum { SEEN_MAX = 4096 };
static int seen[SEEN_MAX], n_seen;  // first token of every sequence that was embedded

static void watch_embed(floatX *out, const int *ids, const floatX *wte, const floatX *wpe,
                        int wpe_rows, const int *pos, int b, int T, int C) {
    for (int i = 0; i < b && n_seen < SEEN_MAX; i++)
        seen[n_seen++] = ids[i * T];
    ops_cpu()->embed_forward(out, ids, wte, wpe, wpe_rows, pos, b, T, C);
}

static const Ops *watching_ops(void) {
    static Ops ops;
    ops = *tiny_ops();
    ops.embed_forward = watch_embed;
    n_seen = 0;
    return &ops;
}

// Sample i of the epoch begins with token i.
static void mark_samples(const TinyRun *r) {
    static const int samples[] = {13, 6, 22}, rest[] = {3, 1, 15};
    int ids[TINY_SEQ * 23], at = 0;
    for (int f = 0; f < 3; f++) {
        char name[] = "train_0.bin";
        int n = samples[f] * TINY_SEQ + rest[f];
        name[6] = (char)('0' + f);
        tiny_ids(ids, (size_t)n, TINY_VOCAB, (uint64_t)f + 50);
        for (int i = 0; i < samples[f]; i++)
            ids[i * TINY_SEQ] = at++;
        tiny_shard(r, name, ids, (size_t)n);
    }
}

// 5 epochs of 41 samples, 4 a step: steps straddle epochs, and the run goes on behind each.
static void every_epoch_has_every_sample_once(TestCtx *t) {
    TinyRun *r = tiny_open();
    Config c;
    mark_samples(r);
    tiny_run_config(r, &c, NULL, "train.steps=52");
    tiny_must_train(t, r, &c, watching_ops());
    CHECK(t, n_seen == 52 * TINY_BATCH);
    int orders = 0;
    for (int epoch = 0; epoch < 5; epoch++) {
        int times[TINY_VOCAB] = {0};
        const int *at = seen + epoch * TINY_SAMPLES;
        for (int i = 0; i < TINY_SAMPLES; i++)
            times[at[i]]++;
        for (int i = 0; i < TINY_SAMPLES; i++)
            CHECK_MSG(t, times[i] == 1, "epoch %d: sample %d came %d times", epoch, i, times[i]);
        orders += epoch > 0 && memcmp(at, seen, TINY_SAMPLES * sizeof *seen) != 0;
    }
    CHECK_MSG(t, orders == 4, "epochs are in the same order");
    int first[TINY_SAMPLES];
    memcpy(first, seen, sizeof first);
    tiny_put_aside(r, "seed1");
    tiny_set(&c, "train.seed=2 train.steps=11");
    tiny_must_train(t, r, &c, watching_ops());
    CHECK_MSG(t, memcmp(first, seen, sizeof first) != 0, "seeds are in the same order");
    tiny_close(r);
}

static void stored_order_is_kept_without_shuffling(TestCtx *t) {
    TinyRun *r = tiny_open();
    Config c;
    mark_samples(r);
    tiny_run_config(r, &c, NULL, "train.steps=12 data.shuffle=false");
    tiny_must_train(t, r, &c, watching_ops());
    for (int i = 0; i < n_seen; i++)
        CHECK(t, seen[i] == i % TINY_SAMPLES);
    tiny_close(r);
}

// The same samples in the same order whatever the micro-batch; losses agree to rounding.
static void micro_batches_read_the_same_data(TestCtx *t) {
    static const char *const micro[] = {"0", "1", "2", "4"};
    TinyRun *r = tiny_open();
    int first[SEEN_MAX];
    double loss = 0, whole = 0;
    mark_samples(r);
    for (int i = 0; i < 4; i++) {
        Config c;
        Buf more = {0};
        buf_printf(&more, "train.steps=12 batch.micro_batch=%s", micro[i]);
        tiny_run_config(r, &c, tiny_variants[6].settings, more.text);
        tiny_must_train(t, r, &c, watching_ops());
        loss = tiny_last_metric(r, "run", "loss");
        CHECK(t, n_seen == 12 * TINY_BATCH);
        if (i == 0) {
            memcpy(first, seen, sizeof first);
            whole = loss;
        }
        CHECK_MSG(t, memcmp(first, seen, (size_t)n_seen * sizeof *seen) == 0, "micro-batch %s",
                  micro[i]);
        CHECK_MSG(t, fabs(loss - whole) <= 1e-4 * whole, "micro-batch %s: %.9g, %.9g", micro[i],
                  loss, whole);
        buf_free(&more);
        tiny_put_aside(r, micro[i]);
    }
    tiny_close(r);
}

// --- counters

static void tokens_count_the_whole_step(TestCtx *t) {
    static const char *const micro[] = {"4", "2", "1"};  // accumulation 1, 2, 4
    TinyRun *r = tiny_open();
    for (int i = 0; i < 3; i++) {
        Config c;
        Buf more = {0};
        for (int part = 1; part <= 2; part++) {  // the second goes on from the first
            more.n = 0;
            buf_printf(&more, "train.steps=%d batch.micro_batch=%s", 5 * part, micro[i]);
            tiny_run_config(r, &c, NULL, more.text);
            tiny_must_train(t, r, &c, tiny_ops());
            CHECK(t, tiny_last_metric(r, "run", "step") == 5 * part);
            CHECK(t, tiny_last_metric(r, "run", "tokens") == 5 * part * TINY_BATCH * TINY_SEQ);
        }
        CHECK(t, tiny_last_metric(r, "run", "tokens_per_s") > 0);
        CHECK(t, tiny_last_metric(r, "run", "lr") == c.optim.group[KIND_MATRIX].lr);
        CheckpointFound found;
        Error err;
        char *dir = tiny_path(r, "run");
        CHECK(t, checkpoint_find(dir, CHECKPOINT_WHOLE, &found, &err));
        CHECK(t, found.state.step == 10 && found.state.samples == 10 * TINY_BATCH);
        CHECK(t, found.state.tokens == 10 * TINY_BATCH * TINY_SEQ);
        CHECK(t, found.state.skipped_steps == 0 && found.state.rollbacks == 0);
        checkpoint_found_free(&found);
        mem_free(dir);
        buf_free(&more);
        tiny_put_aside(r, micro[i]);
    }
    tiny_close(r);
}

// The first step of a warm-up over four steps is a step at a quarter of the rates: the gradients of
// the second step tell.
static void the_rate_in_use_follows_the_schedule(TestCtx *t) {
    FOR_EACH_TINY(v) {
        TinyRun *r = tiny_open();
        Config c;
        static const char every[] = "train.steps=4 checkpoint.every=1 checkpoint.keep=0 ";
        Buf warm = {0};
        buf_printf(&warm, "%s schedule.warmup_steps=4", every);
        train_and_put_aside(t, r, v->settings, warm.text, "warm");
        CHECK(t, tiny_last_metric(r, "warm", "lr") == 0.02);
        tiny_run_config(r, &c, v->settings, every);
        for (int k = 0; k < N_KINDS; k++)
            c.optim.group[k].lr /= 4;
        tiny_must_train(t, r, &c, tiny_ops());
        CHECK(t, tiny_last_metric(r, "run", "lr") == 0.005);
        check_same_weights(t, r, "warm", "run", "step-00000002");
        buf_free(&warm);
        tiny_close(r);
    }
}

// What is printed as FLOP/s is the tokens/s beside it times plan's FLOPs of a token.
static void rates_agree_with_each_other(TestCtx *t) {
    TinyRun *r = tiny_open();
    Config c;
    Plan plan;
    Error err;
    tiny_run_config(r, &c, NULL, "train.steps=2 batch.micro_batch=1");
    tiny_must_train(t, r, &c, tiny_ops());
    CHECK(t, plan_compute(&plan, &c, tiny_ops(), 1, 0, &err));
    double tokens = tiny_last_metric(r, "run", "tokens_per_s");
    double flops = tiny_last_metric(r, "run", "flops_per_s");
    CHECK_MSG(t, fabs(flops / tokens - plan.flops.causal) <= 1e-6 * plan.flops.causal,
              "%g FLOP/s at %g tokens/s", flops, tokens);
    // This step cannot have taken longer than both together.
    CHECK(t, TINY_BATCH * TINY_SEQ / tokens <= tiny_last_metric(r, "run", "elapsed_s"));
    plan_free(&plan);
    tiny_close(r);
}

// --- what cannot start

static void expect_refusal(TestCtx *t, const TinyRun *r, const char *settings, const char *words) {
    Config c;
    Error err;
    tiny_run_config(r, &c, NULL, settings);
    bool ok = tiny_train(r, &c, tiny_ops(), RUN_RESUME, NULL, &err);
    CHECK_MSG(t, !ok, "%s: was accepted", settings);
    CHECK_ERROR(t, err, words);
}

static void what_cannot_work_is_refused_at_the_start(TestCtx *t) {
    TinyRun *r = tiny_open();
    Buf more = {0};
    expect_refusal(t, r, "data.train=", "data.train is empty");
    expect_refusal(t, r, "data.train=/nonexistent/train_*.bin", "data.train: /nonexistent");
    expect_refusal(t, r, "data.val=/nonexistent/val.bin", "data.val: /nonexistent");
    expect_refusal(t, r, "data.tokenizer=/nonexistent/tokenizer.json", "/nonexistent");
    expect_refusal(t, r, "model.vocab_size=262", "has 263 ids and model.vocab_size is 262");
    expect_refusal(t, r, "data.tokenizer= model.vocab_size=100", "100");
    expect_refusal(t, r, "model.seq_len=400 batch.tokens=800", "401 tokens or more");
    // A sample that cannot be made is no reason to stop a run after hours.
    expect_refusal(t, r, "data.tokenizer= train.sample_every=5", "train.sample_every");
    expect_refusal(t, r, "train.sample_every=5 train.sample_prompt=abcdefgijkmnopqr",
                   "train.sample_prompt");
    buf_printf(&more, "data.train=%s/tokenizer.json", r->dir);
    expect_refusal(t, r, more.text, "tokenizer.json");
    buf_free(&more);
    tiny_close(r);
}

// A shard that goes bad on the way ends the run, and what was reached is kept.
static void data_that_goes_bad_costs_no_steps(TestCtx *t) {
    enum { N = 7 * TINY_BATCH * TINY_SEQ + 1, VAL = 4 * TINY_SEQ + 1 };
    for (int val = 0; val < 2; val++) {
        TinyRun *r = tiny_open();
        Config c;
        Error err;
        Buf more = {0};
        int ids[N];
        tiny_ids(ids, N, TINY_VOCAB, 3);
        tiny_shard(r, "good.bin", ids, N);
        ids[val ? VAL / 2 : 5 * TINY_BATCH * TINY_SEQ + 7] = TINY_VOCAB + 9;
        tiny_shard(r, "bad.bin", ids, val ? VAL : N);
        buf_printf(&more,
                   "data.train=%s/%s.bin data.val=%s/bad.bin data.shuffle=false "
                   "train.steps=7 checkpoint.every=4",
                   r->dir, val ? "good" : "bad", r->dir);
        tiny_run_config(r, &c, NULL, more.text);
        // A validation shard is read before the first step too, unless the run goes on.
        if (val) {
            tiny_set(&c, "train.steps=1");
            tiny_must_train(t, r, &c, tiny_ops());
            tiny_set(&c, "train.steps=7 train.eval_every=5");
        }
        CHECK(t, !tiny_train(r, &c, tiny_ops(), RUN_RESUME, NULL, &err));
        CHECK_ERROR(t, err, "bad.bin");
        char *kept = tiny_path(r, "run/step-00000005/" CHECKPOINT_STATE);
        CHECK_MSG(t, file_exists(kept), "no checkpoint of step 5: %s", err.text);
        mem_free(kept);
        buf_free(&more);
        tiny_close(r);
    }
}

TEST_MAIN({"one_batch_is_learnt_by_heart", one_batch_is_learnt_by_heart},
          {"evaluation_and_samples_leave_no_trace", evaluation_and_samples_leave_no_trace},
          {"events_come_when_they_are_due", events_come_when_they_are_due},
          {"threads_and_repetition_change_no_bit", threads_and_repetition_change_no_bit},
          {"every_epoch_has_every_sample_once", every_epoch_has_every_sample_once},
          {"stored_order_is_kept_without_shuffling", stored_order_is_kept_without_shuffling},
          {"micro_batches_read_the_same_data", micro_batches_read_the_same_data},
          {"tokens_count_the_whole_step", tokens_count_the_whole_step},
          {"the_rate_in_use_follows_the_schedule", the_rate_in_use_follows_the_schedule},
          {"rates_agree_with_each_other", rates_agree_with_each_other},
          {"data_that_goes_bad_costs_no_steps", data_that_goes_bad_costs_no_steps},
          {"what_cannot_work_is_refused_at_the_start", what_cannot_work_is_refused_at_the_start})
