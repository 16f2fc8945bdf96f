// test_evaluate.c - gpt/evaluate: known answers of a model that knows nothing, every target scored
// once whatever the windows, shards and text alike, special tokens outside of the bytes.
#include "gpt/evaluate.h"
#include "test/arrays.h"
#include "test/small_tokenizer.h"
#include "test/tiny_run.h"

#include <math.h>
#include <string.h>

enum { V = TINY_VOCAB, T = TINY_SEQ, EOT = 262 };

// A head of zeros gives every token the probability 1/V.
static Model *uniform_model(int B) {
    Config c;
    tiny_config(&c, NULL, "model.head_std=0");
    Model *m = tiny_model(&c, false);
    model_alloc_acts(m, B, T);
    return m;
}

static Model *random_model(const char *settings, int B) {
    Config c;
    tiny_config(&c, settings, "model.head_std=0.3");
    Model *m = tiny_model(&c, false);
    model_alloc_acts(m, B, T);
    return m;
}

static void check_number(TestCtx *t, double x, double want, const char *what) {
    CHECK_MSG(t, fabs(x - want) <= 2e-7 * fabs(want), "%s is %.12g, not %.12g", what, x, want);
}

// "hello hello" of 11 bytes is two tokens and a space; the end of text is a token without bytes.
static void a_model_that_knows_nothing_has_known_scores(TestCtx *t) {
    Tokenizer *tok = small_tokenizer();
    Model *m = uniform_model(2);
    TokenIds ids = {0};
    EvalSum s = {0};
    token_ids_add(&ids, EOT);
    tokenizer_encode_to(tok, "hello hello", 11, false, &ids);
    CHECK(t, ids.n == 4);
    token_ids_add(&ids, EOT);
    eval_ids(m, tok, ids.ids, ids.n, 0, &s);
    CHECK(t, s.tokens == 4 && s.bytes == 11 && s.bad == 0);
    check_number(t, eval_loss(&s), log(V), "loss");
    check_number(t, exp(eval_loss(&s)), V, "perplexity");
    check_number(t, eval_bits_per_byte(&s), 3 * log2(V) / 11, "bits per byte");
    // How often documents end does not change bits per byte.
    EvalSum more = {0};
    int ends[] = {EOT, EOT, ids.ids[1], EOT, ids.ids[2], EOT, EOT, ids.ids[3], EOT};
    eval_ids(m, tok, ends, 9, 0, &more);
    CHECK(t, more.tokens == 8 && more.bytes == 11);
    check_number(t, eval_bits_per_byte(&more), eval_bits_per_byte(&s), "with more documents");
    token_ids_free(&ids);
    model_free(m);
    tokenizer_free(tok);
}

static void sums_without_anything_are_not_numbers(TestCtx *t) {
    Model *m = uniform_model(1);
    EvalSum s = {0};
    int one = 5, two[2] = {5, 6};
    CHECK(t, isnan(eval_loss(&s)) && isnan(eval_bits_per_byte(&s)));
    eval_ids(m, NULL, &one, 1, 0, &s);
    CHECK(t, s.tokens == 0);
    eval_ids(m, NULL, two, 2, 0, &s);
    CHECK(t, s.tokens == 1 && s.bytes == 0 && isnan(eval_bits_per_byte(&s)));
    model_free(m);
}

// Losses by hand: target i + 1 from the tokens of its window up to i.
static double by_hand(Model *m, const int *ids, size_t n) {
    double sum = 0;
    float *logits = mem_alloc((size_t)T * V, sizeof(float));
    model_alloc_acts(m, 1, T);
    for (size_t at = 0; at + 1 < n; at += T) {
        int window[T];
        for (size_t i = 0; i < T; i++)
            window[i] = at + i < n ? ids[at + i] : 0;
        model_logits(m, window, logits);
        for (size_t i = 0; i < T && at + i + 1 < n; i++) {
            const float *row = logits + i * V;
            double z = 0;
            for (int k = 0; k < V; k++)
                z += exp((double)row[k]);
            sum += log(z) - (double)row[ids[at + i + 1]];
        }
    }
    mem_free(logits);
    return sum;
}

static void every_target_is_scored_once_in_its_window(TestCtx *t) {
    static const size_t lengths[] = {2, T - 1, T, T + 1, T + 2, 2 * T, 2 * T + 1, 3 * T + 5, 57};
    FOR_EACH_TINY(v) {
        Model *m = random_model(v->settings, 1);
        int ids[64];
        tiny_ids(ids, 64, V, 31);
        for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
            size_t n = lengths[i];
            double want = by_hand(m, ids, n);
            for (int B = 1; B <= 3; B++) {
                EvalSum s = {0};
                model_alloc_acts(m, B, T);
                eval_ids(m, NULL, ids, n, 0, &s);
                CHECK_MSG(t, s.tokens == (int64_t)n - 1 && fabs(s.nats - want) <= 1e-5 * want,
                          "%s, %zu ids, B %d: %lld targets, %.9g nats, by hand %.9g", v->label, n,
                          B, (long long)s.tokens, s.nats, want);
            }
        }
        model_free(m);
    }
}

static void limits_are_exact(TestCtx *t) {
    static const int64_t limits[] = {1, T - 1, T, T + 1, 2 * T, 50, 63, 64, 1000};
    Model *m = random_model(NULL, 2);
    int ids[64];
    double before = 0;
    tiny_ids(ids, 64, V, 31);
    for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++) {
        EvalSum s = {0};
        int64_t want = limits[i] < 63 ? limits[i] : 63;
        eval_ids(m, NULL, ids, 64, limits[i], &s);
        CHECK_MSG(t, s.tokens == want, "limit %lld: %lld targets", (long long)limits[i],
                  (long long)s.tokens);
        CHECK(t, s.nats >= before);
        before = s.nats;
    }
    model_free(m);
}

