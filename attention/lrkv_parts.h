// lrkv_parts.h - sizes, rows and small helpers that LRKV's two files share.
#pragma once

#include "attention/variants.h"

// Row numbers in params(); -1 where the row does not exist.
typedef struct Rows {
    int wq, ws_k, ws_v, u_k, u_v, b_k, b_v, wo, bq, bs_k, bs_v, bo, n;
} Rows;

enum { PROJ, RSTD_Q, RSTD_K, KV, ATT, LSE };
enum { CACHE_KS, CACHE_VS, CACHE_ZK, CACHE_ZV };
enum { MERGED_KV, MERGED_BIAS };

static inline Rows rows(const AttnDims *d) {
    Rows r = {.wq = 0,
              .ws_k = 1,
              .ws_v = 2,
              .u_k = -1,
              .u_v = -1,
              .b_k = -1,
              .b_v = -1,
              .bq = -1,
              .bs_k = -1,
              .bs_v = -1,
              .bo = -1,
              .n = 3};
    if (d->R > 0) r.u_k = r.n, r.u_v = r.n + 1, r.b_k = r.n + 2, r.b_v = r.n + 3, r.n += 4;
    r.wo = r.n++;
    if (d->bias) r.bq = r.n, r.bs_k = r.n + 1, r.bs_v = r.n + 2, r.bo = r.n + 3, r.n += 4;
    return r;
}

static inline size_t tokens(const AttnDims *d) {
    return (size_t)d->B * (size_t)d->T;
}
static inline size_t q_width(const AttnDims *d) {
    return (size_t)d->NH * (size_t)d->HS;
}
static inline size_t z_width(const AttnDims *d) {
    return (size_t)d->NH * (size_t)attn_stored_rank(d->R);
}
static inline bool merged(const AttnDims *d) {
    return d->path == PATH_MERGED && d->R > 0;
}

// Per token [q (NH*HS) | ks (HS) | vs (HS) | zk (NH*R8) | zv (NH*R8)].
static inline size_t proj_width(const AttnDims *d) {
    return q_width(d) + 2 * (size_t)d->HS + 2 * z_width(d);
}
// Training keeps only q of it when merged.
static inline size_t kept_width(const AttnDims *d) {
    return merged(d) ? q_width(d) : proj_width(d);
}
static inline size_t kv_width(const AttnDims *d) {
    return d->R > 0 ? 2 * q_width(d) : 0;
}
static inline size_t ks_at(const AttnDims *d) {
    return q_width(d);
}
static inline size_t vs_at(const AttnDims *d) {
    return q_width(d) + (size_t)d->HS;
}
static inline size_t zk_at(const AttnDims *d) {
    return q_width(d) + 2 * (size_t)d->HS;
}
static inline size_t zv_at(const AttnDims *d) {
    return zk_at(d) + z_width(d);
}

static inline const floatX *data_of(const AttnCall *c, int row) {
    return c->w[row].data;
}
static inline const float *vector_of(const AttnCall *c, int row) {
    return row < 0 ? NULL : (const float *)c->w[row].data;
}

static inline RopeArgs rope_args(const AttnCall *c, int heads, size_t ld) {
    return (RopeArgs){.B = c->d.B,
                      .T = c->d.T,
                      .NH = heads,
                      .HS = c->d.HS,
                      .ld_inp = ld,
                      .ld_out = ld,
                      .rope = c->d.position == POSITION_ROPE ? c->rope : NULL,
                      .pos = c->pos,
                      .norm = c->d.qk_norm,
                      .eps = c->d.eps};
}

// Rotation and norm in place on `heads` heads.
static inline void rotate(const AttnCall *c, floatX *x, float *rstd, int heads, size_t ld) {
    if (c->d.position != POSITION_ROPE && !c->d.qk_norm) return;
    RopeArgs a = rope_args(c, heads, ld);
    c->ops->qk_norm_rope_forward(x, rstd, x, &a);
}

static inline void rotate_backward(const AttnCall *c, floatX *dx, const floatX *y,
                                   const float *rstd, int heads, size_t ld) {
    if (c->d.position != POSITION_ROPE && !c->d.qk_norm) return;
    RopeArgs a = rope_args(c, heads, ld);
    c->ops->qk_norm_rope_backward(dx, dx, y, ld, rstd, &a);
}

static inline LowRankArgs expand_args(const AttnCall *c, bool keys) {
    const AttnDims *d = &c->d;
    return (LowRankArgs){.B = d->B,
                         .T = d->T,
                         .NH = d->NH,
                         .HS = d->HS,
                         .R = attn_stored_rank(d->R),
                         .ld_s = proj_width(d),
                         .ld_z = proj_width(d),
                         .ld_out = kv_width(d),
                         .rope = keys && d->position == POSITION_ROPE ? c->rope : NULL,
                         .pos = c->pos,
                         .norm = keys && d->qk_norm,
                         .eps = d->eps};
}

// Rank 0 shares one key/value head that lies in the projection; else every head has its own.
static inline SdpaArgs sdpa_args(const AttnDims *d) {
    size_t w = kept_width(d), kv = d->R > 0 ? kv_width(d) : w, hs = (size_t)d->HS, T = (size_t)d->T;
    size_t o = q_width(d);
    return (SdpaArgs){.B = d->B,
                      .Tq = d->T,
                      .Tk = d->T,
                      .NH = d->NH,
                      .NKV = d->R > 0 ? d->NH : 1,
                      .HS = d->HS,
                      .HV = d->HS,
                      .q_token = w,
                      .k_token = kv,
                      .v_token = kv,
                      .o_token = o,
                      .q_head = hs,
                      .k_head = hs,
                      .v_head = hs,
                      .o_head = hs,
                      .q_batch = T * w,
                      .k_batch = T * kv,
                      .v_batch = T * kv,
                      .o_batch = T * o,
                      .scale = attn_scale(d, d->HS),
                      .any_order = d->any_order};
}

static inline void output(const AttnCall *c, floatX *out, const floatX *att) {
    Rows r = rows(&c->d);
    c->ops->matmul(out, (size_t)c->d.C, att, q_width(&c->d), &c->w[r.wo], vector_of(c, r.bo),
                   c->d.C, tokens(&c->d));
}

// lrkv.c: [q | ks | vs | zk | zv] of x, before positions and norm.
void lrkv_project(const AttnCall *c, floatX *proj, const floatX *x);

// lrkv_train.c
void lrkv_forward(const AttnCall *c, floatX *out, const floatX *x);
void lrkv_backward(const AttnCall *c, floatX *dx, const floatX *dout, const floatX *x);
void lrkv_prepare(const AttnCall *c);
void lrkv_finish(const AttnCall *c);
