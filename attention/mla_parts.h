// mla_parts.h - sizes, rows and the pieces that MLA's two files share.
#pragma once

#include "attention/variants.h"

// Row numbers in params(); -1 where the row does not exist. `in` is wq, or w_dq with a query
// latent.
typedef struct MlaRows {
    int in, w_dkv, w_kr, w_uq, w_uk, w_uv, wo, bq, bk, bv, bo, n;
} MlaRows;

enum {
    MLA_PROJ,
    MLA_RSTD_C,
    MLA_RSTD_CQ,
    MLA_RSTD_KR,
    MLA_RSTD_Q,
    MLA_RSTD_K,
    MLA_Q,
    MLA_KV,
    MLA_K,
    MLA_ATT,
    MLA_LSE
};

static inline MlaRows mla_rows(const AttnDims *d) {
    MlaRows r = {.in = 0,
                 .w_dkv = 1,
                 .w_kr = -1,
                 .w_uq = -1,
                 .bq = -1,
                 .bk = -1,
                 .bv = -1,
                 .bo = -1,
                 .n = 2};
    if (d->HR) r.w_kr = r.n++;
    if (d->RQ) r.w_uq = r.n++;
    r.w_uk = r.n++, r.w_uv = r.n++, r.wo = r.n++;
    if (d->bias) r.bq = r.n++, r.bk = r.n++, r.bv = r.n++, r.bo = r.n++;
    return r;
}

static inline size_t mla_tokens(const AttnDims *d) {
    return (size_t)d->B * (size_t)d->T;
}
// A query head: [q^C (HS) | q^R (HR)].
static inline int mla_q_head(const AttnDims *d) {
    return d->HS + d->HR;
}
static inline size_t mla_q_width(const AttnDims *d) {
    return (size_t)d->NH * (size_t)mla_q_head(d);
}
static inline size_t mla_k_width(const AttnDims *d) {
    return (size_t)d->NH * (size_t)d->HS;
}
static inline size_t mla_v_width(const AttnDims *d) {
    return (size_t)d->NH * (size_t)d->HV;
}
// [k^C of all heads | v of all heads]
static inline size_t mla_kv_width(const AttnDims *d) {
    return mla_k_width(d) + mla_v_width(d);
}
// Products of x: [q or its latent | c | k^R]
static inline size_t mla_c_at(const AttnDims *d) {
    return d->RQ ? (size_t)d->RQ : mla_q_width(d);
}
static inline size_t mla_kr_at(const AttnDims *d) {
    return mla_c_at(d) + (size_t)d->RKV;
}
static inline size_t mla_proj_width(const AttnDims *d) {
    return mla_kr_at(d) + (size_t)d->HR;
}

// Where inverse norms go; NULL in inference.
typedef struct MlaStats {
    float *c, *cq, *kr, *q;
} MlaStats;

// mla_train.c
// proj (N, proj_width) of x: latents normed, k^R normed and rotated; q's part as projected.
void mla_latents(const AttnCall *c, floatX *proj, const floatX *x, const MlaStats *stats);
// Queries, normed and rotated: in place in proj, or into q (N, q_width) from the query latent.
void mla_queries(const AttnCall *c, floatX *q, const floatX *proj, const MlaStats *stats);
void mla_output(const AttnCall *c, floatX *out, const floatX *att);
void mla_forward(const AttnCall *c, floatX *out, const floatX *x);
void mla_backward(const AttnCall *c, floatX *dx, const floatX *dout, const floatX *x);
