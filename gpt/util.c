// util.c - see util.h.
#define _POSIX_C_SOURCE 200809L
#include "gpt/util.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

bool error_set(Error *err, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    vsnprintf(err->text, sizeof err->text, fmt, args);
    va_end(args);
    return false;
}

bool error_prefix(Error *err, const char *prefix) {
    Error old = *err;
    return error_set(err, "%s: %s", prefix, old.text);
}

static void say(const char *label, const char *fmt, va_list args) {
    fflush(stdout);
    fprintf(stderr, "train_gpt: %s", label);
    vfprintf(stderr, fmt, args);
    fputc('\n', stderr);
}

void die(const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    say("", fmt, args);
    va_end(args);
    exit(1);
}

void warn(const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    say("warning: ", fmt, args);
    va_end(args);
}

void *mem_alloc(size_t n, size_t size) {
    if (size && n > (SIZE_MAX - 63) / size)
        die("%zu elements of %zu bytes overflow memory sizes", n, size);
    size_t used = n * size, bytes = round_up(used > 0 ? used : 1, 64);
    // Cleared even when untouched pages would read as zero: the allocator may hand back used
    // memory.
    void *p = aligned_alloc(64, bytes);
    if (!p) die("out of memory: %zu bytes asked for", bytes);
    memset(p, 0, bytes);
    return p;
}

void *mem_grow(void *old, size_t old_n, size_t n, size_t size) {
    void *p = mem_alloc(n, size);
    if (old) memcpy(p, old, (old_n < n ? old_n : n) * size);
    mem_free(old);
    return p;
}

void mem_free(void *p) {
    free(p);
}

static void buf_reserve(Buf *b, size_t more) {
    if (b->n + more + 1 <= b->cap) return;
    size_t cap = b->cap ? b->cap : 256;
    while (cap < b->n + more + 1)
        cap *= 2;
    b->text = mem_grow(b->text, b->n, cap, 1);
    b->cap = cap;
}

void buf_add(Buf *b, const void *bytes, size_t n) {
    buf_reserve(b, n);
    if (n) memcpy(b->text + b->n, bytes, n);
    b->n += n;
    b->text[b->n] = 0;
}

void buf_printf(Buf *b, const char *fmt, ...) {
    va_list args, again;
    va_start(args, fmt);
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    if (n < 0) die("a text could not be formatted: '%s'", fmt);
    buf_reserve(b, (size_t)n);
    vsnprintf(b->text + b->n, (size_t)n + 1, fmt, again);
    va_end(again);
    b->n += (size_t)n;
}

void buf_free(Buf *b) {
    mem_free(b->text);
    *b = (Buf){0};
}

char *str_copy(const char *s) {
    size_t n = strlen(s) + 1;
    return memcpy(mem_alloc(n, 1), s, n);
}

char *path_join(const char *dir, const char *name) {
    Buf b = {0};
    size_t n = strlen(dir);
    buf_printf(&b, "%s%s%s", dir, n && dir[n - 1] == '/' ? "" : "/", name);
    return b.text;
}

static int edit_distance(const char *a, const char *b) {
    enum { LONGEST = 64 };
    int row[LONGEST + 1], nb = (int)strlen(b);
    if (strlen(a) > LONGEST || nb > LONGEST) return LONGEST;
    for (int j = 0; j <= nb; j++)
        row[j] = j;
    for (int i = 1; a[i - 1]; i++) {
        int diagonal = row[0];
        row[0] = i;
        for (int j = 1; j <= nb; j++) {
            int substitute = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            row[j] = min_int(substitute, min_int(row[j], row[j - 1]) + 1);
        }
    }
    return row[nb];
}

const char *str_nearest(const char *s, const char *const *names, int n) {
    const char *best = NULL;
    int best_distance = max_int(2, (int)strlen(s) / 2) + 1;
    for (int i = 0; i < n; i++) {
        int d = edit_distance(s, names[i]);
        if (d < best_distance) {
            best_distance = d;
            best = names[i];
        }
    }
    return best;
}

bool parse_i64(const char *s, int64_t *out) {
    char *end;
    if (!((*s >= '0' && *s <= '9') || *s == '-')) return false;
    errno = 0;
    long long v = strtoll(s, &end, 10);
    if (errno || *end || end == s) return false;
    *out = v;
    return true;
}

bool parse_f64(const char *s, double *out) {
    char *end;
    if (!((*s >= '0' && *s <= '9') || *s == '-' || *s == '.')) return false;
    errno = 0;
    double v = strtod(s, &end);
    if (*end || end == s || !isfinite(v)) return false;
    *out = v;
    return true;
}

bool file_read(const char *path, size_t max_bytes, char **data, size_t *n, Error *err) {
    FILE *f = fopen(path, "rb");
    if (!f) return error_set(err, "%s: cannot open (%s)", path, strerror(errno));
    struct stat st;
    if (fstat(fileno(f), &st) == 0 && S_ISDIR(st.st_mode)) {
        fclose(f);
        return error_set(err, "%s: is a directory, expected a file", path);
    }
    Buf b = {0};
    char chunk[65536];
    size_t got;
    while ((got = fread(chunk, 1, sizeof chunk, f)) > 0 && b.n <= max_bytes)
        buf_add(&b, chunk, got);
    bool bad = ferror(f), big = b.n > max_bytes;
    fclose(f);
    if (bad || big) {
        buf_free(&b);
        if (bad) return error_set(err, "%s: reading failed", path);
        return error_set(err, "%s: larger than the %zu bytes allowed here", path, max_bytes);
    }
    buf_add(&b, "", 0);
    *data = b.text;
    if (n) *n = b.n;
    return true;
}

static bool write_synced(const char *path, const void *data, size_t n, Error *err) {
    FILE *f = fopen(path, "wb");
    if (!f) return error_set(err, "%s: cannot create (%s)", path, strerror(errno));
    bool ok = fwrite(data, 1, n, f) == n && fflush(f) == 0 && fsync(fileno(f)) == 0;
    int why = errno;
    ok = fclose(f) == 0 && ok;
    return ok || error_set(err, "%s: writing %zu bytes failed (%s)", path, n, strerror(why));
}

bool file_write_atomic(const char *path, const void *data, size_t n, Error *err) {
    Buf tmp = {0};
    buf_printf(&tmp, "%s.tmp-%ld", path, (long)getpid());
    bool ok = write_synced(tmp.text, data, n, err);
    if (ok && rename(tmp.text, path))
        ok = error_set(err, "%s: rename failed (%s)", path, strerror(errno));
    if (!ok) remove(tmp.text);
    buf_free(&tmp);
    return ok;
}

bool file_exists(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

bool dir_exists(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

bool dir_make(const char *path, Error *err) {
    char *p = str_copy(path);
    for (char *s = p + 1;; s++) {
        if (*s && *s != '/') continue;
        char was = *s;
        *s = 0;
        if (mkdir(p, 0777) && errno != EEXIST) {
            error_set(err, "%s: cannot create the directory (%s)", p, strerror(errno));
            mem_free(p);
            return false;
        }
        *s = was;
        if (!was) break;
    }
    mem_free(p);
    return dir_exists(path) || error_set(err, "%s: is not a directory", path);
}

double now_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

size_t peak_rss_bytes(void) {
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (size_t)u.ru_maxrss * 1024;
}
