// ref_ops.c - see ref_ops.h.
#include "test/ref_ops.h"

#include <math.h>
#include <string.h>

static double element(const double *m, bool transposed, size_t ld, int row, int col) {
    return transposed ? m[(size_t)col * ld + (size_t)row] : m[(size_t)row * ld + (size_t)col];
}

void ref_gemm(double *c, const double *a, const double *b, const GemmOp *g) {
    for (int i = 0; i < g->batch; i++) {
        const double *ai = a + (size_t)i * g->stride_a, *bi = b + (size_t)i * g->stride_b;
        double *ci = c + (size_t)i * g->stride_c;
        for (int m = 0; m < g->M; m++) {
            for (int n = 0; n < g->N; n++) {
                double sum = 0, *y = ci + (size_t)m * g->ldc + (size_t)n;
                for (int k = 0; k < g->K; k++)
                    sum += element(ai, g->ta, g->lda, m, k) * element(bi, g->tb, g->ldb, k, n);
                *y = (double)g->alpha * sum + (g->beta != 0 ? (double)g->beta * *y : 0);
            }
        }
    }
}

void ref_embed_forward(double *out, const int *ids, const double *wte, const double *wpe,
                       int wpe_rows, const int *pos, int B, int T, int C) {
    for (int b = 0; b < B; b++) {
        for (int t = 0; t < T; t++) {
            size_t row = (size_t)b * (size_t)T + (size_t)t;
            int place = t + (pos ? pos[b] : 0);
            if (place >= wpe_rows) place = wpe_rows - 1;
            for (int c = 0; c < C; c++) {
                double x = wte[(size_t)ids[row] * (size_t)C + (size_t)c];
                if (wpe) x += wpe[(size_t)place * (size_t)C + (size_t)c];
                out[row * (size_t)C + (size_t)c] = x;
            }
        }
    }
}

void ref_embed_backward(double *dwte, double *dwpe, const double *dout, const int *ids, int B,
                        int T, int C) {
    for (size_t row = 0; row < (size_t)B * (size_t)T; row++) {
        size_t t = row % (size_t)T;
        for (size_t c = 0; c < (size_t)C; c++) {
            double d = dout[row * (size_t)C + c];
            if (dwte) dwte[(size_t)ids[row] * (size_t)C + c] += d;
            if (dwpe) dwpe[t * (size_t)C + c] += d;
        }
    }
}

static void norm_stats(double *mean, double *rstd, const double *x, const NormArgs *a) {
    double sum = 0, squares = 0;
    for (int c = 0; c < a->C; c++)
        sum += x[c];
    *mean = a->kind == NORM_LAYER ? sum / a->C : 0;
    for (int c = 0; c < a->C; c++)
        squares += (x[c] - *mean) * (x[c] - *mean);
    *rstd = 1 / sqrt(squares / a->C + (double)a->eps);
}

void ref_add_norm_forward(double *out, double *residual_out, double *mean, double *rstd,
                          const double *residual_in, const double *inp, const double *weight,
                          const double *bias, const NormArgs *a) {
    size_t C = (size_t)a->C;
    for (size_t row = 0; row < a->N; row++) {
        const double *x = residual_in + row * C;
        for (size_t c = 0; inp && c < C; c++)
            residual_out[row * C + c] = x[c] + inp[row * C + c];
        if (inp) x = residual_out + row * C;
        double mu, rs;
        norm_stats(&mu, &rs, x, a);
        for (size_t c = 0; c < C; c++) {
            double y = (x[c] - mu) * rs;
            out[row * C + c] = y * (weight ? weight[c] : 1) + (bias ? bias[c] : 0);
        }
        if (mean) mean[row] = mu;
        rstd[row] = rs;
    }
}

void ref_add_norm_backward(double *dresidual, double *dweight, double *dbias, const double *dout,
                           const double *x, const double *weight, const NormArgs *a) {
    size_t C = (size_t)a->C;
    for (size_t row = 0; row < a->N; row++, x += C, dout += C, dresidual += C) {
        double mu, rs, mean_g = 0, mean_gh = 0;
        norm_stats(&mu, &rs, x, a);
        for (size_t c = 0; c < C; c++) {
            double g = dout[c] * (weight ? weight[c] : 1), h = (x[c] - mu) * rs;
            mean_g += g / (double)C;
            mean_gh += g * h / (double)C;
            if (dweight) dweight[c] += dout[c] * h;
            if (dbias) dbias[c] += dout[c];
        }
        if (a->kind == NORM_RMS) mean_g = 0;
        for (size_t c = 0; c < C; c++) {
            double g = dout[c] * (weight ? weight[c] : 1), h = (x[c] - mu) * rs;
            dresidual[c] += rs * (g - mean_g - h * mean_gh);
        }
    }
}

