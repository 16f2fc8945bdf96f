// test_extend.c - model_extend over the cache, for every variant and cache type: decoding is the
// full forward pass whatever the chunks; a row does not see its neighbours, wherever they stand;
// the cache is as large as the formula says, and nothing in it is read before it is written.
#include "test/arrays.h"
#include "test/tiny_run.h"

#include <math.h>
#include <string.h>

enum { T = TINY_SEQ, V = TINY_VOCAB };

static const char *const kv_types[] = {"fp32", "bf16"};

// A model and the logits of one sequence by the full forward pass.
typedef struct Full {
    Model *m;
    int ids[T];
    float *logits;  // (T, V)
    double tol;     // of a cache's logits, relative to the largest
    char label[48];
} Full;

static Full *full_new(const TinyVariant *v, int type) {
    Config c;
    Full *f = mem_alloc(1, sizeof *f);
    Buf more = {0};
    buf_printf(&more, "generate.kv_type=%s model.head_std=0.5", kv_types[type]);
    tiny_config(&c, v->settings, more.text);
    f->m = tiny_model(&c, false);
    f->logits = mem_alloc((size_t)T * V, sizeof(float));
    f->tol = type ? 0.03 : 2e-5;
    snprintf(f->label, sizeof f->label, "%s, %s", v->label, kv_types[type]);
    tiny_ids(f->ids, T, V, 21);
    model_alloc_acts(f->m, 1, T);
    model_logits(f->m, f->ids, f->logits);
    buf_free(&more);
    return f;
}

static void full_free(Full *f) {
    model_free(f->m);
    mem_free(f->logits);
    mem_free(f);
}

// No value of the cache is one that was there by chance.
static Cache *nan_cache(const Model *m, int B, int Tmax, int chunk) {
    Cache *c = cache_create(m, B, Tmax, chunk);
    memset(c->arena, 0xFF, c->bytes);
    return c;
}

static void check_chunks(TestCtx *t, const TinyVariant *v, int type) {
    static const int chunks[] = {1, 3, 5, T - 1, T};
    Full *f = full_new(v, type);
    float *logits = mem_alloc((size_t)T * V, sizeof(float));
    for (size_t i = 0; i < sizeof chunks / sizeof chunks[0]; i++) {
        Cache *c = nan_cache(f->m, 1, T, chunks[i]);
        tiny_extend(f->m, c, f->ids, T, chunks[i], logits);
        CHECK(t, c->pos[0] == T);
        CHECK_CLOSE(t, logits, f->logits, .what = f->label, .n = (size_t)T * V, .rel_tol = f->tol);
        cache_free(f->m, c);
    }
    mem_free(logits);
    full_free(f);
}

static void chunks_of_any_size_are_the_forward_pass(TestCtx *t) {
    for (int type = 0; type < 2; type++) {
        FOR_EACH_TINY(v) check_chunks(t, v, type);
    }
}

static void the_least_sizes_are_the_forward_pass(TestCtx *t) {
    for (const TinyVariant *v = tiny_least; v->label; v++)
        check_chunks(t, v, 0);
}

// Prefill of k tokens, the rest one by one, logits of the last token only.
static void a_prefill_and_single_tokens_are_the_forward_pass(TestCtx *t) {
    static const int prefill[] = {1, T / 2, T - 1, T};
    FOR_EACH_TINY(v) {
        for (int type = 0; type < 2; type++) {
            Full *f = full_new(v, type);
            for (int i = 0; i < 4; i++) {
                Cache *c = nan_cache(f->m, 1, T, prefill[i]);
                float logits[V];
                int k = prefill[i], one = 1;
                model_extend(f->m, c, f->ids, k, &k, logits, false);
                for (int at = k;; at++) {
                    CHECK_CLOSE(t, logits, f->logits + (size_t)(at - 1) * V, .what = f->label,
                                .n = V, .rel_tol = f->tol);
                    if (at == T) break;
                    model_extend(f->m, c, f->ids + at, 1, &one, logits, false);
                }
                cache_free(f->m, c);
            }
            full_free(f);
        }
    }
}

