// test_checkpoint.c - gpt/checkpoint: what is saved comes back, and whatever happens to the disk or
// the process in between, a whole checkpoint is found or a sentence says why not.
#define _GNU_SOURCE
#include "test/test.h"

#include "gpt/checkpoint.h"
#include "gpt/dirs.h"
#include "gpt/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#ifdef __linux__
    #include <sys/ptrace.h>
#endif

// A small "model" and its "optimizer": arrays that are a function of the step.
enum { N_TENSORS = 3, WIDEST = 64 * 33 };
static const TensorSpec spec[N_TENSORS] = {
    {.name = "wte", .dim = {64, 33}, .stored = {128, 64}},
    {.name = "h.0.ln_1", .dim = {33}},
    {.name = "h.0.w", .dim = {7, 33}},
};
static const CheckpointTensor model_tensor[N_TENSORS] = {
    {"wte", &spec[0], 0}, {"h.0.ln_1", &spec[1], 1}, {"h.0.w", &spec[2], 2}};
static const CheckpointTensor optim_tensor[N_TENSORS] = {{"adamw.m.wte", &spec[0], 0},
                                                         {"adamw.v.wte", &spec[0], 1},
                                                         {"muon.momentum.h.0.w", &spec[2], 2}};

typedef struct Store {
    bool is_optimizer;
    float value[N_TENSORS][WIDEST];
    int stored;  // calls of store
} Store;

static void fill(Store *s, int64_t step) {
    for (int i = 0; i < N_TENSORS; i++)
        test_noise(s->value[i], WIDEST, (uint64_t)(100 * step + 10 * s->is_optimizer + i), 1);
}

static void fetch(void *ctx, int index, float *logical) {
    const Store *s = ctx;
    const TensorSpec *row = (s->is_optimizer ? optim_tensor : model_tensor)[index].spec;
    memcpy(logical, s->value[index], spec_logical(row) * sizeof *logical);
}

static void store(void *ctx, int index, const float *logical) {
    Store *s = ctx;
    const TensorSpec *row = (s->is_optimizer ? optim_tensor : model_tensor)[index].spec;
    memcpy(s->value[index], logical, spec_logical(row) * sizeof *logical);
    s->stored++;
}

typedef struct Run {
    char *dir;
    Store model, optim;
    CheckpointPart model_part, optim_part;
} Run;

static CheckpointPart part(const CheckpointTensor *t, Store *s) {
    return (CheckpointPart){.tensor = t, .n = N_TENSORS, .ctx = s, .fetch = fetch, .store = store};
}

static Run *run_open_at(char *dir) {
    Run *r = mem_alloc(1, sizeof *r);
    r->dir = dir;
    r->optim.is_optimizer = true;
    r->model_part = part(model_tensor, &r->model);
    r->optim_part = part(optim_tensor, &r->optim);
    return r;
}

static Run *run_open(void) {
    return run_open_at(test_temp_dir());
}

// In memory where there is such a place: hundreds of saves, whose flushing would take its time.
static Run *run_open_fast(void) {
    char name[] = "/dev/shm/train_gpt_test_XXXXXX";
    return run_open_at(mkdtemp(name) ? str_copy(name) : test_temp_dir());
}

static void run_close(Run *r) {
    test_remove_dir(r->dir);
    mem_free(r->dir);
    mem_free(r);
}

static CheckpointState state_of(int64_t step) {
    return (CheckpointState){.step = step,
                             .samples = 32 * step,
                             .tokens = 32768 * step,
                             .skipped_steps = step / 7,
                             .skips_in_row = step % 2,
                             .rollbacks = 1,
                             .tokenizer_hash = 0xFEDCBA9876543210u,
                             .data_fingerprint = 0x8000000000000001u};
}

static bool save(Run *r, int64_t step, Error *err) {
    CheckpointState state = state_of(step);
    fill(&r->model, step);
    fill(&r->optim, step);
    return checkpoint_save(r->dir, &state, &r->model_part, &r->optim_part, "{\"a\": \"b\"}", err);
}

