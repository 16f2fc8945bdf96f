// lowrank.h - training form of low-rank keys and values on the CPU; contracts in kernels/ops.h.
#pragma once

#include "kernels/cpu/isa.h"
#include "kernels/ops.h"

#define lowrank_forward_cpu  ISA_FN(lowrank_forward_cpu)
#define lowrank_backward_cpu ISA_FN(lowrank_backward_cpu)

void lowrank_forward_cpu(floatX *out, float *rstd, const floatX *s, const floatX *z,
                         const floatX *b, const LowRankArgs *a);
void lowrank_backward_cpu(floatX *ds, floatX *dz, float *db, floatX *dout, const floatX *y,
                          const float *rstd, const floatX *z, const floatX *b,
                          const LowRankArgs *a);
