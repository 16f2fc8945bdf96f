// test_safetensors_header.c - gpt/safetensors_header: the byte-exact cases of the reference
// reader's own tests, and the known attacks on readers.
#define _POSIX_C_SOURCE 200809L
#include "test/test.h"

#include "gpt/safetensors.h"

#include <string.h>
#include <sys/stat.h>

typedef struct Dir {
    char *dir, *path;
} Dir;

static Dir temp_file(void) {
    char *dir = test_temp_dir();
    return (Dir){dir, path_join(dir, "x.safetensors")};
}

static void temp_done(Dir *d) {
    test_remove_dir(d->dir);
    mem_free(d->dir);
    mem_free(d->path);
}

static void write_bytes(TestCtx *t, const char *path, const void *bytes, size_t n) {
    Error err;
    CHECK_MSG(t, file_write_atomic(path, bytes, n, &err), "%s", err.text);
}

// The length of the header, the header, and n_data bytes 0, 1, 2, ...
static void write_file(TestCtx *t, const char *path, const char *header, size_t n_data) {
    Buf b = {0};
    uint64_t n = strlen(header);
    for (int i = 0; i < 8; i++) {
        char c = (char)(n >> (8 * i));
        buf_add(&b, &c, 1);
    }
    buf_add(&b, header, strlen(header));
    for (size_t i = 0; i < n_data; i++) {
        char c = (char)i;
        buf_add(&b, &c, 1);
    }
    write_bytes(t, path, b.text, b.n);
    buf_free(&b);
}

static void expect(TestCtx *t, const char *path, const char *words, int n, const char *label) {
    Safetensors f;
    Error err = {{0}};
    bool ok = safetensors_open(&f, path, &err);
    if (words) {
        CHECK_MSG(t, !ok && strstr(err.text, words), "%s: expected '%s', found '%s'", label, words,
                  ok ? "a valid file" : err.text);
        CHECK_MSG(t, ok || strstr(err.text, path), "%s: names no file: %s", label, err.text);
    } else {
        CHECK_MSG(t, ok && (int)f.n == n, "%s: %s", label, err.text);
    }
    if (ok) safetensors_close(&f);
}

#define T22 "{\"test\":{\"dtype\":\"I32\",\"shape\":[2,2],\"data_offsets\":[0,16]}}"

static void raw_bytes_of_the_reference_tests(TestCtx *t) {
    Dir d = temp_file();
    static const char sixty[76] = "\x3C\0\0\0\0\xFF\xFF\xFF{\"test\":{\"dtype\":\"I32\",\"shape\":"
                                  "[2,2],\"data_offsets\":[0,16]}}";
    static const struct {
        const char *bytes;
        size_t n;
        const char *words;
    } row[] = {
        {"", 0, "too small"},
        {"\x02\0\0\0\0\0\0", 7, "too small"},
        {sixty, sizeof sixty, "header too large"},
        {"\x3C\0\0\0\0\0\0\0", 8, "invalid header length"},
        {"\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF", 8, "header too large"},
        {"\x01\xE1\xF5\x05\0\0\0\0", 8, "header too large"},
        {"\0\xE1\xF5\x05\0\0\0\0", 8, "invalid header length"},
        {"\x01\0\0\0\0\0\0\0\xFF", 9, "valid UTF-8"},
        {"\x01\0\0\0\0\0\0\0{", 9, "invalid JSON"},
        {"\0\0\0\0\0\0\0\0", 8, "invalid JSON"},
    };
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        write_bytes(t, d.path, row[i].bytes, row[i].n);
        expect(t, d.path, row[i].words, 0, row[i].words);
    }
    temp_done(&d);
}

typedef struct HeaderCase {
    const char *header;
    size_t n_data;
    const char *words;  // NULL: valid
    int n;
} HeaderCase;

#define ONE(shape, offsets)                                                                        \
    "{\"t\":{\"dtype\":\"F32\",\"shape\":" shape ",\"data_offsets\":" offsets "}}"
#define NAMED(name) "\"" name "\":{\"dtype\":\"I32\",\"shape\":[2,2],\"data_offsets\":[0,16]}"

