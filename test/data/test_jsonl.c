// test_jsonl.c - the text of a line of JSON.
#include "data/jsonl.h"
#include "test/test.h"

#include <stdlib.h>
#include <string.h>

#define LINE(s) s, sizeof s - 1

static void texts_are_found_and_decoded(TestCtx *t) {
    static const struct {
        const char *line;
        size_t n;
        const char *want;
        size_t n_want;
    } cases[] = {
        {LINE("{\"text\": \"hello\"}"), LINE("hello")},
        {LINE(" { \"text\" : \"\" } \r"), LINE("")},
        {LINE("{\"id\": 1, \"text\": \"a\", \"more\": [1, {\"text\": \"b\"}, []]}"), LINE("a")},
        {LINE("{\"m\": {\"x\": [true, false, null, -1.5e+3, NaN, -Infinity]}, \"text\": \"a\"}"),
         LINE("a")},
        {LINE("{\"text\": \"\\\"\\\\\\/\\b\\f\\n\\r\\t\"}"), LINE("\"\\/\b\f\n\r\t")},
        {LINE("{\"text\": \"a\\u0000b\"}"), LINE("a\0b")},
        {LINE("{\"text\": \"\\u0041\\u00e9\\u3042\"}"), LINE("A\xC3\xA9\xE3\x81\x82")},
        {LINE("{\"text\": \"\\ud83c\\udf0d\"}"), LINE("\xF0\x9F\x8C\x8D")},
        {LINE("{\"text\": \"\\uD83Cx\\udf0d\"}"), LINE("\xEF\xBF\xBDx\xEF\xBF\xBD")},
        {LINE("{\"text\": \"\\ud83c\\u0041\"}"), LINE("\xEF\xBF\xBD"
                                                      "A")},
        {LINE("{\"text\": \"\xC3\xA9\xFF\"}"), LINE("\xC3\xA9\xFF")},
        {LINE("{\"te\\u0078t\": \"a\", \"textt\": 1, \"tex\": 2}"), LINE("a")},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        Buf out = {0};
        Error err = {{0}};
        buf_add(&out, "+", 1);
        bool ok = jsonl_text(cases[i].line, cases[i].n, "text", &out, &err);
        CHECK_MSG(t, ok, "%s: %s", cases[i].line, err.text);
        bool same =
            out.n == cases[i].n_want + 1 && !memcmp(out.text + 1, cases[i].want, cases[i].n_want);
        CHECK_MSG(t, same, "%s: found '%s'", cases[i].line, out.text + 1);
        buf_free(&out);
    }
}

static void broken_lines_are_refused_with_a_sentence(TestCtx *t) {
    static const struct {
        const char *line, *words;
    } cases[] = {
        {"", "no object at byte 0"},
        {"hello", "no object"},
        {"[\"text\"]", "no object"},
        {"{}", "has no field 'text'"},
        {"{\"txt\": \"a\"}", "has no field 'text'"},
        {"{\"text\": 5}", "a field that is not a string"},
        {"{\"text\": null}", "a field that is not a string"},
        {"{\"text\": \"a\", \"text\": \"b\"}", "the field twice"},
        {"{\"text\": \"a\"", "an object that does not end at byte 12"},
        {"{\"text\": \"a\"} x", "text behind the object at byte 14"},
        {"{\"text\": \"a\"}{}", "text behind the object"},
        {"{\"text\": \"a}", "a string that does not end"},
        {"{\"text\": \"a\\", "a string that does not end"},
        {"{\"text\": \"\\x\"}", "an unknown escape"},
        {"{\"text\": \"\\u12g4\"}", "\\u without four"},
        {"{\"text\": \"\\u12", "\\u without four"},
        {"{\"text\": \"a\tb\"}", "a control character"},
        {"{\"text\" \"a\"}", "a name without ':'"},
        {"{\"a\": }", "something that is no value"},
        {"{\"a\": tru}", "something that is no value"},
        {"{\"a\": [1 2]}", "a list that does not end"},
        {"{\"a\": [1,]}", "something that is no value"},
        {"{\"text\": \"a\",}", "a member without a name"},
        {"{text: \"a\"}", "a member without a name"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        Buf out = {0};
        Error err = {{0}};
        CHECK_MSG(t, !jsonl_text(cases[i].line, strlen(cases[i].line), "text", &out, &err), "%s",
                  cases[i].line);
        CHECK_ERROR(t, err, cases[i].words);
        buf_free(&out);
    }
}

static void deep_nesting_is_refused_and_not_followed(TestCtx *t) {
    enum { DEEP = 100000 };
    Buf line = {0}, out = {0};
    Error err;
    buf_printf(&line, "{\"a\": ");
    for (int i = 0; i < DEEP; i++)
        buf_add(&line, i % 2 ? "[" : "{\"a\":", i % 2 ? 1 : 5);
    CHECK(t, !jsonl_text(line.text, line.n, "text", &out, &err));
    CHECK_ERROR(t, err, "nested more than 200 deep");
    buf_free(&line);
    buf_free(&out);
}

// A line that ends anywhere, in memory of exactly its size, is refused or read, never over-read.
static void a_line_cut_anywhere_is_refused(TestCtx *t) {
    static const char line[] =
        "{\"a\": [1, null, \"x\\u0041\"], \"text\": \"b\\ud83c\\udf0d\", \"c\": -1e5}";
    for (size_t n = 0; n < sizeof line - 1; n++) {
        char *copy = malloc(n ? n : 1);
        if (!copy) die("out of memory");
        memcpy(copy, line, n);
        Buf out = {0};
        Error err;
        CHECK_MSG(t, !jsonl_text(copy, n, "text", &out, &err), "%zu bytes", n);
        buf_free(&out);
        free(copy);
    }
}

TEST_MAIN({"texts_are_found_and_decoded", texts_are_found_and_decoded},
          {"broken_lines_are_refused_with_a_sentence", broken_lines_are_refused_with_a_sentence},
          {"deep_nesting_is_refused_and_not_followed", deep_nesting_is_refused_and_not_followed},
          {"a_line_cut_anywhere_is_refused", a_line_cut_anywhere_is_refused})
