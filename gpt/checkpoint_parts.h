// checkpoint_parts.h - what the checkpoint_*.c files share: state.json and names.
#pragma once

#include "gpt/checkpoint.h"

enum { CHECKPOINT_FILES = 2 };

// state.json in memory.
typedef struct CheckpointRecord {
    CheckpointState state;
    struct {
        uint64_t bytes, hash;
    } file[CHECKPOINT_FILES];  // model, optimizer
} CheckpointRecord;

const char *checkpoint_file_name(int file);

// Appends the text of state.json; its last field is a hash of everything before it.
void checkpoint_record_print(Buf *b, const CheckpointRecord *r);
// Reads DIR/state.json.
bool checkpoint_record_read(CheckpointRecord *r, const char *dir, Error *err);

// "step-00001000" for 1000.
void checkpoint_name(char name[32], int64_t step);
// The step of such a name, or -1.
int64_t checkpoint_step(const char *name);
// The step that RUN/latest names, or -1 when it is missing or says something else.
int64_t checkpoint_latest(const char *run_dir);

// Steps of the checkpoints in a run, descending.
typedef struct StepList {
    int64_t *step;
    int n;
} StepList;
bool checkpoint_steps(StepList *l, const char *run_dir, Error *err);
