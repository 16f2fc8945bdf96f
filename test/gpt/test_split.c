// test_split.c - UTF-8, character classes and the cutting of text into pieces.
#include "gpt/split.h"
#include "gpt/unicode.h"
#include "test/test.h"

#include <string.h>

// --- UTF-8

static void utf8_reads_every_code_point_it_writes(TestCtx *t) {
    for (uint32_t code = 0; code < 0x110000; code++) {
        if (code >= 0xD800 && code < 0xE000) continue;
        char text[4];
        uint32_t back;
        int n = utf8_encode(code, text);
        if (utf8_decode(text, (size_t)n, &back) == n && back == code) continue;
        CHECK_MSG(t, false, "U+%04X comes back as U+%04X", (unsigned)code, (unsigned)back);
        return;
    }
}

static void utf8_takes_malformed_bytes_one_by_one(TestCtx *t) {
    static const char *const bad[] = {
        "\x80",         "\xC0\x80",         "\xC1\xBF",         "\xE0\x9F\xBF", "\xED\xA0\x80",
        "\xED\xBF\xBF", "\xF0\x8F\xBF\xBF", "\xF4\x90\x80\x80", "\xF5\x80",     "\xFF",
        "\xC3",         "\xE3\x81",         "\xF0\x9F\x8C",     "\xC3(",        "\xE3\x81(",
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        uint32_t code = 0;
        int n = utf8_decode(bad[i], strlen(bad[i]), &code);
        CHECK_MSG(t, n == 1 && code == UTF8_BAD, "case %zu: length %d, code %x", i, n,
                  (unsigned)code);
    }
}

static void utf8_complete_holds_back_a_character_that_is_cut(TestCtx *t) {
    const char *text = "a\xC3\xA9\xE3\x81\x82\xF0\x9F\x8C\x8D";
    static const size_t shown[] = {0, 1, 1, 3, 3, 3, 6, 6, 6, 6, 10};
    for (size_t n = 0; n <= 10; n++) {
        CHECK_MSG(t, utf8_complete(text, n) == shown[n], "%zu bytes: %zu", n,
                  utf8_complete(text, n));
    }
    CHECK(t, utf8_complete("ab\xFF", 3) == 3);
    CHECK(t, utf8_complete("\x80\x80\x80\x80\x80", 5) == 5);
}

static void classes_are_those_of_unicode(TestCtx *t) {
    static const struct {
        uint32_t code;
        CharClass want;
    } cases[] = {
        {'A', CHAR_LETTER},     {'z', CHAR_LETTER},     {'0', CHAR_NUMBER},
        {'_', CHAR_OTHER},      {0x00, CHAR_OTHER},     {0x09, CHAR_SPACE},
        {0x0D, CHAR_SPACE},     {0x1C, CHAR_OTHER},     {0x85, CHAR_SPACE},
        {0xA0, CHAR_SPACE},     {0xAA, CHAR_LETTER},    {0xB2, CHAR_NUMBER},
        {0xBD, CHAR_NUMBER},    {0xE9, CHAR_LETTER},    {0x301, CHAR_OTHER},
        {0x17F, CHAR_LETTER},   {0x1680, CHAR_SPACE},   {0x180E, CHAR_OTHER},
        {0x200A, CHAR_SPACE},   {0x200B, CHAR_OTHER},   {0x2028, CHAR_SPACE},
        {0x2167, CHAR_NUMBER},  {0x3000, CHAR_SPACE},   {0x3042, CHAR_LETTER},
        {0x4E00, CHAR_LETTER},  {0xAC00, CHAR_LETTER},  {0xD7A3, CHAR_LETTER},
        {0xE000, CHAR_OTHER},   {0xFEFF, CHAR_OTHER},   {0x1D7FF, CHAR_NUMBER},
        {0x1F30D, CHAR_OTHER},  {0x2A6DF, CHAR_LETTER}, {0x10FFFF, CHAR_OTHER},
        {UTF8_BAD, CHAR_OTHER}, {0x1C89, CHAR_LETTER},  // assigned in Unicode 16
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        CHECK_MSG(t, unicode_class(cases[i].code) == cases[i].want, "U+%04X: class %d",
                  (unsigned)cases[i].code, unicode_class(cases[i].code));
    }
    int spaces = 0;
    for (uint32_t code = 0; code < 0x110000; code++)
        spaces += unicode_class(code) == CHAR_SPACE;
    CHECK(t, spaces == 25);
    CHECK(t, !strcmp(unicode_version(), "16.0.0"));
}

