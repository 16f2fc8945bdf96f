// mla_train.c - MLA in training: keys and values of every head are materialised.
#include "attention/mla_parts.h"

// RMS norm without gain of `width` columns, in place: qk_norm_rope on one head without rotation.
static RopeArgs norm_args(const AttnCall *c, int width, size_t ld) {
    return (RopeArgs){.B = c->d.B,
                      .T = c->d.T,
                      .NH = 1,
                      .HS = width,
                      .ld_inp = ld,
                      .ld_out = ld,
                      .norm = true,
                      .eps = c->d.eps};
}

// The shared decoupled key: rotated and, with QK-norm, normed.
static RopeArgs kr_args(const AttnCall *c, size_t ld) {
    RopeArgs a = norm_args(c, c->d.HR, ld);
    a.rope = c->rope, a.pos = c->pos, a.norm = c->d.qk_norm;
    return a;
}

// Reconstructed heads of width HS, rotated and normed as the model says.
static RopeArgs head_args(const AttnCall *c, size_t ld) {
    RopeArgs a = norm_args(c, c->d.HS, ld);
    a.NH = c->d.NH, a.norm = c->d.qk_norm, a.pos = c->pos;
    a.rope = c->d.position == POSITION_ROPE ? c->rope : NULL;
    return a;
}

// Decoupled queries: the last HR of each head are rotated ...
static RopeArgs q_rope_args(const AttnCall *c, size_t ld) {
    RopeArgs a = kr_args(c, ld);
    a.NH = c->d.NH, a.head_stride = (size_t)mla_q_head(&c->d), a.norm = false;
    return a;
}

// ... and the whole head is normed.
static RopeArgs q_norm_args(const AttnCall *c, size_t ld) {
    RopeArgs a = norm_args(c, mla_q_head(&c->d), ld);
    a.NH = c->d.NH;
    return a;
}

static bool rotates_or_norms(const AttnDims *d) {
    return d->position == POSITION_ROPE || d->qk_norm;
}
static size_t q_ld(const AttnDims *d) {
    return d->RQ ? mla_q_width(d) : mla_proj_width(d);
}

void mla_latents(const AttnCall *c, floatX *proj, const floatX *x, const MlaStats *stats) {
    const AttnDims *d = &c->d;
    const Ops *ops = c->ops;
    MlaRows r = mla_rows(d);
    size_t ld = mla_proj_width(d);
    const float *bias = d->RQ ? NULL : attn_vector(c, r.bq);
    ops->matmul(proj, ld, x, (size_t)d->C, &c->w[r.in], bias, bias ? (int)mla_q_width(d) : 0,
                mla_tokens(d));
    RopeArgs latent = norm_args(c, d->RKV, ld);
    floatX *at = fx_at(ops, proj, mla_c_at(d));
    ops->qk_norm_rope_forward(at, stats->c, at, &latent);
    if (d->RQ) {
        RopeArgs query = norm_args(c, d->RQ, ld);
        ops->qk_norm_rope_forward(proj, stats->cq, proj, &query);
    }
    if (d->HR) {
        RopeArgs key = kr_args(c, ld);
        at = fx_at(ops, proj, mla_kr_at(d));
        ops->qk_norm_rope_forward(at, stats->kr, at, &key);
    }
}

void mla_queries(const AttnCall *c, floatX *q, const floatX *proj, const MlaStats *stats) {
    const AttnDims *d = &c->d;
    const Ops *ops = c->ops;
    MlaRows r = mla_rows(d);
    size_t ld = q_ld(d);
    if (d->RQ) {
        ops->matmul(q, ld, proj, mla_proj_width(d), &c->w[r.w_uq], attn_vector(c, r.bq), (int)ld,
                    mla_tokens(d));
    }
    if (d->HR) {
        RopeArgs rope = q_rope_args(c, ld), norm = q_norm_args(c, ld);
        floatX *tail = fx_at(ops, q, (size_t)d->HS);
        ops->qk_norm_rope_forward(tail, NULL, tail, &rope);
        if (d->qk_norm) ops->qk_norm_rope_forward(q, stats->q, q, &norm);
    } else if (rotates_or_norms(d)) {
        RopeArgs a = head_args(c, ld);
        ops->qk_norm_rope_forward(q, stats->q, q, &a);
    }
}

void mla_output(const AttnCall *c, floatX *out, const floatX *att) {
    MlaRows r = mla_rows(&c->d);
    c->ops->matmul(out, (size_t)c->d.C, att, mla_v_width(&c->d), &c->w[r.wo], attn_vector(c, r.bo),
                   c->d.C, mla_tokens(&c->d));
}

