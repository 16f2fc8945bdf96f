// test_safetensors.c - gpt/safetensors: a file of the reference writer, exact conversions, exact
// bytes of our writer, large and changing files. test_safetensors_header.c has the refusals.
#define _POSIX_C_SOURCE 200809L
#include "test/test.h"

#include "gpt/safetensors.h"

#include <fcntl.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

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

// Saved by safetensors 0.8.0 for Python.
static const char python_file[] =
    "\xE0\0\0\0\0\0\0\0{\"__metadata__\":{\"note\":\"k\xC3\xA4se \\\"q\\\"\\n\",\"format\":\"pt\"},"
    "\"s\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[0,8]},"
    "\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,16]},"
    "\"b\":{\"dtype\":\"F16\",\"shape\":[2,2],\"data_offsets\":[16,24]}}      "
    "\x07\0\0\0\0\0\0\0\xCD\xCC\xCC\x3D\xCA\xF2\x49\xF1\0\x3C\0\xC1\xF7\x01\xEF\x7B";

static void a_file_of_the_reference_writer_is_read(TestCtx *t) {
    Dir d = temp_file();
    Error err;
    Safetensors f;
    float x[4];
    const uint64_t two[] = {2, 2};
    write_bytes(t, d.path, python_file, sizeof python_file - 1);
    bool ok = safetensors_open(&f, d.path, &err);
    CHECK_MSG(t, ok, "%s", err.text);
    if (!ok) return;
    CHECK(t, strcmp(safetensors_meta(&f, "note"), "k\xC3\xA4se \"q\"\n") == 0);
    CHECK(t, !safetensors_meta(&f, "absent"));
    const SafeTensor *a = safetensors_find(&f, "a", SAFE_F32, two, 1, &err);
    const SafeTensor *b = safetensors_find(&f, "b", SAFE_FLOAT, two, 2, &err);
    CHECK(t, a && safetensors_read(&f, a, 0, 2, x, &err) && x[0] == 0.1f && x[1] == -1e30f);
    CHECK(t, b && safetensors_read(&f, b, 0, 4, x, &err) && x[0] == 1 && x[1] == -2.5f &&
                 x[2] == 0x1.f7p-16f && x[3] == 0x1.fbcp15f);
    CHECK(t, b && safetensors_read(&f, b, 3, 1, x, &err) && x[0] == 0x1.fbcp15f);
    const SafeTensor *s = safetensors_find(&f, "s", SAFE_I64, NULL, 0, &err);
    CHECK(t, s && safetensors_count(s) == 1);
    CHECK(t, s && !safetensors_read(&f, s, 0, 1, x, &err));
    CHECK_ERROR(t, err, "'s' is I64, expected F32, BF16 or F16");
    safetensors_close(&f);
    temp_done(&d);
}

static void find_names_what_differs(TestCtx *t) {
    Dir d = temp_file();
    Error err;
    Safetensors f;
    const uint64_t shape[] = {2, 2, 1};
    write_bytes(t, d.path, python_file, sizeof python_file - 1);
    CHECK(t, safetensors_open(&f, d.path, &err));
    CHECK(t, !safetensors_find(&f, "c", SAFE_F32, shape, 1, &err));
    CHECK_ERROR(t, err, "holds no tensor 'c'");
    CHECK(t, !safetensors_find(&f, "b", SAFE_F32, shape, 2, &err));
    CHECK_ERROR(t, err, "tensor 'b' is F16 [2, 2], expected F32 [2, 2]");
    CHECK(t, !safetensors_find(&f, "b", SAFE_FLOAT, shape, 3, &err));
    CHECK_ERROR(t, err, "[2, 2], expected F32, BF16 or F16 [2, 2, 1]");
    CHECK(t, !safetensors_find(&f, "a", SAFE_FLOAT, shape + 2, 1, &err));
    CHECK_ERROR(t, err, "[2], expected F32, BF16 or F16 [1]");
    safetensors_close(&f);
    temp_done(&d);
}

