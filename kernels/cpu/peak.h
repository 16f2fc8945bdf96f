// peak.h - what this machine can do at best with this instruction set, measured in about 0.2 s each
// on all OpenMP threads: the yardstick for every other speed. Neighbours on the machine lower it.
#pragma once

#include <stdbool.h>

#include "kernels/cpu/isa.h"

#define peak_fma_flops  ISA_FN(peak_fma_flops)
#define peak_bf16_flops ISA_FN(peak_bf16_flops)
#define peak_has_bf16   ISA_FN(peak_has_bf16)
#define peak_read_bytes ISA_FN(peak_read_bytes)

// fp32 multiply-adds in registers, FLOP/s (two per multiply-add).
double peak_fma_flops(void);
// Products of bf16 pairs in registers, FLOP/s (four per pair). Without the instruction this is the
// fp32 peak, which the replacement can't exceed.
double peak_bf16_flops(void);
// This set has the instruction for bf16 pairs.
bool peak_has_bf16(void);
// Bytes per second read from a buffer of 256 MiB.
double peak_read_bytes(void);
