// mutate.c - runs a fuzz target without libFuzzer: every seed file as it is, then mutated copies,
// the same ones each time. The seeds of fuzz_NAME lie in test/fuzz/seeds/NAME. A fault ends the
// program, so the last line stays away and the run counts as failed.
//     fuzz_NAME [COUNT]
#define _POSIX_C_SOURCE 200809L
#include "gpt/rng.h"
#include "gpt/util.h"

#include <dirent.h>
#include <string.h>

enum { MAX_SEED_BYTES = 1 << 20, MUTANTS = 1500, MAX_EDITS = 8 };

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

// A few random edits: a byte or bit changed, a span cut, doubled or filled with one value.
static size_t mutate(uint8_t *bytes, size_t n, size_t cap, uint64_t key) {
    uint64_t at = 0;
    int edits = 1 + (int)(rng_u64(key, at++) % MAX_EDITS);
    for (int i = 0; i < edits && n > 0; i++) {
        size_t where = rng_u64(key, at++) % n,
               span = 1 + rng_u64(key, at++) % min_size(16, n - where);
        uint8_t value = (uint8_t)rng_u64(key, at++);
        switch (rng_u64(key, at++) % 5) {
        case 0:
            bytes[where] = value;
            break;
        case 1:
            bytes[where] ^= (uint8_t)(1u << (value % 8));
            break;
        case 2:
            memset(bytes + where, value, span);
            break;
        case 3:
            memmove(bytes + where, bytes + where + span, n - where - span);
            n -= span;
            break;
        default:
            if (n + span > cap) break;
            memmove(bytes + where + span, bytes + where, n - where);
            n += span;
        }
    }
    return n;
}

// The input in memory of exactly its size, so that a sanitizer sees every overrun.
static void run(const uint8_t *bytes, size_t n) {
    uint8_t *exact = mem_alloc(n, 1);
    if (n) memcpy(exact, bytes, n);
    LLVMFuzzerTestOneInput(exact, n);
    mem_free(exact);
}

static void run_seed(const char *path, uint64_t key, int64_t count) {
    Error err = {0};
    char *text;
    size_t n;
    if (!file_read(path, MAX_SEED_BYTES, &text, &n, &err)) die("%s", err.text);
    size_t cap = n + 256;
    uint8_t *work = mem_alloc(cap, 1);
    run((const uint8_t *)text, n);
    for (int64_t i = 0; i < count; i++) {
        memcpy(work, text, n);
        run(work, mutate(work, n, cap, rng_mix(key + (uint64_t)i)));
    }
    mem_free(work);
    mem_free(text);
}

int main(int argc, char **argv) {
    const char *name = strrchr(argv[0], '/');
    name = strstr(name ? name : argv[0], "fuzz_");
    int64_t count = MUTANTS;
    if (!name || (argc > 1 && !parse_i64(argv[1], &count))) die("usage: fuzz_NAME [COUNT]");
    char *folder = path_join("test/fuzz/seeds", name + strlen("fuzz_"));
    DIR *d = opendir(folder);
    if (!d) die("%s: cannot open; run from the repository's root", folder);
    int seeds = 0;
    for (struct dirent *e; (e = readdir(d));) {
        if (e->d_name[0] == '.') continue;
        char *path = path_join(folder, e->d_name);
        run_seed(path, rng_key(1, e->d_name), count);
        mem_free(path);
        seeds++;
    }
    closedir(d);
    run(NULL, 0);
    mem_free(folder);
    printf("%d passed, 0 failed, 0 skipped\n", seeds);
    return seeds == 0;
}
