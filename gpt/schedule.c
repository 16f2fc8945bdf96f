// schedule.c - see schedule.h.
#include "gpt/schedule.h"

#include <math.h>

// Share of the way through [from, to): 0 before it, 1 from its end on.
static double progress(int64_t step, int64_t from, int64_t to) {
    if (step >= to) return 1;
    return step <= from ? 0 : (double)(step - from) / (double)(to - from);
}

double schedule_factor(const Config *c, int64_t step) {
    int64_t warmup = c->schedule.warmup_steps, steps = c->train.steps;
    double final = c->schedule.final_lr;
    if (step < warmup) return (double)(step + 1) / (double)warmup;
    switch ((ScheduleKind)c->schedule.kind) {
    case SCHEDULE_CONSTANT:
        return 1;
    case SCHEDULE_LINEAR:
        return 1 - (1 - final) * progress(step, warmup, steps);
    case SCHEDULE_COSINE:
        return final + (1 - final) * 0.5 *
                           (1 + cos(3.14159265358979323846 * progress(step, warmup, steps)));
    case SCHEDULE_WSD: {
        int64_t decay = (int64_t)llround(c->schedule.decay_fraction * (double)c->train.steps);
        int64_t from = steps - decay < warmup ? warmup : steps - decay;
        return 1 - (1 - final) * progress(step, from, steps);
    }
    }
    return 1;
}
