// test_shard.c - token shards: byte layout, refusals, sizes beyond 32 bits.
#define _POSIX_C_SOURCE   200809L
#define _FILE_OFFSET_BITS 64
#include "data/shard.h"
#include "test/test.h"

#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

// A folder and a path in it; free both with scene_end.
typedef struct Scene {
    char *dir, *path;
} Scene;

static Scene scene_start(void) {
    Scene s = {test_temp_dir(), NULL};
    s.path = path_join(s.dir, "x.bin");
    return s;
}

static void scene_end(Scene s) {
    test_remove_dir(s.dir);
    mem_free(s.dir);
    mem_free(s.path);
}

static bool write_ids(const char *path, int id_bytes, const int *ids, size_t n, Error *err) {
    ShardWriter w;
    return shard_writer_open(&w, path, id_bytes, err) && shard_writer_add(&w, ids, n, err) &&
           shard_writer_close(&w, err);
}

static void check_layout(TestCtx *t, int id_bytes, const unsigned char *header,
                         const unsigned char *body, size_t n_body) {
    Scene s = scene_start();
    Error err = {{0}};
    static const int ids[] = {1, 50256, 258};
    char *file = NULL;
    size_t n = 0;
    CHECK_MSG(t, write_ids(s.path, id_bytes, ids, 3, &err), "%s", err.text);
    CHECK(t, file_read(s.path, 1 << 20, &file, &n, &err));
    CHECK(t, n == 1024 + n_body);
    if (n == 1024 + n_body) {
        CHECK_SAME_BITS(t, file, header, 12);
        for (size_t i = 12; i < 1024; i++)
            CHECK(t, file[i] == 0);
        CHECK_SAME_BITS(t, file + 1024, body, n_body);
    }
    mem_free(file);
    scene_end(s);
}

static void files_have_the_byte_layout_of_llm_c(TestCtx *t) {
    static const unsigned char header2[] = {0x88, 0xD8, 0x34, 0x01, 1, 0, 0, 0, 3, 0, 0, 0};
    static const unsigned char body2[] = {0x01, 0x00, 0x50, 0xC4, 0x02, 0x01};
    check_layout(t, 2, header2, body2, sizeof body2);
    static const unsigned char header4[] = {0xA1, 0xD9, 0x34, 0x01, 7, 0, 0, 0, 3, 0, 0, 0};
    static const unsigned char body4[] = {1, 0, 0, 0, 0x50, 0xC4, 0, 0, 2, 1, 0, 0};
    check_layout(t, 4, header4, body4, sizeof body4);
}

static void ids_come_back_from_any_place(TestCtx *t) {
    enum { N = 10000 };
    static int ids[N], back[N];
    Scene s = scene_start();
    for (int width = 2; width <= 4; width += 2) {
        int vocab = width == 2 ? 65536 : 2000000000;
        for (int i = 0; i < N; i++)
            ids[i] = (int)((int64_t)i * 1999999973 % vocab);
        Error err = {{0}};
        Shard shard;
        CHECK_MSG(t, write_ids(s.path, width, ids, N, &err), "%s", err.text);
        CHECK_MSG(t, shard_open(&shard, s.path, &err), "%s", err.text);
        CHECK(t, shard.n_tokens == N && shard.id_bytes == width);
        static const int places[][2] = {{0, N},     {0, 1}, {N - 1, 1},
                                        {17, 4097}, {N, 0}, {5000, 5000}};
        for (size_t k = 0; k < sizeof places / sizeof places[0]; k++) {
            int first = places[k][0], n = places[k][1];
            back[n < N ? n : 0] = -7;
            CHECK(t, shard_read(&shard, first, n, vocab, back, &err));
            CHECK_SAME_BITS(t, back, ids + first, (size_t)n * sizeof *ids);
            CHECK(t, n == N || back[n] == -7);
        }
        shard_close(&shard);
    }
    scene_end(s);
}

static void an_id_beyond_the_vocabulary_is_refused_with_its_place(TestCtx *t) {
    Scene s = scene_start();
    Error err = {{0}};
    Shard shard;
    int ids[4] = {1, 2, 300, 4};
    CHECK(t, write_ids(s.path, 2, ids, 4, &err) && shard_open(&shard, s.path, &err));
    CHECK(t, shard_read(&shard, 0, 4, 301, ids, &err));
    CHECK(t, !shard_read(&shard, 1, 3, 300, ids, &err));
    CHECK_ERROR(t, err, "token 2 has the id 300, the vocabulary has 300 ids");
    shard_close(&shard);
    scene_end(s);
}

