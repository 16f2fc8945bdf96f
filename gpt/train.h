// train.h - pretraining: the loop, its guards, evaluation, checkpoints and signals.
#pragma once

#include "data/dataloader.h"
#include "gpt/checkpoint.h"
#include "gpt/evaluate.h"
#include "gpt/logger.h"
#include "gpt/optim.h"
#include "gpt/rundir.h"

typedef struct Trainer {
    Config cfg;
    const Ops *ops;
    Model *m;
    Optimizer *opt;
    DataLoader *train, *val;  // val NULL: no evaluation
    Tokenizer *tok;           // NULL: no bits per byte, no samples
    RunDir run;
    Logger log;
    bool logging;
    CheckpointState n;     // where the run stands: all that resuming needs besides tensors
    int64_t saved_step;    // step of the newest checkpoint, -1: none
    int B, T, accumulate;  // sequences and tokens of a micro-batch, micro-batches of a step
    int *ids, *targets;    // (accumulate * B, T)
    double flops_per_token, peak_flops;
    double start;  // clock and step at which this process began to train
    int64_t start_step;
    const volatile int *stop;  // not 0 once the run shall end
} Trainer;

// Trains until train.steps, or until SIGINT or SIGTERM, which finish the step and write a
// checkpoint; an evaluation or a sample under way is given up. `start` says what becomes of an
// earlier run in the directory. False with a sentence when the run can't start or go on.
bool train_run(const Config *c, const Ops *ops, RunStart start, Error *err);

// --- parts
// Reads the step's samples, forward, backward, optimizer; t->n moves on. The model's weights stay
// as they are when the loss or the gradient is not finite (state->skip).
bool train_step(Trainer *t, StepState *state, Error *err);
// Loss and bits per byte on the first train.eval_tokens targets of the validation data; of fewer
// when t->stop is set.
bool train_evaluate(Trainer *t, EvalSum *sum, Error *err);
// train_state.c: the run's tensors and counters to and from the run directory.
bool train_save(Trainer *t, Error *err);
bool train_restore(Trainer *t, const char *checkpoint_dir, Error *err);
// train_report.c: what the user sees and what metrics.jsonl holds.
bool train_open_log(Trainer *t, Error *err);
void train_print_header(Trainer *t);
void train_report_step(Trainer *t, const StepState *state, double seconds);
void train_report_eval(Trainer *t, const EvalSum *sum);
void train_print_end(Trainer *t, bool finished);
// A text from the model as it is now, with its cache; when there is none, the run goes on, and one
// that t->stop cuts short is not told. check
// tells before the first step whether prompt and model fit.
void train_sample(Trainer *t);
bool train_check_sample(const Trainer *t, Error *err);
