// sdpa.h - causal attention on the CPU: the sdpa ops of kernels/ops.h in fp32.
// Memory grows with T, never with T*T. The bits do not depend on the number of threads, and those
// of extend for one row of the batch do not depend on the other rows or on how its tokens are cut
// into calls. Masked positions contribute exactly 0 to outputs, also where their keys and values
// are not finite, and cache rows behind a sequence's end are never read. Gradients are not so
// strict: of finite inputs masked pairs get exactly 0, but a value that is not finite may spoil the
// gradients of other positions as well (the step is then skipped as a whole).
#pragma once

#include "kernels/cpu/isa.h"
#include "kernels/ops.h"

#define sdpa_forward_cpu        ISA_FN(sdpa_forward_cpu)
#define sdpa_backward_cpu       ISA_FN(sdpa_backward_cpu)
#define sdpa_extend_cpu         ISA_FN(sdpa_extend_cpu)
#define sdpa_lowrank_extend_cpu ISA_FN(sdpa_lowrank_extend_cpu)

void sdpa_forward_cpu(floatX *out, float *lse, const floatX *q, const floatX *k, const floatX *v,
                      const SdpaArgs *a);
void sdpa_backward_cpu(floatX *dq, floatX *dk, floatX *dv, const floatX *dout, const floatX *out,
                       const float *lse, const floatX *q, const floatX *k, const floatX *v,
                       const SdpaArgs *a);
void sdpa_extend_cpu(floatX *out, const floatX *q, const void *k, const void *v, const SdpaArgs *a);
void sdpa_lowrank_extend_cpu(floatX *out, const floatX *q, const LowRankCache *c,
                             const SdpaArgs *a);
