// test_guard.c - gpt/train when a loss or a gradient is not finite: the step is skipped and leaves
// no trace, the first bad tensor is named, a row of them goes back to the last good checkpoint, and
// a run that can't be saved ends with a sentence. Faults are put into gradients and weights behind
// the ops that make them.
#define _POSIX_C_SOURCE 200809L
#include "test/tiny_run.h"

#include <math.h>
#include <string.h>

// Which steps (counted from 1 in this process) are spoilt, and how.
typedef struct Fault {
    int64_t from, to;   // steps from <= step < to
    int tensor, other;  // whose gradients get the value; -1: none
    float value;
    int count;     // elements of it that do
    bool loss;     // the sum of the losses becomes NaN
    bool weights;  // after the step's update a weight of every tensor becomes NaN
} Fault;

static Fault fault;
static int64_t step_now;

static bool spoilt(void) {
    return step_now >= fault.from && step_now < fault.to;
}

static void hook_step_begin(StepState *state) {
    step_now++;
    ops_cpu()->step_begin(state);
}

static void hook_grad_sumsq(StepState *state, const float *g, size_t n, int tensor) {
    if (spoilt() && (tensor == fault.tensor || tensor == fault.other)) {
        for (int i = 0; i < fault.count; i++)
            ((float *)(uintptr_t)g)[(n / 2 + (size_t)i) % n] = fault.value;
    }
    ops_cpu()->grad_sumsq(state, g, n, tensor);
}

static void hook_loss_add(StepState *state, const float *losses, size_t n, double scale) {
    ops_cpu()->loss_add(state, losses, n, scale);
    if (spoilt() && fault.loss) state->loss_sum = (double)NAN;
}

static void hook_adamw(void *param, float *master, float *m, float *v, const float *g, size_t n,
                       const AdamWArgs *a, const StepState *state) {
    ops_cpu()->adamw(param, master, m, v, g, n, a, state);
    if (spoilt() && fault.weights) *(float *)param = NAN;
}

static const Ops *faulty_ops(Fault f) {
    static Ops ops;
    ops = *tiny_ops();
    ops.step_begin = hook_step_begin;
    ops.grad_sumsq = hook_grad_sumsq;
    ops.loss_add = hook_loss_add;
    ops.adamw = hook_adamw;
    fault = f;
    step_now = 0;
    return &ops;
}

static Fault gradient_fault(int64_t from, int64_t to, int tensor, float value) {
    return (Fault){
        .from = from, .to = to, .tensor = tensor, .other = -1, .value = value, .count = 1};
}

static CheckpointState newest(TestCtx *t, const TinyRun *r, const char *run) {
    CheckpointFound found;
    Error err = {{0}};
    char *dir = tiny_path(r, run);
    CHECK_MSG(t, checkpoint_find(dir, CHECKPOINT_WHOLE, &found, &err) && found.dir, "%s", err.text);
    CheckpointState state = found.state;
    checkpoint_found_free(&found);
    mem_free(dir);
    return state;
}

static void check_said(TestCtx *t, const Buf *said, const char *words) {
    CHECK_MSG(t, said->text && strstr(said->text, words), "expected '%s' in: %s", words,
              said->text ? said->text : "nothing");
}

// The losses of steps 1 .. n, once each, in order; all but those in `bad` are finite.
static void check_steps(TestCtx *t, const TinyRun *r, const char *run, int n, int bad_from,
                        int bad_to) {
    char *text = tiny_losses(r, run), *rest = text, *word;
    int step = 0;
    while ((word = strtok_r(rest, " ", &rest))) {
        double loss;
        char number[16];
        snprintf(number, sizeof number, "%d:", ++step);
        CHECK_MSG(t, strncmp(word, number, strlen(number)) == 0, "%s: %s stands where %s should",
                  run, word, number);
        bool finite = parse_f64(strchr(word, ':') + 1, &loss);
        bool bad = step >= bad_from && step < bad_to;
        CHECK_MSG(t, finite || bad, "%s: '%s'", run, word);
    }
    CHECK_MSG(t, step == n, "%s: %d steps", run, step);
    mem_free(text);
}

