// bench_infer.c - generation for one sequence: prefill of a prompt, and decoding one token at a
// time behind a cache that already holds some. The cache is filled with noise, not with a computed
// text: the time depends on its size alone. Sampling and tokenizing are not in it; the logits are
// brought to the host.
#include "gpt/bench.h"

#include <string.h>

typedef struct Infer {
    Bench *b;
    const BenchConfig *bc;
    const Ops *ops;
    const char *compute;
    Config c;
    Model *m;
    Cache *cache;
    int prompt;
    int *ids;  // (max(prompt, decode_tokens))
    float *logits;
} Infer;

static void fill_cache(const Infer *s) {
    const Cache *c = s->cache;
    size_t n = 0;
    for (int i = 0; i < c->n_rows; i++) {
        if (spec_stored(&c->spec[i]) > n) n = spec_stored(&c->spec[i]);
    }
    float *noise = bench_noise(n);
    uint16_t *half = mem_alloc(n, sizeof(uint16_t));
    for (size_t i = 0; i < n; i++)
        half[i] = bf16_from_f32(noise[i]);
    for (int i = 0; i < s->m->L * c->n_rows; i++) {
        const TensorSpec *spec = &c->spec[i % c->n_rows];
        bool bf16 = spec->type == TYPE_BF16;
        size_t bytes = spec_stored(spec) * elem_bytes(spec->type, s->ops->elem_size);
        s->ops->upload_bytes(c->row[i], bf16 ? (const void *)half : (const void *)noise, bytes);
    }
    s->ops->sync();
    mem_free(noise);
    mem_free(half);
}

static double extend(const Infer *s, int at, const int *ids, int n) {
    double start = now_seconds();
    s->cache->pos[0] = at;
    model_extend(s->m, s->cache, ids, n, &n, s->logits, false);
    return now_seconds() - start;
}

// FLOPs of a prefill: a third of a trained token's, but the head meets the last token alone.
static double prefill_flops(const Infer *s, const Plan *p) {
    double head = (double)config_padded_vocab(&s->c) * s->c.model.n_embd;
    return p->flops.causal / 3 * s->prompt - 2 * head * (s->prompt - 1);
}

static bool prefill(Infer *s, double seconds, Error *err) {
    BenchTable *t = &s->b->table[BENCH_PREFILL];
    Config c = s->c;
    Plan plan;
    c.model.seq_len = s->prompt;
    c.batch.tokens = s->prompt, c.batch.micro_batch = 1;
    if (!plan_compute(&plan, &c, s->ops, 1, 0, err)) return error_prefix(err, s->bc->name);
    double flops = prefill_flops(s, &plan);
    plan_free(&plan);
    BenchTimes times = {.n = 0};
    extend(s, 0, s->ids, s->prompt);
    double processor = bench_processor_seconds();
    while (bench_more(&times, s->b->repeat, seconds))
        bench_add(&times, extend(s, 0, s->ids, s->prompt));
    times.processor = bench_processor_seconds() - processor;
    double median = bench_median(&times);
    int row = bench_row(t);
    bench_set_text(t, row, PREFILL_CONFIG, s->bc->name);
    bench_set_text(t, row, PREFILL_COMPUTE, s->compute);
    bench_set(t, row, PREFILL_TOKENS, s->prompt);
    bench_set(t, row, PREFILL_SECONDS, median);
    bench_set(t, row, PREFILL_TOKEN_SPEED, s->prompt / median);
    bench_set(t, row, PREFILL_SPEED, flops / median);
    bench_set(t, row, PREFILL_CPU, bench_processor_share(&times));
    bench_set(t, row, PREFILL_REPETITIONS, times.n);
    return true;
}

// Bytes of weights that one token reads: prepared copies where there are any, else the parameters.
// Of the embedding table it reads a row, which doesn't count.
static size_t weight_bytes(const Model *m) {
    size_t bytes = 0;
    for (int i = 0; i < m->params.n; i++) {
        const TensorSpec *s = &m->params.tensor[i].spec;
        const Weight *w = &m->weight[i];
        if (w->forward)
            bytes += m->ops->weight_bytes(w->OC, w->IC, w->compute);
        else if (s->kind != KIND_EMBED && (s->raw || s->kind == KIND_VECTOR || !s->join))
            bytes += spec_stored(s) * elem_bytes(s->type, m->ops->elem_size);
    }
    for (int i = 0; i < m->L * m->n_derived; i++) {
        const Weight *w = &m->derived[i];
        bytes += w->forward ? m->ops->weight_bytes(w->OC, w->IC, w->compute)
                            : (size_t)w->OC * (size_t)w->IC * m->ops->elem_size;
    }
    return bytes;
}

