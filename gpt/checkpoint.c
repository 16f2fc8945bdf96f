// checkpoint.c - saving: a temporary directory, flushed, read back by size, renamed, then `latest`.
// At every moment the run directory holds the checkpoint that `latest` names, whole. The one
// exception is replacing a checkpoint of the same step: between two renames it lies beside its
// name, as .old-step-N-PID, and checkpoint_clean puts it back.
#define _POSIX_C_SOURCE 200809L
#include "gpt/checkpoint.h"

#include "gpt/checkpoint_parts.h"
#include "gpt/dirs.h"
#include "gpt/safetensors.h"

#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int spec_shape(const TensorSpec *s, uint64_t shape[2]) {
    shape[0] = (uint64_t)s->dim[0];
    shape[1] = (uint64_t)s->dim[1];
    return s->dim[1] ? 2 : 1;
}

static uint64_t part_bytes(const CheckpointPart *p) {
    uint64_t sum = 0;
    for (int i = 0; i < p->n; i++)
        sum += sizeof(float) * (uint64_t)spec_logical(p->tensor[i].spec);
    return sum;
}

uint64_t checkpoint_bytes(const CheckpointPart *model, const CheckpointPart *optimizer) {
    return part_bytes(model) + part_bytes(optimizer);
}

static bool write_tensors(SafeWriter *w, const CheckpointPart *p, Error *err) {
    size_t biggest = 0;
    for (int i = 0; i < p->n; i++) {
        size_t n = spec_logical(p->tensor[i].spec);
        if (n > biggest) biggest = n;
    }
    float *logical = mem_alloc(biggest, sizeof *logical);
    bool ok = true;
    for (int i = 0; ok && i < p->n; i++) {
        p->fetch(p->ctx, p->tensor[i].index, logical);
        ok = safewriter_write(w, logical, spec_logical(p->tensor[i].spec) * sizeof *logical, err);
    }
    mem_free(logical);
    return ok;
}

static bool write_part(CheckpointRecord *r, int file, const char *dir, const CheckpointPart *p,
                       const char *config_json, Error *err) {
    char *path = path_join(dir, checkpoint_file_name(file));
    SafeWriter w;
    bool ok = safewriter_open(&w, path, err);
    if (ok) {
        safewriter_meta(&w, "format", "pt");  // row-major as PyTorch's; Hugging Face asks for it
        if (config_json) safewriter_meta(&w, "config", config_json);
        for (int i = 0; i < p->n; i++) {
            uint64_t shape[2];
            int rank = spec_shape(p->tensor[i].spec, shape);
            safewriter_declare(&w, p->tensor[i].name, SAFE_F32, shape, rank);
        }
        ok = safewriter_begin(&w, err) && write_tensors(&w, p, err) && safewriter_close(&w, err);
        if (!ok) safewriter_abort(&w);
    }
    r->file[file].bytes = w.bytes;
    r->file[file].hash = hash64_value(&w.hash);
    mem_free(path);
    return ok;
}

static bool write_record(const CheckpointRecord *r, const char *dir, Error *err) {
    char *path = path_join(dir, CHECKPOINT_STATE);
    Buf text = {0};
    checkpoint_record_print(&text, r);
    bool ok = file_write_atomic(path, text.text, text.n, err);
    buf_free(&text);
    mem_free(path);
    return ok;
}

// state.json reads back as it was, and the other files have the sizes it states.
static bool read_back(const CheckpointRecord *r, const char *dir, Error *err) {
    CheckpointRecord found;
    if (!checkpoint_record_read(&found, dir, err)) return false;
    if (memcmp(&found, r, sizeof found) != 0)
        return error_set(err, "%s/%s: reads back differently", dir, CHECKPOINT_STATE);
    bool ok = true;
    for (int i = 0; ok && i < CHECKPOINT_FILES; i++) {
        char *path = path_join(dir, checkpoint_file_name(i));
        uint64_t bytes = 0;
        ok = file_size(path, &bytes, err);
        if (ok && bytes != r->file[i].bytes)
            ok = error_set(err, "%s: %" PRIu64 " bytes were written, the file has %" PRIu64, path,
                           r->file[i].bytes, bytes);
        mem_free(path);
    }
    return ok;
}

static bool write_all(const char *dir, const CheckpointState *state, const CheckpointPart *model,
                      const CheckpointPart *optimizer, const char *config_json, Error *err) {
    CheckpointRecord r = {.state = *state};
    return dir_make(dir, err) && write_part(&r, 0, dir, model, config_json, err) &&
           write_part(&r, 1, dir, optimizer, NULL, err) && write_record(&r, dir, err) &&
           dir_sync(dir, err) && read_back(&r, dir, err);
}

static bool move_latest(const char *run_dir, const char *name, Error *err) {
    char *path = path_join(run_dir, "latest");
    Buf text = {0};
    buf_printf(&text, "%s\n", name);
    bool ok = file_write_atomic(path, text.text, text.n, err) && dir_sync(run_dir, err);
    buf_free(&text);
    mem_free(path);
    return ok;
}

