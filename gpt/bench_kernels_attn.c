// bench_kernels_attn.c - the ops of attention and of its cache by themselves: see bench_kernels.c.
// Counts are those of what a variant needs: its head sizes, key/value heads and rank.
#include "gpt/bench_kernels.h"

#include <math.h>

static size_t width(int heads, int size) {
    return (size_t)heads * (size_t)size;
}

// A config without a rank gets the one that the paper would give it.
static int rank_of(const AttnDims *d) {
    return d->R > 0 ? d->R : (d->HS * 3 + 7) / 8;
}

// Heads of keys and values in training: low-rank ones are put together for every query head.
static int kv_heads(const AttnDims *d) {
    return d->R > 0 || d->RKV > 0 ? d->NH : d->NKV > 0 ? d->NKV : 1;
}

static SdpaArgs sdpa_args(const Kernels *k, int Tq) {
    const AttnDims *d = &k->d;
    int NKV = kv_heads(d), HS = d->HS + d->HR;
    SdpaArgs a = {.B = d->B,
                  .Tq = Tq,
                  .Tk = d->T,
                  .NH = d->NH,
                  .NKV = NKV,
                  .HS = HS,
                  .HV = d->HV,
                  .scale = 1 / sqrtf((float)HS),
                  .kv_type = TYPE_FX};
    a.q_head = a.k_head = (size_t)HS, a.v_head = a.o_head = (size_t)d->HV;
    a.q_token = width(d->NH, HS), a.o_token = width(d->NH, d->HV);
    a.k_token = width(NKV, HS), a.v_token = width(NKV, d->HV);
    a.q_batch = a.q_token * (size_t)Tq, a.o_batch = a.o_token * (size_t)Tq;
    a.k_batch = a.k_token * (size_t)d->T, a.v_batch = a.v_token * (size_t)d->T;
    return a;
}

void kernel_rope(Kernels *k) {
    const AttnDims *d = &k->d;
    size_t w = width(d->NH, d->HS), n = k->N * w;
    RopeArgs a = {.B = d->B,
                  .T = d->T,
                  .NH = d->NH,
                  .HS = d->HS,
                  .ld_inp = w,
                  .ld_out = w,
                  .rope = d->HS % 2 ? NULL : k->rope,
                  .norm = true,
                  .eps = 1e-6f};
    floatX *x = kernel_fx(k, n), *y = kernel_fx(k, n);
    float *rstd = kernel_f32(k, k->N * (size_t)d->NH);
    double unit = (double)(n * k->ops->elem_size);
    TIMED(k, "qk_norm_rope_forward", 0, 2 * unit) k->ops->qk_norm_rope_forward(y, rstd, x, &a);
    TIMED(k, "qk_norm_rope_backward", 0, 3 * unit)
    k->ops->qk_norm_rope_backward(x, x, y, w, rstd, &a);
}

void kernel_lowrank(Kernels *k) {
    const AttnDims *d = &k->d;
    const Ops *ops = k->ops;
    int R = attn_stored_rank(rank_of(d));
    size_t w = width(d->NH, d->HS), z = width(d->NH, R), HS = (size_t)d->HS;
    LowRankArgs a = {.B = d->B,
                     .T = d->T,
                     .NH = d->NH,
                     .HS = d->HS,
                     .R = R,
                     .ld_s = HS,
                     .ld_z = z,
                     .ld_out = w,
                     .rope = d->HS % 2 ? NULL : k->rope,
                     .norm = true,
                     .eps = 1e-6f};
    floatX *s = kernel_fx(k, k->N * HS), *zs = kernel_fx(k, k->N * z),
           *b = kernel_fx(k, w * (size_t)R), *y = kernel_fx(k, k->N * w),
           *dy = kernel_fx(k, k->N * w), *ds = kernel_fx(k, k->N * HS),
           *dz = kernel_fx(k, k->N * z);
    float *rstd = kernel_f32(k, k->N * (size_t)d->NH), *db = kernel_f32(k, w * (size_t)R);
    double flops = 2.0 * (double)k->N * (double)w * R, e = (double)ops->elem_size, N = (double)k->N;
    TIMED(k, "lowrank_forward", flops, N * e * (double)(HS + z + w))
    ops->lowrank_forward(y, rstd, s, zs, b, &a);
    TIMED(k, "lowrank_backward", 2 * flops, N * e * (double)(3 * w + HS + 2 * (w + z)))
    ops->lowrank_backward(ds, dz, db, dy, y, rstd, zs, b, &a);
}

