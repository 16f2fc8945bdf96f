// lowrank_twin.h - attention over cached latents of a CUDA table against the CPU's. The cache is
// NaN behind every sequence's end.
#pragma once

#include "test/kernels/cuda/twin.h"

enum { LOWRANK_B = 3 };

// LRKV: shared rows, latents of each head. MLA: no shared rows, every head reads the same latents,
// for keys and values the same unless they are apart. Large scores without norm and rope come from
// keys that bf16 holds.
typedef struct LowRankCase {
    int T, NH, HS, HV, r, ld_b;
    bool mla, apart, rope, norm, bias, bf16;  // bf16: the cache
    int pos[LOWRANK_B], n_new[LOWRANK_B];
    Scores scores;
} LowRankCase;

void lowrank_twin_extend(TestCtx *t, const Ops *g, LowRankCase c);

// With NaN in one plane of the cache at new token `at` of the first row: that token of every head
// is spoilt, those before it keep their bits. Of the rows that all heads read it is the first
// element, of the latents one of each head.
void lowrank_twin_poison(TestCtx *t, const Ops *g, LowRankCase c, int at);
