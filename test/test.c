// test.c - see test.h.
#define _XOPEN_SOURCE 700
#include "test/test.h"

#include <ftw.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool selected(int argc, char **argv, const char *name) {
    if (argc < 2) return true;
    for (int i = 1; i < argc; i++) {
        if (strstr(name, argv[i])) return true;
    }
    return false;
}

int test_run(int argc, char **argv, const TestCase *cases, int n) {
    int passed = 0, failed = 0, skipped = 0;
    for (int i = 0; i < n; i++) {
        if (!selected(argc, argv, cases[i].name)) continue;
        TestCtx t = {.name = cases[i].name};
        double start = now_seconds();
        cases[i].run(&t);
        double ms = 1e3 * (now_seconds() - start);
        const char *verdict = t.failures ? "FAIL" : t.skipped ? "skip" : "ok";
        printf("%-4s %s (%.0f ms)%s%s\n", verdict, t.name, ms, t.skipped ? ": " : "", t.why);
        fflush(stdout);
        if (t.failures)
            failed++;
        else if (t.skipped)
            skipped++;
        else
            passed++;
    }
    printf("%d passed, %d failed, %d skipped\n", passed, failed, skipped);
    return failed || passed + skipped == 0 ? 1 : 0;
}

void test_fail(TestCtx *t, const char *file, int line, const char *fmt, ...) {
    if (t->failures++ >= 10) return;  // the first failures tell the story
    va_list args;
    va_start(args, fmt);
    printf("  %s:%d: %s: ", file, line, t->name);
    vprintf(fmt, args);
    putchar('\n');
    va_end(args);
}

void test_skip(TestCtx *t, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    vsnprintf(t->why, sizeof t->why, fmt, args);
    va_end(args);
    t->skipped = true;
}

static void index_text(char *text, size_t size, size_t i, const int *shape) {
    if (!shape) {
        snprintf(text, size, "[%zu]", i);
        return;
    }
    int n = 0;
    while (shape[n])
        n++;
    size_t rest = i, used = 0;
    for (int d = 0; d < n && used < size; d++) {
        size_t below = 1;
        for (int e = d + 1; e < n; e++)
            below *= (size_t)shape[e];
        used += (size_t)snprintf(text + used, size - used, "%s%zu", d ? "," : "[", rest / below);
        rest %= below;
    }
    if (used < size) snprintf(text + used, size - used, "]");
}

static double at(const void *b, bool is_double, size_t i) {
    return is_double ? ((const double *)b)[i] : (double)((const float *)b)[i];
}

static bool close_any(TestCtx *t, const char *file, int line, const float *a, const void *b,
                      bool is_double, Close c) {
    double biggest = 0;
    for (size_t i = 0; i < c.n; i++) {
        double v = fabs(at(b, is_double, i));
        if (!isfinite(v)) {
            test_fail(t, file, line, "%s: the reference is not finite at [%zu]", c.what, i);
            return false;
        }
        if (v > biggest) biggest = v;
    }
    double bound = c.abs_tol + c.rel_tol * biggest, worst = -1;
    size_t where = 0, bad = 0;
    for (size_t i = 0; i < c.n; i++) {
        double d = fabs((double)a[i] - at(b, is_double, i));
        bool ok = d <= bound;  // false for NaN
        bad += !ok;
        if (!(d <= worst)) {
            worst = d;
            where = i;
            if (!ok && isnan(d)) break;
        }
    }
    if (!bad) return true;
    char index[64];
    index_text(index, sizeof index, where, c.shape);
    test_fail(t, file, line,
              "%s%s: %.9g, expected %.9g, off by %.3g = %.1f x the bound %.3g (%zu of %zu bad)",
              c.what, index, (double)a[where], at(b, is_double, where), worst, worst / bound, bound,
              bad, c.n);
    return false;
}

bool test_close_f32(TestCtx *t, const char *file, int line, const float *a, const float *b,
                    Close c) {
    return close_any(t, file, line, a, b, false, c);
}

bool test_close_f64(TestCtx *t, const char *file, int line, const float *a, const double *b,
                    Close c) {
    return close_any(t, file, line, a, b, true, c);
}

bool test_same_bits(TestCtx *t, const char *file, int line, const void *a, const void *b,
                    size_t bytes) {
    if (memcmp(a, b, bytes) == 0) return true;
    const unsigned char *p = a, *q = b;
    size_t i = 0;
    while (p[i] == q[i])
        i++;
    test_fail(t, file, line, "bytes differ first at %zu of %zu", i, bytes);
    return false;
}

void test_noise(float *out, size_t n, uint64_t seed, float scale) {
    uint64_t s = seed * 0x9E3779B97F4A7C15u + 1;
    for (size_t i = 0; i < n; i++) {
        s ^= s << 13;
        s ^= s >> 7;
        s ^= s << 17;
        out[i] = scale * ((float)(s >> 40) * 0x1p-23f - 1.0f);
    }
}

char *test_temp_dir(void) {
    const char *base = getenv("TMPDIR");
    char *path = path_join(base ? base : "/tmp", "train_gpt_test_XXXXXX");
    if (!mkdtemp(path)) die("cannot make a temporary directory at %s", path);
    return path;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw) {
    (void)st, (void)type, (void)ftw;
    return remove(path);
}

void test_remove_dir(const char *path) {
    nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

char *test_data(const char *name) {
    const char *dir = getenv("GPT_TEST_DATA");
    char *path = path_join(dir ? dir : "../shared/data", name);
    if (file_exists(path)) return path;
    mem_free(path);
    return NULL;
}
