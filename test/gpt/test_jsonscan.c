// test_jsonscan.c - gpt/jsonscan: the grammar, its refusals and the bounds of the cursor.
// Every text is copied into a block of exactly its length, so that the sanitizer sees a read
// beyond.
#include "test/test.h"

#include "gpt/jsonscan.h"

#include <stdlib.h>
#include <string.h>

static char *exact_copy(const char *text, size_t n) {
    char *p = malloc(n ? n : 1);
    if (!p) die("out of memory");
    memcpy(p, text, n);
    return p;
}

static const char *skip_whole(const char *text, size_t n) {
    char *copy = exact_copy(text, n);
    JsonScan s = {.text = copy, .n = n};
    bool ok = json_skip(&s, 0) && json_end(&s);
    free(copy);
    return ok ? NULL : s.why;
}

static void valid_texts_are_accepted(TestCtx *t) {
    static const char *const text[] = {
        "0",
        "-0",
        "10",
        "1.5e-3",
        "1E+2",
        "true",
        " false ",
        "null",
        "\"\"",
        "[]",
        "{}",
        "[1,\"a\",{\"b\":[null]}]",
        "\"\\u00e9\\ud83d\\ude00\\n\\/\"",
        "\t\r\n {\"a\" : 1 }",
    };
    for (size_t i = 0; i < sizeof text / sizeof text[0]; i++) {
        const char *why = skip_whole(text[i], strlen(text[i]));
        CHECK_MSG(t, !why, "'%s': %s", text[i], why);
    }
}

static void invalid_texts_are_refused(TestCtx *t) {
    static const char *const text[] = {
        "",
        " ",
        "01",
        "-",
        "-01",
        "1.",
        ".5",
        "1e",
        "1e+",
        "+1",
        "tru",
        "nul",
        "NaN",
        "[1,]",
        "[1",
        "{\"a\"}",
        "{\"a\":}",
        "{a:1}",
        "{\"a\":1,}",
        "[1 2]",
        "\"",
        "\"\\",
        "\"\\x\"",
        "\"\\u12\"",
        "\"\\ud800\"",
        "\"\\udc00\"",
        "\"\\ud800\\u0041\"",
        "\"\\u0000\"",
        "\"\t\"",
        "1 2",
        "]",
        "[}",
    };
    for (size_t i = 0; i < sizeof text / sizeof text[0]; i++)
        CHECK_MSG(t, skip_whole(text[i], strlen(text[i])), "'%s' passed", text[i]);
}

static void depth_is_bounded(TestCtx *t) {
    enum { MANY = 100000 };
    char *text = malloc(2 * MANY);
    if (!text) die("out of memory");
    memset(text, '[', MANY);
    memset(text + MANY, ']', MANY);
    CHECK(t, skip_whole(text, 2 * MANY));
    CHECK(t, skip_whole(text, MANY));
    CHECK(t, !skip_whole(text + MANY - JSON_MAX_DEPTH, 2 * JSON_MAX_DEPTH));
    CHECK(t, skip_whole(text + MANY - JSON_MAX_DEPTH - 1, 2 * JSON_MAX_DEPTH + 2));
    free(text);
}

static void strings_are_decoded(TestCtx *t) {
    static const struct {
        const char *text, *want;
    } row[] = {
        {"\"\"", ""},
        {"\"abc\"", "abc"},
        {" \"a\\\"b\\\\c\\/\"", "a\"b\\c/"},
        {"\"\\b\\f\\n\\r\\t\"", "\b\f\n\r\t"},
        {"\"\\u0041\\u00e4\\u20AC\\uD83D\\uDE00\"", "A\xC3\xA4\xE2\x82\xAC\xF0\x9F\x98\x80"},
        {"\"k\xC3\xA4se\"", "k\xC3\xA4se"},
    };
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        size_t n = strlen(row[i].text), length = 99;
        char *text = exact_copy(row[i].text, n), *out = malloc(n);
        JsonScan s = {.text = text, .n = n};
        CHECK_MSG(t, out && json_string(&s, out, &length), "%s", row[i].text);
        CHECK_MSG(t, out && strcmp(out, row[i].want) == 0 && length == strlen(row[i].want),
                  "%s gave '%s'", row[i].text, out);
        free(text);
        free(out);
    }
}

static void integers_are_exact_to_64_bits(TestCtx *t) {
    static const struct {
        const char *text;
        bool ok;
        uint64_t want;
    } row[] = {
        {"0", true, 0},
        {" 9007199254740993", true, 9007199254740993u},
        {"18446744073709551615", true, UINT64_MAX},
        {"18446744073709551616", false, 0},
        {"99999999999999999999999", false, 0},
        {"-1", false, 0},
        {"1.0", false, 0},
        {"1e3", false, 0},
        {"00", false, 0},
        {"\"1\"", false, 0},
        {"", false, 0},
    };
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        size_t n = strlen(row[i].text);
        char *text = exact_copy(row[i].text, n);
        JsonScan s = {.text = text, .n = n};
        uint64_t v = 0;
        bool ok = json_u64(&s, &v);
        CHECK_MSG(t, ok == row[i].ok && v == row[i].want, "'%s'", row[i].text);
        free(text);
    }
}

static void utf8_is_checked(TestCtx *t) {
    static const char *const good[] = {"a",
                                       "\xC2\x80",
                                       "\xDF\xBF",
                                       "\xE0\xA0\x80",
                                       "\xED\x9F\xBF",
                                       "\xEE\x80\x80",
                                       "\xF0\x90\x80\x80",
                                       "\xF4\x8F\xBF\xBF"};
    static const char *const bad[] = {"\x80",
                                      "\xC0\x80",
                                      "\xC1\xBF",
                                      "\xC2",
                                      "\xC2\x41",
                                      "\xE0\x9F\xBF",
                                      "\xED\xA0\x80",
                                      "\xE2\x82",
                                      "\xF0\x8F\xBF\xBF",
                                      "\xF4\x90\x80\x80",
                                      "\xF5\x80\x80\x80",
                                      "\xFF",
                                      "a\xFE"};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++)
        CHECK_MSG(t, json_utf8_valid(good[i], strlen(good[i])), "good %zu", i);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char *text = exact_copy(bad[i], strlen(bad[i]));
        CHECK_MSG(t, !json_utf8_valid(text, strlen(bad[i])), "bad %zu", i);
        free(text);
    }
}

static void the_first_failure_stays(TestCtx *t) {
    JsonScan s = {.text = "x\"a\"", .n = 4};
    char out[8];
    CHECK(t, !json_expect(&s, '{', "expected '{'"));
    s.at = 1;
    CHECK(t, !json_string(&s, out, NULL));
    CHECK(t, !json_take(&s, '"'));
    CHECK(t, !json_end(&s));
    CHECK(t, strcmp(s.why, "expected '{'") == 0);
}

TEST_MAIN({"valid_texts_are_accepted", valid_texts_are_accepted},
          {"invalid_texts_are_refused", invalid_texts_are_refused},
          {"depth_is_bounded", depth_is_bounded}, {"strings_are_decoded", strings_are_decoded},
          {"integers_are_exact_to_64_bits", integers_are_exact_to_64_bits},
          {"utf8_is_checked", utf8_is_checked},
          {"the_first_failure_stays", the_first_failure_stays})
