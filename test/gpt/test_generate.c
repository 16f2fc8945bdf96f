// test_generate.c - gpt/generate: greedy text is that of the full forward pass; samples depend on
// seed and number alone and follow the model's distribution; every prompt length and token limit
// ends as promised; what is shown is whole characters and no stop string.
#include "gpt/generate.h"
#include "test/arrays.h"
#include "test/small_tokenizer.h"
#include "test/tiny_gen.h"

#include <math.h>
#include <string.h>

static void greedy_text_is_that_of_the_forward_pass(TestCtx *t) {
    static const char *const types[] = {"generate.kv_type=fp32", "generate.kv_type=bf16"};
    GenerateOptions o = gen_greedy(12);
    FOR_EACH_TINY(v) {
        for (int type = 0; type < 2; type++) {
            Buf more = {0};
            buf_printf(&more, "%s model.head_std=1 model.logit_softcap=%d", types[type], 0);
            Gen *g = gen_new(v->settings, more.text);
            gen_must(t, g, "hello", &o);
            Buf want = gen_by_forward(g, "hello", 12);
            gen_expect(t, g, 0, want.text, want.n, v->label);
            // Every sample starts from the same prefill.
            o.samples = 3;
            gen_must(t, g, "hello", &o);
            for (int k = 0; k < 3; k++)
                gen_expect(t, g, k, want.text, want.n, v->label);
            o.samples = 1;
            buf_free(&want);
            buf_free(&more);
            gen_free(g);
        }
    }
}

static void long_prompts_are_prefilled_in_chunks(TestCtx *t) {
    char prompt[531];
    for (int i = 0; i < 530; i++)
        prompt[i] = (char)('a' + i * i % 23);
    GenerateOptions o = gen_greedy(4);
    FOR_EACH_TINY(v) {
        Gen *g = gen_new(v->settings, "model.seq_len=540 batch.tokens=540 model.head_std=1");
        for (int n = 255; n <= 530; n += n < 257 ? 1 : 91) {  // 255, 256, 257, 348, 439, 530
            prompt[n] = 0;
            gen_must(t, g, prompt, &o);
            Buf want = gen_by_forward(g, prompt, 4);
            gen_expect(t, g, 0, want.text, want.n, v->label);
            buf_free(&want);
            prompt[n] = (char)('a' + n * n % 23);
        }
        gen_free(g);
    }
}

// --- samples and seeds

static void samples_do_not_depend_on_their_number(TestCtx *t) {
    static const int counts[] = {1, 2, 3, 5};
    FOR_EACH_TINY(v) {
        Gen *g = gen_new(v->settings, "generate.kv_type=bf16"),
            *all = gen_new(v->settings, "generate.kv_type=bf16");
        GenerateOptions o = gen_plain;
        o.samples = 6;
        gen_must(t, all, "hello wo", &o);
        for (int i = 0; i < 4; i++) {
            o.samples = counts[i];
            gen_must(t, g, "hello wo", &o);
            for (int k = 0; k < counts[i]; k++)
                gen_expect(t, g, k, all->text[k].text, all->text[k].n, v->label);
        }
        int same = 0;
        for (int k = 1; k < 6; k++)
            same += all->text[k].n == all->text[0].n &&
                    !memcmp(all->text[k].text, all->text[0].text, all->text[0].n);
        CHECK_MSG(t, same == 0, "%s: %d samples are the first again", v->label, same);
        CHECK(t, all->stats.generated == 48 && all->stats.decoded == 42);
        gen_free(g);
        gen_free(all);
    }
}

static void seeds_reproduce_and_differ(TestCtx *t) {
    Gen *a = gen_new(NULL, NULL), *b = gen_new(NULL, NULL);
    GenerateOptions o = gen_plain;
    o.tokens = 10;
    gen_must(t, a, "hello", &o);
    gen_must(t, b, "hello", &o);
    gen_expect(t, b, 0, a->text[0].text, a->text[0].n, "the same seed");
    o.seed = 2;
    gen_must(t, b, "hello", &o);
    CHECK(t,
          a->text[0].n != b->text[0].n || memcmp(a->text[0].text, b->text[0].text, a->text[0].n));
    gen_free(a);
    gen_free(b);
}