// Rows at different places of different texts, some without new tokens, the last ones up to the end
// of the context; a step is wider than what some rows add, so that the unused tokens of a full row
// stand beyond the context. Each row is to the bit what it is alone.
static void ragged_rows_are_what_they_are_alone(TestCtx *t) {
    enum { ROWS = 5, CHUNK = 6, STEPS = 5 };
    // Every row ends at T = 16 or earlier; row 3 is full from the third step on.
    static const int add[STEPS][ROWS] = {
        {6, 1, 0, 6, 3}, {0, 6, 0, 6, 1}, {5, 2, 1, 4, 0}, {1, 6, 6, 0, 6}, {4, 0, 6, 0, 6}};
    FOR_EACH_TINY(v) {
        for (int type = 0; type < 2; type++) {
            Full *f = full_new(v, type);
            int text[ROWS][T];
            Cache *c = nan_cache(f->m, ROWS, T, CHUNK), *alone[ROWS];
            float *logits = mem_alloc((size_t)ROWS * CHUNK * V, sizeof(float));
            float *want = mem_alloc((size_t)CHUNK * V, sizeof(float));
            for (int b = 0; b < ROWS; b++) {
                tiny_ids(text[b], T, V, (uint64_t)b + 60);
                alone[b] = nan_cache(f->m, 1, T, CHUNK);
            }
            for (int s = 0; s < STEPS; s++) {
                int ids[ROWS * CHUNK];
                for (int i = 0; i < ROWS * CHUNK; i++) {
                    int b = i / CHUNK, at = c->pos[b] + i % CHUNK;
                    ids[i] = i % CHUNK < add[s][b] ? text[b][at] : 0;
                }
                model_extend(f->m, c, ids, CHUNK, add[s], logits, true);
                for (int b = 0; b < ROWS; b++) {
                    int n = add[s][b];
                    if (n == 0) continue;
                    model_extend(f->m, alone[b], ids + b * CHUNK, n, &n, want, true);
                    bool same = memcmp(logits + (size_t)b * CHUNK * V, want,
                                       (size_t)n * V * sizeof *want) == 0;
                    CHECK_MSG(t, same, "%s: row %d of step %d", f->label, b, s);
                    CHECK(t, c->pos[b] == alone[b]->pos[0]);
                }
            }
            CHECK(t, c->pos[0] == T && c->pos[3] == T && c->pos[4] == T);
            for (int b = 0; b < ROWS; b++)
                cache_free(f->m, alone[b]);
            cache_free(f->m, c);
            mem_free(logits);
            mem_free(want);
            full_free(f);
        }
    }
}

// The last new token's logits of rows that add different numbers of tokens.
static void last_logits_are_those_of_each_rows_last_token(TestCtx *t) {
    FOR_EACH_TINY(v) {
        Full *f = full_new(v, 0);
        static const int add[3] = {4, 1, 3};
        int ids[12];
        float all[12 * V], last[3 * V];
        tiny_ids(ids, 12, V, 9);
        Cache *a = nan_cache(f->m, 3, T, 4), *b = nan_cache(f->m, 3, T, 4);
        model_extend(f->m, a, ids, 4, add, all, true);
        model_extend(f->m, b, ids, 4, add, last, false);
        for (int r = 0; r < 3; r++)
            CHECK_SAME_BITS(t, last + r * V, all + (r * 4 + add[r] - 1) * V, V * sizeof *all);
        cache_free(f->m, a);
        cache_free(f->m, b);
        full_free(f);
    }
}

static void rows_without_new_tokens_are_left_alone(TestCtx *t) {
    FOR_EACH_TINY(v) {
        Full *f = full_new(v, 0);
        int none[2] = {0, 0}, five[2] = {5, 5}, ids[10] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
        Cache *c = nan_cache(f->m, 2, T, 5);
        float logits[2 * V];
        model_extend(f->m, c, ids, 5, five, NULL, false);
        char *before = mem_alloc(c->bytes, 1);
        memcpy(before, c->arena, c->bytes);
        model_extend(f->m, c, ids, 1, none, logits, false);
        model_extend(f->m, c, ids, 5, none, NULL, false);
        CHECK_SAME_BITS(t, c->arena, before, c->bytes);
        CHECK(t, c->pos[0] == 5 && c->pos[1] == 5);
        mem_free(before);
        cache_free(f->m, c);
        full_free(f);
    }
}

// A row copied to others, also of another cache, goes on like the original, and they part ways.
static void copied_rows_go_on_by_themselves(TestCtx *t) {
    FOR_EACH_TINY(v) {
        for (int type = 0; type < 2; type++) {
            Full *f = full_new(v, type);
            Cache *first = nan_cache(f->m, 1, T, T / 2), *many = nan_cache(f->m, 3, T, 1);
            float one[V], three[3 * V];
            int half = T / 2, single = 1, each[3] = {1, 1, 1};
            model_extend(f->m, first, f->ids, half, &half, NULL, false);
            cache_copy_row(f->m, many, 2, first, 0);
            cache_copy_row(f->m, many, 0, many, 2);
            cache_copy_row(f->m, many, 1, first, 0);
            for (int at = T / 2; at < T; at++) {
                int ids[3] = {f->ids[at], (f->ids[at] + 1) % V, f->ids[at]};
                model_extend(f->m, first, f->ids + at, 1, &single, one, false);
                model_extend(f->m, many, ids, 1, each, three, false);
                CHECK_SAME_BITS(t, three, one, sizeof one);
                CHECK_SAME_BITS(t, three + 2 * V, one, sizeof one);
                CHECK(t, memcmp(three + V, one, sizeof one) != 0);
            }
            CHECK(t, many->pos[0] == T && many->pos[1] == T && many->pos[2] == T);
            cache_free(f->m, first);
            cache_free(f->m, many);
            full_free(f);
        }
    }
}

// --- sizes

static size_t wanted, found;

static void *hook_alloc(size_t bytes) {
    found += bytes == wanted;
    return ops_cpu()->alloc(bytes);
}

