// ref_attention.h - attention in double precision and plain O(T*T) loops: what every device is
// compared with. Arrays are contiguous; heads of a token lie side by side. Gradients are SET.
#pragma once

#include "kernels/ops.h"

// q (B, Tq, NH, HS), k (B, Tk, NKV, HS), v (B, Tk, NKV, HV), out (B, Tq, NH, HV), lse (B, NH, Tq).
// Query t of row b sees keys 0..pos[b]+t; pos NULL: 0..t.
typedef struct RefSdpa {
    int B, Tq, Tk, NH, NKV, HS, HV;
    double scale;
    const int *pos;
} RefSdpa;

// lse may be NULL. Keys that a query does not see are not read.
void ref_sdpa_forward(double *out, double *lse, const double *q, const double *k, const double *v,
                      const RefSdpa *a);
void ref_sdpa_backward(double *dq, double *dk, double *dv, const double *dout, const double *q,
                       const double *k, const double *v, const RefSdpa *a);

// x_h = norm(rope(S + Z_h B_h^T + bias_h)).
//   out (B*T, NH, HS); s (B*T, HS) or NULL; z (B*T, NH, R), or (B*T, R) when shared_z; b (NH, HS,
//   R); bias (NH, HS) or NULL; rope (>= pos + T, HS/2, 2) or NULL
typedef struct RefLowRank {
    int B, T, NH, HS, R;
    bool shared_z, norm;
    const double *bias;
    const float *rope;
    const int *pos;
    float eps;
} RefLowRank;

void ref_lowrank_forward(double *out, const double *s, const double *z, const double *b,
                         const RefLowRank *a);
// ds may be NULL. No shared_z.
void ref_lowrank_backward(double *ds, double *dz, double *db, const double *dout, const double *s,
                          const double *z, const double *b, const RefLowRank *a);

// Angles p theta^(-2i/HS): (rows, HS/2, 2) cos, sin in fp32; freed with mem_free.
float *ref_rope_table(int rows, int HS, double theta);