// RUN/.KIND-step-N-PID
static char *side_path(const char *run_dir, const char *kind, const char *name) {
    Buf b = {0};
    buf_printf(&b, "%s/.%s-%s-%ld", run_dir, kind, name, (long)getpid());
    return b.text;
}

static bool entry_exists(const char *path) {
    struct stat st;
    return lstat(path, &st) == 0;
}

// Puts tmp in the place of RUN/name; undone when a step fails.
static bool publish(const char *run_dir, const char *tmp, const char *name, Error *err) {
    char *final = path_join(run_dir, name), *old = side_path(run_dir, "old", name);
    bool replaces = entry_exists(final), placed = false;
    bool ok = !replaces || (dir_remove(old, err) && file_rename(final, old, err));
    bool moved = ok && replaces;
    if (ok) ok = placed = file_rename(tmp, final, err);
    ok = ok && dir_sync(run_dir, err) && move_latest(run_dir, name, err);
    Error ignored;
    if (!ok && placed) file_rename(final, tmp, &ignored);
    if (!ok && moved) file_rename(old, final, &ignored);
    if (ok && moved) dir_remove(old, &ignored);  // else checkpoint_clean does
    mem_free(final);
    mem_free(old);
    return ok;
}

// "cause; the checkpoint ... was not written: ..."
static void explain_failure(const char *run_dir, const char *name, uint64_t needed, Error *err) {
    Error cause = *err;
    char remains[64] = "no earlier one exists";
    int64_t latest = checkpoint_latest(run_dir);
    if (latest >= 0) snprintf(remains, sizeof remains, "step-%08" PRId64 " remains", latest);
    error_set(
        err,
        "%.400s; the checkpoint %s was not written (it needs %.1f MB, %.1f MB are free there), "
        "%s",
        cause.text, name, (double)needed * 1e-6, (double)disk_free_bytes(run_dir) * 1e-6, remains);
}

bool checkpoint_save(const char *run_dir, const CheckpointState *state, const CheckpointPart *model,
                     const CheckpointPart *optimizer, const char *config_json, Error *err) {
    char name[32];
    checkpoint_name(name, state->step);
    char *tmp = side_path(run_dir, "tmp", name);
    Error ignored;
    bool ok = dir_remove(tmp, err) && write_all(tmp, state, model, optimizer, config_json, err) &&
              publish(run_dir, tmp, name, err);
    if (!ok) {
        dir_remove(tmp, &ignored);
        explain_failure(run_dir, name, checkpoint_bytes(model, optimizer), err);
    }
    mem_free(tmp);
    return ok;
}

bool checkpoint_prune(const char *run_dir, int keep, Error *err) {
    int64_t latest = checkpoint_latest(run_dir);
    StepList steps;
    if (keep <= 0 || latest < 0) return true;
    if (!checkpoint_steps(&steps, run_dir, err)) return false;
    bool ok = true;
    for (int i = 0, kept = 0; ok && i < steps.n; i++) {
        if (steps.step[i] > latest || kept++ < keep) continue;
        char name[32];
        checkpoint_name(name, steps.step[i]);
        char *path = path_join(run_dir, name);
        ok = dir_remove(path, err);
        mem_free(path);
    }
    mem_free(steps.step);
    return ok;
}

// "step-N" of ".old-step-N-PID"; false when the name is of another kind.
static bool old_name(const char *entry, char name[32]) {
    static const char prefix[] = ".old-";
    const char *rest = entry + strlen(prefix), *dash = strrchr(entry, '-');
    if (strncmp(entry, prefix, strlen(prefix)) != 0 || dash <= rest || dash - rest >= 32)
        return false;
    snprintf(name, 32, "%.*s", (int)(dash - rest), rest);
    return checkpoint_step(name) >= 0;
}

static bool is_leftover(const char *entry) {
    static const char *const prefix[] = {".tmp-step-", "latest.tmp-", "config.json.tmp-",
                                         "tokenizer.json.tmp-"};
    for (size_t i = 0; i < sizeof prefix / sizeof prefix[0]; i++) {
        if (strncmp(entry, prefix[i], strlen(prefix[i])) == 0) return true;
    }
    return false;
}

static bool clean_entry(const char *run_dir, const char *entry, Error *err) {
    char name[32], *path = path_join(run_dir, entry);
    bool ok = true;
    if (old_name(entry, name)) {
        char *final = path_join(run_dir, name);
        ok = entry_exists(final) ? dir_remove(path, err) : file_rename(path, final, err);
        mem_free(final);
    } else if (is_leftover(entry)) {
        ok = dir_remove(path, err);
    }
    mem_free(path);
    return ok;
}

bool checkpoint_clean(const char *run_dir, Error *err) {
    DirList dir;
    if (!dir_list(&dir, run_dir, err)) return false;
    bool ok = true;
    for (int i = 0; ok && i < dir.n; i++)
        ok = clean_entry(run_dir, dir.name[i], err);
    dir_list_free(&dir);
    return ok && dir_sync(run_dir, err);
}
