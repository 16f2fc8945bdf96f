// plan.h - what a config means in numbers: parameters, FLOPs, memory and cache. Allocates no model.
#pragma once

#include "gpt/model.h"

// Bytes by lifetime, for one process.
typedef struct PlanBytes {
    size_t parameters;
    size_t gradients;    // fp32
    size_t optimizer;    // moments, momenta, fp32 masters, Muon's work space
    size_t activations;  // of one micro-batch, with the gradients of activations and scratch
    size_t prepared;     // packed copies of weights
    size_t derived;      // tensors rebuilt from parameters, their packed copies and gradients
    size_t tables;       // rotary table, token ids and targets of a step
    size_t total;
} PlanBytes;

// FLOPs of one trained token, forward and backward, a multiply-add counting as two.
typedef struct PlanFlops {
    // Conventions for MFU. N: parameters that products read (no embedding look-up); K, V: widths of
    // a head's key and value; T: sequence length.
    double causal;  // 6 N + 3 L H (K + V) T: each query meets T/2 keys (llm.c)
    double full;    // 6 N + 6 L H (K + V) T: each query meets all (nanoGPT, nanochat)
    // What the code computes: padded ranks, the merged matrices of lrkv when they are used,
    // (T + 1)/2 keys a query, and in the backward pass the scores once more:
    // 6 N' + L H (8 K + 6 V) (T + 1)/2. Rounding to tiles is not in it.
    double executed;
    double optimizer_step;  // products of Muon, and of merging, once a step
} PlanFlops;

typedef struct PlanCache {
    size_t values;              // of one token in one layer
    ElemType type;              // TYPE_F32 or TYPE_BF16
    size_t token_layer_bytes;   // values in that type
    size_t sequence_bytes;      // seq_len tokens in all layers, by that formula
    size_t sequence_allocated;  // the same as really allocated
    double share_of_mha;        // values over 2 H d_h
} PlanCache;

typedef struct Plan {
    Config cfg;
    const char *device;
    TensorTable table;
    int kind_tensors[N_KINDS];
    size_t kind_parameters[N_KINDS];
    size_t parameters;     // with the vocabulary padded to a multiple of 128, ranks as configured
    size_t unpadded;       // with the vocabulary as it is
    size_t non_embedding;  // without embedding tables and head
    size_t in_products;    // N above: matrices and the head (or the tied embedding)
    int micro_batch;       // sequences
    int ranks;
    int64_t micro_steps;  // of each rank in a step
    int64_t tokens;       // of the whole run
    PlanFlops flops;
    PlanBytes bytes;
    PlanCache cache;
    size_t generate_bytes;  // parameters, prepared, derived and one sequence's cache: no training
    double seconds;         // of the run at the given speed, 0: no speed given
} Plan;

// The config must have passed config_finish. ranks >= 1 processes share a step's tokens;
// tokens_per_second (all ranks) is a measured speed or 0. False with a sentence when the step's
// sequences can't be divided over the ranks. Free with plan_free.
bool plan_compute(Plan *out, const Config *c, const Ops *ops, int ranks, double tokens_per_second,
                  Error *err);
void plan_free(Plan *p);

// For people; with `tensors` every tensor of the model gets a line too.
void plan_print(FILE *out, const Plan *p, bool tensors);
// One line for each of n plans, under the given names.
void plan_print_table(FILE *out, const Plan *plans, const char *const *names, int n);
// One JSON object, caller frees with mem_free.
char *plan_json(const Plan *p);
