// test_checkpoint.c - gpt/checkpoint: what is saved comes back bit by bit; what was damaged is
// named and passed over; what does not fit is refused. test_checkpoint_crash.c has failing disks
// and kills.
#define _POSIX_C_SOURCE 200809L
#include "test/checkpoint_run.h"

#include "gpt/dirs.h"
#include "gpt/safetensors.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

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
    Run *r = run_open(false);
    run_expect_step(t, r, -1, NULL, "empty");
    run_close(r);
}

static void what_was_saved_comes_back_bit_by_bit(TestCtx *t) {
    Run *r = run_open(false);
    run_must_save(t, r, 1000);
    run_expect_step(t, r, 1000, NULL, "first");
    run_must_save(t, r, 123456789012);
    run_expect_step(t, r, 123456789012, NULL, "second");
    run_expect_names(t, r, "latest step-00001000 step-123456789012 ");
    run_close(r);
}

static void the_files_are_plain_safetensors(TestCtx *t) {
    Run *r = run_open(false);
    Safetensors f;
    Error err;
    run_must_save(t, r, 5);
    char *path = run_path(r, "step-00000005/model.safetensors");
    const uint64_t wte[] = {64, 33}, ln[] = {33};
    CHECK(t, safetensors_open(&f, path, &err) && f.n == RUN_TENSORS);
    CHECK(t, safetensors_find(&f, "wte", SAFE_F32, wte, 2, &err));
    CHECK(t, safetensors_find(&f, "h.0.ln_1", SAFE_F32, ln, 1, &err));
    CHECK(t, strcmp(safetensors_meta(&f, "format"), "pt") == 0);
    safetensors_close(&f);
    char *config = checkpoint_config(path, &err);
    CHECK(t, config && strcmp(config, "{\"a\": \"b\"}") == 0);
    run_fill(&r->model, 1);
    CHECK(t, checkpoint_load_file(path, &r->model_part, &err) && r->model.stored == RUN_TENSORS);
    mem_free(config);
    mem_free(path);
    path = run_path(r, "step-00000005/optimizer.safetensors");
    CHECK(t, !checkpoint_config(path, &err));
    CHECK_ERROR(t, err, "holds no config");
    mem_free(path);
    CHECK(t, checkpoint_bytes(&r->model_part, &r->optim_part) ==
                 4 * (2112 + 33 + 231 + 2112 + 2112 + 231));
    run_close(r);
}

static void a_checkpoint_may_be_named_itself(TestCtx *t) {
    Run *r = run_open(false);
    CheckpointFound f;
    Error err;
    run_must_save(t, r, 5);
    run_must_save(t, r, 6);
    char *dir = run_path(r, "step-00000005");
    CHECK(t, checkpoint_find(dir, CHECKPOINT_MODEL_ONLY, &f, &err) && f.state.step == 5);
    CHECK(t, f.dir && strcmp(f.dir, dir) == 0 && !f.notes.n);
    checkpoint_found_free(&f);
    mem_free(dir);
    run_close(r);
}

static void saving_again_replaces(TestCtx *t) {
    Run *r = run_open(false);
    Error err;
    run_must_save(t, r, 5);
    // Other contents under the same step, then the right ones.
    CheckpointState state = run_state(5);
    run_fill(&r->model, 77);
    CHECK(t, checkpoint_save(r->dir, &state, &r->model_part, &r->optim_part, NULL, &err));
    run_must_save(t, r, 5);
    run_expect_step(t, r, 5, NULL, "replaced");
    run_expect_names(t, r, "latest step-00000005 ");
    run_close(r);
}

