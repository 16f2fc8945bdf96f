// gqa.c - MHA, MQA and GQA: one set of functions, three rows; they differ in NKV alone.
// Queries, keys and values come out of one product and stay in one buffer: per token
// [q (NH*HS) | k (NKV*HS) | v (NKV*HS)], positions and norm applied in place.
#include "attention/variants.h"

enum { WQ, WK, WV, WO, BQ, BK, BV, BO };
enum { QKV, RSTD_Q, RSTD_K, ATT, LSE };
enum { CACHE_K, CACHE_V };

static int width(const AttnDims *d) {
    return (d->NH + 2 * d->NKV) * d->HS;
}
static size_t tokens(const AttnDims *d) {
    return (size_t)d->B * (size_t)d->T;
}

static const char *check_heads(const AttnDims *d) {
    if (d->NKV < 1 || d->NH % d->NKV) return "n_kv_head must divide n_head";
    if (d->HV != d->HS) return "keys and values must have the same head size";
    return NULL;
}

static const char *check_mha(const AttnDims *d) {
    return d->NKV == d->NH ? check_heads(d) : "mha has as many key/value heads as query heads";
}

static const char *check_mqa(const AttnDims *d) {
    return d->NKV == 1 ? check_heads(d) : "mqa has one key/value head";
}

static int params(TensorSpec *s, const AttnDims *d) {
    const TensorSpec in = {.kind = KIND_MATRIX, .init = INIT_NORMAL, .std = attn_std_in(d, d->C)};
    int q = d->NH * d->HS, kv = d->NKV * d->HS;
    s[WQ] = s[WK] = s[WV] = in;
    s[WQ].name = "wq", s[WQ].dim[0] = q, s[WQ].dim[1] = d->C, s[WQ].heads = d->NH;
    s[WK].name = "wk", s[WK].dim[0] = kv, s[WK].dim[1] = d->C, s[WK].heads = d->NKV;
    s[WV].name = "wv", s[WV].dim[0] = kv, s[WV].dim[1] = d->C, s[WV].heads = d->NKV;
    s[WK].join = s[WV].join = true;
    s[WO] = attn_wo_row(d, q);
    if (!d->bias) return BQ;
    s[BQ] = attn_bias_row("bq", q, false);
    s[BK] = attn_bias_row("bk", kv, true);
    s[BV] = attn_bias_row("bv", kv, true);
    s[BO] = attn_bias_row("bo", d->C, false);
    return BO + 1;
}

static int saved(TensorSpec *s, const AttnDims *d) {
    int n = d->B * d->T;
    s[QKV] = (TensorSpec){.name = "qkv", .dim = {n, width(d)}};
    s[RSTD_Q] =
        (TensorSpec){.name = "rstd_q", .dim = {d->qk_norm ? n : 0, d->NH}, .type = TYPE_F32};
    s[RSTD_K] =
        (TensorSpec){.name = "rstd_k", .dim = {d->qk_norm ? n : 0, d->NKV}, .type = TYPE_F32};
    s[ATT] = (TensorSpec){.name = "att", .dim = {n, d->NH * d->HS}};
    s[LSE] = (TensorSpec){.name = "lse", .dim = {n, d->NH}, .type = TYPE_F32};
    return LSE + 1;
}

static int cache(TensorSpec *s, const AttnDims *d) {
    s[CACHE_K] = (TensorSpec){.name = "k", .dim = {d->Tmax, d->NKV * d->HS}, .type = d->cache_type};
    s[CACHE_V] = s[CACHE_K];
    s[CACHE_V].name = "v";
    return CACHE_V + 1;
}

// Backward needs dqkv and datt; extend needs qkv and att, which are as large.
static size_t scratch(const AttnDims *d) {
    return tokens(d) * (size_t)(width(d) + d->NH * d->HS) * sizeof(float);
}

static SdpaArgs sdpa_args(const AttnDims *d) {
    size_t w = (size_t)width(d), hs = (size_t)d->HS, t = (size_t)d->T;
    return (SdpaArgs){
        .B = d->B,
        .Tq = d->T,
        .Tk = d->T,
        .NH = d->NH,
        .NKV = d->NKV,
        .HS = d->HS,
        .HV = d->HS,
        .q_token = w,
        .k_token = w,
        .v_token = w,
        .o_token = (size_t)d->NH * hs,
        .q_head = hs,
        .k_head = hs,
        .v_head = hs,
        .o_head = hs,
        .q_batch = t * w,
        .k_batch = t * w,
        .v_batch = t * w,
        .o_batch = t * (size_t)d->NH * hs,
        .scale = attn_scale(d, d->HS),
        .any_order = d->any_order,
    };
}

// Queries at column 0 (NH heads) or keys behind them (NKV heads) of a qkv-like buffer.
static RopeArgs rope_args(const AttnCall *c, int heads) {
    size_t w = (size_t)width(&c->d);
    return (RopeArgs){.B = c->d.B,
                      .T = c->d.T,
                      .NH = heads,
                      .HS = c->d.HS,
                      .ld_inp = w,
                      .ld_out = w,
                      .rope = c->d.position == POSITION_ROPE ? c->rope : NULL,
                      .pos = c->pos,
                      .norm = c->d.qk_norm,
                      .eps = c->d.eps};
}

static bool has_rope_or_norm(const AttnDims *d) {
    return d->position == POSITION_ROPE || d->qk_norm;
}

static floatX *keys_of(const AttnCall *c, floatX *qkv) {
    return fx_at(c->ops, qkv, (size_t)c->d.NH * (size_t)c->d.HS);
}

