// schedule.c - see schedule.h.
#include "gpt/schedule.h"

#include <math.h>

// Share of the way through [from, to], in [0, 1]; 1 where the interval is empty.
static double progress(int64_t step, int64_t from, int64_t to) {
    if (to <= from) return 1;
    double p = (double)(step - from) / (double)(to - from);
    return p < 0 ? 0 : p > 1 ? 1 : p;
}

double schedule_factor(const Config *c, int64_t step) {
    int64_t warmup = c->schedule.warmup_steps, last = c->train.steps - 1;
    double final = c->schedule.final_lr;
    if (step < warmup) return (double)(step + 1) / (double)warmup;
    switch ((ScheduleKind)c->schedule.kind) {
    case SCHEDULE_CONSTANT:
        return 1;
    case SCHEDULE_LINEAR:
        return 1 - (1 - final) * progress(step, warmup, last);
    case SCHEDULE_COSINE:
        return final +
               (1 - final) * 0.5 * (1 + cos(3.14159265358979323846 * progress(step, warmup, last)));
    case SCHEDULE_WSD: {
        int64_t decay = (int64_t)llround(c->schedule.decay_fraction * (double)c->train.steps);
        int64_t from = last - decay < warmup ? warmup : last - decay;
        return 1 - (1 - final) * progress(step, from, last);
    }
    }
    return 1;
}