static DataLoader *loader(const TinyRun *r, const char *name) {
    Error err;
    char *path = tiny_path(r, name);
    DataLoaderOptions o = {.patterns = path, .seq_len = T, .n_vocab = V};
    DataLoader *d = dataloader_open(&o, &err);
    if (!d) die("%s", err.text);
    mem_free(path);
    return d;
}

static void shards_and_text_agree(TestCtx *t) {
    enum { N = 5 * T + 1 };
    TinyRun *r = tiny_open();
    Tokenizer *tok = small_tokenizer();
    int ids[N + 9];
    tiny_ids(ids, N + 9, V, 8);
    tiny_shard(r, "whole.bin", ids, N);
    tiny_shard(r, "rest.bin", ids, N + 9);  // 9 tokens that are in no sample
    FOR_EACH_TINY(v) {
        for (int B = 1; B <= 4; B += 3) {
            Model *m = random_model(v->settings, B);
            EvalSum text = {0};
            eval_ids(m, tok, ids, N, 0, &text);
            for (int i = 0; i < 2; i++) {
                EvalSum shards = {0};
                Error err;
                DataLoader *d = loader(r, i ? "rest.bin" : "whole.bin");
                CHECK(t, eval_loader(m, tok, d, 0, NULL, &shards, &err));
                CHECK_MSG(t, memcmp(&shards, &text, sizeof text) == 0, "%s, B %d: %.12g, %.12g",
                          v->label, B, shards.nats, text.nats);
                dataloader_close(d);
            }
            model_free(m);
        }
    }
    tokenizer_free(tok);
    tiny_close(r);
}

static void limits_over_shards_are_exact(TestCtx *t) {
    static const int64_t limits[] = {
        1, T - 1, T, T + 1, 3 * T, 4 * T + 1, TINY_VAL_SAMPLES * T, 1000000};
    TinyRun *r = tiny_open();
    int ids[T * TINY_VAL_SAMPLES + 1];
    tiny_ids(ids, T * TINY_VAL_SAMPLES + 1, V, 4);  // as tiny_open does
    for (int B = 1; B <= 4; B++) {
        Model *m = random_model(NULL, B);
        DataLoader *d = loader(r, "val_0.bin");
        for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++) {
            EvalSum s = {0}, want = {0};
            Error err;
            CHECK(t, eval_loader(m, NULL, d, limits[i], NULL, &s, &err));
            eval_ids(m, NULL, ids, T * TINY_VAL_SAMPLES + 1, limits[i], &want);
            CHECK_MSG(t, s.tokens == want.tokens && s.nats == want.nats,
                      "B %d, limit %lld: %lld, "
                      "not %lld",
                      B, (long long)limits[i], (long long)s.tokens, (long long)want.tokens);
        }
        dataloader_close(d);
        model_free(m);
    }
    tiny_close(r);
}

static void a_cancelled_evaluation_scores_nothing_more(TestCtx *t) {
    TinyRun *r = tiny_open();
    Model *m = random_model(NULL, 2);
    DataLoader *d = loader(r, "val_0.bin");
    EvalSum s = {0};
    Error err;
    volatile int cancelled = 1;
    CHECK(t, eval_loader(m, NULL, d, 0, &cancelled, &s, &err) && s.tokens == 0);
    cancelled = 0;
    CHECK(t, eval_loader(m, NULL, d, 0, &cancelled, &s, &err) && s.tokens == TINY_VAL_SAMPLES * T);
    dataloader_close(d);
    model_free(m);
    tiny_close(r);
}

static void losses_that_are_not_finite_are_counted_apart(TestCtx *t) {
    Model *m = random_model(NULL, 2);
    Tokenizer *tok = small_tokenizer();
    int ids[40], head = tensor_find(&m->params, "wte");
    tiny_ids(ids, 40, V, 31);
    ids[20] = 7;
    // A token whose embedding is damaged spoils its window from there on, maybe the whole window.
    float *wte = mem_alloc((size_t)V * 32, sizeof(float));
    model_get_tensor(m, head, wte);
    for (int i = 0; i < 40; i++)
        ids[i] = ids[i] == 7 && i != 20 ? 8 : ids[i];
    wte[7 * 32 + 3] = NAN;
    model_set_tensor(m, head, wte);
    model_prepare(m);
    EvalSum s = {0};
    eval_ids(m, tok, ids, 40, 0, &s);
    CHECK_MSG(t, s.bad >= 12 && s.bad <= T && s.tokens == 39 - s.bad, "%lld bad, %lld good",
              (long long)s.bad, (long long)s.tokens);
    CHECK(t, isfinite(eval_loss(&s)));
    mem_free(wte);
    tokenizer_free(tok);
    model_free(m);
}

TEST_MAIN(
    {"a_model_that_knows_nothing_has_known_scores", a_model_that_knows_nothing_has_known_scores},
    {"sums_without_anything_are_not_numbers", sums_without_anything_are_not_numbers},
    {"every_target_is_scored_once_in_its_window", every_target_is_scored_once_in_its_window},
    {"limits_are_exact", limits_are_exact}, {"shards_and_text_agree", shards_and_text_agree},
    {"limits_over_shards_are_exact", limits_over_shards_are_exact},
    {"a_cancelled_evaluation_scores_nothing_more", a_cancelled_evaluation_scores_nothing_more},
    {"losses_that_are_not_finite_are_counted_apart", losses_that_are_not_finite_are_counted_apart})
