// checkpoint.h - what a run leaves on disk to go on from, written so that it is whole or not there:
//
//     RUN/step-00001000/model.safetensors      fp32, logical shapes; the config in the metadata
//                       optimizer.safetensors  fp32, logical shapes; state named by the optimizer
//                       state.json             counters, and size and hash of the other two
//     RUN/latest                               name of the newest whole checkpoint, moved last
//
// Knows no model and no optimizer: tensors come and go through callbacks, one at a time.
// What comes back from disk is believed only after sizes and hashes agree.
#pragma once

#include "gpt/tensor.h"

#define CHECKPOINT_MODEL     "model.safetensors"
#define CHECKPOINT_OPTIMIZER "optimizer.safetensors"
#define CHECKPOINT_STATE     "state.json"

typedef struct CheckpointTensor {
    char name[64];
    const TensorSpec *spec;  // its dim is the shape in the file
    int index;               // given back to the callbacks
} CheckpointTensor;

// The tensors of one file. logical is host fp32, (dim[0], dim[1]) row-major without padding.
typedef struct CheckpointPart {
    const CheckpointTensor *tensor;  // (n)
    int n;
    void *ctx;
    void (*fetch)(void *ctx, int index, float *logical);        // for saving
    void (*store)(void *ctx, int index, const float *logical);  // for loading
} CheckpointPart;

// Where the run stands. Schedules and random numbers are pure functions of the step.
typedef struct CheckpointState {
    int64_t step;           // optimizer steps done, skipped ones included
    int64_t samples;        // position in the data: sequences consumed by all ranks together
    int64_t tokens;         // targets trained on
    int64_t skipped_steps;  // steps whose loss or gradient was not finite
    int64_t skips_in_row;   // of these, the last ones without a good step between
    int64_t rollbacks;
    uint64_t tokenizer_hash, data_fingerprint;
} CheckpointState;

// Writes RUN/step-N (N = state->step), replacing one of that name, then moves `latest`. On failure
// everything on disk is as before and the sentence says how much space there is.
bool checkpoint_save(const char *run_dir, const CheckpointState *state, const CheckpointPart *model,
                     const CheckpointPart *optimizer, const char *config_json, Error *err);
// What one save writes, without headers.
uint64_t checkpoint_bytes(const CheckpointPart *model, const CheckpointPart *optimizer);

// Which files a reader needs.
typedef enum CheckpointScope { CHECKPOINT_MODEL_ONLY, CHECKPOINT_WHOLE } CheckpointScope;

typedef struct CheckpointFound {
    char *dir;              // the checkpoint's directory, or NULL when the run holds none
    CheckpointState state;  // zeros when there is none
    Buf notes;              // what was passed over and why, a sentence a line; for the user
} CheckpointFound;

// The checkpoint to use: the one `latest` names, else the newest whole one before it, else the
// newest whole one; run_dir may also be a checkpoint itself. Fails when there are checkpoints but
// none is whole. Free with checkpoint_found_free in every case.
bool checkpoint_find(const char *run_dir, CheckpointScope scope, CheckpointFound *found,
                     Error *err);
void checkpoint_found_free(CheckpointFound *found);
// Sizes and hashes of one checkpoint against its state.json.
bool checkpoint_verify(const char *dir, CheckpointScope scope, CheckpointState *state, Error *err);

// Hands every tensor of both parts to store; a part may be NULL. Names and shapes are compared
// before the first store, so that a misfit leaves the caller's tensors alone; after a read error
// they are partly set.
bool checkpoint_load(const char *dir, const CheckpointPart *model, const CheckpointPart *optimizer,
                     Error *err);
// One safetensors file with exactly these tensors; F32, BF16 or F16.
bool checkpoint_load_file(const char *path, const CheckpointPart *part, Error *err);
// The config text in a model file's metadata; the caller frees it with mem_free.
char *checkpoint_config(const char *model_path, Error *err);

// --- maintenance, under the run's lock
// Deletes what interrupted saves left behind and puts back what an interrupted replacement moved.
bool checkpoint_clean(const char *run_dir, Error *err);
// Deletes all but the newest `keep` checkpoints (0: deletes none), never the one `latest` names.
// Checkpoints newer than `latest` are neither counted nor touched.
bool checkpoint_prune(const char *run_dir, int keep, Error *err);
