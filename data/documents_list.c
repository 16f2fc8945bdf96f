// documents_list.c - finds the files that the inputs of documents.h name.
#define _POSIX_C_SOURCE   200809L
#define _FILE_OFFSET_BITS 64
#include "data/documents.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_DEPTH = 64, PROBE_BYTES = 4096 };

// --- What a file is

typedef struct Packed {
    const char *magic;
    size_t n;
    const char *what;
} Packed;

static const Packed packed[] = {
    {"\x1F\x8B", 2, "gzip file; unpack it first, for example gzip -dc FILE | ... -"},
    {"\xFD"
     "7zXZ",
     5, "xz file; unpack it first, for example xz -dc FILE | ... -"},
    {"BZh", 3, "bzip2 file; unpack it first, for example bzip2 -dc FILE | ... -"},
    {"\x28\xB5\x2F\xFD", 4, "zstd file; unpack it first, for example zstd -dc FILE | ... -"},
    {"PK\x03\x04", 4, "zip file; unpack it first"},
    {"PAR1", 4, "Parquet file; convert it to .jsonl first"},
    {"\x88\xD8\x34\x01", 4, "token shard already"},
    {"\xA1\xD9\x34\x01", 4, "token shard already"},
};

// What is packed in the file, or NULL; *has_nul tells binary data. False when it cannot be read.
static bool probe(const char *path, const char **what, bool *has_nul, Error *err) {
    char head[PROBE_BYTES];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, head, sizeof head);
    int why = errno;
    if (fd >= 0) close(fd);
    if (n < 0) return error_set(err, "%s: cannot read (%s)", path, strerror(why));
    *what = NULL;
    *has_nul = memchr(head, 0, (size_t)n) != NULL;
    for (size_t i = 0; i < sizeof packed / sizeof packed[0]; i++) {
        if ((size_t)n >= packed[i].n && !memcmp(head, packed[i].magic, packed[i].n))
            *what = packed[i].what;
    }
    return true;
}

static bool ends_with(const char *s, const char *end) {
    size_t n = strlen(s), m = strlen(end);
    return n >= m && !strcmp(s + n - m, end);
}

static void add_file(Documents *d, const char *path, int64_t bytes) {
    if (d->n_files == d->cap) {
        int cap = d->cap ? 2 * d->cap : 16;
        d->files = mem_grow(d->files, (size_t)d->n_files, (size_t)cap, sizeof *d->files);
        d->cap = cap;
    }
    d->files[d->n_files++] = (InputFile){
        .path = str_copy(path),
        .name = str_copy(path),
        .bytes = bytes,
        .is_jsonl = ends_with(path, ".jsonl") || ends_with(path, ".ndjson"),
    };
}

// --- Folders

static bool same_file(const struct stat *a, const char *path) {
    struct stat b;
    return path && stat(path, &b) == 0 && a->st_dev == b.st_dev && a->st_ino == b.st_ino;
}

