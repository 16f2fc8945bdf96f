// ops.h - the op table: every device operation, its shapes and its contract, stated once.
// Two tables exist, ops_cpu() and ops_cuda(); nothing above this header knows which one runs.
//
// Contract for all ops:
// - *_backward SETS the gradient of activations and ACCUMULATES (+=) the fp32 gradient of weights,
//   unless the line says otherwise.
// - floatX is opaque: fp32 on the CPU, bf16 or fp32 on CUDA. Pointers to it move only through
// fx_at.
// - Pointers are device pointers. Ops enqueue on one implicit compute stream and return; only
//   download and sync wait. Results the host may read later live in StepState, in device memory.
// - Sums run in a fixed order: same inputs, same bits, whatever the number of threads, unless
//   SdpaArgs.any_order allows another.
// - N = B*T rows; matrices are row-major; ld* are row strides in elements.
// - Out of memory and device errors die(); sizes are checked above.
#pragma once

#include "gpt/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct floatX floatX;

typedef enum NormKind { NORM_RMS, NORM_LAYER } NormKind;
typedef enum ActKind { ACT_GELU, ACT_RELU2, ACT_SWIGLU } ActKind;

// A matrix that products read: (OC, IC) floatX, with the device's own prepared copies.
// One Weight may span several joined tensors. weight_prepare runs after loading and after each
// step.
typedef struct Weight {
    const floatX *data;  // (OC, IC), in the parameter arena
    int OC, IC;
    ElemType compute;  // TYPE_F32 or TYPE_BF16: operand type of products on the CPU
    void *forward;     // device-packed for x W^T, weight_bytes() long, or NULL
    void *backward;    // device-packed for dout W, or NULL (inference)
} Weight;

// Training scalars of one optimizer step, in device memory. Optimizers read clip and skip from
// here.
typedef struct StepState {
    double loss_sum;  // sum of losses over valid targets, already divided by their number
    double grad_sumsq;
    float grad_norm;  // before clipping
    float clip;       // factor that the optimizers apply to gradients
    int skip;         // 1: loss or gradient is not finite, the optimizers must not write
    int first_bad;  // index given to grad_sumsq of the first tensor with a non-finite value, or -1
} StepState;

// Layer norm or RMS norm over C. weight, bias (C) fp32 or NULL; mean NULL for NORM_RMS.
// RMS: y = x / sqrt(mean(x^2) + eps) * weight.
typedef struct NormArgs {
    NormKind kind;
    size_t N;
    int C;
    float eps;
} NormArgs;

// Per-head position and normalisation of queries or keys. Element (n, h, i) of the input lies at
// inp[n*ld_inp + h*HS + i]; the same with ld_out for the output, which may be the input.
// Order: rotate (half-split pairs: y1 = x1 cos + x2 sin, y2 = x2 cos - x1 sin), then RMS-normalise
// without gain. Either half can be switched off.
typedef struct RopeArgs {
    int B, T, NH, HS;
    size_t head_stride;  // between heads, of input and output; 0: HS
    size_t ld_inp, ld_out;
    const float *rope;  // (Tmax, HS/2, 2) cos, sin, aligned to 8 bytes; NULL: no rotation
    const int *pos;     // (B): token t of row b stands at pos[b] + t; NULL: at t
    bool norm;
    float eps;
} RopeArgs;

// Causal attention. Query t of row b attends to keys 0..pos[b]+t (pos NULL: 0..t, and Tk = Tq).
// Query head h reads key/value head h / (NH/NKV). Strides in elements; heads are HS (HV) wide and
// contiguous inside. v may be a prefix of k (same pointer), as in absorbed MLA.
typedef struct SdpaArgs {
    int B, Tq, Tk;  // Tk: rows of k and v that exist for each b
    int NH, NKV, HS, HV;
    size_t q_token, k_token, v_token, o_token;  // between tokens
    size_t q_head, k_head, v_head, o_head;      // between heads
    size_t q_batch, k_batch, v_batch, o_batch;  // between rows of the batch
    float scale;                                // of the scores, never derived from HS
    const int *pos, *n_new;  // (B) device: extend only; queries t >= n_new[b] are left unwritten
    int max_pos;             // host bound on pos[b] + n_new[b], for launch geometry only
    ElemType kv_type;        // of k and v in extend: TYPE_F32 or TYPE_BF16; training: TYPE_FX
    bool
        any_order;  // backward may sum dq in no fixed order where that is faster: CUDA in bf16 does
} SdpaArgs;

