// test.h - a test program is a file of static functions and one table:
//
//     static void thing_does_what_it_says(TestCtx *t) { CHECK(t, 1 + 1 == 2); }
//     TEST_MAIN({"thing_does_what_it_says", thing_does_what_it_says})
//
// Each case prints one line; the last line is "N passed, N failed, N skipped"; the exit status is 1
// when a case failed. Arguments select cases by substring. NaN fails every comparison.
#pragma once

#include "gpt/util.h"

typedef struct TestCtx {
    const char *name;
    int failures;
    bool skipped;
    char why[256];
} TestCtx;

typedef struct TestCase {
    const char *name;
    void (*run)(TestCtx *t);
} TestCase;

int test_run(int argc, char **argv, const TestCase *cases, int n);

// One comparison. Shape gives the extents for printing the index of the worst element
// (0-terminated, or NULL). Passes when every |a - b| <= abs_tol + rel_tol * max|b| and all values
// are finite.
typedef struct Close {
    const char *what;
    size_t n;
    const int *shape;
    double abs_tol, rel_tol;
} Close;

void test_fail(TestCtx *t, const char *file, int line, const char *fmt, ...) PRINTF_LIKE(4, 5);
void test_skip(TestCtx *t, const char *fmt, ...) PRINTF_LIKE(2, 3);
bool test_close_f32(TestCtx *t, const char *file, int line, const float *a, const float *b,
                    Close c);
bool test_close_f64(TestCtx *t, const char *file, int line, const float *a, const double *b,
                    Close c);
bool test_same_bits(TestCtx *t, const char *file, int line, const void *a, const void *b,
                    size_t bytes);

// Seeded noise in [-scale, scale).
void test_noise(float *out, size_t n, uint64_t seed, float scale);
// An empty temporary directory, owned by the caller (mem_free); test_remove_dir deletes it.
char *test_temp_dir(void);
void test_remove_dir(const char *path);
// Where the optional shared test data lies: $GPT_TEST_DATA or ../shared/data; NULL when absent.
// The result is the path of the file in caller-owned memory.
char *test_data(const char *name);

#define CHECK(t, cond)                                                                             \
    do {                                                                                           \
        if (!(cond)) test_fail((t), __FILE__, __LINE__, "%s", #cond);                              \
    } while (0)

#define CHECK_MSG(t, cond, ...)                                                                    \
    do {                                                                                           \
        if (!(cond)) test_fail((t), __FILE__, __LINE__, __VA_ARGS__);                              \
    } while (0)

// The Error holds a sentence that contains the words.
#define CHECK_ERROR(t, err, words)                                                                 \
    CHECK_MSG(t, strstr((err).text, (words)), "expected an error with '%s', found '%s'", (words),  \
              (err).text)

#define CHECK_CLOSE(t, a, b, ...)                                                                  \
    test_close_f32((t), __FILE__, __LINE__, (a), (b), (Close){__VA_ARGS__})
#define CHECK_CLOSE_F64(t, a, b, ...)                                                              \
    test_close_f64((t), __FILE__, __LINE__, (a), (b), (Close){__VA_ARGS__})
#define CHECK_SAME_BITS(t, a, b, bytes) test_same_bits((t), __FILE__, __LINE__, (a), (b), (bytes))

#define TEST_MAIN(...)                                                                             \
    int main(int argc, char **argv) {                                                              \
        static const TestCase cases[] = {__VA_ARGS__};                                             \
        return test_run(argc, argv, cases, (int)(sizeof cases / sizeof cases[0]));                 \
    }
