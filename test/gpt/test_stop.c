// test_stop.c - signals while a run does something else than training: it ends soon, saves what it
// has reached and tells nothing that is half done.
#define _POSIX_C_SOURCE 200809L
#include "gpt/dirs.h"
#include "test/tiny_run.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

// SIGTERM at the stop_at-th loss that is not trained on.
static int64_t calls, stop_at;

static void hook_classifier(floatX *logits, float *losses, const int *targets, size_t n, int V,
                            int Vp, float softcap, float dscale, bool backward) {
    if (!backward && ++calls == stop_at) raise(SIGTERM);
    ops_cpu()->classifier(logits, losses, targets, n, V, Vp, softcap, dscale, backward);
}

static const Ops *scoring_ops(int64_t at) {
    static Ops ops;
    ops = *tiny_ops();
    ops.classifier = hook_classifier;
    calls = 0, stop_at = at;
    return &ops;
}

// SIGTERM at the stop_at-th call of attention over a cache.
static void hook_extend(floatX *out, const floatX *q, const void *k, const void *v,
                        const SdpaArgs *a) {
    if (++calls == stop_at) raise(SIGTERM);
    ops_cpu()->sdpa_extend(out, q, k, v, a);
}

static const Ops *sampling_ops(int64_t at) {
    static Ops ops;
    ops = *tiny_ops();
    ops.sdpa_extend = hook_extend;
    calls = 0, stop_at = at;
    return &ops;
}

static void a_signal_ends_an_evaluation_between_batches(TestCtx *t) {
    TinyRun *r = tiny_open();
    Config c;
    Error err;
    tiny_run_config(r, &c, NULL, "train.steps=6 train.eval_every=2 batch.micro_batch=1");
    tiny_must_train(t, r, &c, scoring_ops(-1));
    tiny_put_aside(r, "straight");
    const int64_t each = TINY_VAL_SAMPLES;  // calls of each of the evaluations at 0, 2, 4 and 6
    CHECK_MSG(t, calls == 4 * each, "%lld losses", (long long)calls);
    CHECK(t, tiny_events(r, "straight", "eval", "") == 4);
    // In the second, then (at 4, since a run that goes on does not evaluate at once) in the first
    // and, at the end of the run, in the last.
    static const struct {
        int64_t at;
        int step;
        const char *words;
    } stops[] = {{each + 3, 2, "stopped by a signal at step 2"},
                 {2, 4, "stopped by a signal at step 4"},
                 {1, 6, "finished at step 6"}};
    for (int i = 0; i < 3; i++) {
        Buf said = {0};
        char path[64], line[32];
        CHECK_MSG(t, tiny_train(r, &c, scoring_ops(stops[i].at), RUN_RESUME, &said, &err), "%s",
                  err.text);
        CHECK_MSG(t, calls == stops[i].at, "%lld losses after the signal",
                  (long long)(calls - stops[i].at));
        CHECK_MSG(t, strstr(said.text, stops[i].words), "%s", said.text);
        snprintf(path, sizeof path, "run/step-%08d", stops[i].step);
        snprintf(line, sizeof line, "{\"step\":%d,", stops[i].step);
        char *dir = tiny_path(r, path);
        CHECK_MSG(t, dir_exists(dir), "%s is missing", path);
        CHECK(t, tiny_events(r, "run", "eval", line) == 0);
        mem_free(dir);
        buf_free(&said);
    }
    CHECK(t, tiny_events(r, "run", "eval", "") == 1);  // at step 0
    tiny_same_file(t, r, "straight/step-00000006/" CHECKPOINT_MODEL,
                   "run/step-00000006/" CHECKPOINT_MODEL);
    tiny_same_file(t, r, "straight/step-00000006/" CHECKPOINT_OPTIMIZER,
                   "run/step-00000006/" CHECKPOINT_OPTIMIZER);
    tiny_close(r);
}

// A text under way is given up as well.
static void a_signal_ends_a_sample(TestCtx *t) {
    TinyRun *r = tiny_open();
    Config c;
    Error err;
    Buf said = {0};
    tiny_run_config(r, &c, NULL,
                    "train.steps=3 train.eval_every=0 train.sample_every=2 train.sample_tokens=8");
    CHECK_MSG(t, tiny_train(r, &c, sampling_ops(3), RUN_RESUME, &said, &err), "%s", err.text);
    CHECK_MSG(t, strstr(said.text, "stopped by a signal at step 2"), "%s", said.text);
    CHECK(t, tiny_events(r, "run", "sample", "") == 0);
    said.n = 0;
    CHECK_MSG(t, tiny_train(r, &c, tiny_ops(), RUN_RESUME, &said, &err), "%s", err.text);
    CHECK_MSG(t, strstr(said.text, "finished at step 3"), "%s", said.text);
    buf_free(&said);
    tiny_close(r);
}

TEST_MAIN({"a_signal_ends_an_evaluation_between_batches",
           a_signal_ends_an_evaluation_between_batches},
          {"a_signal_ends_a_sample", a_signal_ends_a_sample})