static void pruning_keeps_the_newest(TestCtx *t) {
    Run *r = run_open(false);
    Error err;
    for (int64_t step = 1; step <= 5; step++)
        run_must_save(t, r, step);
    CHECK(t, checkpoint_prune(r->dir, 0, &err));
    run_expect_names(t, r,
                     "latest step-00000001 step-00000002 step-00000003 step-00000004 "
                     "step-00000005 ");
    CHECK(t, checkpoint_prune(r->dir, 2, &err));
    run_expect_names(t, r, "latest step-00000004 step-00000005 ");
    // After going back to 2, the abandoned 4 and 5 neither count nor vanish.
    run_must_save(t, r, 2);
    run_must_save(t, r, 3);
    CHECK(t, checkpoint_prune(r->dir, 1, &err));
    run_expect_names(t, r, "latest step-00000003 step-00000004 step-00000005 ");
    run_expect_step(t, r, 3, "interrupted save", "gone back");
    // Nothing is deleted while it is unclear which checkpoint is the good one.
    run_write(t, r, "latest", "nonsense");
    CHECK(t, checkpoint_prune(r->dir, 1, &err));
    run_expect_names(t, r, "latest step-00000003 step-00000004 step-00000005 ");
    run_close(r);
}

// --- damage

static void damage_is_reported_and_the_one_before_used(TestCtx *t) {
    static const char *const file[] = {CHECKPOINT_MODEL, CHECKPOINT_OPTIMIZER, CHECKPOINT_STATE};
    Run *r = run_open(false);
    run_must_save(t, r, 1);
    run_must_save(t, r, 2);
    for (int i = 0; i < 3; i++) {
        Buf name = {0};
        buf_printf(&name, "step-00000002/%s", file[i]);
        char *path = run_path(r, name.text);
        uint64_t bytes = 0, at;
        Error err;
        CHECK(t, file_size(path, &bytes, &err));
        for (at = 0; at < bytes; at += i == 2 ? 1 : bytes / 5) {
            flip_byte(t, path, (int64_t)at);
            run_expect_step(t, r, 1, file[i], "flipped byte");
            flip_byte(t, path, (int64_t)at);
        }
        CHECK(t, truncate(path, (off_t)bytes + 1) == 0);
        run_expect_step(t, r, 1, file[i], "one byte more");
        CHECK(t, truncate(path, (off_t)bytes - 1) == 0);
        run_expect_step(t, r, 1, file[i], "truncated");
        CHECK(t, truncate(path, 0) == 0);
        run_expect_step(t, r, 1, "step-00000001 is used instead", "empty");
        CHECK(t, unlink(path) == 0);
        run_expect_step(t, r, 1, file[i], "missing");
        run_must_save(t, r, 2);
        run_expect_step(t, r, 2, NULL, "restored");
        mem_free(path);
        buf_free(&name);
    }
    run_close(r);
}

static void inference_needs_only_the_model(TestCtx *t) {
    Run *r = run_open(false);
    CheckpointFound f;
    Error err;
    run_must_save(t, r, 1);
    run_must_save(t, r, 2);
    char *path = run_path(r, "step-00000002/optimizer.safetensors");
    CHECK(t, unlink(path) == 0);
    CHECK(t, checkpoint_find(r->dir, CHECKPOINT_MODEL_ONLY, &f, &err) && f.state.step == 2);
    CHECK(t, !f.notes.n && checkpoint_load(f.dir, &r->model_part, NULL, &err));
    CHECK(t, r->model.stored == RUN_TENSORS && r->optim.stored == 0);
    checkpoint_found_free(&f);
    run_expect_step(t, r, 1, "optimizer.safetensors: cannot open", "whole");
    mem_free(path);
    run_close(r);
}

static void nothing_whole_is_an_error(TestCtx *t) {
    Run *r = run_open(false);
    run_must_save(t, r, 1);
    run_must_save(t, r, 2);
    char *one = run_path(r, "step-00000001/model.safetensors");
    char *two = run_path(r, "step-00000002/model.safetensors");
    CHECK(t, truncate(one, 100) == 0 && truncate(two, 100) == 0);
    run_expect_step(t, r, -1, "none of the checkpoints is whole", "both damaged");
    mem_free(one);
    mem_free(two);
    run_close(r);
}

