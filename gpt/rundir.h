// rundir.h - a run's directory: who may train in it, what it resumes, what belongs to which step.
//
//     RUN/lock             held (flock) while a process trains here
//     RUN/config.json      settings of the latest start, canonical
//     RUN/tokenizer.json   what token ids mean
//     RUN/metrics.jsonl    one JSON object a line, "step" first; metrics.discarded-K.jsonl holds
//                          lines of steps that were undone by going back to a checkpoint
//     RUN/step-*, latest   see checkpoint.h
//
// Deletes nothing of the user's: an old run is moved aside, undone metrics are kept.
#pragma once

#include "gpt/checkpoint.h"
#include "gpt/config.h"

typedef enum RunStart {
    RUN_RESUME,      // go on from a checkpoint when there is one
    RUN_FRESH,       // refuse a directory that holds a run
    RUN_FRESH_ASIDE  // move such a directory to NAME.old-K first
} RunStart;

typedef struct RunDir {
    char *path;
    int lock;               // descriptor of the lock file
    char *checkpoint;       // where to go on from, or NULL at step 0
    CheckpointState state;  // of that checkpoint, else zeros
    Buf notes;              // for the user, a sentence a line
} RunDir;

// Creates the directory if need be, locks it, cleans up after interrupted saves, finds the
// checkpoint, compares configs (keys that must not change are refused, others noted), writes
// config.json and cuts metrics.jsonl to the checkpoint's step. The config must be finished. On
// failure nothing is held.
bool rundir_open(RunDir *r, const char *path, const Config *c, RunStart start, Error *err);
void rundir_close(RunDir *r);

// Writes RUN/name; a run that goes on must hold the same bytes already, or none.
bool rundir_keep_file(const RunDir *r, const char *name, const void *bytes, size_t n, Error *err);
// Moves the lines of steps after `step` out of metrics.jsonl; also after rolling back. Safe while
// the file is open for appending.
bool rundir_rewind_metrics(const RunDir *r, int64_t step, Error *err);
// "RUN/name", the caller's.
char *rundir_file(const RunDir *r, const char *name);
