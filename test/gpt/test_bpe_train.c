// test_bpe_train.c - learning a tokenizer, against published merges and against a slow trainer.
#include "gpt/bpe_train.h"
#include "gpt/tokenizer_parts.h"
#include "test/small_tokenizer.h"
#include "test/test.h"

#include <string.h>

// The merges as lines "left right" in the byte alphabet, owned by the caller.
static char *merge_lines(const Tokenizer *tok) {
    Buf b = {0};
    buf_add(&b, "", 0);
    for (int i = 0; i < tok->n_merges; i++) {
        for (int side = 0; side < 2; side++) {
            size_t n;
            int id = side ? tok->merges[i].right : tok->merges[i].left;
            const char *bytes = tokenizer_bytes(tok, id, &n);
            alphabet_write(bytes, n, &b);
            buf_add(&b, side ? "\n" : " ", 1);
        }
    }
    return b.text;
}

static void check_merges(TestCtx *t, const char *text, int n_ids, const char *want) {
    Error err = {{0}};
    Tokenizer *tok = tokenizer_train(SPLIT_GPT2, text, strlen(text), n_ids, &err);
    CHECK_MSG(t, tok, "%s", err.text);
    if (!tok) return;
    char *got = merge_lines(tok);
    CHECK_MSG(t, !strcmp(got, want), "'%.80s': got\n%sexpected\n%s", text, got, want);
    mem_free(got);
    tokenizer_free(tok);
}

// --- A trainer that counts everything again for each merge

typedef struct Slow {
    int sym[4096];       // -1 between pieces
    char tok[512][128];  // NUL-terminated: the texts here hold no NUL
    int n_sym, n_tok;
} Slow;

static bool slow_best(const Slow *s, int *left, int *right) {
    static int count[512][512];
    memset(count, 0, sizeof count);
    int best = 0;
    for (int i = 0; i + 1 < s->n_sym; i++) {
        int a = s->sym[i], b = s->sym[i + 1];
        if (a < 0 || b < 0) continue;
        count[a][b]++;
    }
    for (int a = 0; a < s->n_tok; a++) {
        for (int b = 0; b < s->n_tok; b++) {
            if (!count[a][b] || count[a][b] < best) continue;
            int order = best ? strcmp(s->tok[a], s->tok[*left]) : 1;
            if (order == 0) order = strcmp(s->tok[b], s->tok[*right]);
            if (count[a][b] == best && order <= 0) continue;
            best = count[a][b];
            *left = a;
            *right = b;
        }
    }
    return best > 0;
}

static char *slow_merges(Slow *s, const char *text, int n_merges) {
    size_t n = strlen(text);
    s->n_sym = 0;
    s->n_tok = 256;
    for (int b = 0; b < 256; b++)
        snprintf(s->tok[b], 128, "%c", b);
    for (size_t at = 0, next; at < n; at = next) {
        next = split_next(SPLIT_GPT2, text, n, at, NULL);
        for (size_t i = at; i < next; i++)
            s->sym[s->n_sym++] = (unsigned char)text[i];
        s->sym[s->n_sym++] = -1;
    }
    Buf out = {0};
    buf_add(&out, "", 0);
    for (int k = 0, left, right; k < n_merges && slow_best(s, &left, &right); k++) {
        alphabet_write(s->tok[left], strlen(s->tok[left]), &out);
        buf_add(&out, " ", 1);
        alphabet_write(s->tok[right], strlen(s->tok[right]), &out);
        buf_add(&out, "\n", 1);
        char *joined = s->tok[s->n_tok];
        size_t n_left = strlen(s->tok[left]), n_right = strlen(s->tok[right]);
        if (n_left + n_right > 127) die("a token of this test is too long");
        memcpy(joined, s->tok[left], n_left);
        memcpy(joined + n_left, s->tok[right], n_right + 1);
        int m = 0;
        for (int i = 0; i < s->n_sym; i++) {
            bool hit = i + 1 < s->n_sym && s->sym[i] == left && s->sym[i + 1] == right;
            s->sym[m++] = hit ? s->n_tok : s->sym[i];
            i += hit;
        }
        s->n_sym = m;
        s->n_tok++;
    }
    return out.text;
}

static void merges_equal_those_of_a_slow_trainer(TestCtx *t) {
    static Slow s;
    static const char *const letters[] = {"ab", "abc ", "aab", "abcd  \n", "abcdefgh "};
    float noise[600];
    char text[601];
    for (int trial = 0; trial < 60; trial++) {
        const char *from = letters[trial % 5];
        int n = 40 + 9 * trial, merges = 3 + trial / 2;
        test_noise(noise, 600, (uint64_t)trial + 1, 1);
        for (int i = 0; i < n; i++) {
            text[i] = from[(size_t)((noise[i] + 1) * 0.5f * (float)strlen(from)) % strlen(from)];
        }
        text[n] = 0;
        char *want = slow_merges(&s, text, merges);
        int learned = s.n_tok - 256;
        if (learned) check_merges(t, text, 257 + learned, want);
        mem_free(want);
    }
}

// --- Rules

static void the_highest_count_merges_first_and_ties_by_bytes(TestCtx *t) {
    check_merges(t, "ab ab cd cd", 258, "c d\n");
    check_merges(t, "xy xy xy ab ab", 258, "x y\n");
    // All pairs stand there once: the greatest left string, then the greatest right one.
    check_merges(t, "ac ab", 260, "a c\na b\n\u0120 ab\n");
}

static void runs_of_one_letter_merge_from_the_left(TestCtx *t) {
    check_merges(t, "aaaaaaa", 259, "a a\naa aa\n");
    check_merges(t, "aaa", 259, "a a\naa a\n");
}

