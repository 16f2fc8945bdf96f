// test_prepare.c - what prepare writes for which inputs.
#define _POSIX_C_SOURCE 200809L
#include "data/prepare.h"
#include "data/shard.h"
#include "test/prepare_scene.h"
#include "test/small_tokenizer.h"
#include "test/test.h"

#include <string.h>
#include <unistd.h>

static void documents_of_all_kinds_come_back_from_the_shards(TestCtx *t) {
    PrepareScene s;
    scene_start(&s);
    scene_text(&s, "b.txt", "hello world\n");
    scene_text(&s, "a.md", "# first\r\n");
    scene_text(&s, "c/d/deep.txt", "deep\xFF");
    scene_text(&s, "c/lines.jsonl",
               "{\"text\": \"one\\n\"}\n\n  \n{\"id\": 2, \"text\": \"tw\\u00e9\"}\n{\"text\": "
               "\"\"}\n{\"text\": "
               "\"last\"}");
    scene_text(&s, "d.txt", "");
    scene_text(&s, ".hidden", "no");
    scene_file(&s, "e.bin", "ab\0cd", 5);
    scene_run(t, &s);
    scene_check(t, &s, "train", "|# first\r\n|hello world\n|deep\xFF|one\n|tw\xC3\xA9|last");
    CHECK(t, s.info.train.documents == 6 && s.info.train.shards == 1);
    CHECK(t, s.info.train.bytes == 9 + 12 + 5 + 4 + 4 + 4);
    CHECK(t, s.info.empty_documents == 2 && s.info.binary_files == 1);
    CHECK(t, s.info.val.documents == 0 && s.info.val.shards == 0);
    char *names = scene_names(&s);
    CHECK_MSG(t, !strcmp(names, "prepare.json tokenizer.json train_000000.bin "), "%s", names);
    mem_free(names);
    scene_end(&s);
}

static void a_text_with_nul_named_by_itself_is_taken(TestCtx *t) {
    PrepareScene s;
    scene_start(&s);
    scene_file(&s, "x", "a\0b", 3);
    s.inputs[0] = path_join(s.in, "x");
    scene_run(t, &s);
    Buf got = scene_tokens(t, &s, "train");
    CHECK(t, got.n == 4 && !memcmp(got.text, "|a\0b", 4));
    buf_free(&got);
    mem_free((char *)s.inputs[0]);
    scene_end(&s);
}

// A text of many parts: words, runs longer than a part, no spaces, special tokens as plain text.
static Buf long_text(void) {
    Buf b = {0};
    for (int i = 0; i < 30000; i++)
        buf_printf(&b, "hello %d world, it's\n\n  %x<|endoftext|>", i, i * 7919);
    for (int i = 0; i < 700000; i++)
        buf_add(&b, "l", 1);
    for (int i = 0; i < 150000; i++)
        buf_add(&b, "\xE3\x81\x82\xE3\x80\x82", 6);
    for (int i = 0; i < 300000; i++)
        buf_add(&b, i % 1000 ? " " : "\n", 1);
    return b;
}

static void parts_and_threads_change_nothing(TestCtx *t) {
    PrepareScene s;
    scene_start(&s);
    Buf text = long_text();
    scene_file(&s, "a.txt", text.text, text.n);
    scene_text(&s, "b.txt", "the end");
    scene_run(t, &s);
    Tokenizer *tok = small_tokenizer();
    TokenIds want = {0};
    token_ids_add(&want, tokenizer_eot(tok));
    tokenizer_encode_to(tok, text.text, text.n, false, &want);
    token_ids_add(&want, tokenizer_eot(tok));
    tokenizer_encode_to(tok, "the end", 7, false, &want);
    for (int threads = 1; threads <= 5; threads += 4) {
        Error err;
        Shard shard = {0};
        s.o.n_threads = threads;
        s.o.force = true;
        scene_run(t, &s);
        char *path = path_join(s.out, "train_000000.bin");
        CHECK(t, shard_open(&shard, path, &err) && shard.n_tokens == (int64_t)want.n);
        int *ids = mem_alloc((size_t)shard.n_tokens, sizeof *ids);
        CHECK(t, shard_read(&shard, 0, shard.n_tokens, 263, ids, &err));
        if (shard.n_tokens == (int64_t)want.n)
            CHECK_SAME_BITS(t, ids, want.ids, want.n * sizeof *ids);
        mem_free(ids);
        mem_free(path);
        shard_close(&shard);
    }
    token_ids_free(&want);
    tokenizer_free(tok);
    buf_free(&text);
    scene_end(&s);
}

static void shards_have_the_size_asked_for(TestCtx *t) {
    PrepareScene s;
    scene_start(&s);
    scene_text(&s, "a.txt", "abcdefghijklm");  // 13 tokens and one in front
    s.o.shard_tokens = 7;
    scene_run(t, &s);
    CHECK(t, s.info.train.shards == 2 && s.info.train.tokens == 14);
    scene_check(t, &s, "train", "|abcdefghijklm");
    s.o.force = true;
    s.o.shard_tokens = 5;
    scene_run(t, &s);
    CHECK(t, s.info.train.shards == 3);
    scene_check(t, &s, "train", "|abcdefghijklm");
    s.o.shard_tokens = 100;
    scene_run(t, &s);  // and the shards of the earlier run are gone
    char *names = scene_names(&s);
    CHECK_MSG(t, !strcmp(names, "prepare.json tokenizer.json train_000000.bin "), "%s", names);
    mem_free(names);
    scene_end(&s);
}

