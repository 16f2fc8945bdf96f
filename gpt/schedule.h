// schedule.h - the learning rate as a pure function of the step: resuming needs no state.
#pragma once

#include "gpt/config.h"

// Factor in (0, 1] on every group's peak rate for step 0 <= step < steps. Warmup rises linearly
// from 1/warmup at step 0 to 1; then the kind's shape falls towards final_lr, which it reaches
// behind the last step, so that with final_lr 0 no step is wasted; steps past the end keep
// final_lr.
double schedule_factor(const Config *c, int64_t step);
