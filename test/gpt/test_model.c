// test_model.c - gpt/model in training, for every variant: losses and gradients do not depend on
// how a step is cut into micro-batches, on threads or on evaluations in between; masked targets
// count for nothing; odd widths work. (test_golden compares the numbers with an independent
// program.)
#include "gpt/optim.h"
#include "test/arrays.h"
#include "test/tiny_run.h"

#include <math.h>
#include <string.h>

enum { B = TINY_BATCH, T = TINY_SEQ, N = B * T };

// A step's loss and gradients.
typedef struct Step {
    Model *m;
    int ids[N], targets[N];
    double loss;
    float *grad;  // (params.elements)
    size_t n;
} Step;

static Step *step_new(const char *settings, const char *more) {
    Config c;
    Step *s = mem_alloc(1, sizeof *s);
    int ids[N + 1];
    tiny_config(&c, settings, more);
    s->m = tiny_model(&c, true);
    s->n = s->m->params.elements;
    s->grad = mem_alloc(s->n, sizeof(float));
    tiny_ids(ids, N + 1, TINY_VOCAB, 11);
    memcpy(s->ids, ids, sizeof s->ids);
    memcpy(s->targets, ids + 1, sizeof s->targets);
    return s;
}

static void step_free(Step *s) {
    model_free(s->m);
    mem_free(s->grad);
    mem_free(s);
}

static double count_valid(const Step *s) {
    double n = 0;
    for (int i = 0; i < N; i++)
        n += s->targets[i] >= 0;
    return n;
}

// The batch in `parts` micro-batches; losses (N) of every target between them too, when not NULL.
static void step_run(Step *s, int parts, float *losses) {
    Model *m = s->m;
    StepState state;
    int micro = N / parts;
    model_alloc_acts(m, B / parts, T);
    model_step_begin(m);
    for (int k = 0; k < parts; k++) {
        int at = k * micro;
        model_step(m, s->ids + at, s->targets + at, count_valid(s), true, k + 1 == parts, NULL,
                   NULL);
        if (losses) model_losses(m, s->ids + at, s->targets + at, losses + at);
    }
    m->ops->download_bytes(&state, m->state, sizeof state);
    m->ops->download_bytes(s->grad, m->grad_arena, s->n * sizeof(float));
    s->loss = state.loss_sum;
}

static float *keep(const Step *s) {
    float *copy = mem_alloc(s->n, sizeof(float));
    memcpy(copy, s->grad, s->n * sizeof(float));
    return copy;
}

// Tensor by tensor, so that a small one is not hidden behind a large one. `share` of its largest
// value.
static void check_grads(TestCtx *t, const Step *s, const float *want, double share,
                        const char *label) {
    for (int i = 0; i < s->m->params.n; i++) {
        const Tensor *x = &s->m->params.tensor[i];
        Buf what = {0};
        buf_printf(&what, "%s, gradient of %s", label, x->name);
        CHECK_CLOSE(t, s->grad + x->offset, want + x->offset, .what = what.text,
                    .n = spec_stored(&x->spec), .rel_tol = share);
        buf_free(&what);
    }
}

static void every_variant_is_tested(TestCtx *t) {
    for (int i = 0; attention_table[i]; i++) {
        Buf type = {0};
        buf_printf(&type, "attention.type=%s ", attention_table[i]->name);
        int found = 0;
        FOR_EACH_TINY(v) {
            Buf settings = {0};
            buf_printf(&settings, "%s ", v->settings);
            found += strstr(settings.text, type.text) != NULL;
            buf_free(&settings);
        }
        CHECK_MSG(t, found > 0, "%s is missing in tiny_variants", attention_table[i]->name);
        buf_free(&type);
    }
}

static void micro_batches_agree_with_the_whole_batch(TestCtx *t) {
    FOR_EACH_TINY(v) {
        Step *s = step_new(v->settings, NULL);
        step_run(s, 1, NULL);
        float *whole = keep(s);
        double loss = s->loss;
        CHECK_MSG(t, loss > 1 && loss < 20, "%s: loss %g", v->label, loss);
        for (int parts = 2; parts <= 4; parts *= 2) {
            step_run(s, parts, NULL);
            CHECK_MSG(t, fabs(s->loss - loss) <= 1e-6 * loss, "%s: %.9g in %d parts, %.9g whole",
                      v->label, s->loss, parts, loss);
            check_grads(t, s, whole, 1e-5, v->label);
        }
        mem_free(whole);
        step_free(s);
    }
}

