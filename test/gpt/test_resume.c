// test_resume.c - going on where a run stopped. A run that is killed at any moment, also in the
// middle of a save, and started again ends with the same bytes as one that was left alone; a run
// goes on only with what it began with.
#define _POSIX_C_SOURCE 200809L
#include "gpt/dirs.h"
#include "gpt/rng.h"
#include "test/arrays.h"
#include "test/tiny_run.h"

#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

// --- signals at a chosen moment: the at-th call of an op that is counted

typedef struct Alarm {
    int64_t at;
    int number;  // of the signal
    bool saves;  // counts only reads of tensors for a checkpoint
} Alarm;

static Alarm alarm_set;
static int64_t calls;

static void tick(bool saving) {
    if ((saving || !alarm_set.saves) && ++calls == alarm_set.at) raise(alarm_set.number);
}

static void hook_download(float *dst, const floatX *src, size_t n) {
    tick(true);
    ops_cpu()->download(dst, src, n);
}

static void hook_download_bytes(void *dst, const void *src, size_t bytes) {
    tick(bytes > sizeof(StepState));
    ops_cpu()->download_bytes(dst, src, bytes);
}

static void hook_weight_prepare(Weight *w) {
    tick(false);
    ops_cpu()->weight_prepare(w);
}

static void hook_zero(void *p, size_t bytes) {
    tick(false);
    ops_cpu()->zero(p, bytes);
}

static void hook_loss_add(StepState *state, const float *losses, size_t n, double scale) {
    tick(false);
    ops_cpu()->loss_add(state, losses, n, scale);
}

static const Ops *alarming_ops(Alarm a) {
    static Ops ops;
    ops = *tiny_ops();
    ops.download = hook_download;
    ops.download_bytes = hook_download_bytes;
    ops.weight_prepare = hook_weight_prepare;
    ops.zero = hook_zero;
    ops.loss_add = hook_loss_add;
    alarm_set = a;
    calls = 0;
    return &ops;
}

// Calls that a whole run makes.
static int64_t count_calls(TestCtx *t, const TinyRun *r, const Config *c, bool saves) {
    Alarm never = {.at = -1, .saves = saves};
    tiny_must_train(t, r, c, alarming_ops(never));
    return calls;
}

// --- comparing ends

static void check_same_end(TestCtx *t, const TinyRun *r, int step) {
    static const char *const files[] = {CHECKPOINT_MODEL, CHECKPOINT_OPTIMIZER, CHECKPOINT_STATE};
    for (int i = 0; i < 3; i++) {
        char a[96], b[96];
        snprintf(a, sizeof a, "straight/step-%08d/%s", step, files[i]);
        snprintf(b, sizeof b, "run/step-%08d/%s", step, files[i]);
        tiny_same_file(t, r, a, b);
    }
    char *x = tiny_losses(r, "straight"), *y = tiny_losses(r, "run");
    CHECK_MSG(t, strlen(x) > 20 && strcmp(x, y) == 0, "losses\n    %s\n    %s", x, y);
    mem_free(x);
    mem_free(y);
    DirList l;  // nothing is left of interrupted saves
    Error err;
    char *dir = tiny_path(r, "run");
    CHECK(t, dir_list(&l, dir, &err));
    for (int i = 0; i < l.n; i++)
        CHECK_MSG(t, !strstr(l.name[i], "tmp") && l.name[i][0] != '.', "left over: %s", l.name[i]);
    dir_list_free(&l);
    mem_free(dir);
}

static void remove_run(const TinyRun *r) {
    char *dir = tiny_path(r, "run");
    test_remove_dir(dir);
    mem_free(dir);
}

// SIGKILL at each of `kills` moments, with a start after each, then to the end.
static void kill_and_go_on(TestCtx *t, const TinyRun *r, const Config *c, const int64_t *moments,
                           int kills, bool saves) {
    Buf said = {0};
    int killed = 0;
    for (int i = 0; i < kills; i++) {
        Alarm a = {.at = moments[i], .number = SIGKILL, .saves = saves};
        int status = tiny_train_child(r, c, alarming_ops(a), &said);
        killed += status == -SIGKILL;
        CHECK_MSG(t, status == -SIGKILL || status == 0, "status %d: %s", status,
                  said.text ? said.text : "");
    }
    // A moment behind the end of the run is never reached.
    CHECK_MSG(t, killed >= (kills + 1) / 2, "only %d kills", killed);
    int status = tiny_train_child(r, c, tiny_ops(), &said);
    CHECK_MSG(t, status == 0, "status %d: %s", status, said.text ? said.text : "");
    buf_free(&said);
}

// --- the tests