// Heads put together from two parts: out[n,h,:] = [a[n,h,:W1] | b[n,h,:W2]]. Strides in elements;
// b_head = 0 shares one b among the heads.
typedef struct ConcatArgs {
    size_t N;
    int NH, W1, W2;
    size_t ld_out, ld_a, ld_b;  // between tokens; heads of out lie W1 + W2 apart
    size_t a_head, b_head;
} ConcatArgs;

// Low-rank keys or values per head: x_h = S + Z_h B_h^T, then RopeArgs' rotation and norm.
//   s (N, HS) or NULL; z (N, NH*R) with R the stored rank; b (NH, HS, R)
typedef struct LowRankArgs {
    int B, T, NH, HS, R;
    size_t ld_s, ld_z, ld_out;
    const float *rope;  // as in RopeArgs; NULL for values
    const int *pos;
    bool norm;
    float eps;
} LowRankArgs;

// Cached attention over low-rank rows, reconstructed tile by tile in fast memory:
//   k_h = norm(rope(ks + zk_h bk_h^T)),  out_h = sum p vs + (sum p zv_h) bv_h^T
// Cached zk, zv lie in blocks of LATENT_BLOCK positions, transposed: element (position p, row i) at
// z[(p / 64) * n_z * 64 + i * 64 + p % 64], n_z = number of latent rows (H*r, or d_c when shared).
// ks, vs (Tmax, HS), (Tmax, HV) token-major or NULL; NULL vs with values from zv alone (MLA).
enum { LATENT_BLOCK = 64 };
typedef struct LowRankCache {
    const void *ks, *vs, *zk, *zv;  // kv_type elements; batch strides below
    const floatX *bk, *bv;          // (NH, HS, ld_b), (NH, HV, ld_b)
    const float *bias_k,
        *bias_v;     // (NH, HS), (NH, HV) added to every k_h before RoPE, v_h; or NULL
    int r;           // latent rows used per head
    int ld_b;        // row stride of bk, bv
    bool shared_z;   // every head reads the same r latent rows (MLA)
    int n_zk, n_zv;  // latent rows in all
    size_t ks_batch, vs_batch, zk_batch, zv_batch;
    const float *rope;  // (Tmax, HS/2, 2) or NULL
    bool norm;
    float eps;
} LowRankCache;

// C = alpha * op(A) op(B) + beta * C, beta 0 or 1, for `batch` matrices at the given strides.
// op(A) (M, K): A is (M, K), or (K, M) when ta. op(B) (K, N): B is (K, N), or (N, K) when tb.
// symmetric promises that op(A) op(B), and C where beta is 1, equal their transposes bit for bit:
// a device may compute one triangle and mirror it.
typedef struct GemmOp {
    int M, N, K, batch;
    bool ta, tb, symmetric;
    size_t lda, ldb, ldc;
    size_t stride_a, stride_b, stride_c;
    ElemType a_type, b_type, c_type;  // TYPE_FX or TYPE_F32
    ElemType compute;                 // TYPE_F32 or TYPE_BF16
    float alpha, beta;
} GemmOp;

typedef struct AdamWArgs {
    ElemType type;  // of param: TYPE_FX or TYPE_F32
    float lr, beta1, beta2, eps, decay;
    float correction1, correction2;  // 1 - beta^t
    uint64_t round_key;              // see Ops.adamw
} AdamWArgs;

typedef struct Peaks {
    double fma_flops, bf16_flops, read_bytes;  // FLOP/s, FLOP/s, bytes/s; measured now
    bool has_bf16;  // the table multiplies bf16 by an instruction of its own, else in fp32
} Peaks;