// 31 and 3 valid targets in the two halves: every target has the same weight.
static void uneven_targets_have_equal_weight(TestCtx *t) {
    FOR_EACH_TINY(v) {
        Step *s = step_new(v->settings, NULL);
        s->targets[17] = -1;
        for (int i = N / 2; i < N; i++) {
            if (i % 11 != 3) s->targets[i] = -1;
        }
        CHECK(t, count_valid(s) == 34);
        float *losses = mem_alloc(N, sizeof(float));
        double sum = 0;
        step_run(s, 1, losses);
        for (int i = 0; i < N; i++) {
            sum += (double)losses[i];
            if (s->targets[i] < 0) CHECK(t, losses[i] == 0);
        }
        CHECK_MSG(t, fabs(s->loss - sum / 34) <= 1e-6 * s->loss, "%s: %.9g, mean %.9g", v->label,
                  s->loss, sum / 34);
        float *whole = keep(s);
        double loss = s->loss;
        step_run(s, 2, NULL);
        CHECK_MSG(t, fabs(s->loss - loss) <= 1e-6 * loss, "%s: %.9g, %.9g", v->label, s->loss,
                  loss);
        check_grads(t, s, whole, 1e-5, v->label);
        mem_free(losses);
        mem_free(whole);
        step_free(s);
    }
}

// A micro-batch without valid targets adds nothing, and a step without any is not a division by 0.
static void micro_batches_without_targets_add_nothing(TestCtx *t) {
    FOR_EACH_TINY(v) {
        Step *s = step_new(v->settings, NULL);
        for (int i = N / 2; i < N; i++)
            s->targets[i] = -1;
        step_run(s, 2, NULL);
        float *whole = keep(s);
        double loss = s->loss;
        model_step_begin(s->m);
        model_step(s->m, s->ids, s->targets, N / 2, true, true, NULL, NULL);
        s->m->ops->download_bytes(s->grad, s->m->grad_arena, s->n * sizeof(float));
        check_grads(t, s, whole, 0, v->label);
        CHECK(t, isfinite(loss));
        for (int i = 0; i < N; i++)
            s->targets[i] = -1;
        step_run(s, 2, NULL);
        CHECK_MSG(t, s->loss == 0, "%s: loss %g", v->label, s->loss);
        for (size_t i = 0; i < s->n; i++) {
            if (s->grad[i] == 0) continue;
            CHECK_MSG(t, false, "%s: gradient %g", v->label, (double)s->grad[i]);
            break;
        }
        mem_free(whole);
        step_free(s);
    }
}

static void evaluation_between_micro_batches_changes_no_bit(TestCtx *t) {
    FOR_EACH_TINY(v) {
        Step *s = step_new(v->settings, NULL);
        float losses[N];
        step_run(s, 2, NULL);
        float *plain = keep(s);
        double loss = s->loss;
        step_run(s, 2, losses);
        CHECK_SAME_BITS(t, s->grad, plain, s->n * sizeof(float));
        CHECK(t, s->loss == loss);
        mem_free(plain);
        step_free(s);
    }
}

static void threads_change_no_bit(TestCtx *t) {
    FOR_EACH_TINY(v) {
        Step *s = step_new(v->settings, NULL);
        step_run(s, 1, NULL);
        float *one = keep(s);
        double loss = s->loss;
        for (int threads = 2; threads <= (v == tiny_variants ? 3 : 2); threads++) {
            set_threads(threads);
            model_prepare(s->m);
            step_run(s, 1, NULL);
            set_threads(1);
            CHECK_MSG(t, s->loss == loss, "%s, %d threads", v->label, threads);
            CHECK_SAME_BITS(t, s->grad, one, s->n * sizeof(float));
        }
        mem_free(one);
        step_free(s);
    }
}

static void logits_give_the_losses(TestCtx *t) {
    FOR_EACH_TINY(v) {
        Step *s = step_new(v->settings, NULL);
        float losses[N], *logits = mem_alloc((size_t)N * TINY_VOCAB, sizeof(float)), want[N];
        step_run(s, 1, losses);
        model_logits(s->m, s->ids, logits);
        for (int i = 0; i < N; i++) {
            const float *row = logits + (size_t)i * TINY_VOCAB;
            double sum = 0;
            for (int k = 0; k < TINY_VOCAB; k++)
                sum += exp((double)row[k]);
            want[i] = (float)(log(sum) - (double)row[s->targets[i]]);
        }
        CHECK_CLOSE(t, losses, want, .what = v->label, .n = N, .rel_tol = 2e-6);
        mem_free(logits);
        step_free(s);
    }
}

static double norm(const float *x, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    return sqrt(sum);
}

// All parameters (fp32 on the CPU, at the gradient's offsets) move by `distance` along the unit
// vector g / length.
static void move(Model *m, const float *g, double length, double distance) {
    for (int i = 0; i < m->params.n; i++) {
        const Tensor *x = &m->params.tensor[i];
        float *p = (float *)(void *)(m->param_arena + x->bytes_at);
        for (size_t k = 0; k < spec_stored(&x->spec); k++)
            p[k] = (float)((double)p[k] + distance * (double)g[x->offset + k] / length);
    }
    model_prepare(m);
}

static double loss_of(Step *s) {
    float losses[N];
    double sum = 0;
    model_losses(s->m, s->ids, s->targets, losses);
    for (int i = 0; i < N; i++)
        sum += (double)losses[i];
    return sum / N;
}

