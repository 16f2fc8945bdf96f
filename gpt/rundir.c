// rundir.c - see rundir.h.
#define _DEFAULT_SOURCE
#include "gpt/rundir.h"

#include "gpt/dirs.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

char *rundir_file(const RunDir *r, const char *name) {
    return path_join(r->path, name);
}

// --- the lock

// Who holds it, as the holder wrote it.
static bool say_locked(const char *path, int fd, Error *err) {
    char who[128] = {0};
    ssize_t n = pread(fd, who, sizeof who - 1, 0);
    who[n > 0 ? strcspn(who, "\n") : 0] = 0;
    return error_set(err, "%s: another process (%s) trains in this directory", path,
                     who[0] ? who : "unknown");
}

static void write_holder(int fd) {
    char host[64] = "?", text[128];
    gethostname(host, sizeof host - 1);
    int n = snprintf(text, sizeof text, "%ld on %s\n", (long)getpid(), host);
    // Only for the sentence above; the lock holds without it.
    if (ftruncate(fd, 0) == 0 && pwrite(fd, text, (size_t)n, 0) != n) errno = 0;
}

// The descriptor, or -1. A file system that cannot lock is a warning: training there is possible.
static int lock_take(const char *path, Error *err) {
    char *name = path_join(path, "lock");
    int fd = open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    bool ok = fd >= 0 || error_set(err, "%s: cannot open (%s)", name, strerror(errno));
    if (ok && flock(fd, LOCK_EX | LOCK_NB)) {
        if (errno == EWOULDBLOCK)
            ok = say_locked(path, fd, err);
        else
            warn("%s: this file system cannot lock (%s); see that no other process trains here",
                 name, strerror(errno));
    }
    if (ok) write_holder(fd);
    if (!ok && fd >= 0) close(fd);
    mem_free(name);
    return ok ? fd : -1;
}

// Whether the descriptor is still the lock of this path: another process may have moved the
// directory aside between opening and locking.
static bool lock_is_of(int fd, const char *path) {
    struct stat held, there;
    char *name = path_join(path, "lock");
    bool same = fstat(fd, &held) == 0 && stat(name, &there) == 0 && held.st_dev == there.st_dev &&
                held.st_ino == there.st_ino;
    mem_free(name);
    return same;
}

static bool enter(RunDir *r, Error *err) {
    for (int attempt = 0; attempt < 3; attempt++) {
        if (!dir_make(r->path, err)) return false;
        r->lock = lock_take(r->path, err);
        if (r->lock < 0) return false;
        if (lock_is_of(r->lock, r->path)) return true;
        close(r->lock);
        r->lock = -1;
    }
    return error_set(err, "%s: is being moved by another process", r->path);
}

// --- an old run in the way

static bool holds_run(const char *path, bool *holds, Error *err) {
    DirList l;
    if (!dir_list(&l, path, err)) return false;
    *holds = false;
    for (int i = 0; i < l.n; i++) {
        if (strncmp(l.name[i], "step-", 5) == 0 || strncmp(l.name[i], ".old-step-", 10) == 0 ||
            strcmp(l.name[i], "metrics.jsonl") == 0)
            *holds = true;
    }
    dir_list_free(&l);
    return true;
}

static bool move_aside(RunDir *r, Error *err) {
    Buf old = {0};
    struct stat st;
    int k = 1;
    do {
        old.n = 0;
        buf_printf(&old, "%s.old-%d", r->path, k++);
    } while (lstat(old.text, &st) == 0);
    bool ok = file_rename(r->path, old.text, err);
    if (ok) {
        buf_printf(&r->notes, "the earlier run was moved to %s\n", old.text);
        close(r->lock);  // moved along; held until here
        r->lock = -1;
        ok = enter(r, err);
    }
    buf_free(&old);
    return ok;
}

static bool make_room(RunDir *r, RunStart start, Error *err) {
    bool holds;
    if (start == RUN_RESUME) return true;
    if (!holds_run(r->path, &holds, err)) return false;
    if (!holds) return true;
    if (start == RUN_FRESH_ASIDE) return move_aside(r, err);
    return error_set(err,
                     "%s: holds a run already; choose another checkpoint.dir, or go on with it, or "
                     "have it moved aside to %s.old-1",
                     r->path, r->path);
}

// --- what to go on from

static bool same_config(RunDir *r, const Config *c, Error *err) {
    char *path = path_join(r->checkpoint, CHECKPOINT_MODEL);
    char *json = checkpoint_config(path, err);
    Config *saved = mem_alloc(1, sizeof *saved);
    Buf diff = {0};
    bool ok = json && config_parse(saved, json, path, err);
    if (ok && config_diff(saved, c, &diff)) {
        ok = error_set(err,
                       "%s: was trained with other settings (%.400s); restore them, choose another "
                       "checkpoint.dir or start afresh",
                       r->checkpoint, diff.text);
    } else if (ok && config_diff_free(saved, c, &diff)) {
        buf_printf(&r->notes, "changed since %s: %s\n", r->checkpoint, diff.text);
    }
    buf_free(&diff);
    mem_free(saved);
    mem_free(json);
    mem_free(path);
    return ok;
}