static void many_ids_are_written_in_4_bytes(TestCtx *t) {
    PrepareScene s;
    scene_start(&s);
    Small big = small;
    Error err;
    big.added = "[{\"id\": 65536, \"content\": \"<|endoftext|>\", \"special\": true}]";
    Tokenizer *tok = small_load(big, &err);
    CHECK(t, tok && tokenizer_save(tok, s.tokenizer, &err));
    scene_text(&s, "a.txt", "hello");
    scene_run(t, &s);
    CHECK(t, s.info.id_bytes == 4 && s.info.n_ids == 65537);
    CHECK(t, s.info.tokenizer_hash == tokenizer_hash(tok));
    scene_check(t, &s, "train", "|hello");
    tokenizer_free(tok);
    scene_end(&s);
}

// --- Validation

static void named_files_go_to_validation(TestCtx *t) {
    PrepareScene s;
    scene_start(&s);
    scene_text(&s, "emma.txt", "emma");
    scene_text(&s, "persuasion.txt", "persuasion");
    scene_text(&s, "x/val.jsonl", "{\"text\": \"one\"}\n{\"text\": \"two\"}\n");
    const char *const val[] = {"persuasion.txt", "*/x/v*"};
    s.o.val_docs = val;
    s.o.n_val_docs = 2;
    scene_run(t, &s);
    scene_check(t, &s, "train", "|emma");
    scene_check(t, &s, "val", "|persuasion|one|two");
    CHECK(t, s.info.val.documents == 3 && s.info.val.bytes == 16);
    scene_end(&s);
}

static void the_end_of_a_single_document_goes_to_validation(TestCtx *t) {
    PrepareScene s;
    scene_start(&s);
    scene_text(&s, "a.txt", "one two\nthree four\nfive six\nseven\n");
    s.o.val_fraction = 0.5;
    scene_run(t, &s);
    scene_check(t, &s, "train", "|one two\nthree four\n");
    scene_check(t, &s, "val", "|five six\nseven\n");
    scene_end(&s);
}

static void a_fraction_of_many_documents_goes_to_validation(TestCtx *t) {
    PrepareScene s;
    scene_start(&s);
    Buf lines = {0};
    for (int i = 0; i < 1000; i++)
        buf_printf(&lines, "{\"text\": \"%d\"}\n", i);
    scene_file(&s, "a.jsonl", lines.text, lines.n);
    s.o.val_fraction = 0.2;
    scene_run(t, &s);
    CHECK(t, s.info.train.documents + s.info.val.documents == 1000);
    CHECK(t, s.info.val.documents > 150 && s.info.val.documents < 250);
    Buf first = scene_tokens(t, &s, "val");
    s.o.force = true;
    s.o.n_threads = 3;
    scene_run(t, &s);
    Buf again = scene_tokens(t, &s, "val");
    CHECK(t, first.n == again.n && !memcmp(first.text, again.text, first.n));
    s.o.seed = 1;
    scene_run(t, &s);
    Buf other = scene_tokens(t, &s, "val");
    CHECK(t, other.n != first.n || memcmp(first.text, other.text, first.n));
    buf_free(&first);
    buf_free(&again);
    buf_free(&other);
    buf_free(&lines);
    scene_end(&s);
}

// --- Learning

static void a_tokenizer_is_learned_from_the_training_text_only(TestCtx *t) {
    PrepareScene s;
    scene_start(&s);
    scene_text(&s, "a.txt", "abab abab abab");
    scene_text(&s, "b.txt", "xyxyxyxyxyxyxyxyxyxy");
    const char *const val[] = {"b.txt"};
    s.o.val_docs = val;
    s.o.n_val_docs = 1;
    s.o.tokenizer = "train:259";
    s.o.split = "gpt4";
    scene_run(t, &s);
    scene_check(t, &s, "train", "|abab abab abab");
    scene_check(t, &s, "val", "|xyxyxyxyxyxyxyxyxyxy");
    CHECK(t, s.info.n_ids == 259 && s.info.eot == 258 && !strcmp(s.info.split, "gpt4"));
    CHECK(t, s.info.learned_from == 14 && !s.info.learned_from_sample);
    CHECK(t, s.info.val.tokens == 21);   // no merge of x and y
    CHECK(t, s.info.train.tokens == 6);  // | ab-ab | space, abab ...: abab, " ", abab, " ", abab
    scene_end(&s);
}

