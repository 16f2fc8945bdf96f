// dirs.c - see dirs.h.
#define _XOPEN_SOURCE 700
#include "gpt/dirs.h"

#include "gpt/hash64.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

static int compare_names(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

bool dir_list(DirList *l, const char *path, Error *err) {
    *l = (DirList){0};
    DIR *dir = opendir(path);
    if (!dir) return error_set(err, "%s: cannot list the directory (%s)", path, strerror(errno));
    size_t n = 0, cap = 0;
    for (struct dirent *e = readdir(dir); e; e = readdir(dir)) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
        if (n == cap) {
            l->name = mem_grow(l->name, n, 2 * cap + 16, sizeof *l->name);
            cap = 2 * cap + 16;
        }
        l->name[n++] = str_copy(e->d_name);
    }
    closedir(dir);
    if (n) qsort(l->name, n, sizeof *l->name, compare_names);
    l->n = (int)n;
    return true;
}

void dir_list_free(DirList *l) {
    for (int i = 0; i < l->n; i++)
        mem_free(l->name[i]);
    mem_free(l->name);
    *l = (DirList){0};
}

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *ftw) {
    (void)st, (void)type, (void)ftw;
    return remove(path);
}

bool dir_remove(const char *path, Error *err) {
    if (nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS) == 0 || errno == ENOENT) return true;
    return error_set(err, "%s: cannot delete (%s)", path, strerror(errno));
}

bool dir_sync(const char *path, Error *err) {
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return error_set(err, "%s: cannot open (%s)", path, strerror(errno));
    // Some file systems have nothing to flush for a directory and say so.
    bool ok = fsync(fd) == 0 || errno == EINVAL || errno == ENOTSUP;
    int why = errno;
    close(fd);
    return ok || error_set(err, "%s: flushing to the disk failed (%s)", path, strerror(why));
}

bool file_rename(const char *from, const char *to, Error *err) {
    if (rename(from, to) == 0) return true;
    return error_set(err, "%s: cannot be renamed to %s (%s)", from, to, strerror(errno));
}

bool file_hash(const char *path, uint64_t *bytes, uint64_t *hash, Error *err) {
    enum { PIECE = 1 << 18 };
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return error_set(err, "%s: cannot open (%s)", path, strerror(errno));
    char *piece = mem_alloc(PIECE, 1);
    Hash64 h;
    ssize_t got;
    hash64_start(&h);
    for (;;) {
        got = read(fd, piece, PIECE);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) break;
        hash64_add(&h, piece, (size_t)got);
    }
    if (got < 0) error_set(err, "%s: reading failed (%s)", path, strerror(errno));
    mem_free(piece);
    close(fd);
    *bytes = h.bytes;
    *hash = hash64_value(&h);
    return got == 0;
}

bool file_size(const char *path, uint64_t *bytes, Error *err) {
    struct stat st;
    if (stat(path, &st)) return error_set(err, "%s: cannot open (%s)", path, strerror(errno));
    if (!S_ISREG(st.st_mode)) return error_set(err, "%s: is not a regular file", path);
    *bytes = (uint64_t)st.st_size;
    return true;
}

uint64_t disk_free_bytes(const char *path) {
    struct statvfs v;
    return statvfs(path, &v) ? 0 : (uint64_t)v.f_bavail * v.f_frsize;
}