// y (HS) = x rotated by the angles of one position, or back.
static void rotate(double *y, const double *x, const float *rope, int HS, double sign) {
    for (int i = 0; i < HS / 2; i++) {
        double c = (double)rope[2 * i], s = sign * (double)rope[2 * i + 1];
        double x1 = x[i], x2 = x[i + HS / 2];
        y[i] = x1 * c + x2 * s;
        y[i + HS / 2] = x2 * c - x1 * s;
    }
}

static double rms_inverse(const double *x, int HS, double eps) {
    double sum = 0;
    for (int i = 0; i < HS; i++)
        sum += x[i] * x[i];
    return 1 / sqrt(sum / HS + eps);
}

static size_t head_at(const RopeArgs *a, int h) {
    return (size_t)h * (a->head_stride ? a->head_stride : (size_t)a->HS);
}

static const float *rope_row(const RopeArgs *a, int b, int t) {
    int position = t + (a->pos ? a->pos[b] : 0);
    return a->rope ? a->rope + (size_t)position * (size_t)a->HS : NULL;
}

static void rope_forward_head(double *y, double *rstd, const double *x, const float *rope,
                              const RopeArgs *a) {
    if (rope)
        rotate(y, x, rope, a->HS, 1);
    else
        memmove(y, x, (size_t)a->HS * sizeof(double));
    *rstd = a->norm ? rms_inverse(y, a->HS, (double)a->eps) : 1;
    for (int i = 0; i < a->HS; i++)
        y[i] *= *rstd;
}

void ref_qk_norm_rope_forward(double *out, double *rstd, const double *inp, const RopeArgs *a) {
    for (int b = 0; b < a->B; b++) {
        for (int t = 0; t < a->T; t++) {
            size_t row = (size_t)b * (size_t)a->T + (size_t)t;
            for (int h = 0; h < a->NH; h++) {
                size_t at = head_at(a, h);
                double r;
                rope_forward_head(out + row * a->ld_out + at, &r, inp + row * a->ld_inp + at,
                                  rope_row(a, b, t), a);
                if (rstd) rstd[row * (size_t)a->NH + (size_t)h] = r;
            }
        }
    }
}

static void rope_backward_head(double *dx, const double *dy, const double *x, const float *rope,
                               const RopeArgs *a) {
    double *y = mem_alloc(2 * (size_t)a->HS, sizeof(double)), *d = y + a->HS, r, mean = 0;
    rope_forward_head(y, &r, x, rope, a);
    for (int i = 0; i < a->HS; i++)
        mean += dy[i] * y[i] / a->HS;
    for (int i = 0; i < a->HS; i++)
        d[i] = a->norm ? r * (dy[i] - y[i] * mean) : dy[i];
    if (rope)
        rotate(dx, d, rope, a->HS, -1);
    else
        memcpy(dx, d, (size_t)a->HS * sizeof(double));
    mem_free(y);
}

void ref_qk_norm_rope_backward(double *dinp, const double *dout, const double *inp,
                               const RopeArgs *a) {
    for (int b = 0; b < a->B; b++) {
        for (int t = 0; t < a->T; t++) {
            size_t row = (size_t)b * (size_t)a->T + (size_t)t;
            for (int h = 0; h < a->NH; h++) {
                size_t at = head_at(a, h);
                rope_backward_head(dinp + row * a->ld_inp + at, dout + row * a->ld_out + at,
                                   inp + row * a->ld_inp + at, rope_row(a, b, t), a);
            }
        }
    }
}

void ref_concat_heads(double *out, const double *a, const double *b, const ConcatArgs *c) {
    size_t W1 = (size_t)c->W1, W2 = (size_t)c->W2;
    for (size_t n = 0; n < c->N; n++) {
        for (size_t h = 0; h < (size_t)c->NH; h++) {
            double *y = out + n * c->ld_out + h * (W1 + W2);
            for (size_t i = 0; a && i < W1; i++)
                y[i] = a[n * c->ld_a + h * c->a_head + i];
            for (size_t i = 0; i < W2; i++)
                y[W1 + i] = b[n * c->ld_b + h * c->b_head + i];
        }
    }
}

void ref_split_heads(double *da, double *db, const double *dout, const ConcatArgs *c) {
    size_t W1 = (size_t)c->W1, W2 = (size_t)c->W2;
    for (size_t n = 0; n < c->N; n++) {
        for (size_t i = 0; i < W2 * (c->b_head ? (size_t)c->NH : 1); i++)
            db[n * c->ld_b + i / W2 * c->b_head + i % W2] = 0;
        for (size_t h = 0; h < (size_t)c->NH; h++) {
            const double *d = dout + n * c->ld_out + h * (W1 + W2);
            for (size_t i = 0; i < W1; i++)
                da[n * c->ld_a + h * c->a_head + i] = d[i];
            for (size_t i = 0; i < W2; i++)
                db[n * c->ld_b + h * c->b_head + i] += d[W1 + i];
        }
    }
}

