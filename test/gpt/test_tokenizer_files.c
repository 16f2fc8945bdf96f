// test_tokenizer_files.c - reading, refusing and writing tokenizer files.
#include "gpt/tokenizer.h"
#include "test/small_tokenizer.h"
#include "test/test.h"

#include <string.h>

static void both_spellings_of_merges_are_equal(TestCtx *t) {
    Small s = small;
    s.merges = "[[\"h\", \"e\"], [\"l\", \"l\"], [\"he\", \"ll\"], [\"hell\", \"o\"], [\"\u0120\", "
               "\"w\"], "
               "[\"\u0120w\", \"o\"]]";
    Error err;
    Tokenizer *a = small_tokenizer(), *b = small_load(s, &err);
    CHECK(t, b && tokenizer_hash(a) == tokenizer_hash(b));
    if (b) check_ids(t, b, "hello world", 11, false, "259 261 81 75 67");
    tokenizer_free(a);
    tokenizer_free(b);
}

static void a_merge_part_with_a_space_works_as_a_pair(TestCtx *t) {
    Small s = small;
    s.more = ", \"he\": 256, \"h e\": 257, \" e\": 258";
    s.merges = "[[\"h\", \"e\"], [\"h\", \" e\"]]";
    s.added = "[]";
    Error err = {{0}};
    Tokenizer *tok = small_load(s, &err);
    CHECK_MSG(t, tok, "%s", err.text);
    if (!tok) return;
    check_ids(t, tok, "he h e", 6, false, "256 220 71 220 68");
    CHECK(t, tokenizer_eot(tok) == -1);
    char *dir = test_temp_dir(), *path = path_join(dir, "tokenizer.json");
    CHECK(t, tokenizer_save(tok, path, &err));
    Tokenizer *again = tokenizer_load(dir, &err);
    CHECK_MSG(t, again && tokenizer_hash(again) == tokenizer_hash(tok), "%s", err.text);
    tokenizer_free(again);
    tokenizer_free(tok);
    mem_free(path);
    test_remove_dir(dir);
    mem_free(dir);
}

static void the_hash_depends_on_all_that_decides_ids(TestCtx *t) {
    Small other[5] = {small, small, small, small, small};
    other[1].merges = "[\"l l\", \"h e\", \"he ll\", \"hell o\", \"\u0120 w\", \"\u0120w o\"]";
    other[2].pre =
        "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Split\", \"pattern\": "
        "{\"Regex\": "
        "\"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|\\\\p{N}{1,3}| "
        "?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+\"}, "
        "\"behavior\": \"Isolated\"}, {\"type\": \"ByteLevel\", \"add_prefix_space\": false, "
        "\"use_regex\": false}]}";
    other[3].added = "[{\"id\": 262, \"content\": \"<|endoftext|>\", \"special\": false}]";
    other[4].more = ", \"he\": 256, \"ll\": 257, \"hell\": 258, \"hello\": 259, \"\u0120w\": 261, "
                    "\"\u0120wo\": 260";
    uint64_t hash[5];
    for (int i = 0; i < 5; i++) {
        Error err = {{0}};
        Tokenizer *tok = small_load(other[i], &err);
        CHECK_MSG(t, tok, "%d: %s", i, err.text);
        if (!tok) return;
        hash[i] = tokenizer_hash(tok);
        for (int j = 0; j < i; j++)
            CHECK_MSG(t, hash[i] != hash[j], "%d and %d", i, j);
        tokenizer_free(tok);
    }
    // Checkpoints keep it, so it may never change.
    CHECK_MSG(t, hash[0] == 0x5f813423cf10f8f6u, "0x%016llx", (unsigned long long)hash[0]);
}

static void saving_and_loading_keeps_everything(TestCtx *t) {
    Error err;
    Tokenizer *tok = small_tokenizer();
    char *dir = test_temp_dir(), *path = path_join(dir, "tokenizer.json");
    CHECK(t, tokenizer_save(tok, path, &err));
    Tokenizer *again = tokenizer_load(path, &err);
    CHECK_MSG(t, again && tokenizer_hash(again) == tokenizer_hash(tok), "%s", err.text);
    char *text = NULL;
    size_t n;
    CHECK(t, file_read(path, 1 << 20, &text, &n, &err) && strstr(text, "\"hell o\""));
    char *missing = path_join(dir, "no/such/folder.json");
    CHECK(t, !tokenizer_save(tok, missing, &err) && strstr(err.text, "no/such"));
    mem_free(missing);
    mem_free(text);
    tokenizer_free(again);
    tokenizer_free(tok);
    mem_free(path);
    test_remove_dir(dir);
    mem_free(dir);
}

// --- Refusals

