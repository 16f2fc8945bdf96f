// lrkv_train.c - LRKV in training: forward and backward, factored or merged.
#include "attention/lrkv_parts.h"

// Keys and values of every head from x and the saved projection.
static void keys_and_values(const AttnCall *c, const floatX *x) {
    const AttnDims *d = &c->d;
    const Ops *ops = c->ops;
    Rows r = rows(d);
    floatX *proj = c->saved[PROJ], *kv = c->saved[KV];
    if (merged(d)) {
        const float *bias = d->bias ? (const float *)c->derived[MERGED_BIAS].data : NULL;
        ops->matmul(kv, kv_width(d), x, (size_t)d->C, &c->derived[MERGED_KV], bias,
                    bias ? (int)kv_width(d) : 0, tokens(d));
        rotate(c, kv, c->saved[RSTD_K], d->NH, kv_width(d));
    } else if (d->R > 0) {
        LowRankArgs k = expand_args(c, true), v = expand_args(c, false);
        ops->lowrank_forward(kv, c->saved[RSTD_K], fx_at(ops, proj, ks_at(d)),
                             fx_at(ops, proj, zk_at(d)), data_of(c, r.b_k), &k);
        ops->lowrank_forward(fx_at(ops, kv, q_width(d)), NULL, fx_at(ops, proj, vs_at(d)),
                             fx_at(ops, proj, zv_at(d)), data_of(c, r.b_v), &v);
    } else {
        rotate(c, fx_at(ops, proj, ks_at(d)), c->saved[RSTD_K], 1, kept_width(d));
    }
}

static const floatX *keys_of(const AttnCall *c, floatX *proj, floatX *kv) {
    return c->d.R > 0 ? kv : fx_at(c->ops, proj, ks_at(&c->d));
}
static const floatX *values_of(const AttnCall *c, floatX *proj, floatX *kv) {
    return c->d.R > 0 ? fx_at(c->ops, kv, q_width(&c->d)) : fx_at(c->ops, proj, vs_at(&c->d));
}

void lrkv_forward(const AttnCall *c, floatX *out, const floatX *x) {
    const AttnDims *d = &c->d;
    Rows r = rows(d);
    floatX *proj = c->saved[PROJ], *kv = c->saved[KV], *att = c->saved[ATT];
    if (merged(d)) {
        c->ops->matmul(proj, q_width(d), x, (size_t)d->C, &c->w[r.wq], vector_of(c, r.bq),
                       d->bias ? (int)q_width(d) : 0, tokens(d));
    } else {
        lrkv_project(c, proj, x);
    }
    rotate(c, proj, c->saved[RSTD_Q], d->NH, kept_width(d));
    keys_and_values(c, x);
    SdpaArgs s = sdpa_args(d);
    c->ops->sdpa_forward(att, c->saved[LSE], proj, keys_of(c, proj, kv), values_of(c, proj, kv),
                         &s);
    output(c, out, att);
}

// dproj of ks, vs, zk, zv from the gradients of keys and values; db accumulate.
static void expand_backward(const AttnCall *c, floatX *dproj, floatX *dkv) {
    const AttnDims *d = &c->d;
    const Ops *ops = c->ops;
    Rows r = rows(d);
    floatX *proj = c->saved[PROJ], *kv = c->saved[KV];
    if (d->R == 0) {
        rotate_backward(c, fx_at(ops, dproj, ks_at(d)), fx_at(ops, proj, ks_at(d)),
                        c->saved[RSTD_K], 1, kept_width(d));
        return;
    }
    LowRankArgs k = expand_args(c, true), v = expand_args(c, false);
    ops->lowrank_backward(fx_at(ops, dproj, ks_at(d)), fx_at(ops, dproj, zk_at(d)), c->dw[r.b_k],
                          dkv, kv, c->saved[RSTD_K], fx_at(ops, proj, zk_at(d)), data_of(c, r.b_k),
                          &k);
    ops->lowrank_backward(fx_at(ops, dproj, vs_at(d)), fx_at(ops, dproj, zv_at(d)), c->dw[r.b_v],
                          fx_at(ops, dkv, q_width(d)), fx_at(ops, kv, q_width(d)), NULL,
                          fx_at(ops, proj, zv_at(d)), data_of(c, r.b_v), &v);
}

static void merged_backward(const AttnCall *c, floatX *dx, floatX *dkv, const floatX *x) {
    const AttnDims *d = &c->d;
    size_t n = tokens(d), C = (size_t)d->C, w = kv_width(d);
    const Weight *kv = &c->derived[MERGED_KV];
    rotate_backward(c, dkv, c->saved[KV], c->saved[RSTD_K], d->NH, w);
    c->ops->matmul_dw(c->dderived[MERGED_KV], dkv, w, x, C, kv, n);
    c->ops->matmul_dx(dx, C, dkv, w, kv, n, true);
    if (d->bias) c->ops->bias_dw(c->dderived[MERGED_BIAS], dkv, w, n, (int)w);
}