static const HeaderCase header_case[] = {
    // --- structure
    {"{}\r \t\n", 0, NULL, 0},
    {"\t\n{}\r ", 0, NULL, 0},
    {"{}", 1, "incomplete", 0},
    {T22, 16, NULL, 1},
    {T22, 17, "incomplete", 0},
    {T22, 14, "incomplete", 0},
    {T22 "x", 16, "invalid JSON", 0},
    {ONE("[]", "[0,4]"), 4, NULL, 1},
    {ONE("[2,0]", "[0, 0]"), 0, NULL, 1},
    {ONE("[2,2]", "[0,4]"), 4, "needs 16 bytes", 0},
    {ONE("[1000,1000]", "[0,4]"), 4, "needs 4000000 bytes", 0},
    {"{" NAMED("0") "," NAMED("1") "," NAMED("2") "," NAMED("3") "," NAMED("4") "," NAMED(
         "5") "," NAMED("6") "," NAMED("7") "," NAMED("8") "," NAMED("9") "}",
     16, "overlap", 0},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
     "\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[8,12]}}",
     12, "hole", 0},
    {ONE("[1]", "[4,8]"), 8, "hole", 0},
    {ONE("[1]", "[0,4],\"extra\":{\"deep\":[1,{\"x\":null}]}"), 4, NULL, 1},
    {"{\"__metadata__\":{}," NAMED("t") "}", 16, NULL, 1},
    // --- numbers: I1
    {ONE("[2,18446744073709551614]", "[0,16]"), 16, "overflows", 0},
    {ONE("[2,9223372036854775807]", "[0,16]"), 16, "overflows", 0},
    {ONE("[18446744073709551616]", "[0,4]"), 4, "overflows", 0},
    {ONE("[4611686018427387905]", "[0,4]"), 4, "overflows", 0},
    {ONE("[2305843009213693952,8,0]", "[0,0]"), 0, "overflows", 0},
    {ONE("[0]", "[0,4]"), 4, "'t' needs 0 bytes", 0},
    {ONE("[-1]", "[0,4]"), 4, "not negative", 0},
    {ONE("[2147483648]", "[0,4]"), 4, "'t' needs 8589934592 bytes", 0},
    {ONE("[4294967297]", "[0,4]"), 4, "'t' needs 17179869188 bytes", 0},
    {ONE("[4398046511105]", "[0,4]"), 4, "'t' needs 17592186044420 bytes", 0},
    {ONE("[4611686018427387904]", "[0,4]"), 4, "'t' overflows", 0},
    {ONE("[1.0]", "[0,4]"), 4, "fraction", 0},
    {ONE("[1e0]", "[0,4]"), 4, "fraction", 0},
    {ONE("[01]", "[0,4]"), 4, "starts with 0", 0},
    {ONE("[\"1\"]", "[0,4]"), 4, "expected an integer", 0},
    {ONE("[1,1,1,1,1,1,1,1]", "[0,4]"), 4, NULL, 1},
    {ONE("[1,1,1,1,1,1,1,1,1]", "[0,4]"), 4, "more than 8 dimensions", 0},
    {ONE("[1]", "[4,0]"), 4, "hole", 0},
    {ONE("[1]", "[0,18446744073709551615]"), 4, "span 18446744073709551615", 0},
    {ONE("[1]", "[0]"), 4, "two integers", 0},
    {ONE("[1]", "[0,4,8]"), 4, "two integers", 0},
    {ONE("[1]", "[-4,0]"), 4, "not negative", 0},
    {"{\"t\":{\"dtype\":\"F4\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "whole byte", 0},
    {"{\"t\":{\"dtype\":\"F4\",\"shape\":[2],\"data_offsets\":[0,1]}}", 1, NULL, 1},
    {"{\"t\":{\"dtype\":\"F6_E2M3\",\"shape\":[4],\"data_offsets\":[0,3]}}", 3, NULL, 1},
    // --- fields and keys: I3
    {"{\"t\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "lacks the field 'dtype'", 0},
    {"{\"t\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, "lacks the field 'shape'", 0},
    {"{\"t\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "lacks the field 'data_offsets'", 0},
    {"{\"t\":{}}", 0, "lacks the field", 0},
    {"{\"t\":{\"dtype\":\"F31\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "unknown dtype 'F31'",
     0},
    {"{\"t\":{\"dtype\":7,\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "expected a string", 0},
    {"{\"t\":[]}", 0, "expected '{'", 0},
    {"[]", 0, "expected '{'", 0},
    {"{" NAMED("t") "," NAMED("t") "}", 16, "duplicate key 't'", 0},
    {"{" NAMED("t") ",\"\\u0074\":{\"dtype\":\"F32\",\"shape\":[9],\"data_offsets\":[16,52]}}", 52,
     "duplicate key 't'", 0},
    {"{\"__metadata__\":{}," NAMED("t") ",\"__metadata__\":{}}", 16, "duplicate key '__metadata__'",
     0},
    {"{\"__metadata__\":{\"a\":\"1\",\"b\":\"2\",\"a\":\"3\"}}", 0, "duplicate key 'a'", 0},
    {"{\"t\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4,
     "duplicate key 'dtype'", 0},
    {"{\"__metadata__\":{\"a\":1}}", 0, "expected a string", 0},
    {"{\"__metadata__\":{\"a\":null}}", 0, "expected a string", 0},
    {"{\"__metadata__\":[]}", 0, "expected '{'", 0},
    {"{\"a\\u0000b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "NUL", 0},
    {"{\"t\":{\"x\":[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]}}", 0, "too deeply", 0},
};

static void headers_are_checked(TestCtx *t) {
    Dir d = temp_file();
    for (size_t i = 0; i < sizeof header_case / sizeof header_case[0]; i++) {
        const HeaderCase *c = &header_case[i];
        write_file(t, d.path, c->header, c->n_data);
        expect(t, d.path, c->words, c->n, c->header);
    }
    temp_done(&d);
}

// mem_alloc clears what it hands out, so memory that a header asked for would be resident.
static void refusals_allocate_nothing(TestCtx *t) {
    Dir d = temp_file();
    size_t before = peak_rss_bytes();
    write_file(t, d.path, ONE("[268435456]", "[0,1073741824]"), 4);
    expect(t, d.path, "incomplete", 0, "1 GB promised");
    write_bytes(t, d.path, "\0\xE1\xF5\x05\0\0\0\0{}", 10);
    expect(t, d.path, "invalid header length", 0, "100 MB header promised");
    size_t grown = peak_rss_bytes() - before;
    CHECK_MSG(t, grown < 1000000, "%zu bytes more were used", grown);
    temp_done(&d);
}

static void what_is_not_a_file_is_refused(TestCtx *t) {
    Dir d = temp_file();
    expect(t, d.path, "cannot open", 0, "missing");
    expect(t, d.dir, "not a regular file", 0, "directory");
    CHECK(t, mkfifo(d.path, 0600) == 0);
    expect(t, d.path, "not a regular file", 0, "pipe");
    temp_done(&d);
}

TEST_MAIN({"raw_bytes_of_the_reference_tests", raw_bytes_of_the_reference_tests},
          {"headers_are_checked", headers_are_checked},
          {"refusals_allocate_nothing", refusals_allocate_nothing},
          {"what_is_not_a_file_is_refused", what_is_not_a_file_is_refused})
