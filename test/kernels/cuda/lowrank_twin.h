// lowrank_twin.h - attention over cached latents of a CUDA table against the CPU's. The cache is
// NaN behind every sequence's end.
#pragma once

#include "test/kernels/cuda/twin.h"

enum { LOWRANK_B = 3 };

// LRKV: shared rows, latents of each head. MLA: no shared rows, every head reads the same latents,
// for keys and values the same unless they are apart. Large scores without norm and rope come from
// keys that bf16 holds. The first row is the last in memory, so that the longest one can fill the
// cache up to its end.
typedef struct LowRankCase {
    int T, NH, HS, HV, r, ld_b;
    bool mla, apart, rope, norm, bias, bf16;  // bf16: the cache
    int pos[LOWRANK_B], n_new[LOWRANK_B];
    Scores scores;
    // What mla says is not so: of shared keys, of shared values, of who reads which latents.
    bool other_ks, other_vs, other_z;
    // The plane (1 ks, 2 vs, 3 zk, 4 zv) that lies one element behind its alignment; elements
    // between rows of the batch in all of them, and between tokens of q.
    int shifted, batch_pad, q_pad;
} LowRankCase;

void lowrank_twin_extend(TestCtx *t, const Ops *g, LowRankCase c);

// With NaN or an infinity in one plane of the cache at new token `at` of the first row: that token
// of every head is spoilt, those before it keep their bits. Of the rows that all heads read it is
// the first element, of the latents one of each head.
void lowrank_twin_poison(TestCtx *t, const Ops *g, LowRankCase c, int at, float bad);