// 40 steps over three shards of unequal length, 3.9 epochs, with evaluation, samples and a rate
// that changes: SIGTERM twice, then SIGKILL at random moments, then SIGKILL in the middle of saves.
static void a_run_in_pieces_ends_as_a_run_in_one(TestCtx *t) {
    TinyRun *r = tiny_open();
    Config c;
    Buf said = {0};
    tiny_run_config(
        r, &c, tiny_variants[4].settings,
        "train.steps=40 schedule.kind=cosine schedule.warmup_steps=5 checkpoint.every=3 "
        "checkpoint.keep=2 train.eval_every=8 train.sample_every=9 train.sample_tokens=4 "
        "batch.micro_batch=2");
    int64_t in_saves = count_calls(t, r, &c, true);
    remove_run(r);
    int64_t all = count_calls(t, r, &c, false);
    tiny_put_aside(r, "straight");
    for (int i = 0; i < 2; i++) {
        Alarm a = {.at = all / 7, .number = i ? SIGINT : SIGTERM};
        said.n = 0;
        int status = tiny_train_child(r, &c, alarming_ops(a), &said);
        CHECK_MSG(t, status == 0, "status %d: %s", status, said.text);
        CHECK_MSG(t, strstr(said.text, "stopped by a signal at step"), "%s", said.text);
    }
    int64_t moments[6];
    for (int i = 0; i < 6; i++)
        moments[i] = 1 + (int64_t)(rng_uniform(99, (uint64_t)i) * (double)all / 4);
    kill_and_go_on(t, r, &c, moments, 6, false);
    check_same_end(t, r, 40);
    remove_run(r);
    for (int i = 0; i < 6; i++)
        moments[i] = 1 + (int64_t)(rng_uniform(98, (uint64_t)i) * (double)in_saves / 4);
    kill_and_go_on(t, r, &c, moments, 6, true);
    check_same_end(t, r, 40);
    buf_free(&said);
    tiny_close(r);
}

static void every_variant_goes_on_to_the_bit(TestCtx *t) {
    FOR_EACH_TINY(v) {
        TinyRun *r = tiny_open();
        Config c;
        // Every second one with bf16 products.
        static const char *const more[] = {"train.steps=7 checkpoint.every=2",
                                           "train.steps=7 checkpoint.every=2 train.compute=bf16"};
        tiny_run_config(r, &c, v->settings, more[(v - tiny_variants) % 2]);
        int64_t all = count_calls(t, r, &c, false);
        tiny_put_aside(r, "straight");
        int64_t moments[2] = {all / 2, all / 3};
        kill_and_go_on(t, r, &c, moments, 2, false);
        check_same_end(t, r, 7);
        tiny_close(r);
    }
}

// Stopping by a signal does not wait for a checkpoint to be due, and a run that is over stays so.
static void a_signal_saves_the_step_it_came_in(TestCtx *t) {
    TinyRun *r = tiny_open();
    Config c;
    Buf said = {0};
    tiny_run_config(r, &c, NULL, "train.steps=6");
    int64_t all = count_calls(t, r, &c, false);
    tiny_put_aside(r, "straight");
    Alarm a = {.at = all / 2, .number = SIGTERM};
    CHECK(t, tiny_train_child(r, &c, alarming_ops(a), &said) == 0);
    char *losses = tiny_losses(r, "run"), path[64];
    int steps = 0;
    for (const char *p = losses; *p; p++)
        steps += *p == ':';
    CHECK_MSG(t, steps >= 1 && steps < 6, "%s", losses);
    snprintf(path, sizeof path, "run/step-%08d", steps);
    char *dir = tiny_path(r, path);
    CHECK_MSG(t, dir_exists(dir), "%s is missing", path);
    for (int i = 0; i < 2; i++)
        CHECK(t, tiny_train_child(r, &c, tiny_ops(), &said) == 0);
    check_same_end(t, r, 6);
    mem_free(dir);
    mem_free(losses);
    buf_free(&said);
    tiny_close(r);
}

static void expect_refusal(TestCtx *t, const TinyRun *r, const Config *c, const char *words) {
    Error err;
    bool ok = tiny_train(r, c, tiny_ops(), RUN_RESUME, NULL, &err);
    CHECK_MSG(t, !ok, "accepted; expected '%s'", words);
    CHECK_ERROR(t, err, words);
}

// A tokenizer.json whose end of text has another name of the same length; the caller's.
static char *rename_end_of_text(TestCtx *t, const char *json) {
    char *copy = str_copy(json);
    int found = 0;
    for (char *at = copy; (at = strstr(at, "<|endoftext|>")); found++)
        memcpy(at, "<|endofdata|>", 13);
    CHECK(t, found > 0);
    return copy;
}

