// ops_cpu.h - the CPU's ops, one set for each instruction set; contracts stand in kernels/ops.h.
// Attention has headers of its own: sdpa.h and lowrank.h. On the CPU floatX is float.
#pragma once

#include "kernels/cpu/isa.h"
#include "kernels/ops.h"

#define alloc_cpu                 ISA_FN(alloc_cpu)
#define free_cpu                  ISA_FN(free_cpu)
#define zero_cpu                  ISA_FN(zero_cpu)
#define copy_cpu                  ISA_FN(copy_cpu)
#define upload_cpu                ISA_FN(upload_cpu)
#define download_cpu              ISA_FN(download_cpu)
#define sync_cpu                  ISA_FN(sync_cpu)
#define weight_bytes_cpu          ISA_FN(weight_bytes_cpu)
#define weight_prepare_cpu        ISA_FN(weight_prepare_cpu)
#define matmul_cpu                ISA_FN(matmul_cpu)
#define matmul_dx_cpu             ISA_FN(matmul_dx_cpu)
#define matmul_dw_cpu             ISA_FN(matmul_dw_cpu)
#define bias_dw_cpu               ISA_FN(bias_dw_cpu)
#define gemm_cpu                  ISA_FN(gemm_cpu)
#define embed_forward_cpu         ISA_FN(embed_forward_cpu)
#define embed_backward_cpu        ISA_FN(embed_backward_cpu)
#define add_norm_forward_cpu      ISA_FN(add_norm_forward_cpu)
#define add_norm_backward_cpu     ISA_FN(add_norm_backward_cpu)
#define qk_norm_rope_forward_cpu  ISA_FN(qk_norm_rope_forward_cpu)
#define qk_norm_rope_backward_cpu ISA_FN(qk_norm_rope_backward_cpu)
#define concat_heads_cpu          ISA_FN(concat_heads_cpu)
#define split_heads_cpu           ISA_FN(split_heads_cpu)
#define bias_add_cpu              ISA_FN(bias_add_cpu)
#define act_forward_cpu           ISA_FN(act_forward_cpu)
#define act_backward_cpu          ISA_FN(act_backward_cpu)
#define add_cpu                   ISA_FN(add_cpu)
#define cache_append_cpu          ISA_FN(cache_append_cpu)
#define cache_append_latent_cpu   ISA_FN(cache_append_latent_cpu)
#define classifier_cpu            ISA_FN(classifier_cpu)
#define softcap_cpu               ISA_FN(softcap_cpu)
#define loss_add_cpu              ISA_FN(loss_add_cpu)
#define step_begin_cpu            ISA_FN(step_begin_cpu)
#define grad_sumsq_cpu            ISA_FN(grad_sumsq_cpu)
#define grad_finish_cpu           ISA_FN(grad_finish_cpu)
#define adamw_cpu                 ISA_FN(adamw_cpu)
#define muon_momentum_cpu         ISA_FN(muon_momentum_cpu)
#define muon_normalize_cpu        ISA_FN(muon_normalize_cpu)
#define scale_copy_cpu            ISA_FN(scale_copy_cpu)
#define axpy_cpu                  ISA_FN(axpy_cpu)
#define muon_apply_cpu            ISA_FN(muon_apply_cpu)

void *alloc_cpu(size_t bytes);
void free_cpu(void *p);
void zero_cpu(void *p, size_t bytes);
void copy_cpu(void *dst, const void *src, size_t bytes);
void upload_cpu(floatX *dst, const float *src, size_t n);
void download_cpu(float *dst, const floatX *src, size_t n);
void sync_cpu(void);
size_t weight_bytes_cpu(int OC, int IC, ElemType compute);
void weight_prepare_cpu(Weight *w);
void matmul_cpu(floatX *out, size_t ld_out, const floatX *inp, size_t ld_inp, const Weight *w,
                const float *bias, int n_bias, size_t N);