// --- Pieces

// The pieces with "|" between them, and "~" for a "|" of the text; owned by the caller.
static char *pieces(SplitKind kind, const char *text, size_t n) {
    Buf out = {0};
    buf_add(&out, "", 0);
    for (size_t i = 0; i < n;) {
        size_t end = split_next(kind, text, n, i, NULL);
        if (i) buf_add(&out, "|", 1);
        for (; i < end; i++)
            buf_add(&out, text[i] == '|' ? "~" : text + i, 1);
    }
    return out.text;
}

typedef struct SplitCase {
    const char *text, *want;
} SplitCase;

static void check_pieces(TestCtx *t, SplitKind kind, const SplitCase *cases, size_t n) {
    for (size_t i = 0; i < n; i++) {
        char *got = pieces(kind, cases[i].text, strlen(cases[i].text));
        CHECK_MSG(t, !strcmp(got, cases[i].want), "%s '%s': '%s', expected '%s'", split_name(kind),
                  cases[i].text, got, cases[i].want);
        mem_free(got);
    }
}

static void gpt2_splits_as_its_pattern_does(TestCtx *t) {
    static const SplitCase cases[] = {
        {"", ""},
        {"Hello world", "Hello| world"},
        {" Hello  world\n", " Hello| | world|\n"},
        {"don't DON'T we'LL", "don|'t| DON|'|T| we|'|LL"},
        {"I've we're he'll I'm she'd it's 'twas",
         "I|'ve| we|'re| he|'ll| I|'m| she|'d| it|'s| '|twas"},
        {"'sound'", "'s|ound|'"},
        {" 's", " '|s"},
        {"x = 12345678;", "x| =| 12345678|;"},
        {"a\n\n  b\t\tc ", "a|\n\n | b|\t|\t|c| "},
        {"caf\u00e9 cafe\u0301", "caf\u00e9| cafe|\u0301"},
        {"\u65e5\u672c \ud55c", "\u65e5\u672c| \ud55c"},
        {"\u00a0nbsp\u2028ls", "\u00a0|nbsp|\u2028|ls"},
        {"\u00bd \u2167 \u00b2", "\u00bd| \u2167| \u00b2"},
        {"<|endoftext|>", "<~|endoftext|~>"},
        {"    int x;\r\n}\r\n", "   | int| x|;|\r|\n|}|\r\n"},
        {"a\xff\xfe b", "a|\xff\xfe| b"},
        {"  ", "  "},
        {"a  ", "a|  "},
        {"a \u3000b", "a| |\u3000|b"},
    };
    check_pieces(t, SPLIT_GPT2, cases, sizeof cases / sizeof cases[0]);
}

static void gpt4_splits_as_its_pattern_does(TestCtx *t) {
    static const SplitCase cases[] = {
        {"", ""},
        {"Hello world", "Hello| world"},
        {" Hello  world\n", " Hello| | world|\n"},
        {"don't DON'T we'LL", "don|'t| DON|'T| we|'LL"},
        {"it'\u017fab", "it|'\u017f|ab"},
        {"'x .word (a", "'x| .|word| (|a"},
        {".word\tword", ".word|\tword"},
        {"x = 12345678;", "x| =| |123|456|78|;"},
        {"a\n\n  b\t\tc ", "a|\n\n| | b|\t|\tc| "},
        {"\u00a0nbsp\u2028ls", "\u00a0nbsp|\u2028ls"},
        {"\u00bd \u2167 \u00b2", "\u00bd| |\u2167| |\u00b2"},
        {"<|endoftext|>", "<~|endoftext|~>"},
        {"    int x;\r\n}\r\n", "   | int| x|;\r\n|}\r\n"},
        {"a  \n  \n  b", "a|  \n  \n| | b"},
        {"a \n  ", "a| \n|  "},
        {" !!\n\n x", " !!\n\n| x"},
        {"\n.a", "\n|.a"},
        {"a\xff"
         "b\xff",
         "a|\xff"
         "b|\xff"},
    };
    check_pieces(t, SPLIT_GPT4, cases, sizeof cases / sizeof cases[0]);
    static const SplitCase twos[] = {{"x 12345", "x| |12|34|5"}};
    static const SplitCase ones[] = {{"x 123", "x| |1|2|3"}};
    check_pieces(t, SPLIT_GPT4_DIGITS2, twos, 1);
    check_pieces(t, SPLIT_GPT4_DIGITS1, ones, 1);
}