static bool find_checkpoint(RunDir *r, const Config *c, Error *err) {
    CheckpointFound found = {0};
    bool ok =
        checkpoint_clean(r->path, err) && checkpoint_find(r->path, CHECKPOINT_WHOLE, &found, err);
    if (ok) {
        r->checkpoint = found.dir;
        r->state = found.state;
        found.dir = NULL;
    }
    if (found.notes.n) buf_add(&r->notes, found.notes.text, found.notes.n);
    checkpoint_found_free(&found);
    return ok && (!r->checkpoint || same_config(r, c, err));
}

static bool write_config(const RunDir *r, const Config *c, Error *err) {
    char *path = rundir_file(r, "config.json"), *text = config_print(c);
    bool ok = file_write_atomic(path, text, strlen(text), err);
    mem_free(text);
    mem_free(path);
    return ok;
}

// Without the slashes at the end, so that "NAME.old-1" lies beside it.
static char *trimmed(const char *path) {
    char *p = str_copy(path);
    for (size_t n = strlen(p); n > 1 && p[n - 1] == '/'; n--)
        p[n - 1] = 0;
    return p;
}

bool rundir_open(RunDir *r, const char *path, const Config *c, RunStart start, Error *err) {
    *r = (RunDir){.path = trimmed(path), .lock = -1};
    bool ok = enter(r, err) && make_room(r, start, err) && find_checkpoint(r, c, err) &&
              write_config(r, c, err) && rundir_rewind_metrics(r, r->state.step, err);
    if (!ok) rundir_close(r);
    return ok;
}

void rundir_close(RunDir *r) {
    if (r->lock >= 0 && r->path) close(r->lock);
    mem_free(r->path);
    mem_free(r->checkpoint);
    buf_free(&r->notes);
    *r = (RunDir){.lock = -1};
}

bool rundir_keep_file(const RunDir *r, const char *name, const void *bytes, size_t n, Error *err) {
    char *path = rundir_file(r, name), *there = NULL;
    size_t there_n = 0;
    bool ok = true, same = false;
    if (file_exists(path)) {
        // A longer file cannot be the same, so reading stops behind n bytes.
        Error too_long;
        same = file_read(path, n, &there, &there_n, &too_long) && there_n == n &&
               memcmp(there, bytes, n) == 0;
        if (!same && r->checkpoint)
            ok = error_set(err,
                           "%s: differs from what this run would use now; restore it or the "
                           "setting it came from",
                           path);
    }
    if (ok && !same) ok = file_write_atomic(path, bytes, n, err);
    mem_free(there);
    mem_free(path);
    return ok;
}

// --- metrics

// The step of a line that begins {"step":N, or -1.
static int64_t line_step(const char *line) {
    static const char key[] = "{\"step\":";
    if (strncmp(line, key, sizeof key - 1) != 0) return -1;
    char *end;
    errno = 0;
    long long step = strtoll(line + sizeof key - 1, &end, 10);
    return errno || (*end != ',' && *end != '}') ? -1 : step;
}

// Where the first line of a later step, or a line that a crash cut off, begins; -1: nowhere.
static int64_t first_undone(FILE *f, int64_t step) {
    char *line = NULL;
    size_t cap = 0;
    int64_t at = 0, found = -1;
    ssize_t n;
    while (found < 0 && (n = getline(&line, &cap, f)) > 0) {
        if (line_step(line) > step || line[n - 1] != '\n') found = at;
        at += n;
    }
    free(line);
    return found;
}

// Copies everything from `at` on to a file that did not exist, flushed.
static bool save_tail(const RunDir *r, FILE *f, int64_t at, Error *err) {
    char piece[1 << 14], *path = NULL;
    FILE *out = NULL;
    for (int k = 1; !out && k < 1000000; k++) {
        Buf name = {0};
        buf_printf(&name, "%s/metrics.discarded-%d.jsonl", r->path, k);
        mem_free(path);
        path = name.text;
        out = fopen(path, "wbx");
        if (!out && errno != EEXIST) break;
    }
    bool ok = out && fseeko(f, (off_t)at, SEEK_SET) == 0;
    for (size_t n; ok && (n = fread(piece, 1, sizeof piece, f)) > 0;)
        ok = fwrite(piece, 1, n, out) == n;
    ok = ok && !ferror(f) && fflush(out) == 0 && fsync(fileno(out)) == 0;
    if (!ok) error_set(err, "%s: cannot be written (%s)", path, strerror(errno));
    if (out) fclose(out);
    mem_free(path);
    return ok;
}

bool rundir_rewind_metrics(const RunDir *r, int64_t step, Error *err) {
    char *path = rundir_file(r, "metrics.jsonl");
    FILE *f = fopen(path, "r+b");
    bool ok = f || errno == ENOENT || error_set(err, "%s: cannot open (%s)", path, strerror(errno));
    int64_t at = f ? first_undone(f, step) : -1;
    if (at >= 0) {
        ok = save_tail(r, f, at, err);
        // Cut in place: a logger that appends goes on at the new end.
        if (ok && ftruncate(fileno(f), (off_t)at))
            ok = error_set(err, "%s: cannot be cut (%s)", path, strerror(errno));
    }
    if (f) fclose(f);
    mem_free(path);
    return ok;
}