static void check_refused(TestCtx *t, const char *path, const int32_t *header, size_t bytes,
                          const char *words) {
    static char file[2048];
    Error err = {{0}};
    Shard shard;
    memset(file, 0, sizeof file);
    if (header) memcpy(file, header, 5 * sizeof *header);
    CHECK(t, file_write_atomic(path, file, bytes, &err));
    CHECK(t, !shard_open(&shard, path, &err));
    CHECK_ERROR(t, err, words);
    CHECK_ERROR(t, err, "x.bin");
}

static void broken_files_are_refused_with_a_sentence(TestCtx *t) {
    Scene s = scene_start();
    Error err = {{0}};
    Shard shard;
    CHECK(t, !shard_open(&shard, s.path, &err));
    CHECK_ERROR(t, err, "cannot open");
    CHECK(t, !shard_open(&shard, s.dir, &err));
    CHECK_ERROR(t, err, "is not a file");
    check_refused(t, s.path, NULL, 0, "0 bytes, the header alone has 1024");
    check_refused(t, s.path, NULL, 1023, "1023 bytes");
    check_refused(t, s.path, NULL, 1024, "magic 0 version 0, expected 20240520 version 1");
    check_refused(t, s.path, (int32_t[]){20240520, 7, 0, 0, 0}, 1024, "magic 20240520 version 7");
    check_refused(t, s.path, (int32_t[]){20240801, 1, 0, 0, 0}, 1024, "magic 20240801 version 1");
    check_refused(t, s.path, (int32_t[]){20240520, 1, 10, 0, 0}, 1024 + 18,
                  "promises 10 tokens of 2 bytes");
    check_refused(t, s.path, (int32_t[]){20240520, 1, 10, 0, 0}, 1024 + 22, "holds 22 bytes");
    check_refused(t, s.path, (int32_t[]){20240801, 7, 10, 0, 0}, 1024 + 20,
                  "promises 10 tokens of 4 bytes");
    check_refused(t, s.path, (int32_t[]){20240520, 1, -2, 0, 0}, 1024, "promises -2 tokens");
    check_refused(t, s.path, (int32_t[]){20240520, 1, -1, 0, INT32_MIN}, 1024, "promises -92");
    check_refused(t, s.path, (int32_t[]){20240520, 1, -1, 0, INT32_MAX}, 1024, "promises 92");
    check_refused(t, s.path, (int32_t[]){20240520, 1, -1, 0, 0x40000000}, 1024, "promises 46");
    scene_end(s);
}

static void a_file_that_shrinks_is_noticed(TestCtx *t) {
    Scene s = scene_start();
    Error err = {{0}};
    Shard shard;
    int ids[100] = {0};
    CHECK(t, write_ids(s.path, 2, ids, 100, &err) && shard_open(&shard, s.path, &err));
    CHECK(t, truncate(s.path, 1024 + 100) == 0);
    CHECK(t, !shard_read(&shard, 0, 100, 10, ids, &err));
    CHECK_ERROR(t, err, "ends at byte 1124, 100 more were expected");
    shard_release(&shard);
    CHECK(t, !shard_reopen(&shard, &err));
    CHECK_ERROR(t, err, "has 1124 bytes now, it had 1224");
    CHECK(t, remove(s.path) == 0 && !shard_reopen(&shard, &err));
    CHECK_ERROR(t, err, "cannot open");
    shard_close(&shard);
    scene_end(s);
}

// A file size limit stands in for a full disk.
static void a_full_disk_leaves_a_sentence_and_no_file(TestCtx *t) {
    Scene s = scene_start();
    struct rlimit old, small;
    void (*old_handler)(int) = signal(SIGXFSZ, SIG_IGN);
    CHECK(t, getrlimit(RLIMIT_FSIZE, &old) == 0);
    small = old;
    static int ids[100000];
    static const rlim_t limits[] = {500, 3000, 150000};
    for (int k = 0; k < 3; k++) {
        small.rlim_cur = limits[k];
        CHECK(t, setrlimit(RLIMIT_FSIZE, &small) == 0);
        Error err = {{0}};
        bool ok = write_ids(s.path, 2, ids, 100000, &err);
        CHECK(t, setrlimit(RLIMIT_FSIZE, &old) == 0);
        CHECK(t, !ok);
        CHECK_ERROR(t, err, "x.bin: writing failed");
        CHECK(t, !file_exists(s.path));
    }
    signal(SIGXFSZ, old_handler);
    Error err = {{0}};
    char *nowhere = path_join(s.dir, "no/folder.bin");
    CHECK(t, !write_ids(nowhere, 2, ids, 1, &err));
    CHECK_ERROR(t, err, "cannot create");
    mem_free(nowhere);
    scene_end(s);
}

