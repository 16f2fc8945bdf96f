// test_dataloader.c - samples, order, epochs, resuming and reading ahead.
#define _POSIX_C_SOURCE   200809L
#define _FILE_OFFSET_BITS 64
#include "data/dataloader.h"
#include "data/shard.h"
#include "test/test.h"

#include <fcntl.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

enum { T = 8, VOCAB = 1000000 };

// Shards s0.bin, s1.bin, ... whose token k is 1000 * (file + 1) + k: a sample tells where it is
// from.
typedef struct Scene {
    char *dir, *glob;
} Scene;

static void write_shard(TestCtx *t, const char *dir, const char *name, int start, int n_tokens) {
    Error err = {{0}};
    ShardWriter w;
    char *path = path_join(dir, name);
    bool ok = shard_writer_open(&w, path, 4, &err);
    for (int i = 0; ok && i < n_tokens; i++) {
        int id = start + i;
        ok = shard_writer_add(&w, &id, 1, &err);
    }
    ok = ok && shard_writer_close(&w, &err);
    CHECK_MSG(t, ok, "%s", err.text);
    mem_free(path);
}

static Scene scene_start(TestCtx *t, const int *n_tokens, int n) {
    Scene s = {test_temp_dir(), NULL};
    s.glob = path_join(s.dir, "s*.bin");
    for (int i = 0; i < n; i++) {
        char name[32];
        snprintf(name, sizeof name, "s%d.bin", i);
        write_shard(t, s.dir, name, 1000 * (i + 1), n_tokens[i]);
    }
    return s;
}

static void scene_end(Scene s) {
    test_remove_dir(s.dir);
    mem_free(s.dir);
    mem_free(s.glob);
}

static DataLoader *loader(TestCtx *t, const char *patterns, uint64_t seed, bool shuffle) {
    Error err = {{0}};
    DataLoaderOptions o = {patterns, T, VOCAB, seed, shuffle};
    DataLoader *l = dataloader_open(&o, &err);
    if (!l) die("%s", err.text);
    CHECK(t, l);
    return l;
}

// 5, 1 and 12 samples, with 3, 0 and 6 tokens left over.
static const int three_shards[] = {5 * T + 1 + 3, T + 1, 12 * T + 1 + 6};
enum { SAMPLES = 18 };

static void read_ok(TestCtx *t, DataLoader *l, int64_t first, int n, int *inputs, int *targets) {
    Error err = {{0}};
    CHECK_MSG(t, dataloader_read(l, first, n, inputs, targets, &err), "%s", err.text);
}

static void check_sample(TestCtx *t, const int *inputs, const int *targets) {
    CHECK(t, (inputs[0] % 1000) % T == 0);
    for (int i = 0; i < T; i++) {
        CHECK(t, inputs[i] == inputs[0] + i);
        CHECK(t, targets[i] == inputs[i] + 1);
    }
}

static void every_epoch_has_every_sample_once(TestCtx *t) {
    Scene s = scene_start(t, three_shards, 3);
    for (int shuffle = 0; shuffle < 2; shuffle++) {
        DataLoader *l = loader(t, s.glob, 7, shuffle);
        int same_order = 0, previous[SAMPLES] = {0};
        for (int epoch = 0; epoch < 5; epoch++) {
            int seen[3][16] = {{0}}, inputs[T], targets[T];
            for (int i = 0; i < SAMPLES; i++) {
                read_ok(t, l, epoch * SAMPLES + i, 1, inputs, targets);
                check_sample(t, inputs, targets);
                int file = inputs[0] / 1000 - 1, k = inputs[0] % 1000 / T;
                CHECK(t, file >= 0 && file < 3 && k < 16 && seen[file][k]++ == 0);
                same_order += inputs[0] == previous[i];
                previous[i] = inputs[0];
            }
        }
        CHECK_MSG(t, shuffle ? same_order < 20 : same_order == 4 * SAMPLES, "%d", same_order);
        dataloader_close(l);
    }
    scene_end(s);
}

static void counts_are_reported(TestCtx *t) {
    Scene s = scene_start(t, three_shards, 3);
    DataLoader *l = loader(t, s.glob, 7, true);
    DataLoaderInfo info = dataloader_info(l);
    CHECK(t, info.n_shards == 3 && info.n_samples == SAMPLES);
    CHECK(t, info.n_tokens == three_shards[0] + three_shards[1] + three_shards[2]);
    CHECK(t, info.n_unused == 9);
    dataloader_close(l);
    scene_end(s);
}

