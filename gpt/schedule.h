// schedule.h - the learning rate as a pure function of the step: resuming needs no state.
#pragma once

#include "gpt/config.h"

// Factor in (0, 1] on every group's peak rate for step 0 <= step < steps. Warmup rises linearly
// from 1/warmup at step 0 to 1; then the kind's shape ends at final_lr on the last step; steps past
// the end keep final_lr.
double schedule_factor(const Config *c, int64_t step);
