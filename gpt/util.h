// util.h - errors, memory, strings, files and time for everything above the C library.
// Nothing here knows about models. Functions that can fail because of the user return false and
// fill an Error; running out of memory is die().
#pragma once

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#if defined(__GNUC__)
    #define PRINTF_LIKE(fmt, args) __attribute__((format(printf, fmt, args)))
#else
    #define PRINTF_LIKE(fmt, args)
#endif

#ifdef __cplusplus
extern "C" {
    #define NORETURN [[noreturn]]
#else
    #define NORETURN _Noreturn
#endif

// One sentence for the user: what, where, expected, found. Empty text means no error.
typedef struct Error {
    char text[768];
} Error;

// Writes the sentence (cut if too long) and returns false, so that callers can `return
// error_set(...)`.
bool error_set(Error *err, const char *fmt, ...) PRINTF_LIKE(2, 3);

// Puts "prefix: " before the sentence already there; returns false.
bool error_prefix(Error *err, const char *prefix);

// Prints "train_gpt: <sentence>" to stderr and exits with status 1.
NORETURN void die(const char *fmt, ...) PRINTF_LIKE(1, 2);

// Prints "train_gpt: warning: <sentence>" to stderr.
void warn(const char *fmt, ...) PRINTF_LIKE(1, 2);

// Zeroed memory, 64-byte aligned, owned by the caller, freed with mem_free; die() when there is
// none. n * size is checked for overflow. n = 0 gives a valid pointer.
void *mem_alloc(size_t n, size_t size);
// Grows an array obtained from mem_alloc or NULL to n elements; new bytes are not cleared.
void *mem_grow(void *old, size_t old_n, size_t n, size_t size);
void mem_free(void *p);

// A growing byte string. Start from {0}; text is NUL-terminated whenever it is not NULL.
typedef struct Buf {
    char *text;
    size_t n, cap;
} Buf;

void buf_add(Buf *b, const void *bytes, size_t n);
void buf_printf(Buf *b, const char *fmt, ...) PRINTF_LIKE(2, 3);
void buf_free(Buf *b);

// A copy owned by the caller (mem_free).
char *str_copy(const char *s);
// "a/b" in caller-owned memory.
char *path_join(const char *dir, const char *name);
// The entry of names[0..n) with the smallest edit distance to s, or NULL when none is near.
const char *str_nearest(const char *s, const char *const *names, int n);
// Whole-string parses: no trailing garbage, no overflow, no NaN. False leaves *out alone.
bool parse_i64(const char *s, int64_t *out);
bool parse_f64(const char *s, double *out);

// The whole file, NUL-terminated, owned by the caller (mem_free); refuses files over max_bytes.
// n may be NULL.
bool file_read(const char *path, size_t max_bytes, char **data, size_t *n, Error *err);
// Writes through a temporary file in the same directory, fsync and rename.
bool file_write_atomic(const char *path, const void *data, size_t n, Error *err);
bool file_exists(const char *path);
bool dir_exists(const char *path);
// mkdir -p.
bool dir_make(const char *path, Error *err);

// Monotonic seconds.
double now_seconds(void);
// Largest resident set of this process so far, in bytes.
size_t peak_rss_bytes(void);

static inline size_t ceil_div(size_t a, size_t b) {
    return (a + b - 1) / b;
}
static inline size_t round_up(size_t a, size_t b) {
    return ceil_div(a, b) * b;
}
static inline int min_int(int a, int b) {
    return a < b ? a : b;
}
static inline int max_int(int a, int b) {
    return a > b ? a : b;
}
static inline size_t min_size(size_t a, size_t b) {
    return a < b ? a : b;
}

#ifdef __cplusplus
}
#endif