static void must_save(TestCtx *t, Run *r, int64_t step) {
    Error err;
    CHECK_MSG(t, save(r, step, &err), "%s", err.text);
}

// The step found, whose contents are checked bit by bit; -1 when none is found.
static int64_t found_step(TestCtx *t, Run *r, Buf *notes) {
    CheckpointFound f;
    Error err = {{0}};
    int64_t step = -1;
    if (!checkpoint_find(r->dir, CHECKPOINT_WHOLE, &f, &err)) buf_printf(notes, "%s\n", err.text);
    if (f.dir) {
        Store *want = mem_alloc(1, sizeof *want);
        CheckpointState s = state_of(f.state.step);
        step = f.state.step;
        CHECK(t, memcmp(&s, &f.state, sizeof s) == 0);
        fill(&r->model, 999999);
        fill(&r->optim, 999999);
        CHECK_MSG(t, checkpoint_load(f.dir, &r->model_part, &r->optim_part, &err), "%s", err.text);
        for (int i = 0; i < N_TENSORS; i++) {
            size_t n = spec_logical(model_tensor[i].spec), m = spec_logical(optim_tensor[i].spec);
            want->is_optimizer = false;
            fill(want, step);
            CHECK_SAME_BITS(t, r->model.value[i], want->value[i], n * sizeof(float));
            want->is_optimizer = true;
            fill(want, step);
            CHECK_SAME_BITS(t, r->optim.value[i], want->value[i], m * sizeof(float));
        }
        mem_free(want);
    }
    if (f.notes.n) buf_add(notes, f.notes.text, f.notes.n);
    checkpoint_found_free(&f);
    return step;
}

// Expects the step, and the words in the notes (NULL: no notes at all).
static void expect_step(TestCtx *t, Run *r, int64_t want, const char *words, const char *label) {
    Buf notes = {0};
    int64_t step = found_step(t, r, &notes);
    CHECK_MSG(t, step == want, "%s: step %lld, expected %lld (%s)", label, (long long)step,
              (long long)want, notes.text);
    if (words)
        CHECK_MSG(t, notes.text && strstr(notes.text, words), "%s: expected '%s', found '%s'",
                  label, words, notes.text);
    else
        CHECK_MSG(t, notes.n == 0, "%s: %s", label, notes.text);
    buf_free(&notes);
}

static char *in_run(const Run *r, const char *name) {
    return path_join(r->dir, name);
}

static bool run_has(const Run *r, const char *name) {
    char *path = in_run(r, name);
    bool has = dir_exists(path) || file_exists(path);
    mem_free(path);
    return has;
}

static void write_text(TestCtx *t, const Run *r, const char *name, const char *text) {
    Error err;
    char *path = in_run(r, name);
    CHECK_MSG(t, file_write_atomic(path, text, strlen(text), &err), "%s", err.text);
    mem_free(path);
}

// Names in the run directory, in order, with a space behind each.
static void expect_names(TestCtx *t, const Run *r, const char *want) {
    DirList l;
    Error err;
    Buf b = {0};
    CHECK(t, dir_list(&l, r->dir, &err));
    for (int i = 0; i < l.n; i++)
        buf_printf(&b, "%s ", l.name[i]);
    CHECK_MSG(t, strcmp(b.text ? b.text : "", want) == 0, "found '%s', expected '%s'", b.text,
              want);
    dir_list_free(&l);
    buf_free(&b);
}

static void flip_byte(TestCtx *t, const char *path, int64_t at) {
    unsigned char c = 0;
    int fd = open(path, O_RDWR);
    CHECK(t, fd >= 0 && pread(fd, &c, 1, at) == 1);
    c ^= 0x10;
    CHECK(t, pwrite(fd, &c, 1, at) == 1);
    close(fd);
}

// --- round trips

static void an_empty_run_holds_nothing(TestCtx *t) {
    Run *r = run_open();
    expect_step(t, r, -1, NULL, "empty");
    run_close(r);
}