static void an_unfinished_file_is_no_shard(TestCtx *t) {
    Scene s = scene_start();
    Error err = {{0}};
    ShardWriter w;
    Shard shard;
    static int ids[50000];
    CHECK(t, shard_writer_open(&w, s.path, 4, &err) && shard_writer_add(&w, ids, 50000, &err));
    CHECK(t, file_exists(s.path) && !shard_open(&shard, s.path, &err));
    shard_writer_abort(&w);
    CHECK(t, !file_exists(s.path));
    shard_writer_abort(&w);
    scene_end(s);
}

// A file with holes of the given size whose last three tokens are written.
static bool sparse_file(const char *path, const int32_t *header, int64_t bytes, const void *tail,
                        size_t n_tail) {
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    bool ok = fd >= 0 && ftruncate(fd, (off_t)bytes) == 0 && pwrite(fd, header, 20, 0) == 20 &&
              pwrite(fd, tail, n_tail, (off_t)(bytes - (int64_t)n_tail)) == (ssize_t)n_tail;
    if (fd >= 0) close(fd);
    return ok;
}

static void check_big(TestCtx *t, const char *path, int id_bytes, int64_t n_tokens) {
    Error err = {{0}};
    Shard shard;
    int ids[4] = {9, 9, 9, 9};
    CHECK_MSG(t, shard_open(&shard, path, &err), "%s", err.text);
    if (*err.text) return;
    CHECK(t, shard.n_tokens == n_tokens && shard.id_bytes == id_bytes);
    CHECK(t, shard_read(&shard, n_tokens - 4, 4, 1000, ids, &err));
    CHECK(t, ids[0] == 0 && ids[1] == 5 && ids[2] == 6 && ids[3] == 7);
    CHECK(t, shard_read(&shard, n_tokens / 2, 4, 1000, ids, &err) && ids[3] == 0);
    CHECK(t, shard_read(&shard, 0, 4, 1000, ids, &err) && ids[0] == 0);
    shard_close(&shard);
}

static void files_beyond_32_bits_are_read(TestCtx *t) {
    Scene s = scene_start();
    static const uint16_t tail2[] = {5, 6, 7};
    static const uint32_t tail4[] = {5, 6, 7};
    int64_t n4 = 1250000000, n2 = 2500000000, n1 = 1100000000;
    int32_t wide[5] = {20240520, 1, -1, 0, 0};
    memcpy(wide + 3, &n2, sizeof n2);
    if (!sparse_file(s.path, (int32_t[]){20240801, 7, (int32_t)n4, 0, 0}, 1024 + 4 * n4, tail4,
                     12)) {
        test_skip(t, "a sparse file of 5 GB cannot be made in %s", s.dir);
    } else {
        check_big(t, s.path, 4, n4);
        CHECK(t, sparse_file(s.path, wide, 1024 + 2 * n2, tail2, 6));
        check_big(t, s.path, 2, n2);
        CHECK(t, sparse_file(s.path, (int32_t[]){20240520, 1, (int32_t)n1, 0, 0}, 1024 + 2 * n1,
                             tail2, 6));
        check_big(t, s.path, 2, n1);
    }
    scene_end(s);
}

TEST_MAIN({"files_have_the_byte_layout_of_llm_c", files_have_the_byte_layout_of_llm_c},
          {"ids_come_back_from_any_place", ids_come_back_from_any_place},
          {"an_id_beyond_the_vocabulary_is_refused_with_its_place",
           an_id_beyond_the_vocabulary_is_refused_with_its_place},
          {"broken_files_are_refused_with_a_sentence", broken_files_are_refused_with_a_sentence},
          {"a_file_that_shrinks_is_noticed", a_file_that_shrinks_is_noticed},
          {"a_full_disk_leaves_a_sentence_and_no_file", a_full_disk_leaves_a_sentence_and_no_file},
          {"an_unfinished_file_is_no_shard", an_unfinished_file_is_no_shard},
          {"files_beyond_32_bits_are_read", files_beyond_32_bits_are_read})
