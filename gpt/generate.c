// generate.c - see generate.h.
#include "gpt/generate.h"

#include "gpt/rng.h"
#include "gpt/textout.h"

#include <string.h>

enum { PREFILL_CHUNK = 256 };

typedef struct Sequence {
    TextOut text;
    TokenIds ids;        // prompt and generated, for the repetition penalty
    const char *finish;  // NULL: still running
} Sequence;

typedef struct Generation {
    Model *m;
    const Tokenizer *tok;
    const GenerateOptions *o;
    GenerateEmit *emit;
    void *ctx;
    Sampler sampler;
    Sequence *seq;  // (samples)
    Cache *cache;   // (samples) rows
    float *logits;  // (samples, V)
    int n_prompt;
    int64_t limit;  // new tokens for each sample
    GenerateStats *stats;
} Generation;

static bool prompt_ids(const Tokenizer *tok, const char *prompt, size_t n, TokenIds *ids,
                       Error *err) {
    tokenizer_encode_to(tok, prompt, n, false, ids);
    if (ids->n > 0) return true;
    if (tokenizer_eot(tok) < 0) {
        return error_set(
            err, "the prompt is empty and the tokenizer has no end-of-text token to start from");
    }
    token_ids_add(ids, tokenizer_eot(tok));
    return true;
}

static bool check_ids(const Model *m, const TokenIds *prompt, const GenerateOptions *o,
                      Error *err) {
    int64_t context = m->cfg.model.seq_len;
    for (size_t i = 0; i < prompt->n; i++) {
        if (prompt->ids[i] >= m->V) {
            return error_set(err,
                             "the tokenizer gave id %d, the model's vocabulary has %d; they do not "
                             "belong together",
                             prompt->ids[i], m->V);
        }
    }
    bool full = (int64_t)prompt->n > context || ((int64_t)prompt->n == context && o->tokens != 0);
    if (!full) return true;
    return error_set(err,
                     "the prompt has %zu tokens and the context holds %lld, which leaves no room "
                     "for an answer; shorten the prompt",
                     prompt->n, (long long)context);
}

bool generate_check(const Model *m, const Tokenizer *tok, const char *prompt, size_t n,
                    const GenerateOptions *o, Error *err) {
    TokenIds ids = {0};
    Sampler sampler = {0};
    bool ok = prompt_ids(tok, prompt, n, &ids, err) && check_ids(m, &ids, o, err) &&
              sampler_init(&sampler, &o->sample, m->V, err);
    sampler_free(&sampler);
    token_ids_free(&ids);
    return ok;
}

// Prefills one row in chunks; its last logits and its cache go to every sample.
static void prefill(Generation *g, const TokenIds *prompt) {
    int B = (int)g->o->samples, chunk = min_int(PREFILL_CHUNK, g->n_prompt);
    int length = g->n_prompt + (int)g->limit;
    double start = now_seconds();
    Cache *first = cache_create(g->m, 1, length, chunk);
    for (int at = 0; at < g->n_prompt; at += chunk) {
        int n = min_int(chunk, g->n_prompt - at);
        bool last = at + n == g->n_prompt;
        model_extend(g->m, first, prompt->ids + at, n, &n, last ? g->logits : NULL, false);
    }
    g->cache = first;
    if (B > 1) {
        g->cache = cache_create(g->m, B, length, 1);
        for (int b = 0; b < B; b++)
            cache_copy_row(g->m, g->cache, b, first, 0);
        for (int b = 1; b < B; b++) {
            memcpy(g->logits + (size_t)b * (size_t)g->m->V, g->logits,
                   (size_t)g->m->V * sizeof(float));
        }
        cache_free(g->m, first);
    }
    g->stats->prefill_seconds = now_seconds() - start;
}

static void show(Generation *g, int b, Buf *out) {
    if (out->n && g->emit) g->emit(g->ctx, b, out->text, out->n);
    out->n = 0;
}

