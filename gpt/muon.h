// muon.h - the orthogonalised momentum update (Jordan et al. 2024): momentum, Newton-Schulz, aspect
// scale.
#pragma once

#include "gpt/model.h"

// Tensors of the same shape, updated together: a unit is unit_rows x cols
// (stored), and every tensor holds `units` of them one below the other.
typedef struct MuonGroup {
    int n;                  // tensors
    int units, rows, cols;  // units in a tensor; stored size of a unit
    double aspect;          // sqrt(max(1, logical rows / logical cols))
    ElemType compute;       // of the Newton-Schulz products
} MuonGroup;

// The unit that config's muon_unit gives for a tensor (units, rows, cols, aspect; n = 1).
MuonGroup muon_group(const TensorSpec *s, const Config *c);
// Whether the config gives tensors of this kind to Muon; else they go to AdamW.
bool muon_takes(const TensorSpec *s, const Config *c);
// Which tensors go through Newton-Schulz together: order[first .. first + n) are rows of the table.
typedef struct MuonBatch {
    int first, n;
} MuonBatch;
typedef struct MuonBatches {
    int *order;
    MuonBatch *batch;
    int n;
    size_t elements;  // fp32 that the largest batch needs: updates and muon_scratch
} MuonBatches;

// Tensors with one shape, aspect and kind form batches, whatever their layer and row: as many as it
// takes for the smallest product, X X^T, to fill the device (Ops.busy_outputs), evenly split.
void muon_batches(MuonBatches *out, const TensorTable *t, const Config *c, const Ops *ops);
void muon_batches_free(MuonBatches *b);

// Scratch elements (fp32) that muon_orthogonalize needs for the group.
size_t muon_scratch(const MuonGroup *g);
// x (n*units, rows, cols) fp32, contiguous, momentum in, orthogonalised update out (not yet scaled
// by aspect). Newton-Schulz with (3.4445, -4.7750, 2.0315), X = G / (|G|_F + 1e-7), `steps`
// iterations on the orientation with rows <= cols.
void muon_orthogonalize(const Ops *ops, float *x, float *scratch, const MuonGroup *g, int steps);