// A decoupled key: each head's own part beside one that all share.
void kernel_heads(Kernels *k) {
    const AttnDims *d = &k->d;
    int W2 = d->HR ? d->HR : 64;
    size_t w = width(d->NH, d->HS), all = width(d->NH, d->HS + W2);
    ConcatArgs c = {.N = k->N,
                    .NH = d->NH,
                    .W1 = d->HS,
                    .W2 = W2,
                    .ld_out = all,
                    .ld_a = w,
                    .ld_b = (size_t)W2,
                    .a_head = (size_t)d->HS,
                    .b_head = 0};
    floatX *out = kernel_fx(k, k->N * all), *a = kernel_fx(k, k->N * w),
           *b = kernel_fx(k, k->N * (size_t)W2);
    double bytes = (double)(k->N * (all + w + (size_t)W2) * k->ops->elem_size);
    TIMED(k, "concat_heads", 0, bytes) k->ops->concat_heads(out, a, b, &c);
    TIMED(k, "split_heads", 0, bytes) k->ops->split_heads(a, b, out, &c);
}

void kernel_sdpa(Kernels *k) {
    const AttnDims *d = &k->d;
    const Ops *ops = k->ops;
    SdpaArgs a = sdpa_args(k, d->T);
    size_t N = k->N;
    floatX *q = kernel_fx(k, N * a.q_token), *key = kernel_fx(k, N * a.k_token),
           *v = kernel_fx(k, N * a.v_token), *out = kernel_fx(k, N * a.o_token),
           *dq = kernel_fx(k, N * a.q_token), *dk = kernel_fx(k, N * a.k_token),
           *dv = kernel_fx(k, N * a.v_token), *dout = kernel_fx(k, N * a.o_token);
    float *lse = kernel_f32(k, N * (size_t)d->NH);
    // T / 2 keys on average: two products forward, five backward (kernels that compute the scores
    // twice do more).
    double pair = (double)N * d->NH * (double)d->T, HS = a.HS, HV = a.HV;
    double io = (double)(N * (a.q_token + a.k_token + a.v_token + a.o_token) * ops->elem_size),
           stats = 4 * (double)N * d->NH;
    TIMED(k, "sdpa_forward", pair * (HS + HV), io + stats)
    ops->sdpa_forward(out, lse, q, key, v, &a);
    TIMED(k, "sdpa_backward", pair * (3 * HS + 2 * HV), 2 * io + stats)
    ops->sdpa_backward(dq, dk, dv, dout, out, lse, q, key, v, &a);
}

// Decoding: one new token for each sequence, at the end of a full cache.
typedef struct Decode {
    int *pos, *n_new;
    ElemType type;
    double bytes;  // of a cached value
} Decode;

static Decode decode_new(Kernels *k) {
    int B = k->d.B, *values = mem_alloc((size_t)B, sizeof(int));
    Decode x = {.type = k->compute};
    for (int i = 0; i < B; i++)
        values[i] = k->d.T - 1;
    x.pos = kernel_ints(k, values, (size_t)B);
    for (int i = 0; i < B; i++)
        values[i] = 1;
    x.n_new = kernel_ints(k, values, (size_t)B);
    x.bytes = (double)elem_bytes(x.type, k->ops->elem_size);
    mem_free(values);
    return x;
}

// Memory for cached values of the type.
static void *cached(Kernels *k, ElemType type, size_t n) {
    float *words = kernel_f32(k, type == TYPE_BF16 ? (n + 1) / 2 : n);
    if (type == TYPE_BF16) k->ops->zero(words, (n + 1) / 2 * sizeof(float));  // halves of noise
    return words;
}

static void set_decode(SdpaArgs *a, const Kernels *k, const Decode *x) {
    a->pos = x->pos, a->n_new = x->n_new, a->max_pos = k->d.T, a->kv_type = x->type;
}

// MLA with a decoupled key: all heads read one row [latent | rotated key], whose latent is the
// value.
static void absorb(SdpaArgs *a, const AttnDims *d) {
    size_t row = width(1, d->RKV + d->HR);
    a->NKV = 1, a->HS = (int)row, a->HV = d->RKV;
    a->q_head = row, a->q_token = a->q_batch = row * (size_t)d->NH;
    a->o_head = (size_t)d->RKV, a->o_token = a->o_batch = width(d->NH, d->RKV);
    a->k_token = a->v_token = row, a->k_batch = a->v_batch = row * (size_t)d->T;
}