static void every_split_covers_any_bytes(TestCtx *t) {
    float noise[4096];
    char text[4096];
    test_noise(noise, 4096, 5, 1);
    static const char common[] = " \n\r'sS.1a\xC3\xA9\xE3\x81\x82\xFF";
    for (int kind = 0; kind < SPLIT_KINDS; kind++) {
        for (size_t i = 0; i < sizeof text; i++) {
            text[i] =
                common[(size_t)((noise[i] + 1) * 0.5f * (sizeof common - 1)) % (sizeof common - 1)];
        }
        size_t at = 0;
        while (at < sizeof text) {
            size_t end = split_next((SplitKind)kind, text, sizeof text, at, NULL);
            CHECK(t, end > at && end <= sizeof text);
            if (end <= at) return;
            at = end;
        }
    }
}

// With hit_end unset, no text that follows may move a piece's end.
static void hit_end_tells_which_ends_are_final(TestCtx *t) {
    static const char letters[] = " \n\r'sl.1a\xC3\xA9\xE3\x81\x82";
    float noise[40];
    char text[12], more[12];
    int decided = 0;
    for (int trial = 0; trial < 20000; trial++) {
        test_noise(noise, 24, (uint64_t)trial + 1, 1);
        for (int i = 0; i < 24; i++) {
            char c = letters[(size_t)((noise[i] + 1) * 0.5f * (sizeof letters - 1)) %
                             (sizeof letters - 1)];
            if (i < 12)
                text[i] = c;
            else
                more[i - 12] = c;
        }
        SplitKind kind = (SplitKind)(trial % SPLIT_KINDS);
        bool hit = false;
        size_t n = 1 + (size_t)trial % 6, end = split_next(kind, text, n, 0, &hit);
        if (hit) continue;
        decided++;
        memcpy(text + n, more, sizeof text - n);
        size_t again = split_next(kind, text, sizeof text, 0, NULL);
        CHECK_MSG(t, again == end, "trial %d: %zu then %zu", trial, end, again);
    }
    CHECK(t, decided > 2000);
}

static void very_long_runs_are_cut(TestCtx *t) {
    size_t n = SPLIT_LONGEST_RUN + 100;
    char *text = mem_alloc(n, 1);
    static const char kinds[] = "a1.\n ";
    for (int k = 0; k < 5; k++) {
        memset(text, kinds[k], n);
        CHECK(t, split_next(SPLIT_GPT2, text, n, 0, NULL) == SPLIT_LONGEST_RUN);
    }
    mem_free(text);
}

static void patterns_are_known_by_name_and_regex(TestCtx *t) {
    for (int kind = 0; kind < SPLIT_KINDS; kind++) {
        SplitKind a = SPLIT_KINDS, b = SPLIT_KINDS;
        CHECK(t, split_from_name(split_name((SplitKind)kind), &a) && a == (SplitKind)kind);
        CHECK(t, split_from_regex(split_regex((SplitKind)kind), &b) && b == (SplitKind)kind);
    }
    SplitKind kind;
    CHECK(t, !split_from_name("gpt3", &kind));
    CHECK(t, !split_from_regex("\\s+", &kind));
}

TEST_MAIN({"utf8_reads_every_code_point_it_writes", utf8_reads_every_code_point_it_writes},
          {"utf8_takes_malformed_bytes_one_by_one", utf8_takes_malformed_bytes_one_by_one},
          {"utf8_complete_holds_back_a_character_that_is_cut",
           utf8_complete_holds_back_a_character_that_is_cut},
          {"classes_are_those_of_unicode", classes_are_those_of_unicode},
          {"gpt2_splits_as_its_pattern_does", gpt2_splits_as_its_pattern_does},
          {"gpt4_splits_as_its_pattern_does", gpt4_splits_as_its_pattern_does},
          {"every_split_covers_any_bytes", every_split_covers_any_bytes},
          {"hit_end_tells_which_ends_are_final", hit_end_tells_which_ends_are_final},
          {"very_long_runs_are_cut", very_long_runs_are_cut},
          {"patterns_are_known_by_name_and_regex", patterns_are_known_by_name_and_regex})