typedef struct Ops {
    const char *name;     // "cpu", "cuda"
    const char *isa;      // instruction set in use: "avx2", "sm_90", ...
    size_t elem_size;     // bytes of one floatX
    size_t busy_outputs;  // outputs of one product that keep the whole device busy

    // --- memory. alloc gives cleared memory and dies when there is none.
    void *(*alloc)(size_t bytes);
    void (*free)(void *p);
    void (*zero)(void *p, size_t bytes);
    void (*copy)(void *dst, const void *src, size_t bytes);            // device to device
    void (*upload_bytes)(void *dst, const void *src, size_t bytes);    // host to device
    void (*download_bytes)(void *dst, const void *src, size_t bytes);  // waits
    void (*upload)(floatX *dst, const float *src, size_t n);           // converts
    void (*download)(float *dst, const floatX *src, size_t n);         // converts, waits
    void (*sync)(void);
    void (*measure_peaks)(Peaks *out);

    // --- products
    size_t (*weight_bytes)(int OC, int IC, ElemType compute);  // of one packed copy; 0: none needed
    void (*weight_prepare)(Weight *w);  // fills forward and backward if not NULL
    // out (N, OC) = inp (N, IC) w^T + bias; bias (n_bias) fp32 or NULL goes to the first n_bias
    // columns
    void (*matmul)(floatX *out, size_t ld_out, const floatX *inp, size_t ld_inp, const Weight *w,
                   const float *bias, int n_bias, size_t N);
    // dinp (N, IC) = dout (N, OC) w, or += when accumulate
    void (*matmul_dx)(floatX *dinp, size_t ld_dinp, const floatX *dout, size_t ld_dout,
                      const Weight *w, size_t N, bool accumulate);
    // dw (OC, IC) += dout^T inp
    void (*matmul_dw)(float *dw, const floatX *dout, size_t ld_dout, const floatX *inp,
                      size_t ld_inp, const Weight *w, size_t N);
    // dbias (OC) += column sums of dout (N, OC)
    void (*bias_dw)(float *dbias, const floatX *dout, size_t ld_dout, size_t N, int OC);
    void (*gemm)(void *c, const void *a, const void *b, const GemmOp *g);

    // --- embedding: out (B*T, C) = wte[ids] (+ wpe[pos[b] + t]); wpe NULL: no learned positions.
    // Positions from wpe_rows on read the last row: they belong to unused tokens of a ragged batch.
    void (*embed_forward)(floatX *out, const int *ids, const floatX *wte, const floatX *wpe,
                          int wpe_rows, const int *pos, int B, int T, int C);
    // dwte (V, C) and dwpe (T, C), either may be NULL; ids are in range
    void (*embed_backward)(float *dwte, float *dwpe, const floatX *dout, const int *ids, int B,
                           int T, int C);

    // --- norms. residual_out = residual_in + inp; out = norm(residual_out).
    // inp NULL: residual_out is not written and the norm reads residual_in. residual_out may be
    // residual_in. out, residual_*, inp (N, C); mean, rstd (N) are saved for backward.
    void (*add_norm_forward)(floatX *out, floatX *residual_out, float *mean, float *rstd,
                             const floatX *residual_in, const floatX *inp, const float *weight,
                             const float *bias, const NormArgs *a);
    // dresidual (N, C) += gradient through the norm of dout, in place, so that it ends as the
    // gradient of residual_in and of inp. x is residual_out. dweight, dbias (C) +=, or NULL.
    void (*add_norm_backward)(floatX *dresidual, float *dweight, float *dbias, const floatX *dout,
                              const floatX *x, const float *weight, const float *mean,
                              const float *rstd, const NormArgs *a);

    // --- queries and keys. rstd (B*T, NH); NULL without norm, or when nothing is kept (inference).
    void (*qk_norm_rope_forward)(floatX *out, float *rstd, const floatX *inp, const RopeArgs *a);
    // dinp from dout; y is the forward output (read only with norm), at ld_y. dinp may be dout;
    // ld_inp, ld_out are the strides of dinp and dout.
    void (*qk_norm_rope_backward)(floatX *dinp, const floatX *dout, const floatX *y, size_t ld_y,
                                  const float *rstd, const RopeArgs *a);
    // out (B*T, NH, HS) at ld_out
    void (*lowrank_forward)(floatX *out, float *rstd, const floatX *s, const floatX *z,
                            const floatX *b, const LowRankArgs *a);
    // ds (N, HS), dz (N, NH*R) set at ld_s, ld_z; db (NH, HS, R) +=. dout at ld_out is used as
    // scratch and destroyed; y is the forward output at ld_out. ds NULL when there is no s.
    void (*lowrank_backward)(floatX *ds, floatX *dz, float *db, floatX *dout, const floatX *y,
                             const float *rstd, const floatX *z, const floatX *b,
                             const LowRankArgs *a);

    // a NULL: the first W1 of each head are left as they are
    void (*concat_heads)(floatX *out, const floatX *a, const floatX *b, const ConcatArgs *c);
    // da, db set from dout; a shared b gets the sum over heads
    void (*split_heads)(floatX *da, floatX *db, const floatX *dout, const ConcatArgs *c);
    void (*bias_add)(floatX *out, size_t ld_out, const float *bias, size_t N, int W);

    // --- activation. out (N, F); inp (N, F), or (N, 2F) as [gate | up] for SwiGLU
    void (*act_forward)(floatX *out, const floatX *inp, ActKind kind, size_t N, int F);
    void (*act_backward)(floatX *dinp, const floatX *dout, const floatX *inp, ActKind kind,
                         size_t N, int F);
    void (*add)(floatX *out, const floatX *a, const floatX *b, size_t n);  // out may be a or b

    // --- attention. out (B, Tq, NH, HV); lse (B, NH, Tq) natural log of the sum of exp(scores)
    void (*sdpa_forward)(floatX *out, float *lse, const floatX *q, const floatX *k, const floatX *v,
                         const SdpaArgs *a);
    // dq, dk, dv have the strides of q, k, v; dout those of out
    void (*sdpa_backward)(floatX *dq, floatX *dk, floatX *dv, const floatX *dout, const floatX *out,
                          const float *lse, const floatX *q, const floatX *k, const floatX *v,
                          const SdpaArgs *a);
    void (*sdpa_extend)(floatX *out, const floatX *q, const void *k, const void *v,
                        const SdpaArgs *a);
    void (*sdpa_lowrank_extend)(floatX *out, const floatX *q, const LowRankCache *c,
                                const SdpaArgs *a);
    // rows t < n_new[b] of src (B, T, width) at ld_src go to positions pos[b] + t of
    // dst (B, Tmax, width), type TYPE_F32 or TYPE_BF16
    void (*cache_append)(void *dst, size_t dst_batch, ElemType type, const floatX *src,
                         size_t ld_src, int width, const int *pos, const int *n_new, int B, int T);
    // the same into blocks of LATENT_BLOCK positions, as LowRankCache describes. src holds groups
    // of r values, group g at src + g*ld_group (the stored rank), written without the padding.
    void (*cache_append_latent)(void *dst, size_t dst_batch, ElemType type, const floatX *src,
                                size_t ld_src, int groups, int r, int ld_group, const int *pos,
                                const int *n_new, int B, int T);

    // --- loss. On n rows of logits (n, Vp): soft-cap (0: none), cross-entropy over the first V
    // columns, losses (n) in nats, 0 where the target is -1; with `backward` the logits are
    // replaced by their gradients times dscale (0 in padded columns and for target -1).
    void (*classifier)(floatX *logits, float *losses, const int *targets, size_t n, int V, int Vp,
                       float softcap, float dscale, bool backward);
    // logits = softcap * tanh(logits / softcap) in place on n*Vp values (0: nothing); for inference
    void (*softcap)(floatX *logits, size_t n, float softcap);
    // state->loss_sum += scale * sum of losses (n)
    void (*loss_add)(StepState *state, const float *losses, size_t n, double scale);

    // --- optimizer
    void (*step_begin)(StepState *state);  // loss 0, sum 0, clip 1, skip 0, first_bad -1
    // state->grad_sumsq += sum g^2; remembers `tensor` when a value is not finite
    void (*grad_sumsq)(StepState *state, const float *g, size_t n, int tensor);
    // grad_norm, clip = min(1, max_norm / norm) (max_norm 0: 1), skip when loss or norm is not
    // finite
    void (*grad_finish)(StepState *state, float max_norm);
    // param (n) of a->type; master (n) fp32 or NULL when param itself is the master
    // (Loshchilov and Hutter 2019: decay is lr*decay*param, outside the moments). A bf16 param
    // without a master is rounded to one of its two neighbours at random, so that it is right on
    // average (Zamirai et al. 2021): the 16 bits below the last one of x grow by quarter i % 4 of
    // rng_u64(round_key, i / 4), lowest first, and are cut off.
    void (*adamw)(void *param, float *master, float *m, float *v, const float *g, size_t n,
                  const AdamWArgs *a, const StepState *state);
    // momentum = mu*momentum + (1-mu)*clip*g; out = nesterov ? (1-mu)*clip*g + mu*momentum :
    // momentum leaves momentum and out alone when skip is set
    void (*muon_momentum)(float *out, float *momentum, const float *g, size_t n, float mu,
                          bool nesterov, const StepState *state);
    // each of `batch` matrices of n elements at stride: x /= |x|_F + eps
    void (*muon_normalize)(float *x, size_t n, int batch, size_t stride, float eps);
    void (*scale_copy)(float *out, const float *x, size_t n, float factor);  // out may be x
    void (*axpy)(float *y, const float *x, size_t n, float alpha);           // y += alpha x
    // param -= lr*decay*param + lr*update, unless skip; rounded like adamw's
    void (*muon_apply)(void *param, float *master, ElemType type, const float *update, size_t n,
                       float lr, float decay, uint64_t round_key, const StepState *state);
} Ops;

// The CPU table of the fastest instruction set this processor has; TRAIN_GPT_ISA=base|avx2|avx512|
// avx512bf16 in the environment picks another one (die() when the processor lacks it).
const Ops *ops_cpu(void);
// The table of one instruction set, or NULL when it was not compiled or this processor lacks it.
const Ops *ops_cpu_isa(const char *isa);

static inline floatX *fx_at(const Ops *ops, const floatX *p, size_t n) {
    return (floatX *)((const char *)p + n * ops->elem_size);
}

#ifdef __cplusplus
}
#endif
