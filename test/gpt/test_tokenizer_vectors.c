// test_tokenizer_vectors.c - ids of GPT-2 and GPT-4 against published and independent ones.
#include "gpt/tokenizer.h"
#include "test/small_tokenizer.h"
#include "test/test.h"

#include <string.h>

static Tokenizer *data_tokenizer(TestCtx *t, const char *spec, const char *name) {
    char *path = test_data(name);
    if (!path) {
        test_skip(t, "%s is not there", name);
        return NULL;
    }
    Buf full = {0};
    char *slash = strrchr(path, '/');
    if (!strcmp(spec, "gpt2:")) *slash = 0;  // the folder
    buf_printf(&full, "%s%s", spec, path);
    Error err = {{0}};
    Tokenizer *tok = tokenizer_load(full.text, &err);
    CHECK_MSG(t, tok, "%s", err.text);
    buf_free(&full);
    mem_free(path);
    return tok;
}

// Records of three lines: "EncodingName: x", "Sample: text", "Encoded: [1, 2]".
static int check_vectors(TestCtx *t, const Tokenizer *tok, const char *encoding) {
    char *path = test_data("tokenizers/TestPlans.txt"), *text;
    size_t n;
    Error err;
    if (!path || !file_read(path, 1 << 24, &text, &n, &err)) {
        test_skip(t, "tokenizers/TestPlans.txt is not there");
        mem_free(path);
        return 0;
    }
    int checked = 0;
    static const char name_is[] = "EncodingName: ", sample_is[] = "\nSample: ",
                      encoded_is[] = "\nEncoded: [";
    for (char *at = text; (at = strstr(at, name_is));) {
        at += sizeof name_is - 1;
        size_t len = strlen(encoding);
        bool wanted = !strncmp(at, encoding, len) && at[len] == '\n';
        char *sample = strstr(at, sample_is) + sizeof sample_is - 1;
        char *encoded = strstr(sample, encoded_is), *want = encoded + sizeof encoded_is - 1;
        *strchr(want, ']') = 0;
        at = want + strlen(want) + 1;
        if (!wanted) continue;
        Buf spaced = {0};
        buf_add(&spaced, "", 0);
        for (char *c = want; *c; c++) {
            if (*c != ',') buf_add(&spaced, c, 1);
        }
        check_ids(t, tok, sample, (size_t)(encoded - sample), false, spaced.text);
        buf_free(&spaced);
        checked++;
    }
    mem_free(text);
    mem_free(path);
    return checked;
}

typedef struct IdCase {
    const char *text;
    size_t n;
    const char *gpt2, *gpt4;
} IdCase;

#define TEXT(s) s, sizeof s - 1
static const IdCase id_cases[] = {
    {TEXT("Hello world"), "15496 995", "9906 1917"},
    {TEXT(" Hello  world\n"), "18435 220 995 198", "22691 220 1917 198"},
    {TEXT("don't DON'T we'LL"), "9099 470 23917 6 51 356 6 3069",
     "15357 956 45373 17773 584 6 4178"},
    {TEXT("x = 12345678;"), "87 796 17031 2231 30924 26", "87 284 220 4513 10961 2495 26"},
    {TEXT("a\n\n  b\t\tc "), "64 628 220 275 197 197 66 220", "64 271 220 293 197 1470 220"},
    {TEXT("caf\u00e9 cafe\u0301"), "66 1878 2634 26725 136 223", "936 59958 42030 54939"},
    {TEXT("\u65e5\u672c\u8a9e \ud55c\uad6d\uc5b4"),
     "33768 98 17312 105 45739 252 220 47991 250 166 113 255 168 244 112",
     "9080 22656 45918 252 62398 89059 255 32179"},
    {TEXT("\u00a0nbsp\u2028ls"), "1849 77 24145 447 101 7278", "4194 5792 378 101 4835"},
    {TEXT("\u00bd \u2167 \u00b2"), "23141 2343 227 100 1587 110", "27154 220 71567 100 220 30556"},
    {TEXT("<|endoftext|>"), "27 91 437 1659 5239 91 29", "27 91 8862 728 428 91 29"},
    {TEXT("a\0b"), "64 188 65", "64 188 65"},
    {TEXT("    int x;\r\n}\r\n"), "220 220 220 493 2124 26 201 198 92 201 198",
     "262 528 865 464 1809"},
};

static void check_id_cases(TestCtx *t, const Tokenizer *tok, bool gpt4) {
    for (size_t i = 0; i < sizeof id_cases / sizeof id_cases[0]; i++) {
        const IdCase *c = &id_cases[i];
        check_ids(t, tok, c->text, c->n, false, gpt4 ? c->gpt4 : c->gpt2);
    }
    char *text = mem_alloc(64, 1);
    memset(text, 'a', 64);
    char *got = ids_text(tok, text, 64, false);
    CHECK(t, !strncmp(got, gpt4 ? "70540 70540" : "24794 24794", 11));
    CHECK(t, strlen(got) == (gpt4 ? 8 : 16) * 6 - 1);
    mem_free(got);
    mem_free(text);
}

static void gpt2_ids_equal_the_published_vectors(TestCtx *t) {
    Tokenizer *pair = data_tokenizer(t, "gpt2:", "tokenizers/vocab.bpe");
    Tokenizer *ranks = data_tokenizer(t, "", "tokenizers/r50k_base.tiktoken");
    if (pair && ranks) {
        CHECK(t, check_vectors(t, pair, "r50k_base") >= 60 || t->skipped);
        CHECK(t, check_vectors(t, ranks, "r50k_base") >= 60 || t->skipped);
        check_id_cases(t, pair, false);
        check_id_cases(t, ranks, false);
        CHECK(t, tokenizer_n_ids(pair) == 50257 && tokenizer_eot(pair) == 50256);
        CHECK(t, tokenizer_hash(pair) == tokenizer_hash(ranks));
        check_ids(t, pair, "a<|endoftext|>b", 15, true, "64 50256 65");
        size_t n, longest = 0;
        for (int id = 0; id<50257; id++, longest = n> longest ? n : longest)
            tokenizer_bytes(pair, id, &n);
        CHECK(t, longest == 128);
    }
    tokenizer_free(pair);
    tokenizer_free(ranks);
}

static void gpt4_ids_equal_the_published_vectors(TestCtx *t) {
    Tokenizer *tok = data_tokenizer(t, "", "tokenizers/cl100k_base.tiktoken");
    if (!tok) return;
    CHECK(t, check_vectors(t, tok, "cl100k_base") >= 60 || t->skipped);
    check_id_cases(t, tok, true);
    CHECK(t, tokenizer_n_ids(tok) == 100277 && tokenizer_eot(tok) == 100257);
    CHECK(t, tokenizer_special(tok, "<|endofprompt|>") == 100276);
    size_t n;
    tokenizer_bytes(tok, 100256, &n);
    CHECK(t, n == 0);
    Error err;
    char *dir = test_temp_dir(), *path = path_join(dir, "tokenizer.json");
    CHECK(t, tokenizer_save(tok, path, &err));
    Tokenizer *again = tokenizer_load(path, &err);
    CHECK_MSG(t, again && tokenizer_hash(again) == tokenizer_hash(tok), "%s", err.text);
    tokenizer_free(again);
    tokenizer_free(tok);
    mem_free(path);
    test_remove_dir(dir);
    mem_free(dir);
}

TEST_MAIN({"gpt2_ids_equal_the_published_vectors", gpt2_ids_equal_the_published_vectors},
          {"gpt4_ids_equal_the_published_vectors", gpt4_ids_equal_the_published_vectors})