static bool decode(Infer *s, int depth, double seconds, Error *err) {
    BenchTable *t = &s->b->table[BENCH_DECODE];
    Plan plan;
    Config c = s->c;
    c.batch.tokens = c.model.seq_len, c.batch.micro_batch = 1;
    if (!plan_compute(&plan, &c, s->ops, 1, 0, err)) return error_prefix(err, s->bc->name);
    int n = s->b->decode_tokens;
    // Half of the tokens behind `depth` are in the cache on average while n are decoded.
    double held = depth + (n + 1) / 2.0;
    double cached = held * (double)plan.cache.token_layer_bytes * s->m->L;
    double weights = (double)weight_bytes(s->m);
    plan_free(&plan);
    BenchTimes times = {.n = 0};
    extend(s, depth, s->ids, 1);
    double processor = bench_processor_seconds();
    while (bench_more(&times, s->b->repeat, seconds)) {
        double sum = 0;
        for (int i = 0; i < n; i++)
            sum += extend(s, depth + i, s->ids + i, 1);
        bench_add(&times, sum);
    }
    times.processor = bench_processor_seconds() - processor;
    double token = bench_median(&times) / n;
    int row = bench_row(t);
    bench_set_text(t, row, DECODE_CONFIG, s->bc->name);
    bench_set_text(t, row, DECODE_COMPUTE, s->compute);
    bench_set_text(t, row, DECODE_KV, elem_name(s->cache->spec[0].type));
    bench_set(t, row, DECODE_DEPTH, depth);
    bench_set(t, row, DECODE_SECONDS, token);
    bench_set(t, row, DECODE_TOKEN_SPEED, 1 / token);
    bench_set(t, row, DECODE_WEIGHT_BYTES, weights);
    bench_set(t, row, DECODE_CACHE_BYTES, cached);
    bench_set(t, row, DECODE_BYTES, weights + cached);
    bench_set(t, row, DECODE_SPEED, (weights + cached) / token);
    bench_set(t, row, DECODE_CACHE_ALLOCATED, (double)s->cache->bytes);
    bench_set(t, row, DECODE_CPU, bench_processor_share(&times));
    bench_set(t, row, DECODE_REPETITIONS, times.n);
    return true;
}

static bool wanted(const Bench *b, BenchSection section) {
    return (b->sections >> section & 1) != 0;
}

static bool fits(const Bench *b, const BenchConfig *bc, int depth) {
    return depth + (int64_t)b->decode_tokens <= bc->c.model.seq_len;
}

// What was asked for by number must fit, before anything is measured.
static bool check_lengths(const Bench *b, const BenchConfig *bc, Error *err) {
    int context = bc->c.model.seq_len;
    if (wanted(b, BENCH_PREFILL) && b->prompt > context)
        return error_set(err, "%s: --prompt %d is longer than model.seq_len %d", bc->name,
                         b->prompt, context);
    for (int i = 0; wanted(b, BENCH_DECODE) && b->depths_given && i < b->n_depths; i++) {
        if (!fits(b, bc, b->depth[i]))
            return error_set(err,
                             "%s: %d tokens of --depths and %d of --decode exceed model.seq_len %d",
                             bc->name, b->depth[i], b->decode_tokens, context);
    }
    return true;
}

static bool measure_config(Bench *b, const BenchConfig *bc, int k, Error *err) {
    Infer s = {.b = b, .bc = bc, .ops = b->ops[k], .c = bc->c};
    int context = s.c.model.seq_len;
    s.compute = elem_name(b->compute[k]);
    s.c.train.compute = (int)b->compute[k];
    s.prompt = b->prompt ? b->prompt : min_int(512, context);
    s.m = model_create(&s.c, s.ops, false);
    bench_fill(s.m);
    s.cache = cache_create(s.m, 1, context, s.prompt);
    fill_cache(&s);
    s.ids = bench_ids((size_t)max_int(s.prompt, b->decode_tokens), s.m->V);
    s.logits = mem_alloc((size_t)s.m->V, sizeof(float));
    bool ok = true;
    if (wanted(b, BENCH_PREFILL)) ok = prefill(&s, bench_item_seconds(b), err);
    for (int i = 0; ok && wanted(b, BENCH_DECODE) && i < b->n_depths; i++) {
        double seconds = bench_item_seconds(b);
        if (!fits(b, bc, b->depth[i])) {
            bench_progress(b, "decode", bc->name, "left out: a depth beyond model.seq_len");
            continue;
        }
        ok = decode(&s, b->depth[i], seconds, err);
    }
    cache_free(s.m, s.cache);
    model_free(s.m);
    mem_free(s.ids);
    mem_free(s.logits);
    return ok;
}

bool bench_infer(Bench *b, Error *err) {
    int each = wanted(b, BENCH_PREFILL) + (wanted(b, BENCH_DECODE) ? b->n_depths : 0);
    b->items = b->n_configs * b->n_compute * each;
    for (int i = 0; i < b->n_configs; i++) {
        if (!check_lengths(b, &b->config[i], err)) return false;
    }
    for (int i = 0; i < b->n_configs; i++) {
        for (int k = 0; k < b->n_compute; k++) {
            bench_progress(b, "prefill, decode", b->config[i].name, elem_name(b->compute[k]));
            if (!measure_config(b, &b->config[i], k, err)) return false;
        }
    }
    return true;
}
