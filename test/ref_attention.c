// ref_attention.c - see ref_attention.h.
#include "test/ref_attention.h"

#include <math.h>
#include <string.h>

#include "gpt/util.h"
#include "test/ref_ops.h"

static double dot(const double *a, const double *b, int n) {
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

static void add_scaled(double *y, const double *x, double factor, int n) {
    for (int i = 0; i < n; i++)
        y[i] += factor * x[i];
}

// One query: where its parts lie.
typedef struct Query {
    size_t row;       // b*Tq + t, times NH, plus h
    size_t key_base;  // of key 0 in units of heads; key j at key_base + j*NKV
    int seen;         // keys
} Query;

static Query query_at(const RefSdpa *a, int b, int t, int h) {
    Query q = {.seen = (a->pos ? a->pos[b] : 0) + t + 1};
    q.row = ((size_t)b * (size_t)a->Tq + (size_t)t) * (size_t)a->NH + (size_t)h;
    q.key_base = (size_t)b * (size_t)a->Tk * (size_t)a->NKV + (size_t)(h / (a->NH / a->NKV));
    return q;
}

static size_t key_at(const RefSdpa *a, const Query *q, int j) {
    return q->key_base + (size_t)j * (size_t)a->NKV;
}

// p[0..seen) = softmax of the scores; returns the log of the sum of exp.
static double probabilities(double *p, const double *q, const double *k, const Query *at,
                            const RefSdpa *a) {
    double top = -INFINITY, sum = 0;
    for (int j = 0; j < at->seen; j++) {
        p[j] = a->scale *
               dot(q + at->row * (size_t)a->HS, k + key_at(a, at, j) * (size_t)a->HS, a->HS);
        top = p[j] > top ? p[j] : top;
    }
    for (int j = 0; j < at->seen; j++)
        sum += p[j] = exp(p[j] - top);
    for (int j = 0; j < at->seen; j++)
        p[j] /= sum;
    return top + log(sum);
}

void ref_sdpa_forward(double *out, double *lse, const double *q, const double *k, const double *v,
                      const RefSdpa *a) {
    double *p = mem_alloc((size_t)a->Tk, sizeof *p);
    size_t HV = (size_t)a->HV;
    for (int b = 0; b < a->B; b++) {
        for (int t = 0; t < a->Tq; t++) {
            for (int h = 0; h < a->NH; h++) {
                Query at = query_at(a, b, t, h);
                double l = probabilities(p, q, k, &at, a);
                if (lse)
                    lse[((size_t)b * (size_t)a->NH + (size_t)h) * (size_t)a->Tq + (size_t)t] = l;
                memset(out + at.row * HV, 0, HV * sizeof(double));
                for (int j = 0; j < at.seen; j++)
                    add_scaled(out + at.row * HV, v + key_at(a, &at, j) * HV, p[j], a->HV);
            }
        }
    }
    mem_free(p);
}

static void query_backward(double *dq, double *dk, double *dv, const double *dout, const double *q,
                           const double *k, const double *v, const RefSdpa *a, const Query *at,
                           double *p) {
    size_t HS = (size_t)a->HS, HV = (size_t)a->HV;
    probabilities(p, q, k, at, a);
    const double *d = dout + at->row * HV;
    double mean = 0;
    for (int j = 0; j < at->seen; j++)
        mean += p[j] * dot(d, v + key_at(a, at, j) * HV, a->HV);
    for (int j = 0; j < at->seen; j++) {
        size_t key = key_at(a, at, j);
        double ds = p[j] * (dot(d, v + key * HV, a->HV) - mean) * a->scale;
        add_scaled(dv + key * HV, d, p[j], a->HV);
        add_scaled(dq + at->row * HS, k + key * HS, ds, a->HS);
        add_scaled(dk + key * HS, q + at->row * HS, ds, a->HS);
    }
}

void ref_sdpa_backward(double *dq, double *dk, double *dv, const double *dout, const double *q,
                       const double *k, const double *v, const RefSdpa *a) {
    double *p = mem_alloc((size_t)a->Tk, sizeof *p);
    size_t queries = (size_t)a->B * (size_t)a->Tq * (size_t)a->NH;
    size_t keys = (size_t)a->B * (size_t)a->Tk * (size_t)a->NKV;
    memset(dq, 0, queries * (size_t)a->HS * sizeof(double));
    memset(dk, 0, keys * (size_t)a->HS * sizeof(double));
    memset(dv, 0, keys * (size_t)a->HV * sizeof(double));
    for (int b = 0; b < a->B; b++) {
        for (int t = 0; t < a->Tq; t++) {
            for (int h = 0; h < a->NH; h++) {
                Query at = query_at(a, b, t, h);
                query_backward(dq, dk, dv, dout, q, k, v, a, &at, p);
            }
        }
    }
    mem_free(p);
}

// out = S + Z B^T + bias, before position and norm.
static void expand(double *out, const double *s, const double *z, const double *b,
                   const RefLowRank *a) {
    size_t rows = (size_t)a->B * (size_t)a->T, NH = (size_t)a->NH, HS = (size_t)a->HS;
    size_t R = (size_t)a->R;
    for (size_t n = 0; n < rows; n++) {
        for (size_t h = 0; h < NH; h++) {
            const double *zh = z + (a->shared_z ? n : n * NH + h) * R;
            for (size_t i = 0; i < HS; i++) {
                double x = s ? s[n * HS + i] : 0;
                if (a->bias) x += a->bias[h * HS + i];
                out[(n * NH + h) * HS + i] = x + dot(zh, b + (h * HS + i) * R, a->R);
            }
        }
    }
}

static RopeArgs rope_args(const RefLowRank *a) {
    size_t width = (size_t)a->NH * (size_t)a->HS;
    return (RopeArgs){.B = a->B,
                      .T = a->T,
                      .NH = a->NH,
                      .HS = a->HS,
                      .ld_inp = width,
                      .ld_out = width,
                      .rope = a->rope,
                      .pos = a->pos,
                      .norm = a->norm,
                      .eps = a->eps};
}

void ref_lowrank_forward(double *out, const double *s, const double *z, const double *b,
                         const RefLowRank *a) {
    size_t n = (size_t)a->B * (size_t)a->T * (size_t)a->NH * (size_t)a->HS;
    double *x = mem_alloc(n, sizeof *x);
    RopeArgs r = rope_args(a);
    expand(x, s, z, b, a);
    ref_qk_norm_rope_forward(out, NULL, x, &r);
    mem_free(x);
}

void ref_lowrank_backward(double *ds, double *dz, double *db, const double *dout, const double *s,
                          const double *z, const double *b, const RefLowRank *a) {
    size_t rows = (size_t)a->B * (size_t)a->T, NH = (size_t)a->NH, HS = (size_t)a->HS;
    size_t R = (size_t)a->R;
    double *x = mem_alloc(rows * NH * HS, sizeof *x), *dx = mem_alloc(rows * NH * HS, sizeof *dx);
    RopeArgs r = rope_args(a);
    expand(x, s, z, b, a);
    ref_qk_norm_rope_backward(dx, dout, x, &r);
    if (ds) memset(ds, 0, rows * HS * sizeof(double));
    memset(dz, 0, rows * NH * R * sizeof(double));
    memset(db, 0, NH * HS * R * sizeof(double));
    for (size_t n = 0; n < rows; n++) {
        for (size_t h = 0; h < NH; h++) {
            for (size_t i = 0; i < HS; i++) {
                double d = dx[(n * NH + h) * HS + i];
                if (ds) ds[n * HS + i] += d;
                add_scaled(dz + (n * NH + h) * R, b + (h * HS + i) * R, d, a->R);
                add_scaled(db + (h * HS + i) * R, z + (n * NH + h) * R, d, a->R);
            }
        }
    }
    mem_free(x);
    mem_free(dx);
}

float *ref_rope_table(int rows, int HS, double theta) {
    float *table = mem_alloc((size_t)rows * (size_t)HS, sizeof *table), *at = table;
    for (int p = 0; p < rows; p++) {
        for (int i = 0; i < HS / 2; i++) {
            double angle = p * pow(theta, -2.0 * i / HS);
            *at++ = (float)cos(angle);
            *at++ = (float)sin(angle);
        }
    }
    return table;
}
