// tiny_gen.c - see tiny_gen.h.
#include "test/tiny_gen.h"

#include "gpt/textout.h"
#include "test/small_tokenizer.h"

#include <string.h>

const GenerateOptions gen_plain = {
    .tokens = 8,
    .samples = 1,
    .seed = 1,
    .ignore_eot = true,
    .sample = {.temperature = 1, .top_p = 1, .repetition_penalty = 1},
};

GenerateOptions gen_greedy(int64_t tokens) {
    GenerateOptions o = gen_plain;
    o.tokens = tokens;
    o.sample.temperature = 0;
    return o;
}

static void collect(void *ctx, int sample, const char *text, size_t n) {
    Gen *g = ctx;
    buf_add(&g->text[sample], text, n);
    if (++g->emits == g->cancel_after) g->cancel = 1;
}

Gen *gen_new(const char *settings, const char *more) {
    Config c;
    Gen *g = mem_alloc(1, sizeof *g);
    tiny_config(&c, settings, more);
    g->m = tiny_model(&c, false);
    g->tok = small_tokenizer();
    return g;
}

void gen_free(Gen *g) {
    for (int i = 0; i < GEN_SAMPLES; i++)
        buf_free(&g->text[i]);
    model_free(g->m);
    tokenizer_free(g->tok);
    mem_free(g);
}

bool gen_n(Gen *g, const char *prompt, size_t n, const GenerateOptions *o) {
    for (int i = 0; i < GEN_SAMPLES; i++)
        g->text[i].n = 0;
    for (int64_t i = 0; i < o->samples; i++)
        buf_add(&g->text[i], "", 0);
    g->emits = g->cancel = 0;
    g->err = (Error){{0}};
    return generate_text(g->m, g->tok, prompt, n, o, collect, g, &g->cancel, &g->stats, &g->err);
}

bool gen(Gen *g, const char *prompt, const GenerateOptions *o) {
    return gen_n(g, prompt, strlen(prompt), o);
}

void gen_must(TestCtx *t, Gen *g, const char *prompt, const GenerateOptions *o) {
    bool ok = gen(g, prompt, o);
    CHECK_MSG(t, ok, "%s", g->err.text);
}

void gen_expect(TestCtx *t, const Gen *g, int sample, const char *want, size_t n,
                const char *label) {
    const Buf *b = &g->text[sample];
    CHECK_MSG(t, b->n == n && memcmp(b->text, want, n) == 0, "%s: sample %d is '%.*s', not '%.*s'",
              label, sample, (int)b->n, b->text, (int)n, want);
}

// --- against the full forward pass

int gen_best(const float *logits) {
    int at = 0;
    for (int i = 1; i < GEN_V; i++) {
        if (logits[i] > logits[at]) at = i;
    }
    return at;
}

Buf gen_by_forward(Gen *g, const char *prompt, int n) {
    TokenIds ids = {0};
    Buf out = {0};
    TextOut text = {0};
    tokenizer_encode_to(g->tok, prompt, strlen(prompt), false, &ids);
    for (int i = 0; i < n; i++) {
        float *logits = mem_alloc(ids.n * GEN_V, sizeof(float));
        model_alloc_acts(g->m, 1, (int)ids.n);
        model_logits(g->m, ids.ids, logits);
        int id = gen_best(logits + (ids.n - 1) * GEN_V);
        size_t length;
        const char *piece = tokenizer_bytes(g->tok, id, &length);
        textout_push(&text, piece, length, &out);
        token_ids_add(&ids, id);
        mem_free(logits);
    }
    textout_finish(&text, &out);
    textout_free(&text);
    token_ids_free(&ids);
    return out;
}

// --- dictated logits

typedef struct Script {
    int ids[64], n, at;
    const float *fixed;
    int Vp;
} Script;

static Script script;

static void hook_softcap(floatX *logits, size_t n, float softcap) {
    float *x = (float *)logits;
    size_t Vp = (size_t)script.Vp;
    (void)softcap;
    for (size_t row = 0; row < n / Vp; row++) {
        for (size_t i = 0; i < GEN_V; i++)
            x[row * Vp + i] = script.fixed ? script.fixed[i] : 0;
        if (script.at < script.n) x[row * Vp + (size_t)script.ids[script.at]] = 1;
    }
    script.at++;
}

static Gen *dictated(Script s) {
    static Ops ops;
    Gen *g = gen_new(NULL, "model.seq_len=64");
    ops = *ops_cpu();
    ops.softcap = hook_softcap;
    g->m->ops = &ops;
    script = s;
    script.Vp = g->m->Vp;
    return g;
}

Gen *gen_script(const int *ids, int n) {
    Script s = {.n = n};
    Gen *g = dictated(s);
    for (int i = 0; i < n; i++) {
        TokenIds one = {0};
        char byte = (char)ids[i];
        if (ids[i] < 256)
            tokenizer_encode_to(g->tok, &byte, 1, false, &one);
        else
            token_ids_add(&one, ids[i]);
        script.ids[i] = one.ids[0];
        token_ids_free(&one);
    }
    return g;
}

void gen_rewind(void) {
    script.at = 0;
}

Gen *gen_fixed(const float *logits) {
    return dictated((Script){.fixed = logits});
}