// [k^C_h | k^R] of each head; the gradient of k^R sums over them.
static ConcatArgs concat_args(const AttnDims *d) {
    return (ConcatArgs){.N = mla_tokens(d),
                        .NH = d->NH,
                        .W1 = d->HS,
                        .W2 = d->HR,
                        .ld_out = mla_q_width(d),
                        .ld_a = mla_kv_width(d),
                        .ld_b = mla_proj_width(d),
                        .a_head = (size_t)d->HS};
}

static SdpaArgs sdpa_args(const AttnDims *d) {
    size_t T = (size_t)d->T, q = q_ld(d), v = mla_kv_width(d), k = d->HR ? mla_q_width(d) : v;
    size_t o = mla_v_width(d), head = (size_t)mla_q_head(d);
    return (SdpaArgs){.B = d->B,
                      .Tq = d->T,
                      .Tk = d->T,
                      .NH = d->NH,
                      .NKV = d->NH,
                      .HS = (int)head,
                      .HV = d->HV,
                      .q_token = q,
                      .k_token = k,
                      .v_token = v,
                      .o_token = o,
                      .q_head = head,
                      .k_head = head,
                      .v_head = (size_t)d->HV,
                      .o_head = (size_t)d->HV,
                      .q_batch = T * q,
                      .k_batch = T * k,
                      .v_batch = T * v,
                      .o_batch = T * o,
                      .scale = attn_scale(d, (int)head),
                      .any_order = d->any_order};
}

void mla_forward(const AttnCall *c, floatX *out, const floatX *x) {
    const AttnDims *d = &c->d;
    const Ops *ops = c->ops;
    MlaRows r = mla_rows(d);
    floatX *proj = c->saved[MLA_PROJ], *q = d->RQ ? c->saved[MLA_Q] : proj, *kv = c->saved[MLA_KV];
    floatX *k = d->HR ? c->saved[MLA_K] : kv, *att = c->saved[MLA_ATT];
    MlaStats stats = {c->saved[MLA_RSTD_C], c->saved[MLA_RSTD_CQ], c->saved[MLA_RSTD_KR],
                      c->saved[MLA_RSTD_Q]};
    mla_latents(c, proj, x, &stats);
    mla_queries(c, q, proj, &stats);
    ops->matmul(kv, mla_kv_width(d), fx_at(ops, proj, mla_c_at(d)), mla_proj_width(d),
                &c->w[r.w_uk], attn_vector(c, r.bk), (int)mla_kv_width(d), mla_tokens(d));
    if (d->HR) {
        ConcatArgs cat = concat_args(d);
        ops->concat_heads(k, kv, fx_at(ops, proj, mla_kr_at(d)), &cat);
    } else if (rotates_or_norms(d)) {
        RopeArgs a = head_args(c, mla_kv_width(d));
        ops->qk_norm_rope_forward(kv, c->saved[MLA_RSTD_K], kv, &a);
    }
    SdpaArgs s = sdpa_args(d);
    ops->sdpa_forward(att, c->saved[MLA_LSE], q, k, fx_at(ops, kv, mla_k_width(d)), &s);
    mla_output(c, out, att);
}

// dq becomes the gradient of the query's product, in place.
static void queries_backward(const AttnCall *c, floatX *dq, const floatX *q) {
    const AttnDims *d = &c->d;
    size_t ld = q_ld(d);
    if (d->HR) {
        RopeArgs rope = q_rope_args(c, ld), norm = q_norm_args(c, ld);
        floatX *tail = fx_at(c->ops, dq, (size_t)d->HS);
        if (d->qk_norm) c->ops->qk_norm_rope_backward(dq, dq, q, ld, c->saved[MLA_RSTD_Q], &norm);
        c->ops->qk_norm_rope_backward(tail, tail, NULL, 0, NULL, &rope);
    } else if (rotates_or_norms(d)) {
        RopeArgs a = head_args(c, ld);
        c->ops->qk_norm_rope_backward(dq, dq, q, ld, c->saved[MLA_RSTD_Q], &a);
    }
}