// First tokens of many samples from one prefill: each comes as often as its probability says, and
// two samples agree as often as they should.
static void first_tokens_follow_the_distribution(TestCtx *t) {
    enum { N = GEN_SAMPLES };
    static const double p[] = {0.4, 0.25, 0.15, 0.1, 0.06, 0.04};
    float logits[GEN_V];
    Tokenizer *tok = small_tokenizer();
    for (int i = 0; i < GEN_V; i++)
        logits[i] = -INFINITY;
    for (int k = 0; k < 6; k++) {
        TokenIds id = {0};
        char letter = (char)('a' + k);
        tokenizer_encode_to(tok, &letter, 1, false, &id);
        logits[id.ids[0]] = (float)log(p[k]);
        token_ids_free(&id);
    }
    tokenizer_free(tok);
    Gen *g = gen_fixed(logits);
    GenerateOptions o = gen_plain;
    o.samples = N, o.tokens = 2;
    for (o.seed = 1; o.seed <= 3; o.seed++) {
        int times[2][6] = {{0}};
        double equal = 0, square = 0;
        gen_must(t, g, "hello", &o);
        for (int i = 0; i < N; i++) {
            CHECK(t, g->text[i].n == 2);
            for (int at = 0; at < 2; at++)
                times[at][g->text[i].text[at] - 'a']++;
            equal += i > 0 && g->text[i].text[0] == g->text[i - 1].text[0];
        }
        for (int k = 0; k < 6; k++) {
            double sigma = sqrt(N * p[k] * (1 - p[k]));
            square += p[k] * p[k];
            for (int at = 0; at < 2; at++)
                CHECK_MSG(t, fabs(times[at][k] - N * p[k]) < 4 * sigma,
                          "token %d: %c came %d times", at, 'a' + k, times[at][k]);
        }
        CHECK_MSG(t, fabs(equal / (N - 1) - square) < 4 * sqrt(square / N), "neighbours agree %g",
                  equal / (N - 1));
    }
    gen_free(g);
}

// --- lengths. A letter that merges with nothing is a token.

static void expect_length(TestCtx *t, Gen *g, int prompt, int64_t tokens, int generated,
                          const char *finish) {
    char text[10 * TINY_SEQ + 1];
    GenerateOptions o = gen_plain;
    o.tokens = tokens;
    memset(text, 'x', sizeof text);
    bool ok = gen_n(g, text, (size_t)prompt, &o);
    if (!finish) {
        Buf counts = {0};
        buf_printf(&counts, "the prompt has %d tokens and the context holds %d", prompt, TINY_SEQ);
        CHECK_MSG(t, !ok, "a prompt of %d was accepted", prompt);
        CHECK_ERROR(t, g->err, counts.text);
        buf_free(&counts);
        return;
    }
    CHECK_MSG(t, ok, "prompt %d, -n %lld: %s", prompt, (long long)tokens, g->err.text);
    if (!ok) return;
    CHECK_MSG(t, g->stats.generated == generated && !strcmp(g->stats.finish, finish),
              "prompt %d, -n %lld: %lld tokens, %s", prompt, (long long)tokens,
              (long long)g->stats.generated, g->stats.finish);
    CHECK(t, g->stats.prompt_tokens == (prompt ? prompt : 1));
    CHECK(t, g->stats.decoded == (generated ? generated - 1 : 0));
}

static void every_length_ends_as_promised(TestCtx *t) {
    enum { C = TINY_SEQ };
    FOR_EACH_TINY(v) {
        Gen *g = gen_new(v->settings, NULL);
        expect_length(t, g, 1, 5, 5, "length");
        expect_length(t, g, 1, 1, 1, "length");
        expect_length(t, g, 1, 0, 0, "length");
        expect_length(t, g, 1, -1, C - 1, "context");
        expect_length(t, g, 1, C - 1, C - 1, "length");
        expect_length(t, g, 1, C, C - 1, "context");
        expect_length(t, g, 0, -1, C - 1, "context");  // starts from the end of text
        expect_length(t, g, C - 1, 0, 0, "length");
        expect_length(t, g, C - 1, 1, 1, "length");
        expect_length(t, g, C - 1, 7, 1, "context");
        expect_length(t, g, C - 1, -1, 1, "context");
        expect_length(t, g, C, 0, 0, "length");
        expect_length(t, g, C, 1, 0, NULL);
        expect_length(t, g, C, -1, 0, NULL);
        expect_length(t, g, C + 1, 0, 0, NULL);
        expect_length(t, g, C + 1, 1, 0, NULL);
        expect_length(t, g, 10 * C, -1, 0, NULL);
        gen_free(g);
    }
}

