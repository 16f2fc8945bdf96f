// checkpoint_load.c - finding a whole checkpoint and reading it; see checkpoint.h.
#include "gpt/checkpoint.h"

#include "gpt/checkpoint_parts.h"
#include "gpt/dirs.h"
#include "gpt/safetensors.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static bool verify_file(const CheckpointRecord *r, int file, const char *dir, Error *err) {
    char *path = path_join(dir, checkpoint_file_name(file));
    uint64_t bytes = 0, hash = 0, want = r->file[file].bytes;
    bool ok = file_size(path, &bytes, err);
    if (ok && bytes != want)
        ok = error_set(err, "%s: has %" PRIu64 " bytes, expected %" PRIu64, path, bytes, want);
    if (ok) ok = file_hash(path, &bytes, &hash, err);
    if (ok && hash != r->file[file].hash)
        ok = error_set(err, "%s: damaged (the hash of its contents does not agree)", path);
    mem_free(path);
    return ok;
}

static const char *base_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

bool checkpoint_verify(const char *dir, CheckpointScope scope, CheckpointState *state, Error *err) {
    CheckpointRecord r;
    if (!checkpoint_record_read(&r, dir, err)) return false;
    int64_t named = checkpoint_step(base_name(dir));
    if (named >= 0 && named != r.state.step) {
        return error_set(err, "%s/%s: is of step %" PRId64 ", not of the directory's name", dir,
                         CHECKPOINT_STATE, r.state.step);
    }
    int n = scope == CHECKPOINT_WHOLE ? CHECKPOINT_FILES : 1;
    for (int i = 0; i < n; i++) {
        if (!verify_file(&r, i, dir, err)) return false;
    }
    *state = r.state;
    return true;
}

// Verifies RUN/step-N; remembers the first reason for failure.
static bool try_step(const char *run_dir, int64_t step, CheckpointScope scope,
                     CheckpointFound *found, Error *first) {
    char name[32];
    Error err;
    checkpoint_name(name, step);
    char *dir = path_join(run_dir, name);
    if (checkpoint_verify(dir, scope, &found->state, &err)) {
        found->dir = dir;
        return true;
    }
    mem_free(dir);
    buf_printf(&found->notes, "%s; %s is not used\n", err.text, name);
    if (!first->text[0]) *first = err;
    return false;
}

// In the order of trust: what `latest` names, what came before it, what came after it.
static bool try_all(const char *run_dir, const StepList *l, int64_t latest, CheckpointScope scope,
                    CheckpointFound *found, Error *first) {
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < l->n; i++) {
            bool after = latest >= 0 && l->step[i] > latest;
            if (after == (round == 1) && try_step(run_dir, l->step[i], scope, found, first))
                return true;
        }
    }
    return false;
}

static void note_latest(Buf *notes, const char *run_dir, const StepList *l, int64_t latest) {
    bool there = false;
    for (int i = 0; i < l->n; i++)
        there |= l->step[i] == latest;
    if (latest < 0) {
        buf_printf(notes, "%s/latest: names no checkpoint; the newest is tried\n", run_dir);
    } else if (!there) {
        buf_printf(notes, "%s/latest: names step-%08" PRId64 ", which does not exist\n", run_dir,
                   latest);
    }
}

static void note_newer(Buf *notes, const char *run_dir, const StepList *l, int64_t used,
                       int64_t latest) {
    if (latest >= 0 && used <= latest && l->step[0] > latest) {
        buf_printf(notes,
                   "%s: step-%08" PRId64
                   " is newer than what `latest` names (an interrupted save) and is not used\n",
                   run_dir, l->step[0]);
    }
}

static bool find_in_run(const char *run_dir, CheckpointScope scope, CheckpointFound *found,
                        Error *err) {
    StepList l;
    Error first = {{0}};
    if (!checkpoint_steps(&l, run_dir, err)) return false;
    int64_t latest = checkpoint_latest(run_dir);
    bool ok = true;
    if (l.n) {
        note_latest(&found->notes, run_dir, &l, latest);
        ok = try_all(run_dir, &l, latest, scope, found, &first);
    }
    if (found->dir) {
        note_newer(&found->notes, run_dir, &l, found->state.step, latest);
        if (found->state.step != latest)
            buf_printf(&found->notes, "%s is used instead\n", found->dir);
    }
    mem_free(l.step);
    if (ok) return true;
    return error_set(err, "%s: none of the checkpoints is whole (%.500s)", run_dir, first.text);
}

