// dataloader.c - see dataloader.h.
#define _POSIX_C_SOURCE 200809L
#include "data/dataloader.h"

#include "data/shard.h"
#include "gpt/rng.h"

#include <assert.h>
#include <glob.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

// Open files kept at a time, far below the usual limit of 1024 for a process.
enum { MOST_OPEN = 128 };

// What the thread reads ahead. The thread owns all but `state` and `stop` while state is BUSY.
typedef struct Prefetch {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    enum { IDLE, BUSY, READY } state;
    bool started, stop;
    int64_t first;
    int n;
    int *inputs, *targets;  // (n, T)
    size_t cap;             // samples that fit
    bool ok;
    Error err;
} Prefetch;

struct DataLoader {
    DataLoaderOptions o;
    Shard *shards;       // (n_shards)
    int64_t *first;      // (n_shards + 1) samples before each shard
    int64_t *last_used;  // (n_shards) for giving back the file used longest ago
    int64_t clock;
    int n_open;
    DataLoaderInfo info;
    int *row;  // (T + 1)
    Prefetch ahead;
};

// --- The set of shards

static int by_text(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static bool add_shard(DataLoader *l, const char *path, const char *pattern, Error *err) {
    for (int i = 0; i < l->info.n_shards; i++) {
        if (strcmp(l->shards[i].path, path)) continue;
        return error_set(err, "%s: the pattern '%s' names this shard a second time", path, pattern);
    }
    int n = l->info.n_shards;
    if ((n & (n - 1)) == 0)
        l->shards = mem_grow(l->shards, (size_t)n, n ? 2 * (size_t)n : 1, sizeof(Shard));
    if (dir_exists(path)) {
        return error_set(err, "%s: is a folder; name the shards in it, for example %s/train_*.bin",
                         path, path);
    }
    if (!shard_open(&l->shards[n], path, err)) return false;
    shard_release(&l->shards[n]);
    l->info.n_shards++;
    return true;
}

static bool add_pattern(DataLoader *l, const char *pattern, Error *err) {
    glob_t found = {0};
    int rc = glob(pattern, 0, NULL, &found);
    bool ok =
        rc == 0 ||
        error_set(err, rc == GLOB_NOMATCH ? "%s: no such file" : "%s: cannot search here", pattern);
    // By bytes and not by the locale: the order decides which sample is which.
    if (ok) qsort(found.gl_pathv, found.gl_pathc, sizeof *found.gl_pathv, by_text);
    for (size_t i = 0; ok && i < found.gl_pathc; i++)
        ok = add_shard(l, found.gl_pathv[i], pattern, err);
    globfree(&found);
    return ok;
}

static bool add_patterns(DataLoader *l, const char *patterns, Error *err) {
    static const char space[] = " \t\r\n";
    const char *at = patterns;
    for (;;) {
        at += strspn(at, space);
        if (!*at) break;
        size_t n = 0;
        while (at[n] && !strchr(space, at[n]))
            n += at[n] == '\\' && at[n + 1] ? 2 : 1;
        Buf pattern = {0};
        buf_add(&pattern, at, n);
        bool ok = add_pattern(l, pattern.text, err);
        buf_free(&pattern);
        if (!ok) return false;
        at += n;
    }
    return l->info.n_shards > 0 ||
           error_set(err, "no token shards are named, expected files or globs");
}

static bool count_samples(DataLoader *l, Error *err) {
    int n = l->info.n_shards;
    int64_t T = l->o.seq_len, longest = 0;
    uint64_t h = RNG_FNV_START;
    l->first = mem_alloc((size_t)n + 1, sizeof *l->first);
    l->last_used = mem_alloc((size_t)n, sizeof *l->last_used);
    for (int i = 0; i < n; i++) {
        const Shard *s = &l->shards[i];
        int64_t samples = s->n_tokens > 0 ? (s->n_tokens - 1) / T : 0;
        l->first[i + 1] = l->first[i] + samples;
        l->info.n_tokens += s->n_tokens;
        l->info.n_unused += s->n_tokens - (samples ? samples * T + 1 : 0);
        longest = s->n_tokens > longest ? s->n_tokens : longest;
        const char *slash = strrchr(s->path, '/'), *name = slash ? slash + 1 : s->path;
        h = rng_fnv(h, name, strlen(name) + 1);
        h = rng_fnv(h, &s->file_bytes, sizeof s->file_bytes);
        h = rng_fnv(h, &s->header_hash, sizeof s->header_hash);
    }
    l->info.n_samples = l->first[n];
    l->info.fingerprint = rng_mix(h);
    if (l->info.n_samples > 0) return true;
    return error_set(err,
                     "%s: a sample of %d tokens needs a shard of %lld tokens or more, the longest "
                     "of %d has %lld; "
                     "give more text or a smaller sequence length",
                     l->o.patterns, l->o.seq_len, (long long)T + 1, n, (long long)longest);
}

DataLoader *dataloader_open(const DataLoaderOptions *o, Error *err) {
    assert(o->seq_len > 0 && o->n_vocab > 0);
    DataLoader *l = mem_alloc(1, sizeof *l);
    l->o = *o;
    l->o.patterns = str_copy(o->patterns);
    l->row = mem_alloc((size_t)o->seq_len + 1, sizeof *l->row);
    pthread_mutex_init(&l->ahead.lock, NULL);
    pthread_cond_init(&l->ahead.changed, NULL);
    if (add_patterns(l, l->o.patterns, err) && count_samples(l, err)) return l;
    dataloader_close(l);
    return NULL;
}

DataLoaderInfo dataloader_info(const DataLoader *l) {
    return l->info;
}

// --- The order

// A bijection of 0 .. n-1: four rounds of a Feistel network over the next power of four, walked
// along its cycle until the value is below n again.
static int64_t permute(uint64_t key, int64_t n, int64_t i) {
    int half = 3;
    while (INT64_C(1) << (2 * half) < n)
        half++;
    uint64_t mask = (UINT64_C(1) << half) - 1, x = (uint64_t)i;
    do {
        uint64_t left = x >> half, right = x & mask;
        for (uint64_t round = 0; round < 4; round++) {
            uint64_t mixed = left ^ (rng_u64(key, round << 32 | right) & mask);
            left = right;
            right = mixed;
        }
        x = left << half | right;
    } while (x >= (uint64_t)n);
    return (int64_t)x;
}

int64_t dataloader_order(const DataLoader *l, int64_t i) {
    assert(i >= 0);
    int64_t n = l->info.n_samples, epoch = i / n;
    if (!l->o.shuffle) return i % n;
    return permute(rng_u64(rng_key(l->o.seed, "data order"), (uint64_t)epoch), n, i % n);
}

// --- Reading

static bool shard_ready(DataLoader *l, int i, Error *err) {
    Shard *s = &l->shards[i];
    l->last_used[i] = ++l->clock;
    if (s->fd >= 0) return true;
    if (l->n_open == MOST_OPEN) {
        int oldest = -1;
        for (int k = 0; k < l->info.n_shards; k++) {
            if (l->shards[k].fd < 0) continue;
            if (oldest < 0 || l->last_used[k] < l->last_used[oldest]) oldest = k;
        }
        shard_release(&l->shards[oldest]);
        l->n_open--;
    }
    if (!shard_reopen(s, err)) return false;
    l->n_open++;
    return true;
}

static int shard_of(const DataLoader *l, int64_t sample) {
    int low = 0, high = l->info.n_shards;
    while (high - low > 1) {
        int middle = low + (high - low) / 2;
        if (l->first[middle] <= sample)
            low = middle;
        else
            high = middle;
    }
    return low;
}

static bool read_now(DataLoader *l, int64_t first, int n, int *inputs, int *targets, Error *err) {
    size_t T = (size_t)l->o.seq_len;
    for (int b = 0; b < n; b++) {
        int64_t sample = dataloader_order(l, first + b);
        int i = shard_of(l, sample);
        int64_t token = (sample - l->first[i]) * l->o.seq_len;
        if (!shard_ready(l, i, err)) return false;
        if (!shard_read(&l->shards[i], token, l->o.seq_len + 1, l->o.n_vocab, l->row, err))
            return false;
        memcpy(inputs + (size_t)b * T, l->row, T * sizeof *inputs);
        memcpy(targets + (size_t)b * T, l->row + 1, T * sizeof *targets);
    }
    return true;
}

// --- Reading ahead

static void *prefetch_main(void *arg) {
    DataLoader *l = arg;
    Prefetch *a = &l->ahead;
    pthread_mutex_lock(&a->lock);
    for (;;) {
        while (a->state != BUSY && !a->stop)
            pthread_cond_wait(&a->changed, &a->lock);
        if (a->stop) break;
        pthread_mutex_unlock(&a->lock);
        bool ok = read_now(l, a->first, a->n, a->inputs, a->targets, &a->err);
        pthread_mutex_lock(&a->lock);
        a->ok = ok;
        a->state = READY;
        pthread_cond_signal(&a->changed);
    }
    pthread_mutex_unlock(&a->lock);
    return NULL;
}

// Afterwards nothing reads ahead, so this thread may use the loader.
static void prefetch_wait(Prefetch *a) {
    if (!a->started) return;
    pthread_mutex_lock(&a->lock);
    while (a->state == BUSY)
        pthread_cond_wait(&a->changed, &a->lock);
    pthread_mutex_unlock(&a->lock);
}

void dataloader_prefetch(DataLoader *l, int64_t first, int n) {
    assert(first >= 0 && n > 0);
    Prefetch *a = &l->ahead;
    prefetch_wait(a);
    if (!a->started) {
        // Without a thread the next read is slower and as correct.
        if (pthread_create(&a->thread, NULL, prefetch_main, l)) return;
        a->started = true;
    }
    if ((size_t)n > a->cap) {
        mem_free(a->inputs);
        mem_free(a->targets);
        a->cap = (size_t)n;
        a->inputs = mem_alloc(a->cap * (size_t)l->o.seq_len, sizeof *a->inputs);
        a->targets = mem_alloc(a->cap * (size_t)l->o.seq_len, sizeof *a->targets);
    }
    pthread_mutex_lock(&a->lock);
    a->first = first;
    a->n = n;
    a->state = BUSY;
    pthread_cond_signal(&a->changed);
    pthread_mutex_unlock(&a->lock);
}

bool dataloader_read(DataLoader *l, int64_t first, int n, int *inputs, int *targets, Error *err) {
    assert(first >= 0 && n >= 0);
    Prefetch *a = &l->ahead;
    prefetch_wait(a);
    if (!a->started || a->state != READY || a->first != first || a->n != n) {
        return read_now(l, first, n, inputs, targets, err);
    }
    a->state = IDLE;
    size_t bytes = (size_t)n * (size_t)l->o.seq_len * sizeof *inputs;
    if (!a->ok) {
        *err = a->err;
        return false;
    }
    memcpy(inputs, a->inputs, bytes);
    memcpy(targets, a->targets, bytes);
    return true;
}

void dataloader_close(DataLoader *l) {
    if (!l) return;
    Prefetch *a = &l->ahead;
    if (a->started) {
        pthread_mutex_lock(&a->lock);
        a->stop = true;
        pthread_cond_signal(&a->changed);
        pthread_mutex_unlock(&a->lock);
        pthread_join(a->thread, NULL);
    }
    pthread_mutex_destroy(&a->lock);
    pthread_cond_destroy(&a->changed);
    for (int i = 0; i < l->info.n_shards; i++)
        shard_close(&l->shards[i]);
    mem_free(l->shards);
    mem_free(l->first);
    mem_free(l->last_used);
    mem_free(l->row);
    mem_free(a->inputs);
    mem_free(a->targets);
    mem_free((char *)l->o.patterns);
    mem_free(l);
}