static void an_empty_prompt_needs_an_end_of_text_token(TestCtx *t) {
    Gen *g = gen_new(NULL, NULL);
    GenerateOptions o = gen_greedy(5);
    gen_must(t, g, "", &o);
    CHECK(t, g->stats.prompt_tokens == 1 && g->stats.generated == 5);
    // The same as the forward pass from that token.
    int start = GEN_EOT;
    float logits[GEN_V];
    model_alloc_acts(g->m, 1, 1);
    model_logits(g->m, &start, logits);
    size_t length;
    const char *first = tokenizer_bytes(g->tok, gen_best(logits), &length);
    if (length == 1 && *first >= ' ') CHECK(t, g->text[0].n && g->text[0].text[0] == *first);
    Small s = small;
    s.added = "[]";
    tokenizer_free(g->tok);
    g->tok = small_load(s, &g->err);
    CHECK(t, g->tok != NULL);
    CHECK(t, !gen(g, "", &o));
    CHECK_ERROR(t, g->err, "the prompt is empty and the tokenizer has no end-of-text token");
    gen_free(g);
}

static void statistics_state_the_cache(TestCtx *t) {
    FOR_EACH_TINY(v) {
        Gen *g = gen_new(v->settings, "generate.kv_type=bf16");
        GenerateOptions o = gen_plain;
        o.samples = 3;
        gen_must(t, g, "hello", &o);
        const GenerateStats *s = &g->stats;
        CHECK(t, s->cache_rows == 3 && s->cache_length == 1 + 8);
        CHECK(t, s->cache_bytes == cache_bytes(&g->m->cfg, g->m->ops, 3, 9));
        AttnDims d = config_attn_dims(&g->m->cfg, 1, 1, 9);
        CHECK(t, s->cache_values == (int64_t)attention_cache_values(g->m->attn, &d));
        gen_free(g);
    }
}

static void other_peoples_tokens_are_refused(TestCtx *t) {
    Gen *g = gen_new(NULL, "model.vocab_size=258");
    GenerateOptions o = gen_greedy(3);
    CHECK(t, !gen(g, "hello", &o));  // id 259
    CHECK_ERROR(t, g->err, "the tokenizer gave id 259, the model's vocabulary has 258");
    CHECK(t, gen(g, "abc", &o));
    gen_free(g);
}

// --- ends and what is shown

static void an_end_of_text_ends_the_text(TestCtx *t) {
    static const int ids[] = {'a', 'b', GEN_EOT, 'c', 'd'};
    Gen *g = gen_script(ids, 5);
    GenerateOptions o = gen_greedy(5);
    o.ignore_eot = false;
    gen_must(t, g, "x", &o);
    gen_expect(t, g, 0, "ab", 2, "end of text");
    CHECK(t, !strcmp(g->stats.finish, "end of text") && g->stats.generated == 3);
    o.ignore_eot = true;
    gen_rewind();
    gen_must(t, g, "x", &o);
    gen_expect(t, g, 0, "ab<|endoftext|>cd", 17, "ignored");
    CHECK(t, !strcmp(g->stats.finish, "length"));
    gen_free(g);
}

static void stop_strings_end_the_text_before_them(TestCtx *t) {
    static const int ids[] = {'a', 's', 't', 'x', 's', 't', 'o', 'p', 'y'};
    static const char *const stop[] = {"never", "stop"};
    Gen *g = gen_script(ids, 9);
    GenerateOptions o = gen_greedy(9);
    o.stop = stop, o.n_stop = 2;
    gen_must(t, g, "x", &o);
    gen_expect(t, g, 0, "astx", 4, "stop");
    CHECK(t, !strcmp(g->stats.finish, "stop") && g->stats.generated == 8);
    // What could have become one is shown when nothing follows.
    gen_rewind();
    o.tokens = 7;
    gen_must(t, g, "x", &o);
    gen_expect(t, g, 0, "astxsto", 7, "length");
    gen_free(g);
}