static void what_was_saved_comes_back_bit_by_bit(TestCtx *t) {
    Run *r = run_open();
    must_save(t, r, 1000);
    expect_step(t, r, 1000, NULL, "first");
    must_save(t, r, 123456789012);
    expect_step(t, r, 123456789012, NULL, "second");
    expect_names(t, r, "latest step-00001000 step-123456789012 ");
    run_close(r);
}

static void the_files_are_plain_safetensors(TestCtx *t) {
    Run *r = run_open();
    Safetensors f;
    Error err;
    must_save(t, r, 5);
    char *path = in_run(r, "step-00000005/model.safetensors");
    const uint64_t wte[] = {64, 33}, ln[] = {33};
    CHECK(t, safetensors_open(&f, path, &err) && f.n == N_TENSORS);
    CHECK(t, safetensors_find(&f, "wte", SAFE_F32, wte, 2, &err));
    CHECK(t, safetensors_find(&f, "h.0.ln_1", SAFE_F32, ln, 1, &err));
    CHECK(t, strcmp(safetensors_meta(&f, "format"), "pt") == 0);
    safetensors_close(&f);
    char *config = checkpoint_config(path, &err);
    CHECK(t, config && strcmp(config, "{\"a\": \"b\"}") == 0);
    fill(&r->model, 1);
    CHECK(t, checkpoint_load_file(path, &r->model_part, &err) && r->model.stored == N_TENSORS);
    mem_free(config);
    mem_free(path);
    path = in_run(r, "step-00000005/optimizer.safetensors");
    CHECK(t, !checkpoint_config(path, &err));
    CHECK_ERROR(t, err, "holds no config");
    mem_free(path);
    CHECK(t, checkpoint_bytes(&r->model_part, &r->optim_part) ==
                 4 * (2112 + 33 + 231 + 2112 + 2112 + 231));
    run_close(r);
}

static void a_checkpoint_may_be_named_itself(TestCtx *t) {
    Run *r = run_open();
    CheckpointFound f;
    Error err;
    must_save(t, r, 5);
    must_save(t, r, 6);
    char *dir = in_run(r, "step-00000005");
    CHECK(t, checkpoint_find(dir, CHECKPOINT_MODEL_ONLY, &f, &err) && f.state.step == 5);
    CHECK(t, f.dir && strcmp(f.dir, dir) == 0 && !f.notes.n);
    checkpoint_found_free(&f);
    mem_free(dir);
    run_close(r);
}

static void saving_again_replaces(TestCtx *t) {
    Run *r = run_open();
    Error err;
    must_save(t, r, 5);
    // Other contents under the same step, then the right ones.
    CheckpointState state = state_of(5);
    fill(&r->model, 77);
    CHECK(t, checkpoint_save(r->dir, &state, &r->model_part, &r->optim_part, NULL, &err));
    must_save(t, r, 5);
    expect_step(t, r, 5, NULL, "replaced");
    expect_names(t, r, "latest step-00000005 ");
    run_close(r);
}

static void pruning_keeps_the_newest(TestCtx *t) {
    Run *r = run_open();
    Error err;
    for (int64_t step = 1; step <= 5; step++)
        must_save(t, r, step);
    CHECK(t, checkpoint_prune(r->dir, 0, &err));
    CHECK(t, run_has(r, "step-00000001"));
    CHECK(t, checkpoint_prune(r->dir, 2, &err));
    expect_names(t, r, "latest step-00000004 step-00000005 ");
    // After going back to 2, the abandoned 4 and 5 neither count nor vanish.
    must_save(t, r, 2);
    must_save(t, r, 3);
    CHECK(t, checkpoint_prune(r->dir, 1, &err));
    expect_names(t, r, "latest step-00000003 step-00000004 step-00000005 ");
    expect_step(t, r, 3, "interrupted save", "gone back");
    // Nothing is deleted while it is unclear which checkpoint is the good one.
    write_text(t, r, "latest", "nonsense");
    CHECK(t, checkpoint_prune(r->dir, 1, &err));
    expect_names(t, r, "latest step-00000003 step-00000004 step-00000005 ");
    run_close(r);
}