static void another_model_is_refused_by_name(TestCtx *t) {
    static const struct {
        const char *settings, *words;
    } cases[] = {
        {"model.n_layer=3", "model.n_layer 2 -> 3"},
        {"model.logit_softcap=7", "model.logit_softcap 15 -> 7"},
        {"train.seed=2", "train.seed 1 -> 2"},
        {"attention.type=mqa", "attention.type mha -> mqa"},
        {"batch.tokens=128", "batch.tokens 64 -> 128"},
        {"optim.matrix.optimizer=adamw", "optim.matrix.optimizer muon -> adamw"},
        {"data.shuffle=false", "data.shuffle true -> false"},
    };
    TinyRun *r = tiny_open();
    Config c;
    tiny_run_config(r, &c, NULL, "train.steps=2");
    tiny_must_train(t, r, &c, tiny_ops());
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        Config other = c;
        tiny_set(&other, cases[i].settings);
        expect_refusal(t, r, &other, cases[i].words);
    }
    // Several at once are all named, and the run is as it was.
    Config other = c;
    tiny_set(&other, "model.n_layer=3 train.seed=2");
    expect_refusal(t, r, &other, "model.n_layer 2 -> 3, train.seed 1 -> 2");
    tiny_must_train(t, r, &c, tiny_ops());
    tiny_close(r);
}

static void other_shards_and_tokenizers_are_refused(TestCtx *t) {
    TinyRun *r = tiny_open();
    Config c;
    int ids[TINY_SEQ * 9];
    tiny_run_config(r, &c, NULL, "train.steps=2");
    tiny_must_train(t, r, &c, tiny_ops());
    tiny_set(&c, "train.steps=4");
    // One shard more, one shorter.
    tiny_ids(ids, TINY_SEQ * 9, TINY_VOCAB, 77);
    tiny_shard(r, "train_3.bin", ids, TINY_SEQ * 9);
    expect_refusal(t, r, &c, "data.train holds other shards than this run was trained on");
    char *more = tiny_path(r, "train_3.bin"), *shard = tiny_path(r, "train_1.bin"), *bytes, *tok;
    size_t n, n_tok;
    Error err;
    remove(more);
    CHECK(t, file_read(shard, 1 << 20, &bytes, &n, &err));
    tiny_shard(r, "train_1.bin", ids, TINY_SEQ * 5);
    expect_refusal(t, r, &c, "data.train holds other shards than this run was trained on");
    CHECK(t, file_write_atomic(shard, bytes, n, &err));
    // Another tokenizer of as many ids under the same name.
    char *path = tiny_path(r, "tokenizer.json");
    CHECK(t, file_read(path, 1 << 20, &tok, &n_tok, &err));
    char *changed = rename_end_of_text(t, tok);
    CHECK(t, file_write_atomic(path, changed, n_tok, &err));
    expect_refusal(t, r, &c, "data.tokenizer is another tokenizer than this run was trained with");
    CHECK(t, file_write_atomic(path, tok, n_tok, &err));
    tiny_must_train(t, r, &c, tiny_ops());
    CHECK(t, tiny_last_metric(r, "run", "step") == 4);
    mem_free(changed);
    mem_free(bytes);
    mem_free(tok);
    mem_free(path);
    mem_free(shard);
    mem_free(more);
    tiny_close(r);
}

// Shards are known by their names and sizes, the tokenizer by its contents: folders may change.
static void data_may_move_to_another_folder(TestCtx *t) {
    TinyRun *r = tiny_open();
    Config c;
    Buf said = {0}, moved = {0};
    tiny_run_config(r, &c, tiny_variants[4].settings, "train.steps=6 checkpoint.every=3");
    tiny_must_train(t, r, &c, tiny_ops());
    tiny_put_aside(r, "straight");
    int64_t all = count_calls(t, r, &c, false);
    remove_run(r);
    Alarm a = {.at = all * 2 / 3, .number = SIGKILL};
    CHECK(t, tiny_train_child(r, &c, alarming_ops(a), &said) == -SIGKILL);
    static const char *const names[] = {"train_0.bin", "train_1.bin", "train_2.bin",
                                        "tokenizer.json"};
    char *dir = tiny_path(r, "elsewhere");
    Error err;
    CHECK(t, dir_make(dir, &err));
    for (int i = 0; i < 4; i++) {
        char *from = tiny_path(r, names[i]), *to = path_join(dir, names[i]);
        CHECK(t, rename(from, to) == 0);
        mem_free(from);
        mem_free(to);
    }
    buf_printf(&moved, "data.train=%s/train_*.bin data.tokenizer=%s/tokenizer.json", dir, dir);
    tiny_set(&c, moved.text);
    CHECK_MSG(t, tiny_train(r, &c, tiny_ops(), RUN_RESUME, &said, &err), "%s", err.text);
    tiny_same_file(t, r, "straight/step-00000006/" CHECKPOINT_OPTIMIZER,
                   "run/step-00000006/" CHECKPOINT_OPTIMIZER);
    mem_free(dir);
    buf_free(&moved);
    buf_free(&said);
    tiny_close(r);
}

