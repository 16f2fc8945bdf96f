// test_rundir.c - gpt/rundir: one process a directory, the right checkpoint and config, and metrics
// that belong to the steps that count.
#define _GNU_SOURCE
#include "test/test.h"

#include "gpt/dirs.h"
#include "gpt/rundir.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static Config *make_config(TestCtx *t) {
    Config *c = mem_alloc(1, sizeof *c);
    Error err;
    bool ok = config_parse(c,
                           "{\"model\": {\"n_layer\": 2, \"n_embd\": 64, \"n_head\": 2, "
                           "\"vocab_size\": 256, \"seq_len\": 32}, "
                           "\"attention\": {\"type\": \"mha\"}, \"train\": {\"steps\": 500}}",
                           "test", &err) &&
              config_finish(c, &err);
    CHECK_MSG(t, ok, "%s", err.text);
    return c;
}

static void fetch(void *ctx, int index, float *logical) {
    (void)ctx, (void)index;
    logical[0] = 1;
}

static void save(TestCtx *t, const char *run, const Config *c, int64_t step) {
    static const TensorSpec one = {.name = "x", .dim = {1}};
    static const CheckpointTensor tensor[] = {{"x", &one, 0}};
    CheckpointPart p = {.tensor = tensor, .n = 1, .fetch = fetch};
    CheckpointState state = {.step = step, .samples = 8 * step};
    char *json = config_print(c);
    Error err;
    CHECK_MSG(t, checkpoint_save(run, &state, &p, &p, json, &err), "%s", err.text);
    mem_free(json);
}

typedef struct Fixture {
    char *base, *run;  // run lies in base and is not created
    Config *config;
} Fixture;

static Fixture fixture(TestCtx *t) {
    Fixture f = {.base = test_temp_dir(), .config = make_config(t)};
    f.run = path_join(f.base, "run");
    return f;
}

static void fixture_done(Fixture *f) {
    test_remove_dir(f->base);
    mem_free(f->base);
    mem_free(f->run);
    mem_free(f->config);
}

static void must_open(TestCtx *t, RunDir *r, const Fixture *f, RunStart start) {
    Error err;
    CHECK_MSG(t, rundir_open(r, f->run, f->config, start, &err), "%s", err.text);
}

static void must_fail(TestCtx *t, const Fixture *f, RunStart start, const char *words) {
    RunDir r;
    Error err = {{0}};
    CHECK(t, !rundir_open(&r, f->run, f->config, start, &err));
    CHECK_ERROR(t, err, words);
}

static void put(TestCtx *t, const char *dir, const char *name, const char *text) {
    char *path = path_join(dir, name);
    Error err;
    CHECK_MSG(t, file_write_atomic(path, text, strlen(text), &err), "%s", err.text);
    mem_free(path);
}

static void expect_text(TestCtx *t, const char *dir, const char *name, const char *want) {
    char *path = path_join(dir, name), *text = NULL;
    size_t n;
    Error err;
    bool there = file_read(path, 100000, &text, &n, &err);
    if (want)
        CHECK_MSG(t, there && strcmp(text, want) == 0, "%s: found '%s'", name, text);
    else
        CHECK_MSG(t, !there, "%s exists: '%s'", name, text);
    mem_free(text);
    mem_free(path);
}

static void expect_names(TestCtx *t, const char *dir, const char *want) {
    DirList l;
    Error err;
    Buf b = {0};
    CHECK(t, dir_list(&l, dir, &err));
    for (int i = 0; i < l.n; i++)
        buf_printf(&b, "%s ", l.name[i]);
    CHECK_MSG(t, b.text && strcmp(b.text, want) == 0, "found '%s'", b.text);
    dir_list_free(&l);
    buf_free(&b);
}

static void a_new_run_starts_at_zero(TestCtx *t) {
    Fixture f = fixture(t);
    RunDir r;
    must_open(t, &r, &f, RUN_RESUME);
    CHECK(t, !r.checkpoint && r.state.step == 0 && !r.notes.n);
    rundir_close(&r);
    expect_names(t, f.run, "config.json lock ");
    char *json = config_print(f.config);
    expect_text(t, f.run, "config.json", json);
    mem_free(json);
    must_open(t, &r, &f, RUN_FRESH);  // nothing of value in it yet
    rundir_close(&r);
    fixture_done(&f);
}