// All 65536 halves against values built from their fields by ldexp.
static void halves_convert_exactly(TestCtx *t) {
    Dir d = temp_file();
    Error err;
    SafeWriter w;
    Safetensors f;
    const uint64_t shape[] = {65536};
    static uint16_t half[65536];
    static float got[65536];
    for (int i = 0; i < 65536; i++)
        half[i] = (uint16_t)i;
    CHECK(t, safewriter_open(&w, d.path, &err));
    safewriter_declare(&w, "f16", SAFE_F16, shape, 1);
    safewriter_declare(&w, "bf16", SAFE_BF16, shape, 1);
    CHECK(t, safewriter_begin(&w, &err) && safewriter_write(&w, half, sizeof half, &err) &&
                 safewriter_write(&w, half, sizeof half, &err) && safewriter_close(&w, &err));
    CHECK(t, safetensors_open(&f, d.path, &err));
    for (int kind = 0; kind < 2; kind++) {
        const SafeTensor *s = safetensors_get(&f, kind ? "bf16" : "f16");
        int bits = kind ? 7 : 10, exponents = kind ? 255 : 31, bias = kind ? 127 : 15;
        CHECK(t, s && safetensors_read(&f, s, 0, 65536, got, &err));
        for (int i = 0; i < 65536; i++) {
            int mantissa = i & ((1 << bits) - 1), e = i >> bits & exponents;
            double want = e ? ldexp(mantissa + (1 << bits), e - bias - bits)
                            : ldexp(mantissa, 1 - bias - bits);
            if (e == exponents) want = mantissa ? (double)NAN : (double)INFINITY;
            bool same = isnan(want) ? isnan(got[i]) : (double)fabsf(got[i]) == want;
            CHECK_MSG(t, same && !signbit(got[i]) == !(i >> 15), "%s %04x gave %a",
                      kind ? "bf16" : "f16", (unsigned)i, (double)got[i]);
        }
    }
    safetensors_close(&f);
    temp_done(&d);
}

static void the_writer_makes_exactly_these_bytes(TestCtx *t) {
    Dir d = temp_file();
    Error err;
    SafeWriter w;
    const uint64_t shape[] = {1, 2};
    const float x[] = {1, 2};
    static const char want[] = "\x90\0\0\0\0\0\0\0{\"__metadata__\":{\"k\\\"\":\"v\\u000a\"},"
                               "\"a\":{\"dtype\":\"F32\",\"shape\":[1,2],\"data_offsets\":[0,8]},"
                               "\"b\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[8,9]}}    "
                               "\0\0\x80\x3F\0\0\0\x40!";
    CHECK(t, safewriter_open(&w, d.path, &err));
    safewriter_meta(&w, "k\"", "v\n");
    safewriter_declare(&w, "a", SAFE_F32, shape, 2);
    safewriter_declare(&w, "b", SAFE_U8, NULL, 0);
    CHECK(t, safewriter_begin(&w, &err) && safewriter_write(&w, x, 4, &err) &&
                 safewriter_write(&w, x + 1, 4, &err) && safewriter_write(&w, "!", 1, &err) &&
                 safewriter_close(&w, &err));
    char *bytes;
    size_t n;
    bool ok = file_read(d.path, 1000, &bytes, &n, &err);
    CHECK_MSG(t, ok, "%s", err.text);
    if (!ok) return;
    CHECK_MSG(t, n == sizeof want - 1 && memcmp(bytes, want, n) == 0, "%zu bytes: %s", n,
              bytes + 8);
    CHECK(t, w.bytes == n && hash64_value(&w.hash) == hash64_of(bytes, n));
    Safetensors f;
    CHECK(t, safetensors_open(&f, d.path, &err) && f.n == 2);
    safetensors_close(&f);
    mem_free(bytes);
    temp_done(&d);
}

static void the_writer_refuses_what_no_reader_takes(TestCtx *t) {
    Dir d = temp_file();
    Error err;
    SafeWriter w;
    const uint64_t shape[] = {1};
    CHECK(t, !safewriter_open(&w, "/nonexistent/x", &err));
    CHECK_ERROR(t, err, "/nonexistent/x: cannot create");
    CHECK(t, safewriter_open(&w, d.path, &err));
    safewriter_declare(&w, "a", SAFE_F32, shape, 1);
    safewriter_declare(&w, "a", SAFE_F32, shape, 1);
    CHECK(t, !safewriter_begin(&w, &err));
    CHECK_ERROR(t, err, "two tensors named 'a'");
    safewriter_abort(&w);
    CHECK(t, safewriter_open(&w, d.path, &err));
    safewriter_meta(&w, "path", "caf\xE9");
    CHECK(t, !safewriter_begin(&w, &err));
    CHECK_ERROR(t, err, "not valid UTF-8");
    safewriter_abort(&w);
    CHECK(t, safewriter_open(&w, d.path, &err));
    safewriter_declare(&w, "a", SAFE_F32, shape, 1);
    CHECK(t, safewriter_begin(&w, &err));
    CHECK(t, !safewriter_close(&w, &err));
    CHECK_ERROR(t, err, "0 bytes of tensor data given, 4 declared");
    temp_done(&d);
}

