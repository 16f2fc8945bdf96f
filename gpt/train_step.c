// train_step.c - one optimizer step, and evaluation. Evaluation shares the model's activations but
// touches neither gradients nor the step's sums, so it can't change training.
#include "gpt/schedule.h"
#include "gpt/train.h"

static int64_t count_targets(const int *targets, size_t n) {
    int64_t count = 0;
    for (size_t i = 0; i < n; i++)
        count += targets[i] >= 0;
    return count;
}

bool train_step(Trainer *t, StepState *state, Error *err) {
    int sequences = t->accumulate * t->B;
    size_t micro = (size_t)t->B * (size_t)t->T;
    if (!dataloader_read(t->train, t->n.samples, sequences, t->ids, t->targets, err)) return false;
    dataloader_prefetch(t->train, t->n.samples + sequences, sequences);
    // Everything divides by the step's valid targets, counted before the first micro-batch.
    int64_t targets = count_targets(t->targets, micro * (size_t)t->accumulate);
    model_step_begin(t->m);
    for (int k = 0; k < t->accumulate; k++) {
        model_step(t->m, t->ids + (size_t)k * micro, t->targets + (size_t)k * micro,
                   (double)targets, true, k + 1 == t->accumulate, NULL, NULL);
    }
    // AdamW's clock counts updates: a skipped step moved no moments.
    int64_t updates = t->n.step - t->n.skipped_steps;
    optim_step(t->opt, updates, schedule_factor(&t->cfg, t->n.step), state);
    t->n.step++;
    t->n.samples += sequences;
    t->n.tokens += targets;
    t->n.skips_in_row = state->skip ? t->n.skips_in_row + 1 : 0;
    t->n.skipped_steps += state->skip;
    return true;
}

bool train_evaluate(Trainer *t, EvalSum *sum, Error *err) {
    *sum = (EvalSum){0};
    return eval_loader(t->m, t->tok, t->val, t->cfg.train.eval_tokens, t->stop, sum, err);
}