static void samples_without_shuffling_follow_the_files(TestCtx *t) {
    Scene s = scene_start(t, three_shards, 3);
    DataLoader *l = loader(t, s.glob, 7, false);
    int inputs[SAMPLES * T], targets[SAMPLES * T];
    read_ok(t, l, 0, SAMPLES, inputs, targets);
    for (int i = 0; i < SAMPLES; i++) {
        int want = i < 5 ? 1000 + i * T : i < 6 ? 2000 : 3000 + (i - 6) * T;
        CHECK_MSG(t, inputs[i * T] == want, "sample %d: %d", i, inputs[i * T]);
    }
    dataloader_close(l);
    scene_end(s);
}

static void micro_batches_see_the_same_data(TestCtx *t) {
    Scene s = scene_start(t, three_shards, 3);
    DataLoader *l = loader(t, s.glob, 3, true);
    enum { N = 24 };
    int all[2][N * T], part[2][N * T];
    read_ok(t, l, 31, N, all[0], all[1]);  // over the end of an epoch
    for (int n = 1; n <= N; n++) {
        for (int i = 0; i < N; i += n) {
            int m = min_int(n, N - i);
            read_ok(t, l, 31 + i, m, part[0] + i * T, part[1] + i * T);
        }
        CHECK_SAME_BITS(t, all[0], part[0], sizeof all[0]);
        CHECK_SAME_BITS(t, all[1], part[1], sizeof all[1]);
    }
    dataloader_close(l);
    scene_end(s);
}

static void a_new_loader_goes_on_in_the_middle_of_an_epoch(TestCtx *t) {
    Scene s = scene_start(t, three_shards, 3);
    int straight[5 * SAMPLES * T], resumed[T], targets[5 * SAMPLES * T];
    DataLoader *l = loader(t, s.glob, 99, true);
    read_ok(t, l, 0, 5 * SAMPLES, straight, targets);
    dataloader_close(l);
    l = loader(t, s.glob, 99, true);
    for (int i = 2 * SAMPLES + 7; i < 5 * SAMPLES; i++) {
        read_ok(t, l, i, 1, resumed, targets);
        CHECK_SAME_BITS(t, resumed, straight + i * T, sizeof resumed);
    }
    dataloader_close(l);
    scene_end(s);
}

static void the_seed_decides_the_order(TestCtx *t) {
    Scene s = scene_start(t, three_shards, 3);
    DataLoader *a = loader(t, s.glob, 1, true), *b = loader(t, s.glob, 1, true),
               *c = loader(t, s.glob, 2, true);
    int same_ab = 0, same_ac = 0;
    for (int64_t i = 0; i < 10 * SAMPLES; i++) {
        same_ab += dataloader_order(a, i) == dataloader_order(b, i);
        same_ac += dataloader_order(a, i) == dataloader_order(c, i);
    }
    CHECK(t, same_ab == 10 * SAMPLES && same_ac < 3 * SAMPLES);
    dataloader_close(a);
    dataloader_close(b);
    dataloader_close(c);
    scene_end(s);
}

// Over many epochs each sample stands at each place about equally often.
static void the_order_is_a_fair_permutation_for_any_size(TestCtx *t) {
    for (int n = 1; n <= 80; n += n < 20 ? 1 : 13) {
        int n_tokens = n * T + 1, epochs = 400, worst = 0;
        static int at[80][80];
        memset(at, 0, sizeof at);
        Scene s = scene_start(t, &n_tokens, 1);
        DataLoader *l = loader(t, s.glob, 5, true);
        for (int64_t i = 0; i < (int64_t)n * epochs; i++) {
            int64_t sample = dataloader_order(l, i);
            CHECK(t, sample >= 0 && sample < n);
            at[i % n][sample]++;
        }
        for (int place = 0; place < n; place++) {
            int sum = 0;
            for (int k = 0; k < n; k++) {
                sum += at[place][k];
                worst = max_int(worst, at[place][k]);
            }
            CHECK(t, sum == epochs);
        }
        double p = 1.0 / n, bound = epochs * p + 6 * sqrt(epochs * p * (1 - p));
        CHECK_MSG(t, worst <= bound, "n %d: %d, bound %.1f", n, worst, bound);
        dataloader_close(l);
        scene_end(s);
    }
}

static void reading_ahead_gives_the_same_samples(TestCtx *t) {
    Scene s = scene_start(t, three_shards, 3);
    DataLoader *a = loader(t, s.glob, 3, true), *b = loader(t, s.glob, 3, true);
    int x[2][4 * T], y[2][4 * T];
    for (int i = 0; i < 60; i++) {
        int n = 1 + i % 4;
        if (i % 3) dataloader_prefetch(a, 5 * i, n);
        if (i % 7 == 1) dataloader_prefetch(a, 5 * i + 1, 4);  // not what is read next
        read_ok(t, a, 5 * i, n, x[0], x[1]);
        read_ok(t, b, 5 * i, n, y[0], y[1]);
        CHECK_SAME_BITS(t, x[0], y[0], (size_t)n * T * sizeof(int));
        CHECK_SAME_BITS(t, x[1], y[1], (size_t)n * T * sizeof(int));
    }
    dataloader_prefetch(a, 3, 2);
    dataloader_close(a);
    dataloader_close(b);
    scene_end(s);
}

