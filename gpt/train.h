// train.h - pretraining: the loop, its guards, evaluation, checkpoints and signals.
#pragma once

#include "data/dataloader.h"
#include "gpt/checkpoint.h"
#include "gpt/evaluate.h"
#include "gpt/logger.h"
#include "gpt/optim.h"
#include "gpt/rundir.h"

// What a checkpoint's state.json keeps of the run besides tensors. Everything else is a function of
// the config and these numbers.
typedef struct TrainCounters {
    int64_t step;      // steps done, skipped ones included: the schedule's clock
    int64_t updates;   // optimizer updates done: AdamW's clock
    int64_t position;  // next sample of the training data, counted over all epochs
    int64_t tokens;    // trained on
    int64_t skipped;   // steps without an update because loss or gradient was not finite
    int64_t in_a_row;  // the latest of them without a good step between
    int64_t rollbacks;
} TrainCounters;

typedef struct Trainer {
    Config cfg;
    const Ops *ops;
    Model *m;
    Optimizer *opt;
    DataLoader *train, *val;  // val NULL: no evaluation
    Tokenizer *tok;           // NULL: no bits per byte, no samples
    RunDir *run;
    Logger *log;
    TrainCounters n;
    int B, T, accumulate;  // sequences and tokens of a micro-batch, micro-batches of a step
    int *ids, *targets;    // (accumulate * B, T)
    double flops_per_token, peak_flops;
    double first_second;  // clock at the first step of this process
    int64_t first_step;
} Trainer;

// Trains until train.steps, or until SIGINT or SIGTERM, which finish the step and write a
// checkpoint. Goes on from the run directory's newest good checkpoint when it holds one; `fresh`
// starts anew and moves what was there aside. False with a sentence when the run can't start or
// can't go on.
bool train_run(const Config *c, const Ops *ops, bool fresh, Error *err);

// --- parts, for tests
// Micro-batch for a config that leaves it open: the largest divisor of the step's sequences that
// keeps a micro-batch within 8192 tokens.
int train_micro_batch(const Config *c);
// Reads the step's samples, forward, backward, optimizer; counters move on. False when reading
// fails.
bool train_step(Trainer *t, StepState *state, Error *err);