// Takes the next token of a sequence and its text; false when sampling failed.
static bool advance(Generation *g, int b, int64_t step, int *id, Error *err) {
    Sequence *s = &g->seq[b];
    uint64_t key = rng_mix(rng_key(g->o->seed, "sample") + (uint64_t)b);
    *id = sampler_next(&g->sampler, g->logits + (size_t)b * (size_t)g->m->V, s->ids.ids, s->ids.n,
                       rng_uniform(key, (uint64_t)step), err);
    if (*id < 0) return false;
    token_ids_add(&s->ids, *id);
    g->stats->generated++;
    Buf out = {0};
    size_t length;
    const char *bytes = tokenizer_bytes(g->tok, *id, &length);
    if (*id == tokenizer_eot(g->tok) && !g->o->ignore_eot)
        s->finish = "end of text";
    else if (!textout_push(&s->text, bytes, length, &out))
        s->finish = "stop";
    if (!s->finish && step + 1 == g->limit)
        s->finish = g->limit == g->o->tokens ? "length" : "context";
    if (s->finish) textout_finish(&s->text, &out);
    show(g, b, &out);
    buf_free(&out);
    return true;
}

// What cancelled sequences still hold back: the start of a stop string, half a character.
static void finish_cancelled(Generation *g) {
    for (int b = 0; b < (int)g->o->samples; b++) {
        Buf out = {0};
        if (!g->seq[b].finish) textout_finish(&g->seq[b].text, &out);
        show(g, b, &out);
        buf_free(&out);
    }
}

static bool decode(Generation *g, const volatile int *cancel, Error *err) {
    int B = (int)g->o->samples;
    int *ids = mem_alloc((size_t)B, sizeof(int)), *n_new = mem_alloc((size_t)B, sizeof(int));
    double start = now_seconds();
    bool ok = true, running = g->limit > 0;
    for (int64_t step = 0; ok && running && !(cancel && *cancel); step++) {
        int64_t n_decoded = 0;
        running = false;
        for (int b = 0; b < B && ok; b++) {
            n_new[b] = 0;
            if (g->seq[b].finish) continue;
            ok = advance(g, b, step, &ids[b], err);
            n_new[b] = g->seq[b].finish ? 0 : 1;
            running = running || n_new[b];
            n_decoded += n_new[b];
        }
        if (!ok || !running) break;
        model_extend(g->m, g->cache, ids, 1, n_new, g->logits, false);
        g->stats->decoded += n_decoded;
    }
    finish_cancelled(g);
    g->stats->decode_seconds = now_seconds() - start;
    mem_free(ids);
    mem_free(n_new);
    return ok;
}

static void fill_stats(Generation *g) {
    GenerateStats *s = g->stats;
    AttnDims d = config_attn_dims(&g->m->cfg, 1, 1, g->cache->Tmax);
    s->prompt_tokens = g->n_prompt;
    s->cache_bytes = g->cache->bytes, s->cache_type = g->cache->spec[0].type;
    s->cache_values = (int64_t)attention_cache_values(g->m->attn, &d);
    s->cache_rows = g->cache->B, s->cache_length = g->cache->Tmax;
    s->finish = g->seq[0].finish ? g->seq[0].finish : g->limit == 0 ? "length" : "cancelled";
}

bool generate_text(Model *m, const Tokenizer *tok, const char *prompt, size_t n,
                   const GenerateOptions *o, GenerateEmit *emit, void *ctx,
                   const volatile int *cancel, GenerateStats *stats, Error *err) {
    *stats = (GenerateStats){0};
    Generation g = {.m = m, .tok = tok, .o = o, .emit = emit, .ctx = ctx, .stats = stats};
    TokenIds ids = {0};
    bool ok = prompt_ids(tok, prompt, n, &ids, err) && check_ids(m, &ids, o, err) &&
              sampler_init(&g.sampler, &o->sample, m->V, err);
    if (ok) {
        int64_t room = m->cfg.model.seq_len - (int64_t)ids.n;
        g.n_prompt = (int)ids.n;
        g.limit = o->tokens < 0 || o->tokens > room ? room : o->tokens;
        size_t B = (size_t)o->samples;
        g.seq = mem_alloc(B, sizeof(Sequence));
        g.logits = mem_alloc(B * (size_t)m->V, sizeof(float));
        for (size_t b = 0; b < B; b++) {
            g.seq[b].text = (TextOut){.stop = o->stop, .n_stop = o->n_stop};
            for (size_t i = 0; i < ids.n; i++)
                token_ids_add(&g.seq[b].ids, ids.ids[i]);
        }
        prefill(&g, &ids);
        ok = decode(&g, cancel, err);
        fill_stats(&g);
        for (size_t b = 0; b < B; b++) {
            textout_free(&g.seq[b].text);
            token_ids_free(&g.seq[b].ids);
        }
        cache_free(m, g.cache);
        mem_free(g.seq);
        mem_free(g.logits);
    }
    sampler_free(&g.sampler);
    token_ids_free(&ids);
    return ok;
}
