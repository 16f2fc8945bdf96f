// test_documents.c - cutting files into documents, seen through a whole run of prepare.
#include "data/prepare.h"
#include "test/prepare_scene.h"
#include "test/test.h"

#include <string.h>

static void a_separator_splits_a_file_into_documents(TestCtx *t) {
    PrepareScene s;
    scene_start(&s);
    scene_text(&s, "a.txt", "<|x|>one<|x|>two  <|x|><|x|>three<|x");
    scene_text(&s, "b.txt", "four<|x|>");
    s.o.separator = "<|x|>";
    scene_run(t, &s);
    scene_check(t, &s, "train", "|one|two  |three<|x|four");
    CHECK(t, s.info.train.documents == 4 && s.info.empty_documents == 2);
    scene_end(&s);
}

static void separators_are_found_wherever_parts_end(TestCtx *t) {
    PrepareScene s;
    scene_start(&s);
    Buf text = {0}, want = {0};
    for (int i = 0; i < 120; i++) {
        buf_add(&want, "|", 1);
        if (i) buf_add(&text, "\n<|x|>\n", 7);
        for (int k = 0; k < 3000 + 37 * i; k++) {
            buf_add(&text, k % 7 ? "ab " : " \n<|", 3 + !(k % 7));
            buf_add(&want, k % 7 ? "ab " : " \n<|", 3 + !(k % 7));
        }
    }
    scene_file(&s, "a.txt", text.text, text.n);
    s.o.separator = "\n<|x|>\n";
    scene_run(t, &s);
    CHECK(t, s.info.train.documents == 120);
    Buf got = scene_tokens(t, &s, "train");
    // "|" stands for <|endoftext|> and for itself.
    CHECK(t, got.n == want.n && !memcmp(got.text, want.text, want.n));
    buf_free(&got);
    buf_free(&text);
    buf_free(&want);
    scene_end(&s);
}

// The reader has seen only "\n\n<" of the separator when it first looks for a place to cut.
static void half_a_separator_is_not_text(TestCtx *t) {
    PrepareScene s;
    scene_start(&s);
    Buf text = {0};
    size_t n = (1 << 18) + (1 << 12) - 3;  // the reader's first look
    for (size_t i = 0; i < n; i++)
        buf_add(&text, " ", 1);
    buf_printf(&text, "\n\n<|x|>end");
    scene_file(&s, "a.txt", text.text, text.n);
    s.o.separator = "\n\n<|x|>";
    scene_run(t, &s);
    CHECK(t, s.info.train.documents == 2 && s.info.train.bytes == (int64_t)n + 3);
    buf_free(&text);
    scene_end(&s);
}

static void long_blank_lines_are_passed_over(TestCtx *t) {
    PrepareScene s;
    scene_start(&s);
    Buf text = {0};
    for (int i = 0; i < 600000; i++)
        buf_add(&text, i == 300000 ? "\n" : " ", 1);
    buf_printf(&text, "\n{\"text\": \"a\"}\n{\"text\": \"b\"}");
    scene_file(&s, "a.jsonl", text.text, text.n);
    scene_run(t, &s);
    scene_check(t, &s, "train", "|a|b");
    buf_free(&text);
    scene_end(&s);
}

static void the_field_of_lines_can_be_chosen(TestCtx *t) {
    PrepareScene s;
    scene_start(&s);
    scene_text(&s, "a.jsonl", "{\"text\": \"no\", \"body\": \"yes\"}\n");
    s.o.field = "body";
    scene_run(t, &s);
    scene_check(t, &s, "train", "|yes");
    scene_end(&s);
}

TEST_MAIN({"a_separator_splits_a_file_into_documents", a_separator_splits_a_file_into_documents},
          {"separators_are_found_wherever_parts_end", separators_are_found_wherever_parts_end},
          {"half_a_separator_is_not_text", half_a_separator_is_not_text},
          {"long_blank_lines_are_passed_over", long_blank_lines_are_passed_over},
          {"the_field_of_lines_can_be_chosen", the_field_of_lines_can_be_chosen})
