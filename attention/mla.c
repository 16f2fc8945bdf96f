// mla.c - Multi-head Latent Attention (DeepSeek-V2, arXiv 2405.04434). Keys and values of all heads
// come from one latent c = RMSNorm(x W_DKV) of kv_lora_rank values; only it is cached.
//   qk_rope_head_dim = 0: k_h = W_UK,h c, with RoPE and QK-norm on the reconstructed key (the count
//   of
//     arXiv 2601.11471). The cache holds c; generation reconstructs keys tile by tile.
//   qk_rope_head_dim > 0: positions live in a decoupled key k^R = RoPE(RMSNorm(x W_KR)), shared by
//   the
//     heads; the norm of the query covers [q^C | RoPE(q^R)], k^C has none. The cache holds [c |
//     k^R]; generation absorbs W_UK into the query and reads the cache as one key/value head.
// Latent norms have no gain. With q_lora_rank the query goes through a normed latent too.
#include "attention/mla_parts.h"

static const char *check(const AttnDims *d) {
    if (d->RKV < 1) return "attention.kv_lora_rank must be 1 or more";
    if (d->HR < 0 || d->HR % 2) return "attention.qk_rope_head_dim must be even and not negative";
    if (d->HR > 0 && d->position != POSITION_ROPE) {
        return "attention.qk_rope_head_dim above 0 needs model.position rope";
    }
    return NULL;
}

static TensorSpec matrix(const char *name, int out, int in, const AttnDims *d) {
    TensorSpec s = {.name = name, .dim = {out, in}, .kind = KIND_MATRIX, .init = INIT_NORMAL};
    s.std = attn_std_in(d, in);
    return s;
}

static int params(TensorSpec *s, const AttnDims *d) {
    MlaRows r = mla_rows(d);
    int q = (int)mla_q_width(d), k = d->NH * d->HS, v = d->NH * d->HV;
    s[r.in] = d->RQ ? matrix("w_dq", d->RQ, d->C, d) : matrix("wq", q, d->C, d);
    s[r.w_dkv] = matrix("w_dkv", d->RKV, d->C, d);
    s[r.w_dkv].join = true;
    if (d->HR) s[r.w_kr] = matrix("w_kr", d->HR, d->C, d), s[r.w_kr].join = true;
    if (d->RQ) s[r.w_uq] = matrix("w_uq", q, d->RQ, d);
    s[d->RQ ? r.w_uq : r.in].heads = d->NH;
    s[r.w_uk] = matrix("w_uk", k, d->RKV, d);
    s[r.w_uv] = matrix("w_uv", v, d->RKV, d);
    s[r.w_uk].heads = s[r.w_uv].heads = d->NH;
    s[r.w_uv].join = true;
    s[r.wo] = attn_wo_row(d, v);
    if (d->bias) {
        s[r.bq] = attn_bias_row("bq", q, false);
        s[r.bk] = attn_bias_row("bk", k, false);
        s[r.bv] = attn_bias_row("bv", v, true);
        s[r.bo] = attn_bias_row("bo", d->C, false);
    }
    return r.n;
}

static int saved(TensorSpec *s, const AttnDims *d) {
    int n = d->B * d->T, norm = d->qk_norm ? n : 0;
    s[MLA_PROJ] = (TensorSpec){.name = "proj", .dim = {n, (int)mla_proj_width(d)}};
    s[MLA_RSTD_C] = (TensorSpec){.name = "rstd_c", .dim = {n, 1}, .type = TYPE_F32};
    s[MLA_RSTD_CQ] = (TensorSpec){.name = "rstd_cq", .dim = {d->RQ ? n : 0, 1}, .type = TYPE_F32};
    s[MLA_RSTD_KR] =
        (TensorSpec){.name = "rstd_kr", .dim = {d->HR ? norm : 0, 1}, .type = TYPE_F32};
    s[MLA_RSTD_Q] = (TensorSpec){.name = "rstd_q", .dim = {norm, d->NH}, .type = TYPE_F32};
    s[MLA_RSTD_K] =
        (TensorSpec){.name = "rstd_k", .dim = {d->HR ? 0 : norm, d->NH}, .type = TYPE_F32};
    s[MLA_Q] = (TensorSpec){.name = "q", .dim = {d->RQ ? n : 0, (int)mla_q_width(d)}};
    s[MLA_KV] = (TensorSpec){.name = "kv", .dim = {n, (int)mla_kv_width(d)}};
    s[MLA_K] = (TensorSpec){.name = "k", .dim = {d->HR ? n : 0, (int)mla_q_width(d)}};
    s[MLA_ATT] = (TensorSpec){.name = "att", .dim = {n, d->NH * d->HV}};
    s[MLA_LSE] = (TensorSpec){.name = "lse", .dim = {n, d->NH}, .type = TYPE_F32};
    return MLA_LSE + 1;
}

