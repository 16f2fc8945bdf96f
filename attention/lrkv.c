// lrkv.c - Low-Rank Key-Value attention (arXiv 2601.11471): one shared full-rank key and value
// projection and a low-rank residual for each head, K_h = X (Ws + U_h B_h^T). Stored (out, in):
//   k_h = ws_k x + b_k,h (u_k,h x)
// Training runs factored (one product for [q | ks | vs | zk | zv], then an expansion that rotates
// and normalises) or merged (W_h built once a step, then plain multi-head attention); each checks
// the other. The cache holds ks, vs and the latents z, so generation reconstructs keys tile by
// tile. RoPE and QK-norm act on the full key. Rank 0 has no residuals and is multi-query attention.
#include "attention/lrkv_parts.h"

static const char *check(const AttnDims *d) {
    if (d->R < 0) return "attention.rank must be 0 or more";
    if (d->R > d->HS) return "attention.rank above head_dim adds parameters but no rank";
    if (d->HV != d->HS) return "keys and values must have the same head size";
    return NULL;
}

static TensorSpec matrix(const char *name, int out, int in, float std) {
    TensorSpec s = {.name = name, .dim = {out, in}, .kind = KIND_MATRIX, .init = INIT_NORMAL};
    s.std = std;
    return s;
}

// When merged, products read the derived W_h, and the factors are raw.
static int params(TensorSpec *s, const AttnDims *d) {
    Rows r = rows(d);
    int q = (int)q_width(d), R8 = attn_stored_rank(d->R);
    bool raw = merged(d), join = !raw;
    float std = attn_std_in(d, d->C);
    s[r.wq] = matrix("wq", q, d->C, std);
    s[r.wq].heads = d->NH;
    s[r.ws_k] = matrix("ws_k", d->HS, d->C, std);
    s[r.ws_v] = matrix("ws_v", d->HS, d->C, std);
    if (d->R > 0) {
        s[r.u_k] = matrix("u_k", d->NH * d->R, d->C, std);
        s[r.u_k].stored[0] = d->NH * R8, s[r.u_k].stored[1] = d->C;
        s[r.u_k].groups = s[r.u_k].heads = d->NH;
        s[r.u_v] = s[r.u_k];
        s[r.u_v].name = "u_v";
        s[r.b_k] = matrix("b_k", q, d->R, d->residual_ratio / sqrtf((float)d->R));
        s[r.b_k].stored[0] = q, s[r.b_k].stored[1] = R8;
        s[r.b_k].blocks = d->NH, s[r.b_k].raw = true;
        s[r.b_v] = s[r.b_k];
        s[r.b_v].name = "b_v";
    }
    for (int i = r.ws_k; i <= (d->R > 0 ? r.u_v : r.ws_v); i++)
        s[i].join = join, s[i].raw = raw;
    s[r.wo] = attn_wo_row(d, q);
    if (d->bias) {
        s[r.bq] = attn_bias_row("bq", q, false);
        s[r.bs_k] = attn_bias_row("bs_k", d->HS, true);
        s[r.bs_v] = attn_bias_row("bs_v", d->HS, true);
        s[r.bo] = attn_bias_row("bo", d->C, false);
    }
    return r.n;
}

static int saved(TensorSpec *s, const AttnDims *d) {
    int n = d->B * d->T, NKV = d->R > 0 ? d->NH : 1, norm = d->qk_norm ? n : 0;
    s[PROJ] = (TensorSpec){.name = "proj", .dim = {n, (int)kept_width(d)}};
    s[RSTD_Q] = (TensorSpec){.name = "rstd_q", .dim = {norm, d->NH}, .type = TYPE_F32};
    s[RSTD_K] = (TensorSpec){.name = "rstd_k", .dim = {norm, NKV}, .type = TYPE_F32};
    s[KV] = (TensorSpec){.name = "kv", .dim = {d->R > 0 ? n : 0, (int)kv_width(d)}};
    s[ATT] = (TensorSpec){.name = "att", .dim = {n, (int)q_width(d)}};
    s[LSE] = (TensorSpec){.name = "lse", .dim = {n, d->NH}, .type = TYPE_F32};
    return LSE + 1;
}

// W_h for keys, then for values, head by head; and the shared biases repeated for each head.
static int derived(TensorSpec *s, const AttnDims *d) {
    if (!merged(d)) return 0;
    s[MERGED_KV] = (TensorSpec){.name = "w_kv", .dim = {(int)kv_width(d), d->C}};
    if (!d->bias) return 1;
    s[MERGED_BIAS] = (TensorSpec){.name = "b_kv", .dim = {(int)kv_width(d), 0}, .type = TYPE_F32};
    s[MERGED_BIAS].raw = true;
    return 2;
}

static int cache(TensorSpec *s, const AttnDims *d) {
    int latent_rows = (int)round_up((size_t)d->Tmax, LATENT_BLOCK);
    s[CACHE_KS] = (TensorSpec){.name = "ks", .dim = {d->Tmax, d->HS}, .type = d->cache_type};
    s[CACHE_VS] = s[CACHE_KS];
    s[CACHE_VS].name = "vs";
    if (d->R == 0) return CACHE_VS + 1;
    s[CACHE_ZK] =
        (TensorSpec){.name = "zk", .dim = {latent_rows, d->NH * d->R}, .type = d->cache_type};
    s[CACHE_ZV] = s[CACHE_ZK];
    s[CACHE_ZV].name = "zv";
    return CACHE_ZV + 1;
}

static size_t scratch(const AttnDims *d) {
    return tokens(d) * (kept_width(d) + q_width(d) + kv_width(d)) * sizeof(float);
}