static double gelu_argument(double x) {
    return sqrt(2 / acos(-1.0)) * (x + 0.044715 * x * x * x);
}
static double sigmoid(double x) {
    return 1 / (1 + exp(-x));
}

static double act_value(double x, ActKind kind) {
    switch (kind) {
    case ACT_GELU:
        return 0.5 * x * (1 + tanh(gelu_argument(x)));
    case ACT_RELU2:
        return x > 0 ? x * x : 0;
    case ACT_SWIGLU:
        return x * sigmoid(x);
    }
    return 0;
}

static double act_slope(double x, ActKind kind) {
    double th = tanh(gelu_argument(x)), s = sigmoid(x);
    switch (kind) {
    case ACT_GELU:
        return 0.5 * (1 + th) +
               0.5 * x * (1 - th * th) * sqrt(2 / acos(-1.0)) * (1 + 3 * 0.044715 * x * x);
    case ACT_RELU2:
        return x > 0 ? 2 * x : 0;
    case ACT_SWIGLU:
        return s + x * s * (1 - s);
    }
    return 0;
}

void ref_act_forward(double *out, const double *inp, ActKind kind, size_t N, int F) {
    size_t f = (size_t)F, width = kind == ACT_SWIGLU ? 2 * f : f;
    for (size_t n = 0; n < N; n++) {
        for (size_t i = 0; i < f; i++) {
            double y = act_value(inp[n * width + i], kind);
            out[n * f + i] = kind == ACT_SWIGLU ? y * inp[n * width + f + i] : y;
        }
    }
}

void ref_act_backward(double *dinp, const double *dout, const double *inp, ActKind kind, size_t N,
                      int F) {
    size_t f = (size_t)F, width = kind == ACT_SWIGLU ? 2 * f : f;
    for (size_t n = 0; n < N; n++) {
        for (size_t i = 0; i < f; i++) {
            double x = inp[n * width + i], d = dout[n * f + i];
            double up = kind == ACT_SWIGLU ? inp[n * width + f + i] : 1;
            dinp[n * width + i] = d * up * act_slope(x, kind);
            if (kind == ACT_SWIGLU) dinp[n * width + f + i] = d * act_value(x, kind);
        }
    }
}

double ref_softcap(double x, double softcap) {
    return softcap > 0 ? softcap * tanh(x / softcap) : x;
}

void ref_classifier(double *dlogits, double *losses, const double *logits, const int *targets,
                    size_t n, int V, int Vp, double softcap, double dscale) {
    for (size_t row = 0; row < n; row++) {
        const double *x = logits + row * (size_t)Vp;
        double *dx = dlogits ? dlogits + row * (size_t)Vp : NULL;
        if (dx) memset(dx, 0, (size_t)Vp * sizeof(double));
        losses[row] = 0;
        if (targets[row] < 0) continue;
        double top = -INFINITY, sum = 0;
        for (int v = 0; v < V; v++)
            top = fmax(top, ref_softcap(x[v], softcap));
        for (int v = 0; v < V; v++)
            sum += exp(ref_softcap(x[v], softcap) - top);
        losses[row] = log(sum) + top - ref_softcap(x[targets[row]], softcap);
        for (int v = 0; dx && v < V; v++) {
            double z = ref_softcap(x[v], softcap), y = softcap > 0 ? z / softcap : 0;
            double p = exp(z - top) / sum - (v == targets[row] ? 1 : 0);
            dx[v] = dscale * p * (1 - y * y);
        }
    }
}

void ref_adamw(double *param, double *m, double *v, double g, double clip, const AdamWArgs *a) {
    g *= clip;
    *m = (double)a->beta1 * *m + (1 - (double)a->beta1) * g;
    *v = (double)a->beta2 * *v + (1 - (double)a->beta2) * g * g;
    double step = *m / (double)a->correction1;
    step /= sqrt(*v / (double)a->correction2) + (double)a->eps;
    *param -= (double)a->lr * (step + (double)a->decay * *param);
}

double ref_muon_momentum(double *momentum, double g, double clip, double mu, bool nesterov) {
    *momentum = mu * *momentum + (1 - mu) * clip * g;
    return nesterov ? (1 - mu) * clip * g + mu * *momentum : *momentum;
}

double ref_sumsq(const double *x, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    return sum;
}