// --- damage

static void damage_is_reported_and_the_one_before_used(TestCtx *t) {
    static const char *const file[] = {CHECKPOINT_MODEL, CHECKPOINT_OPTIMIZER, CHECKPOINT_STATE};
    Run *r = run_open();
    must_save(t, r, 1);
    must_save(t, r, 2);
    for (int i = 0; i < 3; i++) {
        Buf name = {0};
        buf_printf(&name, "step-00000002/%s", file[i]);
        char *path = in_run(r, name.text);
        uint64_t bytes = 0, at;
        Error err;
        CHECK(t, file_size(path, &bytes, &err));
        for (at = 0; at < bytes; at += i == 2 ? 1 : bytes / 5) {
            flip_byte(t, path, (int64_t)at);
            expect_step(t, r, 1, file[i], "flipped byte");
            flip_byte(t, path, (int64_t)at);
        }
        CHECK(t, truncate(path, (off_t)bytes + 1) == 0);
        expect_step(t, r, 1, file[i], "one byte more");
        CHECK(t, truncate(path, (off_t)bytes - 1) == 0);
        expect_step(t, r, 1, file[i], "truncated");
        CHECK(t, truncate(path, 0) == 0);
        expect_step(t, r, 1, "step-00000001 is used instead", "empty");
        CHECK(t, unlink(path) == 0);
        expect_step(t, r, 1, file[i], "missing");
        must_save(t, r, 2);
        expect_step(t, r, 2, NULL, "restored");
        mem_free(path);
        buf_free(&name);
    }
    run_close(r);
}

static void inference_needs_only_the_model(TestCtx *t) {
    Run *r = run_open();
    CheckpointFound f;
    Error err;
    must_save(t, r, 1);
    must_save(t, r, 2);
    char *path = in_run(r, "step-00000002/optimizer.safetensors");
    CHECK(t, unlink(path) == 0);
    CHECK(t, checkpoint_find(r->dir, CHECKPOINT_MODEL_ONLY, &f, &err) && f.state.step == 2);
    CHECK(t, !f.notes.n && checkpoint_load(f.dir, &r->model_part, NULL, &err));
    CHECK(t, r->model.stored == N_TENSORS && r->optim.stored == 0);
    checkpoint_found_free(&f);
    expect_step(t, r, 1, "optimizer.safetensors: cannot open", "whole");
    mem_free(path);
    run_close(r);
}

static void nothing_whole_is_an_error(TestCtx *t) {
    Run *r = run_open();
    must_save(t, r, 1);
    must_save(t, r, 2);
    char *one = in_run(r, "step-00000001/model.safetensors");
    char *two = in_run(r, "step-00000002/model.safetensors");
    CHECK(t, truncate(one, 100) == 0 && truncate(two, 100) == 0);
    expect_step(t, r, -1, "none of the checkpoints is whole", "both damaged");
    mem_free(one);
    mem_free(two);
    run_close(r);
}

static void latest_is_believed_only_when_it_fits(TestCtx *t) {
    Run *r = run_open();
    must_save(t, r, 1);
    must_save(t, r, 2);
    must_save(t, r, 3);
    write_text(t, r, "latest", "step-00000002\n");
    expect_step(t, r, 2, "step-00000003 is newer", "set back by the user");
    write_text(t, r, "latest", "step-00000002");
    expect_step(t, r, 2, "step-00000003 is newer", "without a newline");
    write_text(t, r, "latest", "step-00000009\n");
    expect_step(t, r, 3, "step-00000009, which does not exist", "names nothing");
    static const char *const odd[] = {"", "../x", "step-2", "step--0000001", "step-000000000002"};
    for (size_t i = 0; i < sizeof odd / sizeof odd[0]; i++) {
        write_text(t, r, "latest", odd[i]);
        expect_step(t, r, 3, "names no checkpoint", odd[i]);
    }
    char *path = in_run(r, "latest"), *dir = in_run(r, "step-00000002");
    CHECK(t, unlink(path) == 0);
    expect_step(t, r, 3, "names no checkpoint", "missing");
    // Damaged: what came before is nearer than what came after.
    Error err;
    write_text(t, r, "latest", "step-00000002\n");
    CHECK(t, dir_remove(dir, &err));
    expect_step(t, r, 1, "step-00000001 is used instead", "between");
    mem_free(path);
    mem_free(dir);
    run_close(r);
}