static int by_name(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static bool add_path(Documents *d, const char *path, int depth, Error *err);

static bool add_folder(Documents *d, const char *path, int depth, Error *err) {
    if (depth == MAX_DEPTH)
        return error_set(err, "%s: folders nested more than %d deep", path, MAX_DEPTH);
    DIR *dir = opendir(path);
    if (!dir) return error_set(err, "%s: cannot open the folder (%s)", path, strerror(errno));
    char **names = NULL;
    size_t n = 0, cap = 0;
    for (struct dirent *e; (e = readdir(dir));) {
        if (*e->d_name == '.') continue;
        if (n == cap) {
            cap = cap ? 2 * cap : 64;
            names = mem_grow(names, n, cap, sizeof *names);
        }
        names[n++] = str_copy(e->d_name);
    }
    closedir(dir);
    if (n) qsort(names, n, sizeof *names, by_name);
    bool ok = true;
    for (size_t i = 0; i < n; i++) {
        char *full = path_join(path, names[i]);
        ok = ok && add_path(d, full, depth + 1, err);
        mem_free(full);
        mem_free(names[i]);
    }
    mem_free(names);
    return ok;
}

// depth 0 is what the user has named; below it what is not text is passed over.
static bool add_path(Documents *d, const char *path, int depth, Error *err) {
    struct stat st;
    if (stat(path, &st)) return error_set(err, "%s: cannot open (%s)", path, strerror(errno));
    if (S_ISDIR(st.st_mode)) {
        if (depth > 0 && same_file(&st, d->o.skip)) return true;
        int before = d->n_files;
        if (!add_folder(d, path, depth, err)) return false;
        return depth > 0 || d->n_files > before ||
               error_set(err, "%s: the folder holds no text files", path);
    }
    const char *what;
    bool has_nul;
    if (!S_ISREG(st.st_mode)) {
        return depth > 0 ||
               error_set(err, "%s: is neither a file nor a folder; use - for standard input", path);
    }
    if (!probe(path, &what, &has_nul, err)) return false;
    if (depth > 0 && (what || has_nul)) {
        d->n_binary++;
        return true;
    }
    if (what) return error_set(err, "%s: is a %s", path, what);
    add_file(d, path, st.st_size);
    return true;
}

// --- Standard input

static bool copy_stdin(InputFile *f, const char *dir, Error *err) {
    Buf path = {0};
    buf_printf(&path, "%s/stdin-%ld", dir, (long)getpid());
    mem_free(f->path);
    f->path = path.text;
    FILE *out = fopen(f->path, "wb");
    if (!out) return error_set(err, "%s: cannot create (%s)", f->path, strerror(errno));
    f->is_copy = true;
    char chunk[65536];
    ssize_t n = 0;
    bool ok = true;
    f->bytes = 0;
    while (ok && (n = read(STDIN_FILENO, chunk, sizeof chunk)) > 0) {
        ok = fwrite(chunk, 1, (size_t)n, out) == (size_t)n;
        f->bytes += n;
    }
    if (n < 0) error_set(err, "standard input: reading failed (%s)", strerror(errno));
    int why = errno;
    ok = fclose(out) == 0 && ok;
    if (n >= 0 && !ok) error_set(err, "%s: writing failed (%s)", f->path, strerror(why));
    return ok && n >= 0;
}

static bool add_stdin(Documents *d, Error *err) {
    for (int i = 0; i < d->n_files; i++) {
        if (d->files[i].is_stdin) return error_set(err, "standard input (-) is named twice");
    }
    add_file(d, "-", -1);
    InputFile *f = &d->files[d->n_files - 1];
    f->is_stdin = true;
    mem_free(f->name);
    f->name = str_copy("standard input");
    return !d->o.copy_stdin_to || copy_stdin(f, d->o.copy_stdin_to, err);
}

// --- Validation

static bool choose_val_docs(Documents *d, Error *err) {
    for (int k = 0; k < d->o.n_val_docs; k++) {
        int found = 0;
        for (int i = 0; i < d->n_files; i++) {
            const char *path = d->files[i].name, *slash = strrchr(path, '/');
            bool hit = !fnmatch(d->o.val_docs[k], slash ? slash + 1 : path, 0) ||
                       !fnmatch(d->o.val_docs[k], path, 0);
            if (hit) d->files[i].is_val = true;
            found += hit;
        }
        if (!found)
            return error_set(err, "no input file is named '%s', which is to go to validation",
                             d->o.val_docs[k]);
    }
    return true;
}

// The first line start in the last val_fraction of the only document.
static bool choose_val_start(Documents *d, Error *err) {
    InputFile *f = d->files;
    if (d->n_files != 1 || f->is_jsonl || d->o.separator || !(d->o.val_fraction > 0)) return true;
    char text[65536];
    int64_t start = (int64_t)((1 - d->o.val_fraction) * (double)f->bytes);
    int fd = open(f->path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? 0 : pread(fd, text, sizeof text, (off_t)start);
    if (fd >= 0) close(fd);
    const char *end = n > 0 ? memchr(text, '\n', (size_t)n) : NULL;
    if (end && start + (end - text) + 1 < f->bytes) start += end - text + 1;
    if (start <= 0 || start >= f->bytes) {
        return error_set(err, "%s: its %lld bytes are too few to keep a part of %g for validation",
                         f->name, (long long)f->bytes, d->o.val_fraction);
    }
    d->val_start = start;
    return true;
}

bool documents_list(Documents *d, const DocumentsOptions *o, Error *err) {
    *d = (Documents){.o = *o, .val_start = -1};
    for (int i = 0; i < o->n_inputs; i++) {
        bool is_stdin = !strcmp(o->inputs[i], "-");
        if (!(is_stdin ? add_stdin(d, err) : add_path(d, o->inputs[i], 0, err))) return false;
    }
    if (!d->n_files)
        return error_set(err, "no input is named; expected files, folders or - for standard input");
    return choose_val_docs(d, err) && choose_val_start(d, err);
}

void documents_free(Documents *d) {
    for (int i = 0; i < d->n_files; i++) {
        if (d->files[i].is_copy) remove(d->files[i].path);
        mem_free(d->files[i].path);
        mem_free(d->files[i].name);
    }
    mem_free(d->files);
    *d = (Documents){0};
}