void matmul_dx_cpu(floatX *dinp, size_t ld_dinp, const floatX *dout, size_t ld_dout,
                   const Weight *w, size_t N, bool accumulate);
void matmul_dw_cpu(float *dw, const floatX *dout, size_t ld_dout, const floatX *inp, size_t ld_inp,
                   const Weight *w, size_t N);
void bias_dw_cpu(float *dbias, const floatX *dout, size_t ld_dout, size_t N, int OC);
void gemm_cpu(void *c, const void *a, const void *b, const GemmOp *g);
void embed_forward_cpu(floatX *out, const int *ids, const floatX *wte, const floatX *wpe,
                       int wpe_rows, const int *pos, int B, int T, int C);
void embed_backward_cpu(float *dwte, float *dwpe, const floatX *dout, const int *ids, int B, int T,
                        int C);
void add_norm_forward_cpu(floatX *out, floatX *residual_out, float *mean, float *rstd,
                          const floatX *residual_in, const floatX *inp, const float *weight,
                          const float *bias, const NormArgs *a);
void add_norm_backward_cpu(floatX *dresidual, float *dweight, float *dbias, const floatX *dout,
                           const floatX *x, const float *weight, const float *mean,
                           const float *rstd, const NormArgs *a);
void qk_norm_rope_forward_cpu(floatX *out, float *rstd, const floatX *inp, const RopeArgs *a);
void qk_norm_rope_backward_cpu(floatX *dinp, const floatX *dout, const floatX *y, size_t ld_y,
                               const float *rstd, const RopeArgs *a);
void concat_heads_cpu(floatX *out, const floatX *a, const floatX *b, const ConcatArgs *c);
void split_heads_cpu(floatX *da, floatX *db, const floatX *dout, const ConcatArgs *c);
void bias_add_cpu(floatX *out, size_t ld_out, const float *bias, size_t N, int W);
void act_forward_cpu(floatX *out, const floatX *inp, ActKind kind, size_t N, int F);
void act_backward_cpu(floatX *dinp, const floatX *dout, const floatX *inp, ActKind kind, size_t N,
                      int F);
void add_cpu(floatX *out, const floatX *a, const floatX *b, size_t n);
void cache_append_cpu(void *dst, size_t dst_batch, ElemType type, const floatX *src, size_t ld_src,
                      int width, const int *pos, const int *n_new, int B, int T);
void cache_append_latent_cpu(void *dst, size_t dst_batch, ElemType type, const floatX *src,
                             size_t ld_src, int groups, int r, int ld_group, const int *pos,
                             const int *n_new, int B, int T);
void classifier_cpu(floatX *logits, float *losses, const int *targets, size_t n, int V, int Vp,
                    float softcap, float dscale, bool backward);
void softcap_cpu(floatX *logits, size_t n, float softcap);
void loss_add_cpu(StepState *state, const float *losses, size_t n, double scale);
void step_begin_cpu(StepState *state);
void grad_sumsq_cpu(StepState *state, const float *g, size_t n, int tensor);
void grad_finish_cpu(StepState *state, float max_norm);
void adamw_cpu(void *param, float *master, float *m, float *v, const float *g, size_t n,
               const AdamWArgs *a, const StepState *state);
void muon_momentum_cpu(float *out, float *momentum, const float *g, size_t n, float mu,
                       bool nesterov, const StepState *state);
void muon_normalize_cpu(float *x, size_t n, int batch, size_t stride, float eps);
void scale_copy_cpu(float *out, const float *x, size_t n, float factor);
void axpy_cpu(float *y, const float *x, size_t n, float alpha);
void muon_apply_cpu(void *param, float *master, ElemType type, const float *update, size_t n,
                    float lr, float decay, uint64_t round_key, const StepState *state);

// The table that holds all of these.
#define ops_cpu_table ISA_FN(ops_cpu_table)
const Ops *ops_cpu_table(void);
