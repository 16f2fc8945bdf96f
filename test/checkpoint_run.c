// checkpoint_run.c - see checkpoint_run.h.
#define _POSIX_C_SOURCE 200809L
#include "test/checkpoint_run.h"

#include "gpt/dirs.h"

#include <stdlib.h>

static const TensorSpec spec[RUN_TENSORS] = {
    {.name = "wte", .dim = {64, 33}, .stored = {128, 64}},
    {.name = "h.0.ln_1", .dim = {33}},
    {.name = "h.0.w", .dim = {7, 33}},
};
static const CheckpointTensor model_tensor[RUN_TENSORS] = {
    {"wte", &spec[0], 0}, {"h.0.ln_1", &spec[1], 1}, {"h.0.w", &spec[2], 2}};
static const CheckpointTensor optim_tensor[RUN_TENSORS] = {{"adamw.m.wte", &spec[0], 0},
                                                           {"adamw.v.wte", &spec[0], 1},
                                                           {"muon.momentum.h.0.w", &spec[2], 2}};

const CheckpointTensor *run_model_tensors(void) {
    return model_tensor;
}

void run_fill(RunArrays *a, int64_t step) {
    for (int i = 0; i < RUN_TENSORS; i++)
        test_noise(a->value[i], RUN_WIDEST, (uint64_t)(100 * step + 10 * a->is_optimizer + i), 1);
}

static size_t count(const RunArrays *a, int index) {
    return spec_logical((a->is_optimizer ? optim_tensor : model_tensor)[index].spec);
}

static void fetch(void *ctx, int index, float *logical) {
    const RunArrays *a = ctx;
    memcpy(logical, a->value[index], count(a, index) * sizeof *logical);
}

static void store(void *ctx, int index, const float *logical) {
    RunArrays *a = ctx;
    memcpy(a->value[index], logical, count(a, index) * sizeof *logical);
    a->stored++;
}

CheckpointPart run_part(const CheckpointTensor *t, RunArrays *a) {
    return (CheckpointPart){
        .tensor = t, .n = RUN_TENSORS, .ctx = a, .fetch = fetch, .store = store};
}

Run *run_open(bool fast) {
    char name[] = "/dev/shm/train_gpt_test_XXXXXX";
    Run *r = mem_alloc(1, sizeof *r);
    r->dir = fast && mkdtemp(name) ? str_copy(name) : test_temp_dir();
    r->optim.is_optimizer = true;
    r->model_part = run_part(model_tensor, &r->model);
    r->optim_part = run_part(optim_tensor, &r->optim);
    return r;
}

void run_close(Run *r) {
    test_remove_dir(r->dir);
    mem_free(r->dir);
    mem_free(r);
}

CheckpointState run_state(int64_t step) {
    return (CheckpointState){.step = step,
                             .samples = 32 * step,
                             .tokens = 32768 * step,
                             .skipped_steps = step / 7,
                             .skips_in_row = step % 2,
                             .rollbacks = 1,
                             .tokenizer_hash = 0xFEDCBA9876543210u,
                             .data_fingerprint = 0x8000000000000001u};
}

bool run_save(Run *r, int64_t step, Error *err) {
    CheckpointState state = run_state(step);
    run_fill(&r->model, step);
    run_fill(&r->optim, step);
    return checkpoint_save(r->dir, &state, &r->model_part, &r->optim_part, "{\"a\": \"b\"}", err);
}

void run_must_save(TestCtx *t, Run *r, int64_t step) {
    Error err;
    CHECK_MSG(t, run_save(r, step, &err), "%s", err.text);
}

static void check_arrays(TestCtx *t, const RunArrays *a, int64_t step) {
    RunArrays *want = mem_alloc(1, sizeof *want);
    want->is_optimizer = a->is_optimizer;
    run_fill(want, step);
    for (int i = 0; i < RUN_TENSORS; i++)
        CHECK_SAME_BITS(t, a->value[i], want->value[i], count(a, i) * sizeof(float));
    mem_free(want);
}

int64_t run_found_step(TestCtx *t, Run *r, Buf *notes) {
    CheckpointFound f;
    Error err = {{0}};
    int64_t step = -1;
    if (!checkpoint_find(r->dir, CHECKPOINT_WHOLE, &f, &err)) buf_printf(notes, "%s\n", err.text);
    if (f.dir) {
        step = f.state.step;
        CheckpointState want = run_state(step);
        CHECK(t, memcmp(&want, &f.state, sizeof want) == 0);
        run_fill(&r->model, 999999);
        run_fill(&r->optim, 999999);
        CHECK_MSG(t, checkpoint_load(f.dir, &r->model_part, &r->optim_part, &err), "%s", err.text);
        check_arrays(t, &r->model, step);
        check_arrays(t, &r->optim, step);
    }
    if (f.notes.n) buf_add(notes, f.notes.text, f.notes.n);
    checkpoint_found_free(&f);
    return step;
}

void run_expect_step(TestCtx *t, Run *r, int64_t want, const char *words, const char *label) {
    Buf notes = {0};
    int64_t step = run_found_step(t, r, &notes);
    const char *said = notes.text ? notes.text : "";
    CHECK_MSG(t, step == want, "%s: step %lld, expected %lld (%s)", label, (long long)step,
              (long long)want, said);
    if (words)
        CHECK_MSG(t, strstr(said, words), "%s: expected '%s', found '%s'", label, words, said);
    else
        CHECK_MSG(t, notes.n == 0, "%s: %s", label, said);
    buf_free(&notes);
}

void run_expect_names(TestCtx *t, const Run *r, const char *want) {
    DirList l;
    Error err;
    Buf b = {0};
    CHECK(t, dir_list(&l, r->dir, &err));
    buf_add(&b, "", 0);
    for (int i = 0; i < l.n; i++)
        buf_printf(&b, "%s ", l.name[i]);
    CHECK_MSG(t, strcmp(b.text, want) == 0, "found '%s', expected '%s'", b.text, want);
    dir_list_free(&l);
    buf_free(&b);
}

void run_write(TestCtx *t, const Run *r, const char *name, const char *text) {
    Error err;
    char *path = run_path(r, name);
    CHECK_MSG(t, file_write_atomic(path, text, strlen(text), &err), "%s", err.text);
    mem_free(path);
}

char *run_path(const Run *r, const char *name) {
    return path_join(r->dir, name);
}
