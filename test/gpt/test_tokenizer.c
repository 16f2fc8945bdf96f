// test_tokenizer.c - text to ids and back.
#include "gpt/tokenizer.h"
#include "test/small_tokenizer.h"
#include "test/test.h"

#include <pthread.h>
#include <string.h>

static void merges_apply_by_rank(TestCtx *t) {
    Tokenizer *tok = small_tokenizer();
    check_ids(t, tok, "hello world", 11, false, "259 261 81 75 67");
    check_ids(t, tok, "hell", 4, false, "258");
    check_ids(t, tok, "hel lll", 7, false, "256 75 220 257 75");
    check_ids(t, tok, "", 0, false, "");
    check_ids(t, tok, "a\0b", 3, false, "64 188 65");
    CHECK(t, tokenizer_n_ids(tok) == 263);
    CHECK(t, tokenizer_eot(tok) == 262);
    CHECK(t, tokenizer_split(tok) == SPLIT_GPT2);
    tokenizer_free(tok);
}

static void special_tokens_are_parsed_only_on_demand(TestCtx *t) {
    Tokenizer *tok = small_tokenizer();
    check_ids(t, tok, "a<|endoftext|>b", 15, true, "64 262 65");
    check_ids(t, tok, "<|endoftext|>", 13, true, "262");
    check_ids(t, tok, "<|endoftext|", 12, true, "27 91 68 77 67 78 69 83 68 87 83 91");
    check_ids(t, tok, "<|endoftext|>", 13, false, "27 91 68 77 67 78 69 83 68 87 83 91 29");
    CHECK(t, tokenizer_is_special(tok, 262) && !tokenizer_is_special(tok, 259));
    CHECK(t, tokenizer_special(tok, "<|endoftext|>") == 262 && tokenizer_special(tok, "x") == -1);
    tokenizer_free(tok);
}

static void added_tokens_match_longest_first_and_split_the_text(TestCtx *t) {
    Small s = small;
    s.added =
        "[{\"id\": 262, \"content\": \"<|endoftext|>\", \"special\": true}, {\"id\": 263, "
        "\"content\": "
        "\"  \", \"special\": false}, {\"id\": 264, \"content\": \"    \", \"special\": false}]";
    Error err;
    Tokenizer *tok = small_load(s, &err);
    CHECK(t, tok);
    if (!tok) return;
    check_ids(t, tok, "a     b", 7, false, "64 264 220 65");
    check_ids(t, tok, "a   hello", 9, false, "64 263 220 259");
    check_ids(t, tok, "  ", 2, true, "263");
    tokenizer_free(tok);
    // Special tokens stay text although a plain added token starts alike; a byte may be special.
    s.added =
        "[{\"id\": 262, \"content\": \"<|a|>\", \"special\": true}, {\"id\": 263, \"content\": "
        "\"<|\", \"special\": false}, {\"id\": 0, \"content\": \"!\", \"special\": true}]";
    tok = small_load(s, &err);
    CHECK(t, tok);
    if (!tok) return;
    check_ids(t, tok, "<|a|>!", 6, false, "263 64 91 29 0");
    check_ids(t, tok, "<|a|>!", 6, true, "262 0");
    tokenizer_free(tok);
}

static void tokens_give_their_bytes(TestCtx *t) {
    Tokenizer *tok = small_tokenizer();
    size_t n;
    CHECK(t, !memcmp(tokenizer_bytes(tok, 261, &n), " wo", 3) && n == 3);
    CHECK(t, *tokenizer_bytes(tok, 188, &n) == 0 && n == 1);
    CHECK(t, tokenizer_bytes(tok, -1, &n) && n == 0);
    CHECK(t, tokenizer_bytes(tok, 263, &n) && n == 0);
    tokenizer_free(tok);
}

static void any_bytes_round_trip(TestCtx *t) {
    Tokenizer *tok = small_tokenizer();
    static float noise[8192];
    static char text[8192];
    for (uint64_t seed = 1; seed < 60; seed++) {
        test_noise(noise, 8192, seed, 128);
        for (size_t i = 0; i < sizeof text; i++)
            text[i] = (char)(int)noise[i];
        CHECK(t, round_trips(tok, text, seed * 137));
    }
    tokenizer_free(tok);
}

static void whole_pieces_come_first_with_ignore_merges(TestCtx *t) {
    Small s = small;
    s.merges = "[\"h e\"]";
    Error err;
    Tokenizer *plain = small_load(s, &err);
    s.model = ", \"ignore_merges\": true";
    Tokenizer *whole = small_load(s, &err);
    CHECK(t, plain && whole);
    check_ids(t, plain, "hello hello", 11, false, "256 75 75 78 220 256 75 75 78");
    check_ids(t, whole, "hello hello", 11, false, "259 220 256 75 75 78");
    CHECK(t, tokenizer_hash(plain) != tokenizer_hash(whole));
    tokenizer_free(plain);
    tokenizer_free(whole);
}

// --- Encoding in parts, in threads, at length

