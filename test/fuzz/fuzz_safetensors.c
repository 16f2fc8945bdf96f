// fuzz_safetensors.c - any bytes given as a safetensors file are refused or read within bounds.
// Built with -fsanitize=fuzzer,address,undefined by clang it is a libFuzzer target; with
// -DFUZZ_ALONE a program of its own that mutates built-in files: fuzz_safetensors [SEED [COUNT]].
// Links against gpt/{safetensors*,jsonscan,hash64,util}.c.
#define _GNU_SOURCE
#include "gpt/safetensors.h"
#include "gpt/safetensors_header.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

// What a valid table must fulfil, whatever the file said.
static void check_table(const Safetensors *f, uint64_t data_bytes) {
    uint64_t at = 0;
    for (size_t i = 0; i < f->n; i++) {
        const SafeTensor *t = &f->tensor[i];
        uint64_t bits = safetensors_count(t) * (uint64_t)safetensors_type_bits(t->type);
        assert(t->begin == at && t->end >= t->begin && t->end <= data_bytes);
        assert(bits == 8 * (t->end - t->begin));
        assert(safetensors_get(f, t->name) == t);
        at = t->end;
    }
    assert(at == data_bytes);
    for (size_t i = 0; i < f->n_meta; i++)
        assert(strcmp(safetensors_meta(f, f->meta[i].key), f->meta[i].value) == 0);
}

static void read_all(const Safetensors *f) {
    Error err;
    for (size_t i = 0; i < f->n; i++) {
        const SafeTensor *t = &f->tensor[i];
        if (t->type > SAFE_F16) continue;
        size_t count = (size_t)safetensors_count(t);
        float *x = mem_alloc(count, sizeof *x);
        bool ok = safetensors_read(f, t, 0, count, x, &err);
        assert(ok);
        (void)ok;
        mem_free(x);
    }
}

// Whether the file was accepted.
static bool try_file(const uint8_t *bytes, size_t n) {
    char path[64];
    int fd = memfd_create("fuzz", MFD_CLOEXEC);
    if (fd < 0 || write(fd, bytes, n) != (ssize_t)n) abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    Safetensors f;
    Error err = {{0}};
    bool valid = safetensors_open(&f, path, &err);
    if (valid) {
        check_table(&f, n - f.data_at);
        read_all(&f);
        safetensors_close(&f);
    } else {
        assert(err.text[0]);
    }
    close(fd);
    return valid;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n) {
    try_file(bytes, n);
    return 0;
}

#ifdef FUZZ_ALONE

static const char *const seed_header[] = {
    "{}",
    "{\"test\":{\"dtype\":\"I32\",\"shape\":[2,2],\"data_offsets\":[0,16]}}",
    "{\"__metadata__\":{\"format\":\"pt\",\"n\\u00e9\\ud83d\\ude00\":\"\\\"\"},"
    "\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
    "\"b\":{\"dtype\":\"BF16\",\"shape\":[2,1],\"data_offsets\":[8,12]},"
    "\"c\":{\"dtype\":\"F16\",\"shape\":[],\"data_offsets\":[12,14]},"
    "\"d\":{\"dtype\":\"F4\",\"shape\":[4],\"data_offsets\":[14,16],\"x\":[{\"y\":-1.5e3}]}}",
};

static uint64_t next_random(uint64_t *s) {
    *s ^= *s << 13;
    *s ^= *s >> 7;
    return *s ^= *s << 17;
}

// Pieces that header grammars trip over.
static const char *const word[] = {"18446744073709551615",
                                   "9223372036854775807",
                                   "-1",
                                   "0",
                                   "1e9",
                                   "[",
                                   "]",
                                   "{",
                                   "}",
                                   "\"",
                                   "\\u0000",
                                   "\\ud800",
                                   ",",
                                   ":",
                                   "\"dtype\"",
                                   "\"__metadata__\":{}",
                                   "\xFF",
                                   "\xED\xA0\x80"};

static size_t mutate(uint8_t *bytes, size_t n, size_t cap, uint64_t *s) {
    for (uint64_t k = next_random(s) % 4; k < 5; k++) {
        size_t at = (size_t)(next_random(s) % (n + 1));
        uint64_t how = next_random(s) % 5;
        const char *w = word[next_random(s) % (sizeof word / sizeof word[0])];
        size_t length = how == 0 ? strlen(w) : (size_t)(next_random(s) % 8);
        if (how == 0 && n + length <= cap) {  // insert
            memmove(bytes + at + length, bytes + at, n - at);
            memcpy(bytes + at, w, length);
            n += length;
        } else if (how == 1 && at + length <= n) {  // delete
            memmove(bytes + at, bytes + at + length, n - at - length);
            n -= length;
        } else if (how == 2 && at < n) {
            bytes[at] ^= (uint8_t)(1u << next_random(s) % 8);
        } else if (how == 3 && n > 8) {  // a length that fits again
            uint64_t header = n - 8 < 16 ? n - 8 : n - 8 - 16;
            memcpy(bytes, &header, 8);
        } else if (at < n) {
            bytes[at] = (uint8_t)next_random(s);
        }
    }
    return n;
}

int main(int argc, char **argv) {
    int64_t seed = 1, count = 100000, valid = 0;
    if (argc > 1 && !parse_i64(argv[1], &seed)) die("the seed '%s' is no integer", argv[1]);
    if (argc > 2 && !parse_i64(argv[2], &count)) die("the count '%s' is no integer", argv[2]);
    uint64_t s = (uint64_t)seed * 0x9E3779B97F4A7C15u + 1;
    for (int64_t i = 0; i < count; i++) {
        uint8_t bytes[4096] = {0};
        const char *header = seed_header[i % 3];
        uint64_t n = strlen(header);
        memcpy(bytes, &n, 8);
        memcpy(bytes + 8, header, n);
        size_t whole = 8 + (size_t)n + (i % 3 ? 16 : 0);
        if (i >= 3) whole = mutate(bytes, whole, sizeof bytes - 32, &s);
        valid += try_file(bytes, whole);
    }
    printf("%lld files, %lld of them valid\n", (long long)count, (long long)valid);
    return 0;
}

#endif