void kernel_extend(Kernels *k) {
    const AttnDims *d = &k->d;
    const Ops *ops = k->ops;
    bool absorbed = d->RKV > 0 && d->HR > 0;
    Decode x = decode_new(k);
    SdpaArgs a = sdpa_args(k, 1);
    if (absorbed) absorb(&a, d);
    set_decode(&a, k, &x);
    size_t B = (size_t)d->B;
    floatX *q = kernel_fx(k, B * a.q_token), *out = kernel_fx(k, B * a.o_token);
    void *key = cached(k, x.type, B * a.k_batch);
    void *v = absorbed ? key : cached(k, x.type, B * a.v_batch);
    double held = (double)(B * (a.k_batch + (absorbed ? 0 : a.v_batch))) * x.bytes;
    double pairs = (double)k->N * d->NH;
    TIMED(k, "sdpa_extend", 2 * pairs * (a.HS + a.HV), held)
    ops->sdpa_extend(out, q, key, v, &a);
    TIMED(k, "cache_append", 0, (double)(B * a.k_token) * (x.bytes + (double)ops->elem_size))
    ops->cache_append(key, a.k_batch, x.type, q, a.q_token, (int)a.k_token, x.pos, x.n_new, d->B,
                      1);
}

// The cache of LRKV; of MLA with a reconstructed key, whose latents serve all heads, keys and
// values.
static LowRankCache low_rank_cache(Kernels *k, ElemType type) {
    const AttnDims *d = &k->d;
    bool mla = d->RKV > 0 && d->HR == 0;
    int r = mla ? d->RKV : rank_of(d), stored = mla ? r : attn_stored_rank(r);
    size_t B = (size_t)d->B, T = (size_t)d->T, rows = width(mla ? 1 : d->NH, r);
    size_t latent = round_up(T, LATENT_BLOCK) * rows, HS = (size_t)d->HS, HV = (size_t)d->HV;
    LowRankCache c = {.zk = cached(k, type, B * latent),
                      .bk = kernel_fx(k, width(d->NH, d->HS) * (size_t)stored),
                      .bv = kernel_fx(k, width(d->NH, d->HV) * (size_t)stored),
                      .r = r,
                      .ld_b = stored,
                      .shared_z = mla,
                      .n_zk = (int)rows,
                      .n_zv = (int)rows,
                      .ks_batch = T * HS,
                      .vs_batch = T * HV,
                      .zk_batch = latent,
                      .zv_batch = latent,
                      .rope = d->HS % 2 ? NULL : k->rope,
                      .norm = true,
                      .eps = 1e-6f};
    c.zv = mla ? c.zk : cached(k, type, B * latent);
    if (!mla) c.ks = cached(k, type, B * T * HS), c.vs = cached(k, type, B * T * HV);
    return c;
}

void kernel_lowrank_extend(Kernels *k) {
    const AttnDims *d = &k->d;
    const Ops *ops = k->ops;
    Decode x = decode_new(k);
    SdpaArgs a = sdpa_args(k, 1);
    set_decode(&a, k, &x);
    LowRankCache c = low_rank_cache(k, x.type);
    size_t B = (size_t)d->B, T = (size_t)d->T, HS = (size_t)d->HS, HV = (size_t)d->HV;
    size_t shared = c.ks ? HS + HV : 0, rows = (size_t)c.n_zk, planes = c.zv == c.zk ? 1 : 2;
    int groups = c.shared_z ? 1 : d->NH;
    a.NKV = d->NH, a.HS = d->HS, a.q_head = HS, a.q_token = a.q_batch = width(d->NH, d->HS);
    a.k_token = HS, a.v_token = HV, a.k_batch = T * HS, a.v_batch = T * HV;
    floatX *q = kernel_fx(k, B * a.q_token), *out = kernel_fx(k, B * a.o_token),
           *z = kernel_fx(k, B * width(groups, c.ld_b));
    double pairs = (double)k->N * d->NH,
           held = (double)(B * T * (shared + planes * rows)) * x.bytes;
    // Keys are put together, r to HS; values are summed as latents.
    double products = (double)c.r * d->HS + d->HS + (c.vs ? d->HV : 0) + c.r;
    TIMED(k, "sdpa_lowrank_extend", 2 * pairs * products, held)
    ops->sdpa_lowrank_extend(out, q, &c, &a);
    TIMED(k, "cache_append_latent", 0, (double)(B * rows) * (x.bytes + (double)ops->elem_size))
    ops->cache_append_latent((void *)c.zk, c.zk_batch, x.type, z, width(groups, c.ld_b), groups,
                             c.r, c.ld_b, x.pos, x.n_new, d->B, 1);
}