static size_t extend_scratch(const AttnDims *d) {
    return tokens(d) * (proj_width(d) + q_width(d)) * sizeof(float);
}

// The parts of [q | ks | vs | zk | zv]: one product where the rows join, else one for each.
void lrkv_project(const AttnCall *c, floatX *proj, const floatX *x) {
    const AttnDims *d = &c->d;
    Rows r = rows(d);
    size_t w = proj_width(d), n = tokens(d), C = (size_t)d->C;
    if (!merged(d)) {
        int n_bias = d->bias ? (int)zk_at(d) : 0;
        c->ops->matmul(proj, w, x, C, &c->w[r.wq], vector_of(c, r.bq), n_bias, n);
        return;
    }
    const struct {
        int row, bias;
        size_t at;
    } part[] = {{r.wq, r.bq, 0},
                {r.ws_k, r.bs_k, ks_at(d)},
                {r.ws_v, r.bs_v, vs_at(d)},
                {r.u_k, -1, zk_at(d)},
                {r.u_v, -1, zv_at(d)}};
    for (int i = 0; i < 5; i++) {
        const Weight *u = &c->w[part[i].row];
        c->ops->matmul(fx_at(c->ops, proj, part[i].at), w, x, C, u, vector_of(c, part[i].bias),
                       part[i].bias < 0 ? 0 : u->OC, n);
    }
}

// The new tokens' ks, vs and latents go behind what each row of the cache holds.
static void append(const AttnCall *c, const floatX *proj) {
    const AttnDims *d = &c->d;
    const Ops *ops = c->ops;
    size_t w = proj_width(d), shared = (size_t)d->Tmax * (size_t)d->HS;
    ops->cache_append(c->cache[CACHE_KS], shared, d->cache_type, fx_at(ops, proj, ks_at(d)), w,
                      d->HS, c->pos, c->n_new, d->B, d->T);
    ops->cache_append(c->cache[CACHE_VS], shared, d->cache_type, fx_at(ops, proj, vs_at(d)), w,
                      d->HS, c->pos, c->n_new, d->B, d->T);
    if (d->R == 0) return;
    size_t latent = round_up((size_t)d->Tmax, LATENT_BLOCK) * (size_t)(d->NH * d->R);
    int R8 = attn_stored_rank(d->R);
    ops->cache_append_latent(c->cache[CACHE_ZK], latent, d->cache_type, fx_at(ops, proj, zk_at(d)),
                             w, d->NH, d->R, R8, c->pos, c->n_new, d->B, d->T);
    ops->cache_append_latent(c->cache[CACHE_ZV], latent, d->cache_type, fx_at(ops, proj, zv_at(d)),
                             w, d->NH, d->R, R8, c->pos, c->n_new, d->B, d->T);
}

static LowRankCache cache_view(const AttnCall *c) {
    const AttnDims *d = &c->d;
    Rows r = rows(d);
    size_t shared = (size_t)d->Tmax * (size_t)d->HS;
    size_t latent = round_up((size_t)d->Tmax, LATENT_BLOCK) * (size_t)(d->NH * d->R);
    return (LowRankCache){.ks = c->cache[CACHE_KS],
                          .vs = c->cache[CACHE_VS],
                          .zk = c->cache[CACHE_ZK],
                          .zv = c->cache[CACHE_ZV],
                          .bk = data_of(c, r.b_k),
                          .bv = data_of(c, r.b_v),
                          .r = d->R,
                          .ld_b = attn_stored_rank(d->R),
                          .n_zk = d->NH * d->R,
                          .n_zv = d->NH * d->R,
                          .ks_batch = shared,
                          .vs_batch = shared,
                          .zk_batch = latent,
                          .zv_batch = latent,
                          .rope = d->position == POSITION_ROPE ? c->rope : NULL,
                          .norm = d->qk_norm,
                          .eps = d->eps};
}

static void extend(const AttnCall *c, floatX *out, const floatX *x) {
    const AttnDims *d = &c->d;
    size_t w = proj_width(d);
    floatX *proj = c->scratch, *att = fx_at(c->ops, proj, tokens(d) * w);
    lrkv_project(c, proj, x);
    rotate(c, proj, NULL, d->NH, w);
    if (d->R == 0) rotate(c, fx_at(c->ops, proj, ks_at(d)), NULL, 1, w);
    append(c, proj);
    SdpaArgs s = sdpa_args(d);
    s.Tk = d->Tmax, s.q_token = w, s.q_batch = (size_t)d->T * w;
    s.k_token = s.v_token = (size_t)d->HS, s.k_batch = s.v_batch = (size_t)d->Tmax * (size_t)d->HS;
    s.pos = c->pos, s.n_new = c->n_new, s.max_pos = c->max_pos, s.kv_type = d->cache_type;
    if (d->R > 0) {
        LowRankCache view = cache_view(c);
        c->ops->sdpa_lowrank_extend(att, proj, &view, &s);
    } else {
        c->ops->sdpa_extend(att, proj, c->cache[CACHE_KS], c->cache[CACHE_VS], &s);
    }
    output(c, out, att);
}

const Attention attention_lrkv = {
    .name = "lrkv",
    .summary =
        "low-rank key/value: one shared full-rank key and value, a low-rank residual for each head",
    .check = check,
    .params = params,
    .saved = saved,
    .derived = derived,
    .cache = cache,
    .scratch = scratch,
    .extend_scratch = extend_scratch,
    .prepare = lrkv_prepare,
    .forward = lrkv_forward,
    .backward = lrkv_backward,
    .finish = lrkv_finish,
    .extend = extend};