static void a_spoilt_gradient_changes_no_bit(TestCtx *t) {
    static const float values[] = {NAN, INFINITY, -INFINITY};
    int turn = 0;
    FOR_EACH_TINY(v) {
        TinyRun *r = tiny_open();
        Config c;
        Error err;
        Buf said = {0}, words = {0};
        tiny_run_config(r, &c, v->settings, "train.steps=5 checkpoint.every=1 checkpoint.keep=0");
        Model *m = tiny_model(&c, false);
        int tensor = turn * 5 % m->params.n;
        buf_printf(&words, "step 5: skipped, the gradient of %s is not finite (1 in a row)",
                   m->params.tensor[tensor].name);
        model_free(m);
        Fault f = gradient_fault(5, 6, tensor, values[turn++ % 3]);
        CHECK_MSG(t, tiny_train(r, &c, faulty_ops(f), RUN_RESUME, &said, &err), "%s", err.text);
        check_said(t, &said, words.text);
        tiny_same_file(t, r, "run/step-00000004/model.safetensors",
                       "run/step-00000005/model.safetensors");
        tiny_same_file(t, r, "run/step-00000004/optimizer.safetensors",
                       "run/step-00000005/optimizer.safetensors");
        CheckpointState s = newest(t, r, "run");
        CHECK(t, s.step == 5 && s.skipped_steps == 1 && s.skips_in_row == 1 && s.rollbacks == 0);
        CHECK(t, s.samples == 5 * TINY_BATCH);
        // And on with steps that are fine.
        tiny_set(&c, "train.steps=9");
        CHECK_MSG(t, tiny_train(r, &c, faulty_ops((Fault){0}), RUN_RESUME, NULL, &err), "%s",
                  err.text);
        check_steps(t, r, "run", 9, 5, 6);
        s = newest(t, r, "run");
        CHECK(t, s.step == 9 && s.skipped_steps == 1 && s.skips_in_row == 0);
        CHECK(t, tiny_last_metric(r, "run", "grad_norm") > 0);
        buf_free(&said);
        buf_free(&words);
        tiny_close(r);
    }
}