static void a_run_resumes_its_newest_checkpoint(TestCtx *t) {
    Fixture f = fixture(t);
    RunDir r;
    Error err;
    must_open(t, &r, &f, RUN_RESUME);
    save(t, f.run, f.config, 10);
    save(t, f.run, f.config, 20);
    char *left = path_join(f.run, ".tmp-step-00000030-99");
    CHECK(t, dir_make(left, &err));
    rundir_close(&r);
    must_open(t, &r, &f, RUN_RESUME);
    CHECK(t, r.checkpoint && strstr(r.checkpoint, "run/step-00000020"));
    CHECK(t, r.state.step == 20 && r.state.samples == 160 && !r.notes.n);
    CHECK(t, !dir_exists(left));
    rundir_close(&r);
    // Damaged: the one before, and a note.
    char *model = path_join(f.run, "step-00000020/model.safetensors");
    CHECK(t, truncate(model, 10) == 0);
    must_open(t, &r, &f, RUN_RESUME);
    CHECK(t, r.state.step == 10 && r.notes.text && strstr(r.notes.text, "has 10 bytes"));
    rundir_close(&r);
    mem_free(model);
    mem_free(left);
    fixture_done(&f);
}

static void another_config_is_refused_by_its_fields(TestCtx *t) {
    Fixture f = fixture(t);
    RunDir r;
    must_open(t, &r, &f, RUN_RESUME);
    save(t, f.run, f.config, 10);
    rundir_close(&r);
    f.config->model.n_layer = 3;
    must_fail(t, &f, RUN_RESUME, "model.n_layer 2 -> 3");
    f.config->model.n_layer = 2;
    f.config->train.steps = 600;
    must_open(t, &r, &f, RUN_RESUME);
    CHECK(t, r.state.step == 10 && r.notes.text && strstr(r.notes.text, "train.steps 500 -> 600"));
    rundir_close(&r);
    fixture_done(&f);
}

static void a_fresh_start_never_touches_an_old_run(TestCtx *t) {
    Fixture f = fixture(t);
    RunDir r;
    must_open(t, &r, &f, RUN_RESUME);
    save(t, f.run, f.config, 10);
    rundir_close(&r);
    must_fail(t, &f, RUN_FRESH, "holds a run already");
    f.config->model.n_layer = 3;  // a config of its own is no obstacle
    char *slashed = path_join(f.run, "/");
    mem_free(f.run);
    f.run = slashed;
    must_open(t, &r, &f, RUN_FRESH_ASIDE);
    CHECK(t, !r.checkpoint && strstr(r.notes.text, "run.old-1"));
    save(t, f.run, f.config, 5);
    rundir_close(&r);
    must_open(t, &r, &f, RUN_FRESH_ASIDE);
    put(t, f.run, "metrics.jsonl", "{\"step\":1}\n");
    rundir_close(&r);
    must_fail(t, &f, RUN_FRESH, "holds a run already");
    expect_names(t, f.base, "run run.old-1 run.old-2 ");
    char *old = path_join(f.base, "run.old-1");
    expect_names(t, old, "config.json latest lock step-00000010 ");
    mem_free(old);
    fixture_done(&f);
}