static void a_renamed_directory_is_noticed(TestCtx *t) {
    Run *r = run_open();
    Error err;
    must_save(t, r, 1);
    char *from = in_run(r, "step-00000001"), *to = in_run(r, "step-00000002");
    CHECK(t, file_rename(from, to, &err));
    expect_step(t, r, -1, "is of step 1", "renamed");
    mem_free(from);
    mem_free(to);
    run_close(r);
}

static void a_newer_format_is_not_guessed(TestCtx *t) {
    Run *r = run_open();
    Error err;
    must_save(t, r, 1);
    char *path = in_run(r, "step-00000001/state.json"), *text, *v;
    size_t n;
    CHECK(t, file_read(path, 10000, &text, &n, &err));
    v = strstr(text, "\"version\": 1");
    CHECK(t, v);
    v[11] = '2';
    CHECK(t, file_write_atomic(path, text, n, &err));
    expect_step(t, r, -1, "format version 2, this program reads version 1", "version 2");
    mem_free(text);
    mem_free(path);
    run_close(r);
}

static void another_model_is_refused_before_anything_is_stored(TestCtx *t) {
    static const TensorSpec wide = {.name = "h.0.w", .dim = {7, 34}};
    Run *r = run_open();
    Error err;
    CheckpointTensor other[N_TENSORS + 1];
    must_save(t, r, 1);
    char *dir = in_run(r, "step-00000001");
    memcpy(other, model_tensor, sizeof model_tensor);
    r->model_part.tensor = other;
    other[2].spec = &wide;
    CHECK(t, !checkpoint_load(dir, &r->model_part, &r->optim_part, &err));
    CHECK_ERROR(t, err, "model.safetensors: tensor 'h.0.w' is F32 [7, 33], expected");
    CHECK_ERROR(t, err, "[7, 34]");
    r->model_part.n = 2;
    CHECK(t, !checkpoint_load(dir, &r->model_part, &r->optim_part, &err));
    CHECK_ERROR(t, err, "holds the tensor 'h.0.w', which this configuration lacks");
    other[2] = model_tensor[2];
    other[3] = (CheckpointTensor){"h.1.w", &wide, 3};
    r->model_part.n = 4;
    CHECK(t, !checkpoint_load(dir, &r->model_part, &r->optim_part, &err));
    CHECK_ERROR(t, err, "holds no tensor 'h.1.w'");
    r->model_part = part(model_tensor, &r->model);
    r->optim_part.tensor = model_tensor;
    CHECK(t, !checkpoint_load(dir, &r->model_part, &r->optim_part, &err));
    CHECK_ERROR(t, err, "optimizer.safetensors: holds no tensor 'wte'");
    CHECK(t, r->model.stored == 0 && r->optim.stored == 0);
    mem_free(dir);
    run_close(r);
}

// --- failing disks