static void the_message_names_what_is_not_finite(TestCtx *t) {
    static const struct {
        Fault f;
        const char *words;
    } cases[] = {
        {{.from = 2, .to = 3, .tensor = 6, .other = 3, .value = NAN, .count = 1}, "h.0.attn.wv"},
        {{.from = 2, .to = 3, .tensor = -1, .other = -1, .loss = true}, "the loss is"},
        // Every value is finite, and so is the sum of their squares in double.
        {{.from = 2, .to = 3, .tensor = 3, .other = -1, .value = 3.4e38f, .count = 9},
         "the norm of the gradient is"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        TinyRun *r = tiny_open();
        Config c;
        Error err;
        Buf said = {0}, words = {0};
        tiny_run_config(r, &c, NULL, "train.steps=3");
        CHECK_MSG(t, tiny_train(r, &c, faulty_ops(cases[i].f), RUN_RESUME, &said, &err), "%s",
                  err.text);
        buf_printf(&words, "%s not finite (1 in a row)", cases[i].words);
        CHECK(t, newest(t, r, "run").skipped_steps == 1);
        if (i == 0)
            check_said(t, &said, "the gradient of h.0.attn.wv is not finite");
        else
            check_said(t, &said, words.text);
        buf_free(&said);
        buf_free(&words);
        tiny_close(r);
    }
}

// After a skipped first step everything is as in a run that begins with the second batch: moments,
// weights and AdamW's clock, which the gradients of one more step tell.
static void a_skipped_step_does_not_turn_the_clock(TestCtx *t) {
    enum { TOKENS = TINY_BATCH * TINY_SEQ };
    FOR_EACH_TINY(v) {
        TinyRun *r = tiny_open();
        Config c;
        Error err;
        Buf more = {0};
        int ids[2 * TOKENS + 1];
        tiny_ids(ids, 2 * TOKENS + 1, TINY_VOCAB, 5);
        tiny_shard(r, "both.bin", ids, 2 * TOKENS + 1);
        tiny_shard(r, "swapped_0.bin", ids + TOKENS, TOKENS + 1);
        tiny_shard(r, "swapped_1.bin", ids, TOKENS + 1);
        buf_printf(&more, "data.train=%s/both.bin data.shuffle=false train.steps=3", r->dir);
        tiny_run_config(r, &c, v->settings, more.text);
        Fault f = gradient_fault(1, 2, 0, NAN);
        CHECK_MSG(t, tiny_train(r, &c, faulty_ops(f), RUN_RESUME, NULL, &err), "%s", err.text);
        tiny_put_aside(r, "skipped");
        more.n = 0;
        buf_printf(&more, "data.train=%s/swapped_*.bin data.shuffle=false train.steps=2", r->dir);
        tiny_run_config(r, &c, v->settings, more.text);
        CHECK_MSG(t, tiny_train(r, &c, tiny_ops(), RUN_RESUME, NULL, &err), "%s", err.text);
        tiny_same_file(t, r, "skipped/step-00000003/optimizer.safetensors",
                       "run/step-00000002/optimizer.safetensors");
        buf_free(&more);
        tiny_close(r);
    }
}

static void a_row_of_them_goes_back_to_the_checkpoint(TestCtx *t) {
    FOR_EACH_TINY(v) {
        TinyRun *r = tiny_open();
        Config c;
        Error err;
        Buf said = {0};
        tiny_run_config(r, &c, v->settings,
                        "train.steps=12 train.max_skips=3 checkpoint.every=4 train.eval_every=4");
        Fault f = gradient_fault(6, 9, 2, NAN);
        CHECK_MSG(t, tiny_train(r, &c, faulty_ops(f), RUN_RESUME, &said, &err), "%s", err.text);
        check_said(t, &said, "step 8: rolled back to step 4");
        check_steps(t, r, "run", 12, 0, 0);
        CheckpointState s = newest(t, r, "run");
        CHECK(t, s.step == 12 && s.rollbacks == 1 && s.skipped_steps == 0 && s.skips_in_row == 0);
        // 8 steps were read before, 8 after. Step 4 is not evaluated once more.
        CHECK(t, tiny_events(r, "run", "eval", "{\"step\":4,") == 1);
        CHECK(t, s.samples == 16 * TINY_BATCH && s.tokens == 12 * TINY_BATCH * TINY_SEQ);
        char *undone = tiny_path(r, "run/metrics.discarded-1.jsonl");
        CHECK(t, file_exists(undone));
        mem_free(undone);
        buf_free(&said);
        tiny_close(r);
    }
}

// A weight that goes bad in memory spoils every loss from then on; the checkpoint heals it.
static void a_damaged_weight_is_healed(TestCtx *t) {
    FOR_EACH_TINY(v) {
        TinyRun *r = tiny_open();
        Config c;
        Error err;
        Buf said = {0};
        tiny_run_config(r, &c, v->settings, "train.steps=10 train.max_skips=2 checkpoint.every=3");
        Fault f = {.from = 5, .to = 6, .tensor = -1, .other = -1, .weights = true};
        CHECK_MSG(t, tiny_train(r, &c, faulty_ops(f), RUN_RESUME, &said, &err), "%s", err.text);
        check_said(t, &said, "step 7: rolled back to step 3");
        check_steps(t, r, "run", 10, 0, 0);
        CHECK(t, newest(t, r, "run").rollbacks == 1);
        buf_free(&said);
        tiny_close(r);
    }
}

// With a checkpoint after every step, those of skipped steps would push out the last good one.
static void good_checkpoints_survive_a_row_of_skips(TestCtx *t) {
    TinyRun *r = tiny_open();
    Config c;
    Error err;
    Buf said = {0};
    tiny_run_config(r, &c, NULL,
                    "train.steps=14 train.max_skips=6 checkpoint.every=1 checkpoint.keep=1");
    Fault f = gradient_fault(6, 12, 2, NAN);
    CHECK_MSG(t, tiny_train(r, &c, faulty_ops(f), RUN_RESUME, &said, &err), "%s", err.text);
    check_said(t, &said, "step 11: rolled back to step 5");
    check_steps(t, r, "run", 14, 0, 0);
    buf_free(&said);
    tiny_close(r);
}

static void a_run_without_a_checkpoint_ends_with_a_sentence(TestCtx *t) {
    TinyRun *r = tiny_open();
    Config c;
    Error err;
    tiny_run_config(r, &c, NULL, "train.steps=10 train.max_skips=3");
    Fault f = gradient_fault(2, 100, 0, NAN);
    CHECK(t, !tiny_train(r, &c, faulty_ops(f), RUN_RESUME, NULL, &err));
    CHECK_ERROR(t, err,
                "step 4: loss or gradient was not finite in 3 steps in a row and there is "
                "no checkpoint to go back to");
    tiny_close(r);
}

// Place in the data and number of rollbacks survive the end of the process, and a run whose cause
// is gone finishes.
static void rollbacks_are_limited_and_remembered(TestCtx *t) {
    TinyRun *r = tiny_open();
    Config c;
    Error err;
    Buf said = {0};
    tiny_run_config(r, &c, NULL,
                    "train.steps=10 train.max_skips=2 train.max_rollbacks=2 "
                    "checkpoint.every=3");
    Fault f = gradient_fault(5, 100, 1, NAN);
    CHECK(t, !tiny_train(r, &c, faulty_ops(f), RUN_RESUME, &said, &err));
    CHECK_ERROR(t, err, "not finite in 2 steps in a row after 2 rollbacks");
    CheckpointState s = newest(t, r, "run");
    // 4 good steps, 2 bad ones, twice 2 bad ones behind a rollback; the last were not saved.
    CHECK_MSG(t, s.step == 3 && s.rollbacks == 2 && s.samples == 8 * TINY_BATCH,
              "step %lld, %lld rollbacks, %lld samples", (long long)s.step, (long long)s.rollbacks,
              (long long)s.samples);
    CHECK_MSG(t, tiny_train(r, &c, faulty_ops((Fault){0}), RUN_RESUME, &said, &err), "%s",
              err.text);
    check_steps(t, r, "run", 10, 0, 0);
    s = newest(t, r, "run");
    CHECK(t, s.step == 10 && s.rollbacks == 2 && s.samples == 15 * TINY_BATCH);
    buf_free(&said);
    tiny_close(r);
}

// Rates so high that the weights themselves blow up: a sentence, not a crash and not a hang.
static void absurd_rates_end_with_a_sentence(TestCtx *t) {
    TinyRun *r = tiny_open();
    Config c;
    Error err;
    tiny_run_config(r, &c,
                    "attention.type=mha model.norm=layernorm model.embed_norm=false "
                    "model.qk_norm=false model.logit_softcap=0",
                    "train.steps=400 train.max_skips=3 train.max_rollbacks=2 checkpoint.every=5 "
                    "optim.matrix.lr=100 optim.matrix.decay=100 optim.head.lr=100 "
                    "optim.head.decay=100 optim.embed.lr=100 optim.embed.decay=100");
    CHECK(t, !tiny_train(r, &c, tiny_ops(), RUN_RESUME, NULL, &err));
    CHECK_ERROR(t, err, "not finite");
    tiny_close(r);
}

TEST_MAIN({"a_spoilt_gradient_changes_no_bit", a_spoilt_gradient_changes_no_bit},
          {"the_message_names_what_is_not_finite", the_message_names_what_is_not_finite},
          {"a_skipped_step_does_not_turn_the_clock", a_skipped_step_does_not_turn_the_clock},
          {"a_row_of_them_goes_back_to_the_checkpoint", a_row_of_them_goes_back_to_the_checkpoint},
          {"a_damaged_weight_is_healed", a_damaged_weight_is_healed},
          {"good_checkpoints_survive_a_row_of_skips", good_checkpoints_survive_a_row_of_skips},
          {"a_run_without_a_checkpoint_ends_with_a_sentence",
           a_run_without_a_checkpoint_ends_with_a_sentence},
          {"rollbacks_are_limited_and_remembered", rollbacks_are_limited_and_remembered},
          {"absurd_rates_end_with_a_sentence", absurd_rates_end_with_a_sentence})