static void unsupported_files_are_refused_with_a_sentence(TestCtx *t) {
    static const char *const regex =
        "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Split\", "
        "\"pattern\": {\"Regex\": \"\\\\s+\"}, \"behavior\": \"Isolated\"}, "
        "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, "
        "\"use_regex\": false}]}";
    const struct {
        Small s;
        const char *words;
    } cases[] = {
        {{.top = "\"normalizer\": {\"type\": \"NFC\"}, "}, "duplicate key 'normalizer'"},
        {{.top = "\"truncation\": {\"max_length\": 5}, "}, "truncation must be null"},
        {{.top = "\"decoder\": {\"type\": \"WordPiece\"}, "},
         "decoder must be ByteLevel, found WordPiece"},
        {{.pre = "{\"type\": \"ByteLevel\", \"add_prefix_space\": true}"},
         "add_prefix_space must be false"},
        {{.pre = "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"use_regex\": false}"},
         "does not split"},
        {{.pre = "{\"type\": \"Whitespace\"}"}, "found Whitespace"},
        {{.pre = "null"}, "pre_tokenizer must be"},
        {{.pre = regex}, "splitting pattern '\\s+' is not one of the known"},
        {{.model = ", \"dropout\": 0.1"}, "model.dropout is set"},
        {{.model = ", \"byte_fallback\": true"}, "model.byte_fallback is set"},
        {{.model = ", \"end_of_word_suffix\": \"</w>\""}, "model.end_of_word_suffix is set"},
        {{.model = ", \"type\": \"BPE\""}, "duplicate key 'type' in model"},
        {{.merges = "[]"}, "there are no merges"},
        {{.merges = "null"}, "model.merges is missing"},
        {{.merges = "[\"he\"]"}, "merge 1 is neither"},
        {{.merges = "[\"h e\", \"h  e\"]"}, "merge 2 is neither"},
        {{.merges = "[\"h e\", [\"l\"]]"}, "merge 2 is neither"},
        {{.merges = "[\"h e\", \"e h\"]"}, "merge 2 ('e' and 'h') needs a token"},
        {{.merges = "[\"h e\", \"l l\", \"h e\"]"}, "merge 3 repeats"},
        {{.more = ", \"he\": 256, \"he\": 257"}, "'he' stands there twice"},
        {{.more = ", \"he\": 255, \"ll\": 257"}, "two tokens have the id 255"},
        {{.more = ", \"he\": -1"}, "the token 'he' is not a whole number"},
        {{.more = ", \"he\": 1e10"}, "the token 'he' is not a whole number"},
        {{.more = ", \"he\": 256.5"}, "the token 'he' is not a whole number"},
        {{.more = ", \"he\": \"256\""}, "the token 'he' is not a whole number"},
        {{.more = ", \"\": 256"}, "an empty token"},
        {{.more = ", \"h\\u0000\": 256"}, "NUL"},
        {{.added = "[{\"id\": 262, \"content\": \"<s>\", \"lstrip\": true}]"},
         "'<s>' has lstrip true"},
        {{.added = "[{\"id\": 262, \"content\": \"he\"}]"}, "'he' has the id 262, but 256"},
        {{.added = "[{\"id\": 3, \"content\": \"<s>\"}]"}, "two tokens have the id 3"},
        {{.added = "[{\"content\": \"<s>\"}]"}, "lacks"},
        {{.added = "{}"}, "added_tokens must be a list"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        Small s = cases[i].s;
        const char **field = (const char **)&s;
        const char *const *from = (const char *const *)&small;
        for (size_t k = 0; k < sizeof s / sizeof *field; k++)
            field[k] = field[k] ? field[k] : from[k];
        Error err = {{0}};
        Tokenizer *tok = small_load(s, &err);
        CHECK_MSG(t, !tok && strstr(err.text, cases[i].words),
                  "case %zu: expected '%s', found '%s'", i, cases[i].words, err.text);
        tokenizer_free(tok);
    }
}

static void broken_json_is_refused_with_a_sentence(TestCtx *t) {
    Error err;
    char *deep = mem_alloc(200000, 1);
    memset(deep, '[', 199999);
    const char *const texts[] = {
        "", "{", "[]", "{} x", "{\"model\": 1}", "nul", deep, "{\"a\": 1, \"a\": 2}"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        err.text[0] = 0;
        CHECK(t, !tokenizer_from_json(texts[i], strlen(texts[i]), "broken", &err));
        CHECK_ERROR(t, err, "broken: ");
    }
    mem_free(deep);
    char *json = small_json(small);
    for (size_t n = 0; n < strlen(json); n += 97) {
        Tokenizer *tok = tokenizer_from_json(json, n, "broken", &err);
        CHECK_MSG(t, !tok, "the first %zu bytes were read", n);
        tokenizer_free(tok);
    }
    mem_free(json);
}

static void missing_and_foreign_files_are_refused_with_a_sentence(TestCtx *t) {
    Error err;
    char *dir = test_temp_dir(), *path = path_join(dir, "x.tiktoken");
    CHECK(t, !tokenizer_load("/no/such/tokenizer.json", &err));
    CHECK_ERROR(t, err, "/no/such/tokenizer.json");
    CHECK(t, !tokenizer_load(dir, &err));
    CHECK_ERROR(t, err, "neither tokenizer.json nor vocab.bpe");
    CHECK(t, file_write_atomic(path, "IQ== 0\nIg== 1\n", 14, &err));
    CHECK(t, !tokenizer_load(path, &err));
    CHECK_ERROR(t, err, "neither r50k_base nor cl100k_base");
    mem_free(path);
    test_remove_dir(dir);
    mem_free(dir);
}

TEST_MAIN({"both_spellings_of_merges_are_equal", both_spellings_of_merges_are_equal},
          {"a_merge_part_with_a_space_works_as_a_pair", a_merge_part_with_a_space_works_as_a_pair},
          {"the_hash_depends_on_all_that_decides_ids", the_hash_depends_on_all_that_decides_ids},
          {"saving_and_loading_keeps_everything", saving_and_loading_keeps_everything},
          {"unsupported_files_are_refused_with_a_sentence",
           unsupported_files_are_refused_with_a_sentence},
          {"broken_json_is_refused_with_a_sentence", broken_json_is_refused_with_a_sentence},
          {"missing_and_foreign_files_are_refused_with_a_sentence",
           missing_and_foreign_files_are_refused_with_a_sentence})