// The slope along the gradient is its length: a directional derivative over all tensors at once,
// for widths that are no multiple of any tile. Head size width / 4, MLP 3/2 width.
static void check_slope(TestCtx *t, const TinyVariant *v, const char *more) {
    Step *s = step_new(v->settings, more);
    step_run(s, 1, NULL);
    double length = norm(s->grad, s->n), step = 0.02 / (1 + length);
    float *g = keep(s);
    move(s->m, g, length, step);
    double up = loss_of(s);
    move(s->m, g, length, -2 * step);
    double slope = (up - loss_of(s)) / (2 * step);
    CHECK_MSG(t, fabs(slope - length) <= 5e-3 * length, "%s, %s: slope %g, gradient %g", v->label,
              more, slope, length);
    mem_free(g);
    step_free(s);
}

static void odd_widths_have_the_right_gradient(TestCtx *t) {
    static const int widths[] = {8, 64, 72, 320};
    FOR_EACH_TINY(v) {
        for (size_t w = 0; w < sizeof widths / sizeof widths[0]; w++) {
            Buf more = {0};
            buf_printf(&more,
                       "model.n_layer=1 model.n_embd=%d model.ffn_dim=%d model.activation=gelu",
                       widths[w], widths[w] * 3 / 2);
            if (widths[w] == 8)
                buf_printf(&more, " %s", strstr(v->settings, "rank=3") ? "attention.rank=2" : "");
            check_slope(t, v, more.text);
            buf_free(&more);
        }
    }
}

static void the_least_sizes_have_the_right_gradient(TestCtx *t) {
    for (const TinyVariant *v = tiny_least; v->label; v++)
        check_slope(t, v, "model.n_layer=1 model.activation=gelu");
}

static void padding_is_zero_after_steps(TestCtx *t) {
    FOR_EACH_TINY(v) {
        Step *s = step_new(v->settings, "optim.matrix.decay=0.1 optim.head.decay=0.1");
        Optimizer *o = optim_create(s->m);
        StepState state;
        for (int k = 0; k < 3; k++) {
            step_run(s, 1, NULL);
            optim_step(o, k, 1, &state);
        }
        CHECK_MSG(t, !state.skip && state.first_bad < 0, "%s", v->label);
        for (int i = 0; i < s->m->params.n; i++) {
            const Tensor *x = &s->m->params.tensor[i];
            size_t n = spec_stored(&x->spec), logical = spec_logical(&x->spec);
            const float *p = (const float *)(const void *)(s->m->param_arena + x->bytes_at);
            float *value = mem_alloc(logical, sizeof(float)), *again = mem_alloc(n, sizeof(float));
            tensor_to_logical(value, p, &x->spec);
            tensor_to_stored(again, value, &x->spec);
            CHECK_MSG(t, memcmp(again, p, n * sizeof(float)) == 0, "%s: padding of %s", v->label,
                      x->name);
            mem_free(value);
            mem_free(again);
        }
        optim_free(o);
        step_free(s);
    }
}

// Both ways of LRKV compute the same function.
static void merged_and_factored_agree(TestCtx *t) {
    Step *f = step_new("attention.type=lrkv attention.rank=3", NULL);
    Step *m = step_new("attention.type=lrkv attention.rank=3 attention.path=merged", NULL);
    step_run(f, 2, NULL);
    step_run(m, 2, NULL);
    CHECK_MSG(t, fabs(f->loss - m->loss) <= 1e-6 * f->loss, "%.9g, %.9g", f->loss, m->loss);
    for (int i = 0; i < f->m->params.n; i++) {
        const Tensor *x = &f->m->params.tensor[i], *y = &m->m->params.tensor[i];
        CHECK(t, strcmp(x->name, y->name) == 0);
        CHECK_CLOSE(t, m->grad + y->offset, f->grad + x->offset, .what = x->name,
                    .n = spec_stored(&x->spec), .rel_tol = 2e-5);
    }
    step_free(f);
    step_free(m);
}

TEST_MAIN({"every_variant_is_tested", every_variant_is_tested},
          {"micro_batches_agree_with_the_whole_batch", micro_batches_agree_with_the_whole_batch},
          {"uneven_targets_have_equal_weight", uneven_targets_have_equal_weight},
          {"micro_batches_without_targets_add_nothing", micro_batches_without_targets_add_nothing},
          {"evaluation_between_micro_batches_changes_no_bit",
           evaluation_between_micro_batches_changes_no_bit},
          {"threads_change_no_bit", threads_change_no_bit},
          {"logits_give_the_losses", logits_give_the_losses},
          {"odd_widths_have_the_right_gradient", odd_widths_have_the_right_gradient},
          {"the_least_sizes_have_the_right_gradient", the_least_sizes_have_the_right_gradient},
          {"padding_is_zero_after_steps", padding_is_zero_after_steps},
          {"merged_and_factored_agree", merged_and_factored_agree})