static void a_full_disk_leaves_the_old_checkpoint(TestCtx *t) {
    Run *r = run_open();
    Error err = {{0}};
    must_save(t, r, 1);
    // A limit on file sizes fails a write like a full disk does: in the middle.
    struct rlimit old, low = {20000, RLIM_INFINITY};
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    CHECK(t, getrlimit(RLIMIT_FSIZE, &old) == 0);
    low.rlim_max = old.rlim_max;
    int done = 0;
    // 100: in the header; 9000: in the model; 12000: in the optimizer's file.
    for (rlim_t limit = 100; limit < 20000; limit += limit < 8000 ? 8900 : 3000, done++) {
        low.rlim_cur = limit;
        CHECK(t, setrlimit(RLIMIT_FSIZE, &low) == 0);
        bool ok = save(r, 2, &err);
        CHECK(t, setrlimit(RLIMIT_FSIZE, &old) == 0);
        if (limit > 18000) {
            CHECK_MSG(t, ok, "%s", err.text);
            break;
        }
        CHECK_MSG(t, !ok, "limit %lld", (long long)limit);
        CHECK_ERROR(t, err, "writing failed");
        CHECK_ERROR(t, err, "MB are free there), step-00000001 remains");
        expect_names(t, r, "latest step-00000001 ");
        expect_step(t, r, 1, NULL, "after the failure");
    }
    CHECK(t, done >= 3);
    signal(SIGXFSZ, handler);
    must_save(t, r, 2);
    expect_step(t, r, 2, NULL, "with space again");
    run_close(r);
}

static void a_full_file_system_is_survived(TestCtx *t) {
#ifdef __linux__
    Run *r = run_open();
    Error err = {{0}};
    char *mounted = r->dir;
    if (mount("none", mounted, "tmpfs", 0, "size=64k") != 0) {
        test_skip(t, "a tmpfs cannot be mounted (%s)", strerror(errno));
        run_close(r);
        return;
    }
    must_save(t, r, 1);
    CHECK(t, !save(r, 2, &err));
    CHECK_ERROR(t, err, "No space left on device");
    CHECK_ERROR(t, err, "MB are free there), step-00000001 remains");
    expect_names(t, r, "latest step-00000001 ");
    expect_step(t, r, 1, NULL, "after the failure");
    CHECK(t, umount(mounted) == 0);
    run_close(r);
#else
    test_skip(t, "mounting needs Linux");
#endif
}

static void a_place_that_takes_no_directory_is_a_sentence(TestCtx *t) {
    Run *r = run_open();
    Error err = {{0}};
    char *whole = r->dir;
    // A file in place of the run directory; root may write anywhere, but not into that.
    r->dir = path_join(whole, "file");
    CHECK(t, file_write_atomic(r->dir, "x", 1, &err));
    CHECK(t, !save(r, 1, &err));
    CHECK_ERROR(t, err, "the checkpoint step-00000001 was not written");
    CHECK_ERROR(t, err, "no earlier one exists");
    CheckpointFound f;
    CHECK(t, !checkpoint_find(r->dir, CHECKPOINT_WHOLE, &f, &err));
    CHECK_ERROR(t, err, "cannot list");
    checkpoint_found_free(&f);
    mem_free(r->dir);
    r->dir = whole;
    run_close(r);
}

static void a_directory_without_write_permission_is_a_sentence(TestCtx *t) {
    if (geteuid() == 0) {
        test_skip(t, "permissions do not bind root");
        return;
    }
    Run *r = run_open();
    Error err = {{0}};
    must_save(t, r, 1);
    CHECK(t, chmod(r->dir, 0500) == 0);
    CHECK(t, !save(r, 2, &err));
    CHECK_ERROR(t, err, "Permission denied");
    CHECK_ERROR(t, err, "step-00000001 remains");
    CHECK(t, chmod(r->dir, 0700) == 0);
    expect_step(t, r, 1, NULL, "after the failure");
    run_close(r);
}