static void check_parts(TestCtx *t, const Tokenizer *tok, const char *text, size_t n,
                        size_t target) {
    TokenIds whole = {0}, parts = {0};
    tokenizer_encode_to(tok, text, n, false, &whole);
    int cuts = 0;
    for (size_t at = 0; at < n;) {
        // A reader has little more than the target's text at a time.
        size_t seen = min_size(n - at, target + 1 + n % 9), end = n - at;
        while (at + seen < n && !(end = tokenizer_cut(tok, text + at, seen, target))) {
            seen = min_size(n - at, seen * 2);
        }
        if (at + seen == n)
            end = seen;
        else
            cuts++;
        tokenizer_encode_part(tok, text + at, seen, end, &parts);
        at += end;
    }
    bool same = parts.n == whole.n && !memcmp(parts.ids, whole.ids, whole.n * sizeof(int));
    CHECK_MSG(t, same, "target %zu: %zu ids, expected %zu", target, parts.n, whole.n);
    CHECK(t, cuts > 0);
    token_ids_free(&whole);
    token_ids_free(&parts);
}

static void parts_give_the_ids_of_the_whole(TestCtx *t) {
    static const char *const bits[] = {"hello", " world", " ",     "  ",  "\n",           "\n\n",
                                       ".",     "!?",     "12345", "'ll", "\xE3\x81\x82", "\xFF",
                                       "h e",   "    ",   "wo",    "\r\n"};
    Small s = small;
    s.added =
        "[{\"id\": 262, \"content\": \"<|endoftext|>\", \"special\": true}, {\"id\": 263, "
        "\"content\": "
        "\"  \", \"special\": false}, {\"id\": 264, \"content\": \"  h e\", \"special\": false}]";
    Error err;
    Tokenizer *toks[2] = {small_tokenizer(), small_load(s, &err)};
    float noise[1500];
    for (uint64_t seed = 1; seed <= 60; seed++) {
        Buf text = {0};
        test_noise(noise, 1500, seed, 8);
        for (int i = 0; i < 1500; i++) {
            const char *bit = bits[(int)(noise[i] + 8) & 15];
            buf_add(&text, bit, strlen(bit));
        }
        for (int k = 0; k < 2; k++)
            check_parts(t, toks[k], text.text, text.n, 16 + 11 * (seed % 23));
        buf_free(&text);
    }
    tokenizer_free(toks[0]);
    tokenizer_free(toks[1]);
}

typedef struct Job {
    const Tokenizer *tok;
    const char *text;
    TokenIds ids;
} Job;

static void *encode_job(void *arg) {
    Job *job = arg;
    for (int i = 0; i < 20; i++) {
        job->ids.n = 0;
        tokenizer_encode_to(job->tok, job->text, strlen(job->text), true, &job->ids);
    }
    return NULL;
}

static void threads_share_one_tokenizer(TestCtx *t) {
    Tokenizer *tok = small_tokenizer();
    Buf text = {0};
    for (int i = 0; i < 300; i++)
        buf_printf(&text, "hello %d world<|endoftext|>heeeeelllll%*s", i, i % 90, "");
    Job jobs[4];
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) {
        jobs[i] = (Job){tok, text.text, {0}};
        CHECK(t, pthread_create(&threads[i], NULL, encode_job, &jobs[i]) == 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        CHECK(t, jobs[i].ids.n == jobs[0].ids.n);
        CHECK_SAME_BITS(t, jobs[i].ids.ids, jobs[0].ids.ids, jobs[0].ids.n * sizeof(int));
        if (i) token_ids_free(&jobs[i].ids);
    }
    token_ids_free(&jobs[0].ids);
    buf_free(&text);
    tokenizer_free(tok);
}

// Quadratic merging or splitting would take hours here.
static void a_million_equal_characters_encode_at_once(TestCtx *t) {
    Tokenizer *tok = small_tokenizer();
    static const char *const units[] = {"l", "_", " ", "\n", "\xE3\x81\x82", "'", "\xFF", "hello"};
    for (size_t k = 0; k < sizeof units / sizeof units[0]; k++) {
        size_t len = strlen(units[k]), n = 1000000 / len * len;
        char *text = mem_alloc(n, 1);
        for (size_t i = 0; i < n; i++)
            text[i] = units[k][i % len];
        CHECK_MSG(t, round_trips(tok, text, n), "unit %zu", k);
        mem_free(text);
    }
    int *ids;
    size_t n_ids;
    char *letters = mem_alloc(100001, 1);
    memset(letters, 'l', 100001);
    tokenizer_encode(tok, letters, 100001, false, &ids, &n_ids);
    CHECK(t, n_ids == 50001 && ids[0] == 257 && ids[50000] == 75);
    mem_free(ids);
    mem_free(letters);
    tokenizer_free(tok);
}

TEST_MAIN({"merges_apply_by_rank", merges_apply_by_rank},
          {"special_tokens_are_parsed_only_on_demand", special_tokens_are_parsed_only_on_demand},
          {"added_tokens_match_longest_first_and_split_the_text",
           added_tokens_match_longest_first_and_split_the_text},
          {"tokens_give_their_bytes", tokens_give_their_bytes},
          {"any_bytes_round_trip", any_bytes_round_trip},
          {"whole_pieces_come_first_with_ignore_merges",
           whole_pieces_come_first_with_ignore_merges},
          {"parts_give_the_ids_of_the_whole", parts_give_the_ids_of_the_whole},
          {"threads_share_one_tokenizer", threads_share_one_tokenizer},
          {"a_million_equal_characters_encode_at_once", a_million_equal_characters_encode_at_once})
