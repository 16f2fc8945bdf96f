// documents.c - one pass over the documents, see documents.h. At most a few parts' worth of text is
// held; only a line of a .jsonl file, being one document, is read whole.
#define _POSIX_C_SOURCE   200809L
#define _FILE_OFFSET_BITS 64
#include "data/documents.h"

#include "gpt/rng.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

enum { PART_BYTES = 1 << 18, LOOK_AHEAD = 1 << 12, MAX_LINE_BYTES = 1 << 30 };

struct DocReader {
    const Documents *d;
    const Tokenizer *tok;
    int file;  // index of the open file
    int fd;    // -1: none is open
    Buf text;  // read and not passed on: from `at` on
    size_t at;
    int64_t file_read;  // bytes read of this file
    bool eof;           // of the file, or of the first half of the only document
    bool file_done;     // and all of it was passed on
    bool second_half;
    bool in_doc, doc_is_val;
    int64_t line, n_docs;
    int64_t bytes, n_empty;
};

DocReader *doc_reader_open(const Documents *d, const Tokenizer *tok) {
    assert(!d->o.separator || (*d->o.separator && strlen(d->o.separator) < LOOK_AHEAD / 2));
    DocReader *r = mem_alloc(1, sizeof *r);
    r->d = d;
    r->tok = tok;
    r->fd = -1;
    buf_add(&r->text, "", 0);  // so that text is never NULL
    return r;
}

void doc_reader_close(DocReader *r) {
    if (!r) return;
    if (r->fd > STDIN_FILENO) close(r->fd);
    buf_free(&r->text);
    mem_free(r);
}

int64_t doc_reader_bytes(const DocReader *r) {
    return r->bytes;
}
int64_t doc_reader_empty(const DocReader *r) {
    return r->n_empty;
}

static size_t held(const DocReader *r) {
    return r->text.n - r->at;
}

// Reads until `want` bytes are held or the input ends.
static bool fill(DocReader *r, size_t want, Error *err) {
    const InputFile *f = &r->d->files[r->file];
    if (r->at > 0) {
        memmove(r->text.text, r->text.text + r->at, held(r));
        r->text.n -= r->at;
        r->at = 0;
    }
    char chunk[65536];
    int64_t half = r->second_half ? -1 : r->d->val_start;
    while (r->text.n < want && !r->eof) {
        size_t ask = min_size(sizeof chunk, want - r->text.n);
        if (half >= 0) ask = min_size(ask, (size_t)(half - r->file_read));  // 0 at its end
        ssize_t n = read(r->fd, chunk, ask);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return error_set(err, "%s: reading failed (%s)", f->name, strerror(errno));
        buf_add(&r->text, chunk, (size_t)n);
        r->file_read += n;
        r->bytes += n;
        r->eof = n == 0;
    }
    return true;
}

static bool start_file(DocReader *r, Error *err) {
    const InputFile *f = &r->d->files[r->file];
    bool direct = f->is_stdin && !f->is_copy;
    r->fd = direct ? STDIN_FILENO : open(f->path, O_RDONLY | O_CLOEXEC);
    if (r->fd < 0) return error_set(err, "%s: cannot open (%s)", f->name, strerror(errno));
    r->text.n = r->at = 0;
    r->eof = r->second_half = false;
    r->file_read = r->line = 0;
    return true;
}

static void end_file(DocReader *r) {
    r->file_done = false;
    if (r->d->val_start >= 0 && !r->second_half) {
        r->second_half = true;
        r->eof = false;
        return;
    }
    if (r->fd > STDIN_FILENO) close(r->fd);
    r->fd = -1;
    r->file++;
}

// --- Documents

// The number of a document decides where it goes.
static void begin_doc(DocReader *r) {
    const Documents *d = r->d;
    uint64_t number = (uint64_t)r->n_docs++;
    r->in_doc = true;
    r->doc_is_val = r->second_half || d->files[r->file].is_val;
    if (d->val_start < 0 && d->o.val_fraction > 0) {
        r->doc_is_val = rng_uniform(rng_key(d->o.seed, "validation"), number) < d->o.val_fraction;
    }
}