// What stands where the checkpoint or `latest` should go is left alone, and so is the run.
static void an_obstacle_undoes_the_save(TestCtx *t) {
    Run *r = run_open();
    Error err = {{0}};
    must_save(t, r, 1);
    char *latest = in_run(r, "latest"), *inside = in_run(r, "latest/x");
    CHECK(t, unlink(latest) == 0 && dir_make(inside, &err));
    CHECK(t, !save(r, 2, &err));
    CHECK_ERROR(t, err, "rename failed");
    expect_names(t, r, "latest step-00000001 ");
    CheckpointState state = state_of(1);
    fill(&r->model, 77);
    CHECK(t, !checkpoint_save(r->dir, &state, &r->model_part, &r->optim_part, NULL, &err));
    expect_step(t, r, 1, "names no checkpoint", "the replaced one is back");
    mem_free(latest);
    mem_free(inside);
    run_close(r);
}

// --- killed processes

static void cleaning_puts_back_and_deletes(TestCtx *t) {
    Run *r = run_open();
    Error err;
    must_save(t, r, 1);
    must_save(t, r, 2);
    char *two = in_run(r, "step-00000002"), *old = in_run(r, ".old-step-00000002-4711");
    char *tmp = in_run(r, ".tmp-step-00000003-4711/x"), *mine = in_run(r, "notes.tmp-of-mine");
    CHECK(t, file_rename(two, old, &err) && dir_make(tmp, &err) && dir_make(mine, &err));
    write_text(t, r, "latest.tmp-4711", "step-0");
    expect_step(t, r, 1, "step-00000002, which does not exist", "before cleaning");
    CHECK(t, checkpoint_clean(r->dir, &err));
    expect_step(t, r, 2, NULL, "put back");
    expect_names(t, r, "latest notes.tmp-of-mine step-00000001 step-00000002 ");
    CHECK(t, dir_make(old, &err) && checkpoint_clean(r->dir, &err));
    expect_names(t, r, "latest notes.tmp-of-mine step-00000001 step-00000002 ");
    mem_free(two);
    mem_free(old);
    mem_free(tmp);
    mem_free(mine);
    run_close(r);
}

// Saves steps first, first+1, ... until killed.
static void save_for_ever(Run *r, int64_t first) {
    Error err;
    for (int64_t step = first;; step++) {
        if (!save(r, step, &err) || !checkpoint_prune(r->dir, 2, &err)) _exit(3);
    }
}

static void kill_9_at_random_moments_costs_no_checkpoint(TestCtx *t) {
    Run *r = run_open_fast();
    int64_t known = 1;
    uint64_t s = 12345;
    Error err;
    must_save(t, r, known);
    for (int round = 0; round < 20; round++) {
        pid_t child = fork();
        if (child == 0) save_for_ever(r, known + 1);
        s = s * 6364136223846793005u + 1442695040888963407u;
        usleep((useconds_t)(s >> 33) % 10000);
        int status = 0;
        CHECK(t, child > 0 && kill(child, SIGKILL) == 0 && waitpid(child, &status, 0) == child);
        CHECK_MSG(t, WIFSIGNALED(status), "the child ended by itself: %d", status);
        CHECK(t, checkpoint_clean(r->dir, &err));
        Buf notes = {0};
        int64_t step = found_step(t, r, &notes);
        CHECK_MSG(t, step >= known, "step %lld after %lld (%s)", (long long)step, (long long)known,
                  notes.text);
        known = step > known ? step : known;
        buf_free(&notes);
    }
    run_close(r);
}

#ifdef __linux__
// Lets the child run to its n-th stop and kills it there; stops are entries into the kernel (odd n)
// and returns (even n). False when it ended before.
static bool kill_at(TestCtx *t, Run *r, int64_t step, int n) {
    pid_t child = fork();
    if (child == 0) {
        Error err;
        if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0) _exit(4);
        raise(SIGSTOP);
        _exit(save(r, step, &err) ? 0 : 3);
    }
    int status;
    bool stopped = waitpid(child, &status, 0) == child && WIFSTOPPED(status);
    for (int i = 0; stopped && i < n; i++) {
        if (ptrace(PTRACE_SYSCALL, child, NULL, NULL) != 0) break;
        stopped = waitpid(child, &status, 0) == child && WIFSTOPPED(status);
    }
    if (stopped) {
        kill(child, SIGKILL);
        waitpid(child, &status, 0);
        return true;
    }
    CHECK_MSG(t, WIFEXITED(status) && WEXITSTATUS(status) == 0, "save ended with %d", status);
    return false;
}