// From dq to the query latent's part of dproj.
static void query_latent_backward(const AttnCall *c, floatX *dproj, const floatX *dq) {
    const AttnDims *d = &c->d;
    MlaRows r = mla_rows(d);
    size_t ld = mla_proj_width(d), q = mla_q_width(d), n = mla_tokens(d);
    floatX *proj = c->saved[MLA_PROJ];
    RopeArgs a = norm_args(c, d->RQ, ld);
    c->ops->matmul_dw(c->dw[r.w_uq], dq, q, proj, ld, &c->w[r.w_uq], n);
    c->ops->matmul_dx(dproj, ld, dq, q, &c->w[r.w_uq], n, false);
    c->ops->qk_norm_rope_backward(dproj, dproj, proj, ld, c->saved[MLA_RSTD_CQ], &a);
}

// From dk, dv to the parts of dproj that belong to c and k^R.
static void keys_backward(const AttnCall *c, floatX *dproj, floatX *dkv, const floatX *dk) {
    const AttnDims *d = &c->d;
    const Ops *ops = c->ops;
    MlaRows r = mla_rows(d);
    size_t ld = mla_proj_width(d), w = mla_kv_width(d), n = mla_tokens(d);
    floatX *proj = c->saved[MLA_PROJ], *kv = c->saved[MLA_KV];
    if (d->HR) {
        ConcatArgs cat = concat_args(d);
        RopeArgs key = kr_args(c, ld);
        floatX *dkr = fx_at(ops, dproj, mla_kr_at(d));
        ops->split_heads(dkv, dkr, dk, &cat);
        ops->qk_norm_rope_backward(dkr, dkr, fx_at(ops, proj, mla_kr_at(d)), ld,
                                   c->saved[MLA_RSTD_KR], &key);
    } else if (rotates_or_norms(d)) {
        RopeArgs a = head_args(c, w);
        ops->qk_norm_rope_backward(dkv, dkv, kv, w, c->saved[MLA_RSTD_K], &a);
    }
    floatX *latent = fx_at(ops, proj, mla_c_at(d)), *dlatent = fx_at(ops, dproj, mla_c_at(d));
    RopeArgs norm = norm_args(c, d->RKV, ld);
    ops->matmul_dw(c->dw[r.w_uk], dkv, w, latent, ld, &c->w[r.w_uk], n);
    ops->matmul_dx(dlatent, ld, dkv, w, &c->w[r.w_uk], n, false);
    ops->qk_norm_rope_backward(dlatent, dlatent, latent, ld, c->saved[MLA_RSTD_C], &norm);
    if (d->bias) ops->bias_dw(c->dw[r.bk], dkv, w, n, (int)w);
}

void mla_backward(const AttnCall *c, floatX *dx, const floatX *dout, const floatX *x) {
    const AttnDims *d = &c->d;
    const Ops *ops = c->ops;
    MlaRows r = mla_rows(d);
    size_t n = mla_tokens(d), ld = mla_proj_width(d), C = (size_t)d->C, v = mla_v_width(d);
    size_t qw = mla_q_width(d);
    floatX *proj = c->saved[MLA_PROJ], *q = d->RQ ? c->saved[MLA_Q] : proj, *kv = c->saved[MLA_KV];
    floatX *k = d->HR ? c->saved[MLA_K] : kv, *att = c->saved[MLA_ATT];
    floatX *dproj = c->scratch, *datt = fx_at(ops, dproj, n * ld), *dkv = fx_at(ops, datt, n * v);
    floatX *next = fx_at(ops, dkv, n * mla_kv_width(d)), *dq = dproj, *dk = dkv;
    if (d->RQ) dq = next, next = fx_at(ops, next, n * qw);
    if (d->HR) dk = next;
    ops->matmul_dw(c->dw[r.wo], dout, C, att, v, &c->w[r.wo], n);
    ops->matmul_dx(datt, v, dout, C, &c->w[r.wo], n, false);
    SdpaArgs s = sdpa_args(d);
    ops->sdpa_backward(dq, dk, fx_at(ops, dkv, mla_k_width(d)), datt, att, c->saved[MLA_LSE], q, k,
                       fx_at(ops, kv, mla_k_width(d)), &s);
    queries_backward(c, dq, q);
    if (d->RQ) query_latent_backward(c, dproj, dq);
    keys_backward(c, dproj, dkv, dk);
    ops->matmul_dw(c->dw[r.in], dproj, ld, x, C, &c->w[r.in], n);
    ops->matmul_dx(dx, C, dproj, ld, &c->w[r.in], n, false);
    if (!d->bias) return;
    ops->bias_dw(c->dw[r.bo], dout, C, n, d->C);
    ops->bias_dw(c->dw[r.bq], dq, q_ld(d), n, (int)qw);
}