// Values per token and layer by the formulas of the variants: 4 heads of 8, 2 groups, latent 12,
// decoupled key 4, rank 3. Sequences of 64 fill latent blocks and alignment exactly.
static void caches_are_as_large_as_their_formula(TestCtx *t) {
    static const struct {
        const char *label;
        size_t values;
    } formula[] = {{"mha", 2 * 4 * 8},
                   {"mqa", 2 * 8},
                   {"gqa", 2 * 2 * 8},
                   {"mla", 12},
                   {"lrkv", 2 * (8 + 4 * 3)},
                   {"mla decoupled", 12 + 4},
                   {"lrkv merged", 2 * (8 + 4 * 3)},
                   {"mha gpt2", 2 * 4 * 8}};
    Ops ops = *ops_cpu();
    ops.alloc = hook_alloc;
    int known = 0;
    FOR_EACH_TINY(v) {
        for (int type = 0; type < 2; type++) {
            Config c;
            Buf more = {0};
            buf_printf(&more, "generate.kv_type=%s model.seq_len=64 batch.tokens=64",
                       kv_types[type]);
            tiny_config(&c, v->settings, more.text);
            Model *m = model_create(&c, &ops, false);
            AttnDims d = config_attn_dims(&c, 1, 1, 64);
            size_t values = attention_cache_values(m->attn, &d), want = 0;
            for (size_t i = 0; i < sizeof formula / sizeof formula[0]; i++) {
                if (strcmp(formula[i].label, v->label)) continue;
                CHECK_MSG(t, values == formula[i].values, "%s: %zu values", v->label, values);
                known++;
            }
            for (int B = 1; B <= 3; B++) {
                want = values * 2 * 64 * (size_t)B * (type ? 2 : 4);  // 2 layers
                wanted = want, found = 0;
                Cache *cache = cache_create(m, B, 64, 1);
                CHECK_MSG(t, cache->bytes == want && cache_bytes(&c, &ops, B, 64) == want,
                          "%s, %s: %zu bytes, formula %zu", v->label, kv_types[type], cache->bytes,
                          want);
                CHECK_MSG(t, found > 0, "%s: no piece of %zu bytes", v->label, want);
                cache_free(m, cache);
            }
            // Odd lengths are at most a block and the alignment of a few tensors larger.
            size_t odd = cache_bytes(&c, &ops, 1, 37), exact = values * 2 * 37 * (type ? 2 : 4);
            CHECK(t, odd >= exact && odd <= want / 3 + 2 * 4 * 256);
            model_free(m);
            buf_free(&more);
        }
    }
    CHECK_MSG(t, known > 0, "no formula was compared");
}

// Longer than a block of latents and than a tile of keys, at lengths around both.
static void long_contexts_are_the_forward_pass(TestCtx *t) {
    enum { LONG = 200 };
    static const int chunks[] = {63, 64, 65, 130};
    FOR_EACH_TINY(v) {
        Config c;
        int ids[LONG], one = 1;
        tiny_config(&c, v->settings, "model.seq_len=200 batch.tokens=200 model.head_std=0.5");
        Model *m = tiny_model(&c, false);
        float *want = mem_alloc((size_t)LONG * V, sizeof(float)), logits[V];
        tiny_ids(ids, LONG, V, 33);
        model_alloc_acts(m, 1, LONG);
        model_logits(m, ids, want);
        for (int i = 0; i < 4; i++) {
            Cache *cache = nan_cache(m, 1, LONG, chunks[i]);
            while (cache->pos[0] < LONG - 20) {
                int at = cache->pos[0], n = min_int(chunks[i], LONG - 20 - at);
                model_extend(m, cache, ids + at, n, &n, logits, false);
            }
            for (int at = LONG - 20; at < LONG; at++) {
                CHECK_CLOSE(t, logits, want + (size_t)(at - 1) * V, .what = v->label, .n = V,
                            .rel_tol = 2e-5);
                model_extend(m, cache, ids + at, 1, &one, logits, false);
            }
            cache_free(m, cache);
        }
        model_free(m);
        mem_free(want);
    }
}

TEST_MAIN({"chunks_of_any_size_are_the_forward_pass", chunks_of_any_size_are_the_forward_pass},
          {"the_least_sizes_are_the_forward_pass", the_least_sizes_are_the_forward_pass},
          {"a_prefill_and_single_tokens_are_the_forward_pass",
           a_prefill_and_single_tokens_are_the_forward_pass},
          {"ragged_rows_are_what_they_are_alone", ragged_rows_are_what_they_are_alone},
          {"last_logits_are_those_of_each_rows_last_token",
           last_logits_are_those_of_each_rows_last_token},
          {"rows_without_new_tokens_are_left_alone", rows_without_new_tokens_are_left_alone},
          {"copied_rows_go_on_by_themselves", copied_rows_go_on_by_themselves},
          {"caches_are_as_large_as_their_formula", caches_are_as_large_as_their_formula},
          {"long_contexts_are_the_forward_pass", long_contexts_are_the_forward_pass})
