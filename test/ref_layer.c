// ref_layer.c - whole attention layers in double precision, straight from the formulas of
// attention/README.md: no joined products, no padding, no cache.
#include <math.h>
#include <string.h>

#include "test/attn_harness.h"
#include "test/ref_attention.h"
#include "test/ref_ops.h"

typedef struct Layer {
    const AttnHarness *h;
    const AttnDims *d;
    double *const *value;
    const double *x;
    size_t N;
    double *memory[24];  // freed at the end
    int n_memory;
} Layer;

static double *take(Layer *l, size_t n) {
    return l->memory[l->n_memory++] = mem_alloc(n, sizeof(double));
}

// NULL when the layer has no such tensor.
static const double *param(const Layer *l, const char *name) {
    int row = tensor_find(&l->h->params, name);
    return row < 0 ? NULL : l->value[row];
}

// y (N, out) = x (N, in) w^T + bias, named parameters.
static double *linear(Layer *l, const double *x, int in, const char *w_name, const char *bias_name,
                      int out) {
    double *y = take(l, l->N * (size_t)out);
    const double *w = param(l, w_name), *bias = param(l, bias_name);
    for (size_t n = 0; n < l->N; n++) {
        for (size_t o = 0; o < (size_t)out; o++) {
            double sum = bias ? bias[o] : 0;
            for (size_t i = 0; i < (size_t)in; i++)
                sum += x[n * (size_t)in + i] * w[o * (size_t)in + i];
            y[n * (size_t)out + o] = sum;
        }
    }
    return y;
}

// Rotation and norm of `heads` heads of `width` in place; stride between heads, 0: width.
static void rotate(Layer *l, double *x, int heads, int width, int stride, size_t ld, bool rope,
                   bool norm) {
    RopeArgs a = {.B = l->d->B,
                  .T = l->d->T,
                  .NH = heads,
                  .HS = width,
                  .head_stride = (size_t)stride,
                  .ld_inp = ld,
                  .ld_out = ld,
                  .rope = rope ? l->h->rope_host : NULL,
                  .norm = norm,
                  .eps = l->d->eps};
    ref_qk_norm_rope_forward(x, NULL, x, &a);
}

static bool has_rope(const Layer *l) {
    return l->d->position == POSITION_ROPE;
}

static double *attend(Layer *l, const double *q, const double *k, const double *v, int NKV,
                      int width, int HV) {
    const AttnDims *d = l->d;
    RefSdpa a = {.B = d->B, .Tq = d->T, .Tk = d->T, .NH = d->NH, .NKV = NKV, .HS = width, .HV = HV};
    a.scale = d->qk_scale > 0 ? (double)d->qk_scale : 1 / sqrt(width);
    double *out = take(l, l->N * (size_t)(d->NH * HV));
    ref_sdpa_forward(out, NULL, q, k, v, &a);
    return out;
}

static double *gqa(Layer *l) {
    const AttnDims *d = l->d;
    int q_width = d->NH * d->HS, kv_width = d->NKV * d->HS;
    double *q = linear(l, l->x, d->C, "wq", "bq", q_width);
    double *k = linear(l, l->x, d->C, "wk", "bk", kv_width);
    double *v = linear(l, l->x, d->C, "wv", "bv", kv_width);
    rotate(l, q, d->NH, d->HS, 0, (size_t)q_width, has_rope(l), d->qk_norm);
    rotate(l, k, d->NKV, d->HS, 0, (size_t)kv_width, has_rope(l), d->qk_norm);
    return attend(l, q, k, v, d->NKV, d->HS, d->HS);
}

// One of keys and values of LRKV: S + Z_h B_h^T.
static double *low_rank(Layer *l, const char *ws, const char *bias, const char *u, const char *b,
                        bool key) {
    const AttnDims *d = l->d;
    double *s = linear(l, l->x, d->C, ws, bias, d->HS),
           *out = take(l, l->N * (size_t)(d->NH * d->HS));
    double *z = d->R ? linear(l, l->x, d->C, u, "", d->NH * d->R) : s;
    RefLowRank a = {.B = d->B,
                    .T = d->T,
                    .NH = d->NH,
                    .HS = d->HS,
                    .R = d->R,
                    .norm = key && d->qk_norm,
                    .eps = d->eps};
    if (key && has_rope(l)) a.rope = l->h->rope_host;
    ref_lowrank_forward(out, s, z, d->R ? param(l, b) : s, &a);
    return out;
}