static void a_sample_is_enough_to_learn_from(TestCtx *t) {
    PrepareScene s;
    scene_start(&s);
    Buf lines = {0};
    for (int i = 0; i < 2000; i++)
        buf_printf(&lines, "{\"text\": \"sample number %d of many\"}\n", i);
    scene_file(&s, "a.jsonl", lines.text, lines.n);
    s.o.tokenizer = "train:300";
    s.o.sample_bytes = (int64_t)lines.n / 4;
    scene_run(t, &s);
    CHECK(t, s.info.learned_from_sample);
    double part = (double)s.info.learned_from / (double)s.info.train.bytes;
    CHECK_MSG(t, part > 0.2 && part < 0.3, "%g", part);
    uint64_t hash = s.info.tokenizer_hash;
    s.o.force = true;
    scene_run(t, &s);
    CHECK(t, s.info.tokenizer_hash == hash);
    buf_free(&lines);
    scene_end(&s);
}

// --- Standard input, the sidecar, memory

static void standard_input_is_one_document(TestCtx *t) {
    PrepareScene s;
    scene_start(&s);
    scene_text(&s, "a.txt", "hello\nworld\nhello\nworld\n");
    char *path = path_join(s.in, "a.txt");
    int keep = dup(STDIN_FILENO);
    static const char *const want[][2] = {{"|hello\nworld\nhello\nworld\n", ""},
                                          {"|hello\nworld\n", "|hello\nworld\n"}};
    s.inputs[0] = "-";
    s.o.force = true;
    for (int k = 0; k < 4; k++) {
        CHECK(t, freopen(path, "rb", stdin) != NULL);
        s.o.val_fraction = k % 2 ? 0.6 : 0;
        s.o.tokenizer = k < 2 ? s.tokenizer : "train:260";
        scene_run(t, &s);
        scene_check(t, &s, "train", want[k % 2][0]);
        scene_check(t, &s, "val", want[k % 2][1]);
    }
    dup2(keep, STDIN_FILENO);
    close(keep);
    char *names = scene_names(&s);
    CHECK_MSG(t, !strcmp(names, "prepare.json tokenizer.json train_000000.bin val_000000.bin "),
              "%s", names);
    mem_free(names);
    mem_free(path);
    scene_end(&s);
}

static void the_sidecar_tells_what_was_written(TestCtx *t) {
    PrepareScene s;
    scene_start(&s);
    scene_text(&s, "a.txt", "hello world");
    scene_run(t, &s);
    char *shard = path_join(s.out, "train_000000.bin"), *json = path_join(s.out, "prepare.json");
    const char *const paths[] = {s.out, shard, json};
    for (int i = 0; i < 3; i++) {
        PrepareInfo info;
        Error err = {{0}};
        CHECK_MSG(t, prepare_info_load(&info, paths[i], &err), "%s", err.text);
        CHECK(t,
              info.tokenizer_hash == s.info.tokenizer_hash && info.n_ids == 263 && info.eot == 262);
        CHECK(t, info.train.tokens == 6 && info.train.bytes == 11 && info.train.documents == 1);
        CHECK(t, info.val.documents == 0 && info.id_bytes == 2 && !strcmp(info.split, "gpt2"));
    }
    mem_free(shard);
    mem_free(json);
    scene_end(&s);
}

static void memory_does_not_grow_with_the_text(TestCtx *t) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    test_skip(t, "sanitizers keep freed memory");
#else
    PrepareScene s;
    scene_start(&s);
    char *path = path_join(s.in, "a.txt");
    FILE *f = fopen(path, "wb");
    for (int i = 0; f && i < 800000; i++)
        fprintf(f, "hello world %d, hello\n", i);
    CHECK(t, f && fclose(f) == 0);
    size_t before = peak_rss_bytes();
    scene_run(t, &s);
    size_t grown = peak_rss_bytes() - before;
    CHECK(t, s.info.train.bytes > 20000000);
    CHECK_MSG(t, grown < 12 << 20, "%zu bytes more", grown);
    mem_free(path);
    scene_end(&s);
#endif
}

TEST_MAIN({"memory_does_not_grow_with_the_text", memory_does_not_grow_with_the_text},
          {"documents_of_all_kinds_come_back_from_the_shards",
           documents_of_all_kinds_come_back_from_the_shards},
          {"a_text_with_nul_named_by_itself_is_taken", a_text_with_nul_named_by_itself_is_taken},
          {"parts_and_threads_change_nothing", parts_and_threads_change_nothing},
          {"shards_have_the_size_asked_for", shards_have_the_size_asked_for},
          {"many_ids_are_written_in_4_bytes", many_ids_are_written_in_4_bytes},
          {"named_files_go_to_validation", named_files_go_to_validation},
          {"the_end_of_a_single_document_goes_to_validation",
           the_end_of_a_single_document_goes_to_validation},
          {"a_fraction_of_many_documents_goes_to_validation",
           a_fraction_of_many_documents_goes_to_validation},
          {"a_tokenizer_is_learned_from_the_training_text_only",
           a_tokenizer_is_learned_from_the_training_text_only},
          {"a_sample_is_enough_to_learn_from", a_sample_is_enough_to_learn_from},
          {"standard_input_is_one_document", standard_input_is_one_document},
          {"the_sidecar_tells_what_was_written", the_sidecar_tells_what_was_written})