static bool can_trace(void) {
    pid_t child = fork();
    if (child == 0) {
        if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0) _exit(4);
        raise(SIGSTOP);
        _exit(0);
    }
    int status = 0;
    bool can = waitpid(child, &status, 0) == child && WIFSTOPPED(status) &&
               ptrace(PTRACE_SYSCALL, child, NULL, NULL) == 0;
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
    return can;
}
#endif

// The sweep that a random moment only samples: killed at every system call of a save, first of one
// that replaces step 7, then of a new step 8.
static void kill_9_at_every_system_call_costs_no_checkpoint(TestCtx *t) {
#ifdef __linux__
    if (!can_trace()) {
        test_skip(t, "tracing a child is not allowed here");
        return;
    }
    Run *r = run_open_fast();
    Error err;
    must_save(t, r, 6);
    must_save(t, r, 7);
    for (int64_t step = 7; step <= 8; step++) {
        int n = 1;
        for (; kill_at(t, r, step, n) && n < 2000; n += 2) {
            Buf notes = {0};
            bool cleaned = checkpoint_clean(r->dir, &err);
            int64_t found = found_step(t, r, &notes);
            CHECK_MSG(t, cleaned && (found == 7 || found == step), "call %d: step %lld (%s)", n,
                      (long long)found, notes.text);
            buf_free(&notes);
        }
        CHECK_MSG(t, n > 80 && n < 2000, "%d calls", n);
        CHECK(t, checkpoint_clean(r->dir, &err));
    }
    expect_names(t, r, "latest step-00000006 step-00000007 step-00000008 ");
    expect_step(t, r, 8, NULL, "at last");
    run_close(r);
#else
    test_skip(t, "needs ptrace of Linux");
#endif
}

TEST_MAIN({"an_empty_run_holds_nothing", an_empty_run_holds_nothing},
          {"what_was_saved_comes_back_bit_by_bit", what_was_saved_comes_back_bit_by_bit},
          {"the_files_are_plain_safetensors", the_files_are_plain_safetensors},
          {"a_checkpoint_may_be_named_itself", a_checkpoint_may_be_named_itself},
          {"saving_again_replaces", saving_again_replaces},
          {"pruning_keeps_the_newest", pruning_keeps_the_newest},
          {"damage_is_reported_and_the_one_before_used",
           damage_is_reported_and_the_one_before_used},
          {"inference_needs_only_the_model", inference_needs_only_the_model},
          {"nothing_whole_is_an_error", nothing_whole_is_an_error},
          {"latest_is_believed_only_when_it_fits", latest_is_believed_only_when_it_fits},
          {"a_renamed_directory_is_noticed", a_renamed_directory_is_noticed},
          {"a_newer_format_is_not_guessed", a_newer_format_is_not_guessed},
          {"another_model_is_refused_before_anything_is_stored",
           another_model_is_refused_before_anything_is_stored},
          {"a_full_disk_leaves_the_old_checkpoint", a_full_disk_leaves_the_old_checkpoint},
          {"a_full_file_system_is_survived", a_full_file_system_is_survived},
          {"a_place_that_takes_no_directory_is_a_sentence",
           a_place_that_takes_no_directory_is_a_sentence},
          {"a_directory_without_write_permission_is_a_sentence",
           a_directory_without_write_permission_is_a_sentence},
          {"an_obstacle_undoes_the_save", an_obstacle_undoes_the_save},
          {"cleaning_puts_back_and_deletes", cleaning_puts_back_and_deletes},
          {"kill_9_at_random_moments_costs_no_checkpoint",
           kill_9_at_random_moments_costs_no_checkpoint},
          {"kill_9_at_every_system_call_costs_no_checkpoint",
           kill_9_at_every_system_call_costs_no_checkpoint})