static void a_trained_tokenizer_has_bytes_merges_and_the_end_token(TestCtx *t) {
    static const char text[] = "the cat and the hat and the bat\n";
    Error err;
    Tokenizer *tok = tokenizer_train(SPLIT_GPT4, text, sizeof text - 1, 270, &err);
    CHECK(t, tok);
    if (!tok) return;
    size_t n;
    CHECK(t, tokenizer_n_ids(tok) == 270 && tokenizer_eot(tok) == 269);
    CHECK(t, tokenizer_split(tok) == SPLIT_GPT4);
    CHECK(t, *tokenizer_bytes(tok, 0, &n) == '!' && *tokenizer_bytes(tok, 220, &n) == ' ');
    CHECK(t, round_trips(tok, text, sizeof text - 1));
    TokenIds ids = {0};
    tokenizer_encode_to(tok, text, sizeof text - 1, false, &ids);
    CHECK(t, ids.n < 20);
    token_ids_free(&ids);
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

static void bytes_alone_make_a_tokenizer(TestCtx *t) {
    Error err;
    Tokenizer *tok = tokenizer_train(SPLIT_GPT2, "", 0, 257, &err);
    CHECK(t, tok);
    if (!tok) return;
    check_ids(t, tok, "a\0!", 3, false, "64 188 0");
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

static void too_little_text_and_wrong_sizes_are_refused_with_a_sentence(TestCtx *t) {
    Error err;
    CHECK(t, !tokenizer_train(SPLIT_GPT2, "abab", 4, 300, &err));
    CHECK_ERROR(t, err, "4 bytes of text hold pairs for 259 ids only, 300 were asked for");
    CHECK(t, !tokenizer_train(SPLIT_GPT2, "abab", 4, 256, &err));
    CHECK_ERROR(t, err, "256 ids was asked for, expected 257");
    CHECK(t, !tokenizer_train(SPLIT_GPT2, "abab", 4, TOKENIZER_MAX_IDS + 1, &err));
    CHECK_ERROR(t, err, "expected 257");
}

static void text_in_parts_teaches_the_same_as_the_whole(TestCtx *t) {
    Buf text = {0};
    Error err;
    for (int i = 0; i < 400; i++)
        buf_printf(&text, "%d bottles  of %x, it's \n\n", i * 7919, i * 104729);
    Tokenizer *whole = tokenizer_train(SPLIT_GPT4, text.text, text.n, 400, &err);
    BpeTrainer *tr = bpe_trainer_new(SPLIT_GPT4);
    for (size_t at = 0; at < text.n;) {
        size_t end =
            text.n - at > 300 ? tokenizer_cut(whole, text.text + at, 300, 200) : text.n - at;
        bpe_trainer_add(tr, text.text + at, min_size(300, text.n - at), end);
        at += end;
    }
    CHECK(t, bpe_trainer_bytes(tr) == text.n);
    Tokenizer *parts = bpe_trainer_learn(tr, 400, &err);
    CHECK(t, parts && tokenizer_hash(parts) == tokenizer_hash(whole));
    bpe_trainer_free(tr);
    tokenizer_free(parts);
    tokenizer_free(whole);
    buf_free(&text);
}

// Counting all pairs again for each merge, or going through long pieces, would take hours here.
static void long_pieces_are_learned_at_once(TestCtx *t) {
    size_t n = 400000;
    char *text = mem_alloc(n, 1);
    float *noise = mem_alloc(n, sizeof *noise);
    test_noise(noise, n, 3, 2);
    for (size_t i = 0; i < n; i++)
        text[i] = "ACGT"[(int)(noise[i] + 2) & 3];
    Error err;
    Tokenizer *tok = tokenizer_train(SPLIT_GPT2, text, n, 2000, &err);
    CHECK(t, tok && round_trips(tok, text, n));
    tokenizer_free(tok);
    mem_free(noise);
    mem_free(text);
}

static void merges_equal_the_published_reference(TestCtx *t) {
    char *corpus = test_data("tokenizers/corpus.en"), *text = NULL, *want = NULL;
    char *reference = test_data("tokenizers/train-bpe-reference-merges.txt");
    size_t n, n_want;
    Error err = {{0}};
    if (!corpus || !reference) {
        test_skip(t, "tokenizers/corpus.en and train-bpe-reference-merges.txt are not there");
    } else if (file_read(corpus, 1 << 24, &text, &n, &err) &&
               file_read(reference, 1 << 20, &want, &n_want, &err)) {
        // 256 bytes, 243 merges, <|endoftext|>
        check_merges(t, text, 500, want);
        CHECK(t, strlen(text) == n);
    }
    CHECK_MSG(t, !*err.text, "%s", err.text);
    mem_free(text);
    mem_free(want);
    mem_free(corpus);
    mem_free(reference);
}

TEST_MAIN({"merges_equal_those_of_a_slow_trainer", merges_equal_those_of_a_slow_trainer},
          {"the_highest_count_merges_first_and_ties_by_bytes",
           the_highest_count_merges_first_and_ties_by_bytes},
          {"runs_of_one_letter_merge_from_the_left", runs_of_one_letter_merge_from_the_left},
          {"a_trained_tokenizer_has_bytes_merges_and_the_end_token",
           a_trained_tokenizer_has_bytes_merges_and_the_end_token},
          {"bytes_alone_make_a_tokenizer", bytes_alone_make_a_tokenizer},
          {"too_little_text_and_wrong_sizes_are_refused_with_a_sentence",
           too_little_text_and_wrong_sizes_are_refused_with_a_sentence},
          {"text_in_parts_teaches_the_same_as_the_whole",
           text_in_parts_teaches_the_same_as_the_whole},
          {"long_pieces_are_learned_at_once", long_pieces_are_learned_at_once},
          {"merges_equal_the_published_reference", merges_equal_the_published_reference})