bool checkpoint_find(const char *run_dir, CheckpointScope scope, CheckpointFound *found,
                     Error *err) {
    *found = (CheckpointFound){0};
    char *state = path_join(run_dir, CHECKPOINT_STATE);
    bool is_checkpoint = file_exists(state);
    mem_free(state);
    if (!is_checkpoint) return find_in_run(run_dir, scope, found, err);
    if (!checkpoint_verify(run_dir, scope, &found->state, err)) return false;
    found->dir = str_copy(run_dir);
    return true;
}

void checkpoint_found_free(CheckpointFound *found) {
    mem_free(found->dir);
    buf_free(&found->notes);
    *found = (CheckpointFound){0};
}

// The file's row for each tensor of the part, in its order; exactly these may exist.
static bool match_tensors(const Safetensors *f, const CheckpointPart *p, const SafeTensor **row,
                          Error *err) {
    for (int i = 0; i < p->n; i++) {
        const TensorSpec *s = p->tensor[i].spec;
        uint64_t shape[2] = {(uint64_t)s->dim[0], (uint64_t)s->dim[1]};
        row[i] = safetensors_find(f, p->tensor[i].name, SAFE_FLOAT, shape, s->dim[1] ? 2 : 1, err);
        if (!row[i]) return false;
    }
    if (f->n == (size_t)p->n) return true;
    for (size_t k = 0; k < f->n; k++) {
        bool known = false;
        for (int i = 0; i < p->n && !known; i++)
            known = row[i] == &f->tensor[k];
        if (!known)
            return error_set(err, "%s: holds the tensor '%.80s', which this configuration lacks",
                             f->path, f->tensor[k].name);
    }
    return error_set(err, "%s: a tensor is asked for twice", f->path);
}

// An open file and the rows that a part wants from it.
typedef struct OpenPart {
    const CheckpointPart *part;
    Safetensors file;
    const SafeTensor **row;
    bool is_open;
} OpenPart;

static bool part_open(OpenPart *o, const char *path, Error *err) {
    if (!safetensors_open(&o->file, path, err)) return false;
    o->is_open = true;
    o->row = mem_alloc((size_t)o->part->n, sizeof *o->row);
    return match_tensors(&o->file, o->part, o->row, err);
}

static bool part_store(const OpenPart *o, Error *err) {
    const CheckpointPart *p = o->part;
    size_t biggest = 0;
    for (int i = 0; i < p->n; i++) {
        size_t n = spec_logical(p->tensor[i].spec);
        if (n > biggest) biggest = n;
    }
    float *logical = mem_alloc(biggest, sizeof *logical);
    bool ok = true;
    for (int i = 0; ok && i < p->n; i++) {
        size_t n = spec_logical(p->tensor[i].spec);
        ok = safetensors_read(&o->file, o->row[i], 0, n, logical, err);
        if (ok) p->store(p->ctx, p->tensor[i].index, logical);
    }
    mem_free(logical);
    return ok;
}

static void part_close(OpenPart *o) {
    if (o->is_open) safetensors_close(&o->file);
    mem_free(o->row);
}

bool checkpoint_load(const char *dir, const CheckpointPart *model, const CheckpointPart *optimizer,
                     Error *err) {
    OpenPart open[CHECKPOINT_FILES] = {{.part = model}, {.part = optimizer}};
    bool ok = true;
    for (int i = 0; ok && i < CHECKPOINT_FILES; i++) {
        if (!open[i].part) continue;
        char *path = path_join(dir, checkpoint_file_name(i));
        ok = part_open(&open[i], path, err);
        mem_free(path);
    }
    for (int i = 0; ok && i < CHECKPOINT_FILES; i++) {
        if (open[i].part) ok = part_store(&open[i], err);
    }
    for (int i = 0; i < CHECKPOINT_FILES; i++)
        part_close(&open[i]);
    return ok;
}

bool checkpoint_load_file(const char *path, const CheckpointPart *part, Error *err) {
    OpenPart open = {.part = part};
    bool ok = part_open(&open, path, err) && part_store(&open, err);
    part_close(&open);
    return ok;
}

char *checkpoint_config(const char *model_path, Error *err) {
    Safetensors f;
    if (!safetensors_open(&f, model_path, err)) return NULL;
    const char *text = safetensors_meta(&f, "config");
    char *copy = text ? str_copy(text) : NULL;
    if (!copy) error_set(err, "%s: holds no config in its metadata", model_path);
    safetensors_close(&f);
    return copy;
}