static int cache(TensorSpec *s, const AttnDims *d) {
    int blocks = (int)round_up((size_t)d->Tmax, LATENT_BLOCK);
    s[0] = (TensorSpec){.name = "c", .dim = {blocks, d->RKV}, .type = d->cache_type};
    if (d->HR)
        s[0] =
            (TensorSpec){.name = "c_kr", .dim = {d->Tmax, d->RKV + d->HR}, .type = d->cache_type};
    return 1;
}

static size_t scratch(const AttnDims *d) {
    size_t q = mla_q_width(d), per_token = mla_proj_width(d) + (d->RQ ? q : 0) + mla_kv_width(d);
    return mla_tokens(d) * (per_token + (d->HR ? q : 0) + mla_v_width(d)) * sizeof(float);
}

static size_t extend_scratch(const AttnDims *d) {
    size_t absorbed = d->HR ? (size_t)d->NH * (size_t)(2 * d->RKV + d->HR) : 0;
    size_t per_token = mla_proj_width(d) + (d->RQ ? mla_q_width(d) : 0) + absorbed + mla_v_width(d);
    return mla_tokens(d) * per_token * sizeof(float);
}

static SdpaArgs extend_args(const AttnCall *c, size_t q_token) {
    const AttnDims *d = &c->d;
    size_t T = (size_t)d->T, v = mla_v_width(d);
    return (SdpaArgs){.B = d->B,
                      .Tq = d->T,
                      .Tk = d->Tmax,
                      .NH = d->NH,
                      .NKV = d->NH,
                      .HS = d->HS,
                      .HV = d->HV,
                      .q_token = q_token,
                      .q_head = (size_t)mla_q_head(d),
                      .q_batch = T * q_token,
                      .o_token = v,
                      .o_head = (size_t)d->HV,
                      .o_batch = T * v,
                      .scale = attn_scale(d, mla_q_head(d)),
                      .pos = c->pos,
                      .n_new = c->n_new,
                      .max_pos = c->max_pos,
                      .kv_type = d->cache_type};
}

// Keys reconstructed from the cached latents, tile by tile; values stay in latent space until the
// end.
static void extend_reconstructed(const AttnCall *c, floatX *att, const floatX *proj,
                                 const floatX *q) {
    const AttnDims *d = &c->d;
    MlaRows r = mla_rows(d);
    size_t batch = round_up((size_t)d->Tmax, LATENT_BLOCK) * (size_t)d->RKV;
    c->ops->cache_append_latent(c->cache[0], batch, d->cache_type, fx_at(c->ops, proj, mla_c_at(d)),
                                mla_proj_width(d), 1, d->RKV, d->RKV, c->pos, c->n_new, d->B, d->T);
    LowRankCache view = {.zk = c->cache[0],
                         .zv = c->cache[0],
                         .bk = c->w[r.w_uk].data,
                         .bv = c->w[r.w_uv].data,
                         .bias_k = attn_vector(c, r.bk),
                         .bias_v = attn_vector(c, r.bv),
                         .r = d->RKV,
                         .ld_b = d->RKV,
                         .shared_z = true,
                         .n_zk = d->RKV,
                         .n_zv = d->RKV,
                         .zk_batch = batch,
                         .zv_batch = batch,
                         .rope = d->position == POSITION_ROPE ? c->rope : NULL,
                         .norm = d->qk_norm,
                         .eps = d->eps};
    SdpaArgs s = extend_args(c, d->RQ ? mla_q_width(d) : mla_proj_width(d));
    c->ops->sdpa_lowrank_extend(att, q, &view, &s);
}

