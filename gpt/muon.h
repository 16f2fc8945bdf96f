// muon.h - the orthogonalised momentum update (Jordan et al. 2024): momentum, Newton-Schulz, aspect
// scale.
#pragma once

#include "gpt/model.h"

// Tensors of the same shape, one in each of n layers, updated together: a unit is unit_rows x cols
// (stored), and every tensor holds `units` of them one below the other.
typedef struct MuonGroup {
    int n;                  // tensors
    int units, rows, cols;  // units in a tensor; stored size of a unit
    double aspect;          // sqrt(max(1, logical rows / logical cols))
    ElemType compute;       // of the Newton-Schulz products
} MuonGroup;

// The unit that config's muon_unit gives for a tensor (units, rows, cols, aspect; n = 1).
MuonGroup muon_group(const TensorSpec *s, const Config *c);
// Scratch elements (fp32) that muon_orthogonalize needs for the group.
size_t muon_scratch(const MuonGroup *g);
// x (n*units, rows, cols) fp32, contiguous, momentum in, orthogonalised update out (not yet scaled
// by aspect). Newton-Schulz with (3.4445, -4.7750, 2.0315), X = G / (|G|_F + 1e-7), `steps`
// iterations on the orientation with rows <= cols.
void muon_orthogonalize(const Ops *ops, float *x, float *scratch, const MuonGroup *g, int steps);