static void many_tensors_are_found_by_name(TestCtx *t) {
    enum { N = 3000 };
    Dir d = temp_file();
    Error err;
    SafeWriter w;
    Safetensors f;
    char name[32];
    const uint64_t shape[] = {1};
    CHECK(t, safewriter_open(&w, d.path, &err));
    for (int i = 0; i < N; i++) {
        snprintf(name, sizeof name, "h.%d.x", i * 7919 % N);
        safewriter_declare(&w, name, SAFE_F32, shape, 1);
    }
    CHECK(t, safewriter_begin(&w, &err));
    for (int i = 0; i < N; i++) {
        float x = (float)(i * 7919 % N);
        CHECK(t, safewriter_write(&w, &x, sizeof x, &err));
    }
    CHECK(t, safewriter_close(&w, &err));
    CHECK(t, safetensors_open(&f, d.path, &err));
    for (int i = 0; i < N; i++) {
        float x = -1;
        snprintf(name, sizeof name, "h.%d.x", i);
        const SafeTensor *s = safetensors_get(&f, name);
        CHECK_MSG(t, s && safetensors_read(&f, s, 0, 1, &x, &err) && x == (float)i, "%s", name);
    }
    CHECK(t, !safetensors_get(&f, "h.3000.x") && !safetensors_get(&f, ""));
    safetensors_close(&f);
    temp_done(&d);
}

// 5 GB of nothing, then two floats; the file is a hole on disk.
static void offsets_reach_beyond_4_gb(TestCtx *t) {
    Dir d = temp_file();
    Error err;
    Safetensors f;
    const float x[] = {3, 4};
    float got[2] = {0};
    write_file(t, d.path,
               "{\"a\":{\"dtype\":\"BF16\",\"shape\":[2500000000],\"data_offsets\":[0,5000000000]},"
               "\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[5000000000,5000000008]}}",
               0);
    struct stat st;
    int fd = open(d.path, O_WRONLY);
    CHECK(t, fd >= 0 && fstat(fd, &st) == 0);
    if (pwrite(fd, x, sizeof x, st.st_size + 5000000000) != (ssize_t)sizeof x) {
        test_skip(t, "the temporary directory holds no sparse file of 5 GB");
        close(fd);
        temp_done(&d);
        return;
    }
    close(fd);
    bool ok = safetensors_open(&f, d.path, &err);
    CHECK_MSG(t, ok, "%s", err.text);
    if (ok) {
        CHECK(t, safetensors_read(&f, safetensors_get(&f, "b"), 0, 2, got, &err));
        CHECK(t, got[0] == 3 && got[1] == 4);
        CHECK(t, safetensors_read(&f, safetensors_get(&f, "a"), 2499999998u, 2, got, &err));
        CHECK(t, got[0] == 0 && got[1] == 0);
        safetensors_close(&f);
    }
    temp_done(&d);
}

static void a_file_cut_while_open_is_an_error(TestCtx *t) {
    Dir d = temp_file();
    Error err;
    Safetensors f;
    float x[4];
    write_bytes(t, d.path, python_file, sizeof python_file - 1);
    CHECK(t, safetensors_open(&f, d.path, &err));
    CHECK(t, truncate(d.path, 250) == 0);
    CHECK(t, !safetensors_read(&f, safetensors_get(&f, "b"), 0, 4, x, &err));
    CHECK_ERROR(t, err, "became shorter");
    safetensors_close(&f);
    temp_done(&d);
}

TEST_MAIN({"a_file_of_the_reference_writer_is_read", a_file_of_the_reference_writer_is_read},
          {"find_names_what_differs", find_names_what_differs},
          {"halves_convert_exactly", halves_convert_exactly},
          {"the_writer_makes_exactly_these_bytes", the_writer_makes_exactly_these_bytes},
          {"the_writer_refuses_what_no_reader_takes", the_writer_refuses_what_no_reader_takes},
          {"many_tensors_are_found_by_name", many_tensors_are_found_by_name},
          {"offsets_reach_beyond_4_gb", offsets_reach_beyond_4_gb},
          {"a_file_cut_while_open_is_an_error", a_file_cut_while_open_is_an_error})
