// ref_ops.h - the ops of kernels/ops.h once more, in double precision and plain loops: what every
// device is compared with. Shapes and strides are those of the op of the same name; *_backward
// SETS gradients of activations and ACCUMULATES those of weights, like the ops. Backward functions
// take the inputs of the forward pass and recompute what they need, so that they depend on no saved
// value. Attention has references of its own.
#pragma once

#include "kernels/ops.h"

// Any ElemType: the arrays are double. alpha, beta, strides and transposes as in gemm.
void ref_gemm(double *c, const double *a, const double *b, const GemmOp *g);

void ref_embed_forward(double *out, const int *ids, const double *wte, const double *wpe,
                       int wpe_rows, const int *pos, int B, int T, int C);
void ref_embed_backward(double *dwte, double *dwpe, const double *dout, const int *ids, int B,
                        int T, int C);

// mean may be NULL.
void ref_add_norm_forward(double *out, double *residual_out, double *mean, double *rstd,
                          const double *residual_in, const double *inp, const double *weight,
                          const double *bias, const NormArgs *a);
// x is residual_out; dresidual += the gradient through the norm.
void ref_add_norm_backward(double *dresidual, double *dweight, double *dbias, const double *dout,
                           const double *x, const double *weight, const NormArgs *a);

// rstd may be NULL; head_stride as in RopeArgs.
void ref_qk_norm_rope_forward(double *out, double *rstd, const double *inp, const RopeArgs *a);
// inp is the forward input, with the strides of dinp (ld_inp); dout at ld_out.
void ref_qk_norm_rope_backward(double *dinp, const double *dout, const double *inp,
                               const RopeArgs *a);

// a NULL: the first W1 of each head are left as they are. split sets da and db.
void ref_concat_heads(double *out, const double *a, const double *b, const ConcatArgs *c);
void ref_split_heads(double *da, double *db, const double *dout, const ConcatArgs *c);

void ref_act_forward(double *out, const double *inp, ActKind kind, size_t N, int F);
void ref_act_backward(double *dinp, const double *dout, const double *inp, ActKind kind, size_t N,
                      int F);

// dlogits (n, Vp) or NULL; logits are left alone.
void ref_classifier(double *dlogits, double *losses, const double *logits, const int *targets,
                    size_t n, int V, int Vp, double softcap, double dscale);
double ref_softcap(double x, double softcap);

// One element each; g is the gradient before clipping.
void ref_adamw(double *param, double *m, double *v, double g, double clip, const AdamWArgs *a);
double ref_muon_momentum(double *momentum, double g, double clip, double mu, bool nesterov);
double ref_sumsq(const double *x, size_t n);