static double *lrkv(Layer *l) {
    const AttnDims *d = l->d;
    double *q = linear(l, l->x, d->C, "wq", "bq", d->NH * d->HS);
    rotate(l, q, d->NH, d->HS, 0, (size_t)(d->NH * d->HS), has_rope(l), d->qk_norm);
    double *k = low_rank(l, "ws_k", "bs_k", "u_k", "b_k", true);
    double *v = low_rank(l, "ws_v", "bs_v", "u_v", "b_v", false);
    return attend(l, q, k, v, d->NH, d->HS, d->HS);
}

// [k^C_h | k^R] of every head.
static double *concat(Layer *l, const double *kc, const double *kr) {
    size_t NH = (size_t)l->d->NH, HS = (size_t)l->d->HS, HR = (size_t)l->d->HR, w = HS + HR;
    double *k = take(l, l->N * NH * w);
    for (size_t n = 0; n < l->N * NH; n++) {
        memcpy(k + n * w, kc + n * HS, HS * sizeof *k);
        memcpy(k + n * w + HS, kr + n / NH * HR, HR * sizeof *k);
    }
    return k;
}

static double *mla(Layer *l) {
    const AttnDims *d = l->d;
    int head = d->HS + d->HR, q_width = d->NH * head, k_width = d->NH * d->HS;
    double *q;
    if (d->RQ) {
        double *cq = linear(l, l->x, d->C, "w_dq", "", d->RQ);
        rotate(l, cq, 1, d->RQ, 0, (size_t)d->RQ, false, true);
        q = linear(l, cq, d->RQ, "w_uq", "bq", q_width);
    } else {
        q = linear(l, l->x, d->C, "wq", "bq", q_width);
    }
    double *c = linear(l, l->x, d->C, "w_dkv", "", d->RKV);
    rotate(l, c, 1, d->RKV, 0, (size_t)d->RKV, false, true);
    double *k = linear(l, c, d->RKV, "w_uk", "bk", k_width);
    double *v = linear(l, c, d->RKV, "w_uv", "bv", d->NH * d->HV);
    if (d->HR) {
        double *kr = linear(l, l->x, d->C, "w_kr", "", d->HR);
        rotate(l, kr, 1, d->HR, 0, (size_t)d->HR, true, d->qk_norm);
        k = concat(l, k, kr);
        rotate(l, q + d->HS, d->NH, d->HR, head, (size_t)q_width, true, false);
        rotate(l, q, d->NH, head, 0, (size_t)q_width, false, d->qk_norm);
    } else {
        rotate(l, k, d->NH, d->HS, 0, (size_t)k_width, has_rope(l), d->qk_norm);
        rotate(l, q, d->NH, d->HS, 0, (size_t)q_width, has_rope(l), d->qk_norm);
    }
    return attend(l, q, k, v, d->NH, head, d->HV);
}

void ref_attention_layer(double *out, const double *x, double *const *value, const AttnHarness *h) {
    Layer l = {.h = h, .d = &h->d, .value = value, .x = x, .N = (size_t)h->d.B * (size_t)h->d.T};
    const char *name = h->attn->name;
    double *att = strcmp(name, "lrkv") == 0  ? lrkv(&l)
                  : strcmp(name, "mla") == 0 ? mla(&l)
                                             : gqa(&l);
    int width = h->d.NH * (strcmp(name, "mla") == 0 ? h->d.HV : h->d.HS);
    const double *y = linear(&l, att, width, "wo", "bo", h->d.C);
    memcpy(out, y, l.N * (size_t)h->d.C * sizeof *out);
    for (int i = 0; i < l.n_memory; i++)
        mem_free(l.memory[i]);
}
