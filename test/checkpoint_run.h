// checkpoint_run.h - a small "model" and its "optimizer" for the checkpoint tests: arrays that are
// a function of the step, so that what comes back can be told bit by bit.
#pragma once

#include "test/test.h"

#include "gpt/checkpoint.h"

#include <string.h>

enum { RUN_TENSORS = 3, RUN_WIDEST = 64 * 33 };

typedef struct RunArrays {
    bool is_optimizer;
    float value[RUN_TENSORS][RUN_WIDEST];
    int stored;  // calls of the store callback
} RunArrays;

typedef struct Run {
    char *dir;
    RunArrays model, optim;
    CheckpointPart model_part, optim_part;
} Run;

// In a temporary directory; `fast`: in memory where there is such a place, for hundreds of saves.
Run *run_open(bool fast);
void run_close(Run *r);
// The tensors of the model: wte (64, 33), h.0.ln_1 (33), h.0.w (7, 33).
const CheckpointTensor *run_model_tensors(void);
CheckpointPart run_part(const CheckpointTensor *t, RunArrays *a);

void run_fill(RunArrays *a, int64_t step);
CheckpointState run_state(int64_t step);
bool run_save(Run *r, int64_t step, Error *err);
void run_must_save(TestCtx *t, Run *r, int64_t step);

// The step found, whose contents are checked bit by bit; -1 when none is found. Adds sentences.
int64_t run_found_step(TestCtx *t, Run *r, Buf *notes);
// Expects the step, and the words in the notes (NULL: no notes at all).
void run_expect_step(TestCtx *t, Run *r, int64_t want, const char *words, const char *label);
// Expects these names in the directory, in order, with a space behind each.
void run_expect_names(TestCtx *t, const Run *r, const char *want);
void run_write(TestCtx *t, const Run *r, const char *name, const char *text);
// The caller's.
char *run_path(const Run *r, const char *name);