static void what_is_free_may_change(TestCtx *t) {
    TinyRun *r = tiny_open();
    Config c;
    Error err;
    Buf said = {0};
    tiny_run_config(r, &c, NULL, "train.steps=3");
    tiny_must_train(t, r, &c, tiny_ops());
    tiny_set(&c, "train.steps=6 optim.matrix.lr=0.01 batch.micro_batch=1 train.eval_every=2 "
                 "schedule.kind=linear log.every=1");
    CHECK_MSG(t, tiny_train(r, &c, tiny_ops(), RUN_RESUME, &said, &err), "%s", err.text);
    CHECK_MSG(t, strstr(said.text, "train.steps 3 -> 6"), "%s", said.text);
    CHECK_MSG(t, strstr(said.text, "optim.matrix.lr 0.02 -> 0.01"), "%s", said.text);
    CHECK(t, tiny_last_metric(r, "run", "step") == 6);
    // A shorter run than what is done already has nothing to do.
    tiny_set(&c, "train.steps=4");
    tiny_must_train(t, r, &c, tiny_ops());
    CHECK(t, tiny_last_metric(r, "run", "step") == 6);
    buf_free(&said);
    tiny_close(r);
}

static void fresh_runs_destroy_nothing(TestCtx *t) {
    TinyRun *r = tiny_open();
    Config c;
    Error err;
    tiny_run_config(r, &c, NULL, "train.steps=2");
    CHECK(t, tiny_train(r, &c, tiny_ops(), RUN_FRESH, NULL, &err));
    CHECK(t, !tiny_train(r, &c, tiny_ops(), RUN_FRESH, NULL, &err));
    CHECK_ERROR(t, err, "holds a run already");
    tiny_set(&c, "model.n_layer=1");
    CHECK_MSG(t, tiny_train(r, &c, tiny_ops(), RUN_FRESH_ASIDE, NULL, &err), "%s", err.text);
    char *old = tiny_path(r, "run.old-1/step-00000002/" CHECKPOINT_MODEL);
    char *new = tiny_path(r, "run/step-00000002/" CHECKPOINT_MODEL);
    CHECK(t, file_exists(old) && file_exists(new));
    mem_free(old);
    mem_free(new);
    tiny_close(r);
}

// A run that never got to a checkpoint may begin again with another tokenizer; what lies beside the
// model is then the new one.
static void a_new_beginning_takes_its_own_tokenizer(TestCtx *t) {
    TinyRun *r = tiny_open();
    Config c;
    tiny_run_config(r, &c, NULL, "train.steps=3");
    Buf said = {0};
    Alarm a = {.at = 40, .number = SIGKILL};
    CHECK(t, tiny_train_child(r, &c, alarming_ops(a), &said) == -SIGKILL);
    Error err;
    char *path = tiny_path(r, "tokenizer.json"), *text;
    size_t n;
    CHECK(t, file_read(path, 1 << 20, &text, &n, &err));
    char *changed = rename_end_of_text(t, text);
    CHECK(t, file_write_atomic(path, changed, n, &err));
    said.n = 0;
    CHECK_MSG(t, tiny_train_child(r, &c, tiny_ops(), &said) == 0, "%s", said.text);
    char *copy = tiny_path(r, "run/tokenizer.json");
    Tokenizer *tok = tokenizer_load(copy, &err);
    CHECK_MSG(t, tok && tokenizer_special(tok, "<|endofdata|>") == 262,
              "the old tokenizer.json stays");
    tokenizer_free(tok);
    buf_free(&said);
    mem_free(text);
    mem_free(changed);
    mem_free(path);
    mem_free(copy);
    tiny_close(r);
}

TEST_MAIN({"a_run_in_pieces_ends_as_a_run_in_one", a_run_in_pieces_ends_as_a_run_in_one},
          {"every_variant_goes_on_to_the_bit", every_variant_goes_on_to_the_bit},
          {"a_signal_saves_the_step_it_came_in", a_signal_saves_the_step_it_came_in},
          {"another_model_is_refused_by_name", another_model_is_refused_by_name},
          {"other_shards_and_tokenizers_are_refused", other_shards_and_tokenizers_are_refused},
          {"data_may_move_to_another_folder", data_may_move_to_another_folder},
          {"what_is_free_may_change", what_is_free_may_change},
          {"fresh_runs_destroy_nothing", fresh_runs_destroy_nothing},
          {"a_new_beginning_takes_its_own_tokenizer", a_new_beginning_takes_its_own_tokenizer})