static void errors_come_with_the_read(TestCtx *t) {
    int n_tokens = 4 * T + 1;
    Scene s = scene_start(t, &n_tokens, 1);
    Error err = {{0}};
    DataLoaderOptions o = {s.glob, T, 1000 + 3 * T + 2, 1, false};
    DataLoader *l = dataloader_open(&o, &err);
    int inputs[2 * T], targets[2 * T];
    read_ok(t, l, 0, 2, inputs, targets);
    dataloader_prefetch(l, 2, 2);
    CHECK(t, !dataloader_read(l, 2, 2, inputs, targets, &err));
    CHECK_ERROR(t, err, "the vocabulary has 1026 ids");
    char *path = path_join(s.dir, "s0.bin");
    CHECK(t, truncate(path, 1024 + 4 * T) == 0);
    CHECK(t, !dataloader_read(l, 1, 1, inputs, targets, &err));
    CHECK_ERROR(t, err, "s0.bin: ends at byte");
    dataloader_prefetch(l, 1, 1);
    read_ok(t, l, 4, 0, inputs, targets);
    CHECK(t, !dataloader_read(l, 1, 1, inputs, targets, &err));
    mem_free(path);
    dataloader_close(l);
    scene_end(s);
}

// --- Which files

static void check_open_fails(TestCtx *t, const char *patterns, int seq_len, const char *words) {
    Error err = {{0}};
    DataLoaderOptions o = {patterns, seq_len, VOCAB, 1, true};
    DataLoader *l = dataloader_open(&o, &err);
    CHECK(t, !l);
    CHECK_ERROR(t, err, words);
    dataloader_close(l);
}

static void wrong_files_are_refused_with_a_sentence(TestCtx *t) {
    Scene s = scene_start(t, three_shards, 3);
    Error err;
    Buf b = {0};
    check_open_fails(t, "", T, "no token shards are named");
    buf_printf(&b, "%s/s0.bin %s/train*.bin", s.dir, s.dir);
    check_open_fails(t, b.text, T, "train*.bin: no such file");
    b.n = 0;
    buf_printf(&b, "%s %s/s1.bin", s.glob, s.dir);
    check_open_fails(t, b.text, T, "s1.bin: the pattern");
    check_open_fails(t, s.dir, T, "is a folder; name the shards in it");
    check_open_fails(
        t, s.glob, 1000,
        "a sample of 1000 tokens needs a shard of 1001 tokens or more, the longest of 3 has 103");
    b.n = 0;
    buf_printf(&b, "%s/s3.bin", s.dir);
    CHECK(t, file_write_atomic(b.text, "text", 4, &err));
    check_open_fails(t, s.glob, T, "s3.bin: is not a token shard");
    buf_free(&b);
    scene_end(s);
}

static void patterns_may_be_a_list_and_hold_spaces(TestCtx *t) {
    Scene s = scene_start(t, three_shards, 3);
    write_shard(t, s.dir, "with space.bin", 9000, T + 1);
    Buf b = {0};
    buf_printf(&b, "  %s/s2.bin\n%s/with\\ space.bin\t%s/s[01].bin ", s.dir, s.dir, s.dir);
    DataLoader *l = loader(t, b.text, 0, false);
    CHECK(t, dataloader_info(l).n_shards == 4 && dataloader_info(l).n_samples == SAMPLES + 1);
    int inputs[T], targets[T];
    static const int starts[][2] = {{0, 3000}, {12, 9000}, {13, 1000}, {18, 2000}};
    for (int i = 0; i < 4; i++) {
        read_ok(t, l, starts[i][0], 1, inputs, targets);
        CHECK(t, inputs[0] == starts[i][1]);
    }
    dataloader_close(l);
    buf_free(&b);
    scene_end(s);
}

static uint64_t fingerprint(TestCtx *t, const char *patterns) {
    DataLoader *l = loader(t, patterns, 1, true);
    uint64_t f = dataloader_info(l).fingerprint;
    dataloader_close(l);
    return f;
}

static void the_fingerprint_tells_other_data(TestCtx *t) {
    Scene a = scene_start(t, three_shards, 3), b = scene_start(t, three_shards, 3);
    CHECK(t, fingerprint(t, a.glob) == fingerprint(t, b.glob));
    char *longer = path_join(b.dir, "s1.bin"), *other = path_join(b.dir, "s5.bin");
    write_shard(t, b.dir, "s1.bin", 2000, T + 2);
    CHECK(t, fingerprint(t, a.glob) != fingerprint(t, b.glob));
    write_shard(t, b.dir, "s1.bin", 2000, T + 1);
    CHECK(t, fingerprint(t, a.glob) == fingerprint(t, b.glob));
    CHECK(t, rename(longer, other) == 0);
    CHECK(t, fingerprint(t, a.glob) != fingerprint(t, b.glob));
    mem_free(longer);
    mem_free(other);
    scene_end(a);
    scene_end(b);
}

