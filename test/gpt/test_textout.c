// test_textout.c - streamed text is whole characters and never shows a stop string.
#include "gpt/textout.h"
#include "test/test.h"

#include <string.h>

// Pushes the bytes one by one; every step must show valid prefixes only. Returns the whole output.
static Buf push_bytes(TestCtx *t, TextOut *o, const char *text, size_t n) {
    Buf out = {0};
    buf_add(&out, "", 0);
    for (size_t i = 0; i < n; i++) {
        size_t before = out.n;
        if (!textout_push(o, text + i, 1, &out)) return out;
        // A continuation byte never comes first in what one push shows.
        CHECK(t, out.n == before || ((unsigned char)out.text[before] & 0xC0) != 0x80);
    }
    textout_finish(o, &out);
    return out;
}

static void expect(TestCtx *t, const char *const *stop, int n_stop, const char *text,
                   const char *shown, const char *hit) {
    TextOut o = {.stop = stop, .n_stop = n_stop};
    Buf out = push_bytes(t, &o, text, strlen(text));
    CHECK_MSG(t, strcmp(out.text, shown) == 0, "shown '%s', expected '%s'", out.text, shown);
    CHECK(t, (o.hit == NULL) == (hit == NULL) && (!hit || strcmp(o.hit, hit) == 0));
    buf_free(&out);
    textout_free(&o);
}

static void characters_stay_whole(TestCtx *t) {
    expect(t, NULL, 0, "caf\xC3\xA9 \xE6\x97\xA5 \xF0\x9F\x8C\x8D!",
           "caf\xC3\xA9 \xE6\x97\xA5 \xF0\x9F\x8C\x8D!", NULL);
}

static void broken_bytes_become_the_replacement_character(TestCtx *t) {
    expect(t, NULL, 0,
           "a\xFF"
           "b\xC3(\xE6\x97",
           "a\xEF\xBF\xBD"
           "b\xEF\xBF\xBD(\xEF\xBF\xBD",
           NULL);
    expect(t, NULL, 0, "\xED\xA0\x80x", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBDx", NULL);
    expect(t, NULL, 0, "\xF0\x9F", "\xEF\xBF\xBD", NULL);
}

static void stop_strings_neither_leak_nor_swallow(TestCtx *t) {
    const char *stop[] = {"END", "\n\n"};
    expect(t, stop, 2, "abc ENDxyz", "abc ", "END");
    expect(t, stop, 2, "abc EN", "abc EN", NULL);
    expect(t, stop, 2, "EEND", "E", "END");
    expect(t, stop, 2, "a\nb\n\nc", "a\nb", "\n\n");
    expect(t, stop, 2, "ENEND", "EN", "END");
}

static void one_push_may_hold_text_and_stop(TestCtx *t) {
    const char *stop[] = {"</s>"};
    TextOut o = {.stop = stop, .n_stop = 1};
    Buf out = {0};
    CHECK(t, !textout_push(&o, "done</s>rest", 12, &out));
    CHECK(t, out.n == 4 && memcmp(out.text, "done", 4) == 0);
    buf_free(&out);
    textout_free(&o);
}

TEST_MAIN({"characters_stay_whole", characters_stay_whole},
          {"broken_bytes_become_the_replacement_character",
           broken_bytes_become_the_replacement_character},
          {"stop_strings_neither_leak_nor_swallow", stop_strings_neither_leak_nor_swallow},
          {"one_push_may_hold_text_and_stop", one_push_may_hold_text_and_stop})
