// sampler.c - see sampler.h.
#include "gpt/sampler.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct Candidate {
    int id;
    float logit;
    double p;  // unnormalised
} Candidate;

bool sampler_init(Sampler *s, const SampleOptions *o, int V, Error *err) {
    *s = (Sampler){.o = *o, .V = V};
    if (!(o->temperature >= 0 && isfinite(o->temperature))) {
        return error_set(err, "temperature must be 0 or more, found %g", o->temperature);
    }
    if (!(o->top_p > 0 && o->top_p <= 1)) {
        return error_set(err, "top-p must lie in (0, 1], found %g", o->top_p);
    }
    if (!(o->min_p >= 0 && o->min_p <= 1)) {
        return error_set(err, "min-p must lie in [0, 1], found %g", o->min_p);
    }
    if (!(o->repetition_penalty > 0 && isfinite(o->repetition_penalty))) {
        return error_set(err, "the repetition penalty must be above 0, found %g",
                         o->repetition_penalty);
    }
    if (o->top_k < 0 || o->repeat_window < 0) {
        return error_set(err, "top-k and the repeat window must be 0 or more");
    }
    s->candidates = mem_alloc((size_t)V, sizeof(Candidate));
    s->logits = mem_alloc((size_t)V, sizeof(float));
    return true;
}

void sampler_free(Sampler *s) {
    mem_free(s->candidates);
    mem_free(s->logits);
    *s = (Sampler){0};
}

// A seen id is made less likely once, however often it occurred: positive logits shrink, negative
// grow.
static void penalize(Sampler *s, const float *raw, const int *history, size_t n) {
    memcpy(s->logits, raw, (size_t)s->V * sizeof(float));
    float r = (float)s->o.repetition_penalty;
    if (r == 1.0f) return;
    size_t window = s->o.repeat_window ? (size_t)s->o.repeat_window : n;
    for (size_t i = n > window ? n - window : 0; i < n; i++) {
        int id = history[i];
        if (id < 0 || id >= s->V) continue;
        s->logits[id] = raw[id] > 0 ? raw[id] / r : raw[id] * r;
    }
}

static int by_logit(const void *a, const void *b) {
    const Candidate *x = a, *y = b;
    if (x->logit != y->logit) return x->logit > y->logit ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

// The finite logits as candidates, p relative to the largest; returns how many, the largest's index
// in *best.
static size_t collect(Sampler *s, size_t *best) {
    size_t n = 0;
    *best = 0;
    for (int id = 0; id < s->V; id++) {
        if (!isfinite(s->logits[id])) continue;
        s->candidates[n] = (Candidate){.id = id, .logit = s->logits[id]};
        if (s->logits[id] > s->candidates[*best].logit) *best = n;
        n++;
    }
    float top = n ? s->candidates[*best].logit : 0;
    for (size_t i = 0; i < n; i++) {
        s->candidates[i].p = exp((double)s->candidates[i].logit - (double)top);
    }
    return n;
}

// Drops candidates that cannot be among the kept ones before the sort, which would dominate.
static size_t prefilter(Sampler *s, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += s->candidates[i].p;
    // With top-p alone, an id below (1 - top_p)/n of the mass lies behind the cut.
    double floor = s->o.top_k ? 0 : (1 - s->o.top_p) * sum / (double)n;
    size_t kept = 0;
    for (size_t i = 0; i < n; i++) {
        if (s->candidates[i].p >= floor) s->candidates[kept++] = s->candidates[i];
    }
    return kept;
}

static size_t keep_top_p(Sampler *s, size_t n, double sum) {
    double seen = 0;
    for (size_t i = 0; i < n; i++) {
        seen += s->candidates[i].p;
        if (seen >= s->o.top_p * sum) return i + 1;
    }
    return n;
}

static size_t keep(Sampler *s, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += s->candidates[i].p;
    if (s->o.top_k || s->o.top_p < 1) {
        n = prefilter(s, n);
        qsort(s->candidates, n, sizeof(Candidate), by_logit);
        if (s->o.top_k && n > (size_t)s->o.top_k) {
            n = (size_t)s->o.top_k;
            sum = 0;
            for (size_t i = 0; i < n; i++)
                sum += s->candidates[i].p;
        }
        if (s->o.top_p < 1) n = keep_top_p(s, n, sum);
    }
    if (s->o.min_p > 0) {
        size_t kept = 0;
        for (size_t i = 0; i < n; i++) {
            if (s->candidates[i].p >= s->o.min_p) s->candidates[kept++] = s->candidates[i];
        }
        n = kept;  // the largest has p = 1
    }
    return n;
}

int sampler_next(Sampler *s, const float *logits, const int *history, size_t n_history, double u,
                 Error *err) {
    size_t best;
    penalize(s, logits, history, n_history);
    size_t n = collect(s, &best);
    if (n == 0) {
        error_set(err,
                  "none of the %d logits is finite; the model's weights or its cache are damaged",
                  s->V);
        return -1;
    }
    if (s->o.temperature == 0) return s->candidates[best].id;
    double top = (double)s->candidates[best].logit, sum = 0;
    n = keep(s, n);
    for (size_t i = 0; i < n; i++) {
        s->candidates[i].p = exp(((double)s->candidates[i].logit - top) / s->o.temperature);
        sum += s->candidates[i].p;
    }
    double target = u * sum, seen = 0;
    for (size_t i = 0; i < n; i++) {
        seen += s->candidates[i].p;
        if (target < seen && s->candidates[i].p > 0) return s->candidates[i].id;
    }
    return s->candidates[n - 1].id;  // rounding: the last kept one
}