static void more_shards_than_open_files_are_read(TestCtx *t) {
    enum { N = 300 };
    static const int one[] = {T + 1};
    Scene s = scene_start(t, one, 1);
    char *first = path_join(s.dir, "s0.bin");
    for (int i = 1; i < N; i++) {
        char name[32];
        snprintf(name, sizeof name, "s%d.bin", i);
        char *path = path_join(s.dir, name);
        CHECK(t, link(first, path) == 0);
        mem_free(path);
    }
    mem_free(first);
    DataLoader *l = loader(t, s.glob, 1, true);
    CHECK(t, dataloader_info(l).n_shards == N);
    static int inputs[2 * N * T], targets[2 * N * T];
    read_ok(t, l, 0, 2 * N, inputs, targets);
    for (int i = 0; i < 2 * N; i++)
        check_sample(t, inputs + i * T, targets + i * T);
    int fds = 0;
    for (int fd = 0; fd < 1024; fd++)
        fds += fcntl(fd, F_GETFD) >= 0;
    CHECK(t, fds < 150);
    dataloader_close(l);
    scene_end(s);
}

// 2.5e9 tokens in one file of 5 GB with holes.
static void a_file_of_5_gb_is_read_in_constant_memory(TestCtx *t) {
    Scene s = scene_start(t, NULL, 0);
    char *path = path_join(s.dir, "s0.bin");
    int64_t n = 2500000000;
    int32_t header[5] = {20240520, 1, -1, 0, 0};
    memcpy(header + 3, &n, sizeof n);
    uint16_t last = 777;
    int fd = open(path, O_WRONLY | O_CREAT, 0600);
    bool made = fd >= 0 && ftruncate(fd, (off_t)(1024 + 2 * n)) == 0 &&
                pwrite(fd, header, 20, 0) == 20 &&
                pwrite(fd, &last, 2, (off_t)(1024 + 2 * (n - n % 1024))) == 2;
    if (fd >= 0) close(fd);
    if (!made) {
        test_skip(t, "a sparse file of 5 GB cannot be made in %s", s.dir);
    } else {
        Error err = {{0}};
        DataLoaderOptions o = {s.glob, 1024, 1000, 1, false};
        DataLoader *l = dataloader_open(&o, &err);
        static int inputs[64 * 1024], targets[64 * 1024];
        int64_t samples = dataloader_info(l).n_samples;
        CHECK(t, samples == (n - 1) / 1024);
        read_ok(t, l, samples - 1, 1, inputs, targets);
        CHECK(t, inputs[1023] == 0 && targets[1023] == 777);
        dataloader_prefetch(l, 0, 64);
        size_t before = peak_rss_bytes();
        for (int64_t i = 0; i + 128 < samples; i += 8192) {
            read_ok(t, l, i, 64, inputs, targets);
            dataloader_prefetch(l, i + 8192, 64);
        }
        size_t grown = peak_rss_bytes() - before;
        CHECK_MSG(t, grown < 4 << 20, "%zu bytes more", grown);
        dataloader_close(l);
    }
    mem_free(path);
    scene_end(s);
}

TEST_MAIN({"every_epoch_has_every_sample_once", every_epoch_has_every_sample_once},
          {"counts_are_reported", counts_are_reported},
          {"samples_without_shuffling_follow_the_files",
           samples_without_shuffling_follow_the_files},
          {"micro_batches_see_the_same_data", micro_batches_see_the_same_data},
          {"a_new_loader_goes_on_in_the_middle_of_an_epoch",
           a_new_loader_goes_on_in_the_middle_of_an_epoch},
          {"the_seed_decides_the_order", the_seed_decides_the_order},
          {"the_order_is_a_fair_permutation_for_any_size",
           the_order_is_a_fair_permutation_for_any_size},
          {"reading_ahead_gives_the_same_samples", reading_ahead_gives_the_same_samples},
          {"errors_come_with_the_read", errors_come_with_the_read},
          {"wrong_files_are_refused_with_a_sentence", wrong_files_are_refused_with_a_sentence},
          {"patterns_may_be_a_list_and_hold_spaces", patterns_may_be_a_list_and_hold_spaces},
          {"the_fingerprint_tells_other_data", the_fingerprint_tells_other_data},
          {"more_shards_than_open_files_are_read", more_shards_than_open_files_are_read},
          {"a_file_of_5_gb_is_read_in_constant_memory", a_file_of_5_gb_is_read_in_constant_memory})
