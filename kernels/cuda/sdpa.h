// sdpa.h - causal attention on CUDA: sdpa_forward, _backward, _extend, sdpa_lowrank_extend and
// lowrank_forward, _backward of kernels/ops.h. What the files sdpa*.cu and lowrank*.cu share with
// each other; everybody else goes through the op table.
// Deterministic unless SdpaArgs.any_order: no float atomics, sums in a fixed order. Every head size
// in fp32 and bf16 runs on the plain kernels (sdpa_plain.h, lowrank_plain*.cu); bf16 with usual
// head sizes on tensor cores. Keys and values that are not finite spoil no output of a query before
// them (gradients they do).
#pragma once

#include "kernels/cuda/device.h"