void lrkv_backward(const AttnCall *c, floatX *dx, const floatX *dout, const floatX *x) {
    const AttnDims *d = &c->d;
    const Ops *ops = c->ops;
    Rows r = rows(d);
    size_t n = tokens(d), w = kept_width(d), q = q_width(d), C = (size_t)d->C;
    floatX *proj = c->saved[PROJ], *kv = c->saved[KV], *att = c->saved[ATT];
    floatX *dproj = c->scratch, *datt = fx_at(ops, dproj, n * w), *dkv = fx_at(ops, datt, n * q);
    ops->matmul_dw(c->dw[r.wo], dout, C, att, q, &c->w[r.wo], n);
    ops->matmul_dx(datt, q, dout, C, &c->w[r.wo], n, false);
    SdpaArgs s = sdpa_args(d);
    ops->sdpa_backward(dproj, (floatX *)keys_of(c, dproj, dkv), (floatX *)values_of(c, dproj, dkv),
                       datt, att, c->saved[LSE], proj, keys_of(c, proj, kv), values_of(c, proj, kv),
                       &s);
    rotate_backward(c, dproj, proj, c->saved[RSTD_Q], d->NH, w);
    if (!merged(d)) expand_backward(c, dproj, dkv);
    ops->matmul_dw(c->dw[r.wq], dproj, w, x, C, &c->w[r.wq], n);
    ops->matmul_dx(dx, C, dproj, w, &c->w[r.wq], n, false);
    if (merged(d)) merged_backward(c, dx, dkv, x);
    if (!d->bias) return;
    ops->bias_dw(c->dw[r.bo], dout, C, n, d->C);
    ops->bias_dw(c->dw[r.bq], dproj, w, n, (int)(merged(d) ? q : zk_at(d)));
}

// c (rows, cols) of each head = or += a b, batched over heads.
static GemmOp head_gemm(const AttnDims *d, int M, int N, int K, size_t stride_a, size_t stride_b,
                        size_t stride_c) {
    return (GemmOp){.M = M,
                    .N = N,
                    .K = K,
                    .batch = d->NH,
                    .stride_a = stride_a,
                    .stride_b = stride_b,
                    .stride_c = stride_c,
                    .a_type = TYPE_FX,
                    .b_type = TYPE_FX,
                    .c_type = TYPE_FX,
                    .compute = TYPE_F32,
                    .alpha = 1,
                    .beta = 1};
}

// W_h = Ws + B_h U_h for one of keys and values.
static void merge(const AttnCall *c, floatX *w, int ws, int u, int b) {
    const AttnDims *d = &c->d;
    size_t R8 = (size_t)attn_stored_rank(d->R), hs = (size_t)d->HS, C = (size_t)d->C;
    for (int h = 0; h < d->NH; h++) {
        c->ops->copy(fx_at(c->ops, w, (size_t)h * hs * C), data_of(c, ws),
                     hs * C * c->ops->elem_size);
    }
    GemmOp g = head_gemm(d, d->HS, d->C, (int)R8, hs * R8, R8 * C, hs * C);
    g.lda = R8, g.ldb = C, g.ldc = C;
    c->ops->gemm(w, data_of(c, b), data_of(c, u), &g);
}

void lrkv_prepare(const AttnCall *c) {
    const AttnDims *d = &c->d;
    Rows r = rows(d);
    floatX *w = (floatX *)c->derived[MERGED_KV].data;
    merge(c, w, r.ws_k, r.u_k, r.b_k);
    merge(c, fx_at(c->ops, w, q_width(d) * (size_t)d->C), r.ws_v, r.u_v, r.b_v);
    if (!d->bias) return;
    float *bias = (float *)c->derived[MERGED_BIAS].data;
    for (int i = 0; i < 2 * d->NH; i++) {
        int row = i < d->NH ? r.bs_k : r.bs_v;
        c->ops->copy(bias + (size_t)i * (size_t)d->HS, vector_of(c, row),
                     (size_t)d->HS * sizeof(float));
    }
}

// dWs += sum_h G_h, dU_h += B_h^T G_h, dB_h += G_h U_h^T, G_h the gradient of W_h.
static void unmerge(const AttnCall *c, const float *G, int ws, int u, int b) {
    const AttnDims *d = &c->d;
    size_t R8 = (size_t)attn_stored_rank(d->R), hs = (size_t)d->HS, C = (size_t)d->C;
    for (int h = 0; h < d->NH; h++)
        c->ops->axpy(c->dw[ws], G + (size_t)h * hs * C, hs * C, 1);
    GemmOp du = head_gemm(d, (int)R8, d->C, d->HS, hs * R8, hs * C, R8 * C);
    du.ta = true, du.lda = R8, du.ldb = C, du.ldc = C, du.b_type = du.c_type = TYPE_F32;
    c->ops->gemm(c->dw[u], data_of(c, b), G, &du);
    GemmOp db = head_gemm(d, d->HS, (int)R8, d->C, hs * C, R8 * C, hs * R8);
    db.tb = true, db.lda = C, db.ldb = C, db.ldc = R8, db.a_type = db.c_type = TYPE_F32;
    c->ops->gemm(c->dw[b], G, data_of(c, u), &db);
}

void lrkv_finish(const AttnCall *c) {
    const AttnDims *d = &c->d;
    Rows r = rows(d);
    const float *G = c->dderived[MERGED_KV];
    unmerge(c, G, r.ws_k, r.u_k, r.b_k);
    unmerge(c, G + q_width(d) * (size_t)d->C, r.ws_v, r.u_v, r.b_v);
    for (int i = 0; d->bias && i < 2 * d->NH; i++) {
        int row = i < d->NH ? r.bs_k : r.bs_v;
        c->ops->axpy(c->dw[row], c->dderived[MERGED_BIAS] + (size_t)i * (size_t)d->HS,
                     (size_t)d->HS, 1);
    }
}