// out_h (N, out_width) = in_h (N, in_width) w_h, w_h (rows, RKV) of head h; `up` reads w_h
// transposed.
static void per_head(const AttnCall *c, floatX *out, size_t ld_out, int out_head, const floatX *in,
                     size_t ld_in, int in_head, int row, bool up) {
    const AttnDims *d = &c->d;
    int size = up ? d->HV : d->HS;
    GemmOp g = {.M = (int)mla_tokens(d),
                .N = up ? size : d->RKV,
                .K = up ? d->RKV : size,
                .batch = d->NH,
                .tb = up,
                .lda = ld_in,
                .ldb = (size_t)d->RKV,
                .ldc = ld_out,
                .stride_a = (size_t)in_head,
                .stride_b = (size_t)size * (size_t)d->RKV,
                .stride_c = (size_t)out_head,
                .a_type = TYPE_FX,
                .b_type = TYPE_FX,
                .c_type = TYPE_FX,
                .compute = TYPE_F32,
                .alpha = 1};
    c->ops->gemm(out, in, c->w[row].data, &g);
}

// q~_h = [W_UK,h^T q^C_h | q^R_h] against the cached [c | k^R]; values are its first RKV columns.
// The bias of k adds the same to every score of a query, so the softmax drops it.
static void extend_absorbed(const AttnCall *c, floatX *att, const floatX *proj, const floatX *q,
                            floatX *work) {
    const AttnDims *d = &c->d;
    const Ops *ops = c->ops;
    MlaRows r = mla_rows(d);
    int width = d->RKV + d->HR;
    size_t N = mla_tokens(d), qa_token = (size_t)d->NH * (size_t)width, row = (size_t)width;
    size_t z_token = (size_t)d->NH * (size_t)d->RKV,
           ld_q = d->RQ ? mla_q_width(d) : mla_proj_width(d);
    floatX *qa = work, *z = fx_at(ops, work, N * qa_token);
    ops->cache_append(c->cache[0], (size_t)d->Tmax * row, d->cache_type,
                      fx_at(ops, proj, mla_c_at(d)), mla_proj_width(d), width, c->pos, c->n_new,
                      d->B, d->T);
    per_head(c, qa, qa_token, width, q, ld_q, mla_q_head(d), r.w_uk, false);
    ConcatArgs tail = {.N = N,
                       .NH = d->NH,
                       .W1 = d->RKV,
                       .W2 = d->HR,
                       .ld_out = qa_token,
                       .ld_b = ld_q,
                       .b_head = (size_t)mla_q_head(d)};
    ops->concat_heads(qa, NULL, fx_at(ops, q, (size_t)d->HS), &tail);
    SdpaArgs s = extend_args(c, qa_token);
    s.NKV = 1, s.HS = width, s.HV = d->RKV, s.q_head = row;
    s.k_token = s.v_token = row, s.k_batch = s.v_batch = (size_t)d->Tmax * row;
    s.o_token = z_token, s.o_head = (size_t)d->RKV, s.o_batch = (size_t)d->T * z_token;
    ops->sdpa_extend(z, qa, c->cache[0], c->cache[0], &s);
    per_head(c, att, mla_v_width(d), d->HV, z, z_token, d->RKV, r.w_uv, true);
    if (d->bias) ops->bias_add(att, mla_v_width(d), attn_vector(c, r.bv), N, (int)mla_v_width(d));
}

static void extend(const AttnCall *c, floatX *out, const floatX *x) {
    const AttnDims *d = &c->d;
    size_t N = mla_tokens(d);
    floatX *proj = c->scratch, *q = proj, *next = fx_at(c->ops, proj, N * mla_proj_width(d));
    if (d->RQ) q = next, next = fx_at(c->ops, next, N * mla_q_width(d));
    floatX *att = next, *work = fx_at(c->ops, att, N * mla_v_width(d));
    MlaStats none = {NULL, NULL, NULL, NULL};
    mla_latents(c, proj, x, &none);
    mla_queries(c, q, proj, &none);
    if (d->HR)
        extend_absorbed(c, att, proj, q, work);
    else
        extend_reconstructed(c, att, proj, q);
    mla_output(c, out, att);
}

const Attention attention_mla = {
    .name = "mla",
    .summary = "multi-head latent: keys and values of all heads from one small cached latent",
    .check = check,
    .params = params,
    .saved = saved,
    .cache = cache,
    .scratch = scratch,
    .extend_scratch = extend_scratch,
    .forward = mla_forward,
    .backward = mla_backward,
    .extend = extend};