// Passes n bytes on, the first `end` of them as the part.
static void emit(DocReader *r, DocPart *part, size_t n, size_t end, bool starts) {
    const InputFile *f = &r->d->files[r->file];
    char *copy = mem_alloc(n + 1, 1);
    memcpy(copy, r->text.text + r->at, n);
    *part = (DocPart){copy, n, end, starts, f->is_jsonl, r->doc_is_val, f->name, r->line};
    r->at += end;
}

// Where `what` (m bytes, m > 0) stands in text[0..n), or NULL.
static const char *find(const char *text, size_t n, const char *what, size_t m) {
    const char *end = text + n;
    while ((size_t)(end - text) >= m) {
        text = memchr(text, *what, (size_t)(end - text) - m + 1);
        if (!text || !memcmp(text, what, m)) return text;
        text++;
    }
    return NULL;
}

// The next part of a text file, or nothing for an empty document.
static bool next_text(DocReader *r, DocPart *part, Error *err) {
    const char *separator = r->d->o.separator;
    size_t m = separator ? strlen(separator) : 0, want = PART_BYTES + LOOK_AHEAD;
    bool starts = !r->in_doc;
    if (starts) begin_doc(r);
    for (;;) {
        const char *text = r->text.text + r->at;
        const char *stop = m && held(r) ? find(text, held(r), separator, m) : NULL;
        if (stop || (r->eof && held(r) < want)) {
            size_t n = stop ? (size_t)(stop - text) : held(r);
            if (n)
                emit(r, part, n, n, starts);
            else if (starts && (stop || !m))
                r->n_empty++;
            if (stop) r->at += m;
            r->in_doc = false;
            r->file_done = !stop;
            return true;
        }
        if (held(r) >= want) {
            // What may be the start of a separator is not shown to the cut.
            size_t n = held(r) - (m ? m - 1 : 0);
            size_t cut = tokenizer_cut(r->tok, text, n, PART_BYTES);
            if (cut) {
                emit(r, part, n, cut, starts);
                return true;
            }
            want *= 2;
        }
        if (!fill(r, want, err)) return false;
    }
}

// The next line that is not blank, or nothing at the end of the file.
static bool next_line(DocReader *r, DocPart *part, Error *err) {
    for (size_t seen = 0;;) {
        const char *text = r->text.text + r->at;
        const char *end = held(r) > seen ? memchr(text + seen, '\n', held(r) - seen) : NULL;
        if (!end && !r->eof) {
            seen = held(r);
            if (seen > MAX_LINE_BYTES) {
                return error_set(err, "%s:%lld: the line is longer than %d bytes",
                                 r->d->files[r->file].name, (long long)r->line + 1, MAX_LINE_BYTES);
            }
            if (!fill(r, seen + PART_BYTES, err)) return false;
            continue;
        }
        size_t n = end ? (size_t)(end - text) : held(r), blank = 0;
        r->file_done = !end;
        r->line++;
        while (blank < n && (text[blank] == ' ' || text[blank] == '\t' || text[blank] == '\r'))
            blank++;
        if (blank < n) {
            begin_doc(r);
            r->in_doc = false;
            emit(r, part, n, n, true);
            r->at += end != NULL;
            return true;
        }
        r->at += n + (end != NULL);
        seen = 0;
        if (!end) return true;
    }
}

bool doc_reader_next(DocReader *r, DocPart *part, Error *err) {
    for (;;) {
        *part = (DocPart){0};
        if (r->file_done) end_file(r);
        if (r->file == r->d->n_files) return true;
        if (r->fd < 0 && !start_file(r, err)) return false;
        bool is_jsonl = r->d->files[r->file].is_jsonl;
        if (!(is_jsonl ? next_line(r, part, err) : next_text(r, part, err))) return false;
        if (part->text) return true;
    }
}