static void two_processes_never_share_a_run(TestCtx *t) {
    Fixture f = fixture(t);
    RunDir r;
    must_open(t, &r, &f, RUN_RESUME);
    save(t, f.run, f.config, 10);
    pid_t child = fork();
    if (child == 0) {
        RunDir other;
        Error err = {{0}};
        bool refused = true;
        close(r.lock);  // inherited by fork only; a program of its own has none
        for (RunStart s = RUN_RESUME; s <= RUN_FRESH_ASIDE; s++)
            refused &= !rundir_open(&other, f.run, f.config, s, &err) &&
                       strstr(err.text, "another process (");
        _exit(refused ? 0 : 1);
    }
    int status = 1;
    CHECK(t, waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    rundir_close(&r);
    must_open(t, &r, &f, RUN_RESUME);
    rundir_close(&r);
    expect_names(t, f.base, "run ");
    fixture_done(&f);
}

static void a_killed_process_leaves_no_lock(TestCtx *t) {
    Fixture f = fixture(t);
    RunDir r;
    int ready[2], status;
    char c;
    CHECK(t, pipe(ready) == 0);
    pid_t child = fork();
    if (child == 0) {
        Error err;
        bool ok = rundir_open(&r, f.run, f.config, RUN_RESUME, &err);
        if (write(ready[1], ok ? "y" : "n", 1) == 1) pause();
        _exit(1);
    }
    CHECK(t, read(ready[0], &c, 1) == 1 && c == 'y');
    must_fail(t, &f, RUN_RESUME, "another process");
    CHECK(t, kill(child, SIGKILL) == 0 && waitpid(child, &status, 0) == child);
    must_open(t, &r, &f, RUN_RESUME);
    rundir_close(&r);
    close(ready[0]);
    close(ready[1]);
    fixture_done(&f);
}

static void metrics_are_cut_to_the_resumed_step(TestCtx *t) {
    Fixture f = fixture(t);
    RunDir r;
    must_open(t, &r, &f, RUN_RESUME);
    save(t, f.run, f.config, 2);
    put(t, f.run, "metrics.jsonl",
        "{\"step\":1,\"loss\":3}\n{\"step\":2}\nremark of the user\n{\"step\":3}\n{\"step\":2}\n"
        "{\"step\":4,\"lo");
    rundir_close(&r);
    must_open(t, &r, &f, RUN_RESUME);
    expect_text(t, f.run, "metrics.jsonl",
                "{\"step\":1,\"loss\":3}\n{\"step\":2}\nremark of the user\n");
    expect_text(t, f.run, "metrics.discarded-1.jsonl",
                "{\"step\":3}\n{\"step\":2}\n{\"step\":4,\"lo");
    rundir_close(&r);
    must_open(t, &r, &f, RUN_RESUME);
    expect_text(t, f.run, "metrics.discarded-2.jsonl", NULL);
    // A line cut off by a crash goes too, even when its step counts.
    put(t, f.run, "metrics.jsonl", "{\"step\":1}\n{\"step\":2,\"loss\":1.");
    Error err;
    CHECK(t, rundir_rewind_metrics(&r, 2, &err));
    expect_text(t, f.run, "metrics.jsonl", "{\"step\":1}\n");
    expect_text(t, f.run, "metrics.discarded-2.jsonl", "{\"step\":2,\"loss\":1.");
    // Back to the start.
    CHECK(t, rundir_rewind_metrics(&r, 0, &err));
    expect_text(t, f.run, "metrics.jsonl", "");
    expect_text(t, f.run, "metrics.discarded-3.jsonl", "{\"step\":1}\n");
    rundir_close(&r);
    fixture_done(&f);
}

static void a_kept_file_may_not_change_under_a_run(TestCtx *t) {
    Fixture f = fixture(t);
    RunDir r;
    Error err;
    must_open(t, &r, &f, RUN_RESUME);
    CHECK(t, rundir_keep_file(&r, "tokenizer.json", "{1}", 3, &err));
    CHECK(t, rundir_keep_file(&r, "tokenizer.json", "{22}", 4, &err));  // nothing trained yet
    expect_text(t, f.run, "tokenizer.json", "{22}");
    save(t, f.run, f.config, 1);
    rundir_close(&r);
    must_open(t, &r, &f, RUN_RESUME);
    CHECK(t, rundir_keep_file(&r, "tokenizer.json", "{22}", 4, &err));
    CHECK(t, !rundir_keep_file(&r, "tokenizer.json", "{23}", 4, &err));
    CHECK_ERROR(t, err, "tokenizer.json: differs");
    CHECK(t, !rundir_keep_file(&r, "tokenizer.json", "{2", 2, &err));
    CHECK(t, !rundir_keep_file(&r, "tokenizer.json", "{22} ", 5, &err));
    expect_text(t, f.run, "tokenizer.json", "{22}");
    CHECK(t, rundir_keep_file(&r, "other.json", "x", 1, &err));
    rundir_close(&r);
    fixture_done(&f);
}

static void a_place_that_cannot_be_used_is_a_sentence(TestCtx *t) {
    Fixture f = fixture(t);
    put(t, f.base, "run", "a file");
    must_fail(t, &f, RUN_RESUME, "run: is not a directory");
    fixture_done(&f);
}

TEST_MAIN({"a_new_run_starts_at_zero", a_new_run_starts_at_zero},
          {"a_run_resumes_its_newest_checkpoint", a_run_resumes_its_newest_checkpoint},
          {"another_config_is_refused_by_its_fields", another_config_is_refused_by_its_fields},
          {"a_fresh_start_never_touches_an_old_run", a_fresh_start_never_touches_an_old_run},
          {"two_processes_never_share_a_run", two_processes_never_share_a_run},
          {"a_killed_process_leaves_no_lock", a_killed_process_leaves_no_lock},
          {"metrics_are_cut_to_the_resumed_step", metrics_are_cut_to_the_resumed_step},
          {"a_kept_file_may_not_change_under_a_run", a_kept_file_may_not_change_under_a_run},
          {"a_place_that_cannot_be_used_is_a_sentence", a_place_that_cannot_be_used_is_a_sentence})