static void characters_are_shown_whole(TestCtx *t) {
    static const int ids[] = {'a', 0xC3, 0xA9, 0xE2, 0x82, 0xAC, 0xFF, 0xE2};
    Gen *g = gen_script(ids, 8);
    GenerateOptions o = gen_greedy(8);
    gen_must(t, g, "x", &o);
    gen_expect(t, g, 0, "a\xC3\xA9\xE2\x82\xAC\xEF\xBF\xBD\xEF\xBF\xBD", 12, "characters");
    CHECK(t, g->emits == 5);
    gen_free(g);
}

static void logits_that_are_not_finite_are_an_error(TestCtx *t) {
    float logits[GEN_V];
    for (int i = 0; i < GEN_V; i++)
        logits[i] = i % 3 ? NAN : -INFINITY;
    Gen *g = gen_fixed(logits);
    GenerateOptions o = gen_plain;
    o.samples = 3;
    CHECK(t, !gen(g, "hello", &o));
    CHECK_ERROR(t, g->err, "none of the 263 logits is finite");
    gen_free(g);
}

// Between two tokens; what was held back for a stop string comes out.
static void cancelling_keeps_what_was_made(TestCtx *t) {
    static const int ids[] = {259, 'b', 'c'};  // hello
    static const char *const stop[] = {"lox"};
    Gen *g = gen_script(ids, 3);
    GenerateOptions o = gen_greedy(7);
    o.stop = stop, o.n_stop = 1;
    g->cancel_after = 1;
    gen_must(t, g, "x", &o);
    gen_expect(t, g, 0, "hello", 5, "cancelled");
    CHECK_MSG(t, !strcmp(g->stats.finish, "cancelled"), "%s", g->stats.finish);
    CHECK(t, g->stats.generated == 1);
    gen_free(g);
}

static void options_out_of_range_are_sentences(TestCtx *t) {
    Gen *g = gen_new(NULL, NULL);
    GenerateOptions o = gen_plain;
    o.sample.top_p = 0;
    CHECK(t, !gen(g, "hello", &o));
    CHECK_ERROR(t, g->err, "top-p must lie in (0, 1]");
    CHECK(t, !generate_check(g->m, g->tok, "hello", 5, &o, &g->err));
    o = gen_plain;
    CHECK(t, generate_check(g->m, g->tok, "hello", 5, &o, &g->err));
    gen_free(g);
}

TEST_MAIN({"greedy_text_is_that_of_the_forward_pass", greedy_text_is_that_of_the_forward_pass},
          {"long_prompts_are_prefilled_in_chunks", long_prompts_are_prefilled_in_chunks},
          {"samples_do_not_depend_on_their_number", samples_do_not_depend_on_their_number},
          {"seeds_reproduce_and_differ", seeds_reproduce_and_differ},
          {"first_tokens_follow_the_distribution", first_tokens_follow_the_distribution},
          {"every_length_ends_as_promised", every_length_ends_as_promised},
          {"an_empty_prompt_needs_an_end_of_text_token",
           an_empty_prompt_needs_an_end_of_text_token},
          {"statistics_state_the_cache", statistics_state_the_cache},
          {"other_peoples_tokens_are_refused", other_peoples_tokens_are_refused},
          {"an_end_of_text_ends_the_text", an_end_of_text_ends_the_text},
          {"stop_strings_end_the_text_before_them", stop_strings_end_the_text_before_them},
          {"characters_are_shown_whole", characters_are_shown_whole},
          {"logits_that_are_not_finite_are_an_error", logits_that_are_not_finite_are_an_error},
          {"cancelling_keeps_what_was_made", cancelling_keeps_what_was_made},
          {"options_out_of_range_are_sentences", options_out_of_range_are_sentences})