static void latest_is_believed_only_when_it_fits(TestCtx *t) {
    Run *r = run_open(false);
    run_must_save(t, r, 1);
    run_must_save(t, r, 2);
    run_must_save(t, r, 3);
    run_write(t, r, "latest", "step-00000002\n");
    run_expect_step(t, r, 2, "step-00000003 is newer", "set back by the user");
    run_write(t, r, "latest", "step-00000002");
    run_expect_step(t, r, 2, "step-00000003 is newer", "without a newline");
    run_write(t, r, "latest", "step-00000009\n");
    run_expect_step(t, r, 3, "step-00000009, which does not exist", "names nothing");
    static const char *const odd[] = {"", "../x", "step-2", "step--0000001", "step-000000000002"};
    for (size_t i = 0; i < sizeof odd / sizeof odd[0]; i++) {
        run_write(t, r, "latest", odd[i]);
        run_expect_step(t, r, 3, "names no checkpoint", odd[i]);
    }
    char *path = run_path(r, "latest"), *dir = run_path(r, "step-00000002");
    CHECK(t, unlink(path) == 0);
    run_expect_step(t, r, 3, "names no checkpoint", "missing");
    // Damaged: what came before is nearer than what came after.
    Error err;
    run_write(t, r, "latest", "step-00000002\n");
    CHECK(t, dir_remove(dir, &err));
    run_expect_step(t, r, 1, "step-00000001 is used instead", "between");
    mem_free(path);
    mem_free(dir);
    run_close(r);
}

static void a_renamed_directory_is_noticed(TestCtx *t) {
    Run *r = run_open(false);
    Error err;
    run_must_save(t, r, 1);
    char *from = run_path(r, "step-00000001"), *to = run_path(r, "step-00000002");
    CHECK(t, file_rename(from, to, &err));
    run_expect_step(t, r, -1, "is of step 1", "renamed");
    mem_free(from);
    mem_free(to);
    run_close(r);
}

static void a_newer_format_is_not_guessed(TestCtx *t) {
    Run *r = run_open(false);
    Error err;
    run_must_save(t, r, 1);
    char *path = run_path(r, "step-00000001/state.json"), *text, *v;
    size_t n;
    CHECK(t, file_read(path, 10000, &text, &n, &err));
    v = strstr(text, "\"version\": 1");
    CHECK(t, v);
    v[11] = '2';
    CHECK(t, file_write_atomic(path, text, n, &err));
    run_expect_step(t, r, -1, "format version 2, this program reads version 1", "version 2");
    mem_free(text);
    mem_free(path);
    run_close(r);
}

static void another_model_is_refused_before_anything_is_stored(TestCtx *t) {
    static const TensorSpec wide = {.name = "h.0.w", .dim = {7, 34}};
    Run *r = run_open(false);
    Error err;
    CheckpointTensor other[RUN_TENSORS + 1];
    run_must_save(t, r, 1);
    char *dir = run_path(r, "step-00000001");
    memcpy(other, run_model_tensors(), RUN_TENSORS * sizeof *other);
    r->model_part.tensor = other;
    other[2].spec = &wide;
    CHECK(t, !checkpoint_load(dir, &r->model_part, &r->optim_part, &err));
    CHECK_ERROR(t, err, "model.safetensors: tensor 'h.0.w' is F32 [7, 33], expected");
    CHECK_ERROR(t, err, "[7, 34]");
    r->model_part.n = 2;
    CHECK(t, !checkpoint_load(dir, &r->model_part, &r->optim_part, &err));
    CHECK_ERROR(t, err, "holds the tensor 'h.0.w', which this configuration lacks");
    other[2] = run_model_tensors()[2];
    other[3] = (CheckpointTensor){"h.1.w", &wide, 3};
    r->model_part.n = 4;
    CHECK(t, !checkpoint_load(dir, &r->model_part, &r->optim_part, &err));
    CHECK_ERROR(t, err, "holds no tensor 'h.1.w'");
    r->model_part = run_part(run_model_tensors(), &r->model);
    r->optim_part.tensor = run_model_tensors();
    CHECK(t, !checkpoint_load(dir, &r->model_part, &r->optim_part, &err));
    CHECK_ERROR(t, err, "optimizer.safetensors: holds no tensor 'wte'");
    CHECK(t, r->model.stored == 0 && r->optim.stored == 0);
    mem_free(dir);
    run_close(r);
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
           another_model_is_refused_before_anything_is_stored})