static floatX *values_of(const AttnCall *c, floatX *qkv) {
    return fx_at(c->ops, qkv, (size_t)(c->d.NH + c->d.NKV) * (size_t)c->d.HS);
}

// qkv = x [wq; wk; wv]^T + bias, then positions and norm on q and k in place.
static void project(const AttnCall *c, floatX *qkv, float *rstd_q, float *rstd_k, const floatX *x) {
    const AttnDims *d = &c->d;
    int w = width(d);
    c->ops->matmul(qkv, (size_t)w, x, (size_t)d->C, &c->w[WQ], attn_vector(c, BQ), w, tokens(d));
    if (!has_rope_or_norm(d)) return;
    RopeArgs q = rope_args(c, d->NH), k = rope_args(c, d->NKV);
    floatX *keys = keys_of(c, qkv);
    c->ops->qk_norm_rope_forward(qkv, rstd_q, qkv, &q);
    c->ops->qk_norm_rope_forward(keys, rstd_k, keys, &k);
}

static void output(const AttnCall *c, floatX *out, const floatX *att) {
    const AttnDims *d = &c->d;
    c->ops->matmul(out, (size_t)d->C, att, (size_t)(d->NH * d->HS), &c->w[WO], attn_vector(c, BO),
                   d->C, tokens(d));
}

static void forward(const AttnCall *c, floatX *out, const floatX *x) {
    floatX *qkv = c->saved[QKV], *att = c->saved[ATT];
    SdpaArgs s = sdpa_args(&c->d);
    project(c, qkv, c->saved[RSTD_Q], c->saved[RSTD_K], x);
    c->ops->sdpa_forward(att, c->saved[LSE], qkv, keys_of(c, qkv), values_of(c, qkv), &s);
    output(c, out, att);
}

static void backward(const AttnCall *c, floatX *dx, const floatX *dout, const floatX *x) {
    const AttnDims *d = &c->d;
    const Ops *ops = c->ops;
    size_t n = tokens(d), w = (size_t)width(d), q_width = (size_t)(d->NH * d->HS), C = (size_t)d->C;
    floatX *qkv = c->saved[QKV], *att = c->saved[ATT];
    floatX *dqkv = c->scratch, *datt = fx_at(ops, dqkv, n * w);
    ops->matmul_dw(c->dw[WO], dout, C, att, q_width, &c->w[WO], n);
    ops->matmul_dx(datt, q_width, dout, C, &c->w[WO], n, false);
    SdpaArgs s = sdpa_args(d);
    ops->sdpa_backward(dqkv, keys_of(c, dqkv), values_of(c, dqkv), datt, att, c->saved[LSE], qkv,
                       keys_of(c, qkv), values_of(c, qkv), &s);
    if (has_rope_or_norm(d)) {
        RopeArgs q = rope_args(c, d->NH), k = rope_args(c, d->NKV);
        floatX *dk = keys_of(c, dqkv);
        ops->qk_norm_rope_backward(dqkv, dqkv, qkv, w, c->saved[RSTD_Q], &q);
        ops->qk_norm_rope_backward(dk, dk, keys_of(c, qkv), w, c->saved[RSTD_K], &k);
    }
    ops->matmul_dw(c->dw[WQ], dqkv, w, x, C, &c->w[WQ], n);
    ops->matmul_dx(dx, C, dqkv, w, &c->w[WQ], n, false);
    if (!d->bias) return;
    ops->bias_dw(c->dw[BO], dout, C, n, d->C);
    ops->bias_dw(c->dw[BQ], dqkv, w, n, (int)w);
}

static void extend(const AttnCall *c, floatX *out, const floatX *x) {
    const AttnDims *d = &c->d;
    size_t w = (size_t)width(d), kv = (size_t)(d->NKV * d->HS), batch = (size_t)d->Tmax * kv;
    floatX *qkv = c->scratch, *att = fx_at(c->ops, qkv, tokens(d) * w);
    project(c, qkv, NULL, NULL, x);
    c->ops->cache_append(c->cache[CACHE_K], batch, d->cache_type, keys_of(c, qkv), w, (int)kv,
                         c->pos, c->n_new, d->B, d->T);
    c->ops->cache_append(c->cache[CACHE_V], batch, d->cache_type, values_of(c, qkv), w, (int)kv,
                         c->pos, c->n_new, d->B, d->T);
    SdpaArgs s = sdpa_args(d);
    s.Tk = d->Tmax;
    s.k_token = s.v_token = kv;
    s.k_batch = s.v_batch = batch;
    s.pos = c->pos, s.n_new = c->n_new, s.max_pos = c->max_pos, s.kv_type = d->cache_type;
    c->ops->sdpa_extend(att, qkv, c->cache[CACHE_K], c->cache[CACHE_V], &s);
    output(c, out, att);
}

#define GQA_FUNCTIONS                                                                              \
    .params = params, .saved = saved, .cache = cache, .scratch = scratch,                          \
    .extend_scratch = scratch, .forward = forward, .backward = backward, .extend = extend

const Attention attention_mha = {.name = "mha",
                                 .summary =
                                     "multi-head: every query head has its own key/value head",
                                 .check = check_mha,
                                 GQA_FUNCTIONS};
const Attention attention_mqa = {.name = "mqa",
                                 .summary = "multi-query: one key/value head for all query heads",
                                 .check = check_mqa,
                                 GQA_FUNCTIONS};
const Attention attention_gqa = {
    .name = "gqa",
    .summary = "grouped-query: n_kv_head key/value heads, each for a group of queries",
    .check = check_heads,
    GQA_FUNCTIONS};
