// prepare_encode.c - the two passes over the text: learning a tokenizer, and writing shards.
// Text is encoded by several threads, a batch of parts at a time, and written in order by one.
#define _POSIX_C_SOURCE 200809L
#include "data/jsonl.h"
#include "data/prepare_parts.h"
#include "gpt/bpe_train.h"
#include "gpt/rng.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

enum { BATCH_PARTS = 4096, BATCH_BYTES_PER_THREAD = 1 << 20, MOST_THREADS = 256 };

static int64_t total_bytes(const Documents *d) {
    int64_t sum = 0;
    for (int i = 0; i < d->n_files; i++) {
        if (d->files[i].bytes < 0) return -1;
        sum += d->files[i].bytes;
    }
    return sum;
}

static void tell(Prepare *p, const char *doing, int64_t done, bool last) {
    double now = now_seconds(), mb = (double)done / 1e6;
    if (!p->o->progress || (!last && now < p->told + 0.2)) return;
    p->told = last ? 0 : now;
    int64_t total = total_bytes(&p->docs);
    fprintf(p->o->progress, "\r%s %.1f MB", doing, mb);
    if (total > 0)
        fprintf(p->o->progress, " of %.1f, %.0f %%", (double)total / 1e6,
                100.0 * (double)done / (double)total);
    fprintf(p->o->progress, ", %.1f MB/s   %s", mb / (now - p->started + 1e-9), last ? "\n" : "");
    fflush(p->o->progress);
}

// The text of a part: its own bytes, or the field of a line, decoded into `decoded`.
static bool part_text(const Prepare *p, const DocPart *part, Buf *decoded, const char **text,
                      Error *err) {
    *text = part->text;
    if (!part->is_jsonl) return true;
    decoded->n = 0;
    buf_add(decoded, "", 0);
    Error why;
    if (!jsonl_text(part->text, part->n, p->o->field, decoded, &why)) {
        return error_set(err, "%s:%lld: %s", part->name, (long long)part->line, why.text);
    }
    *text = decoded->text;
    return true;
}

// --- Learning

// How much of the text to learn from, 1 for all of it.
static double sample_rate(const Prepare *p) {
    double bytes = 0;
    for (int i = 0; i < p->docs.n_files; i++) {
        if (!p->docs.files[i].is_val) bytes += (double)p->docs.files[i].bytes;
    }
    bytes *= 1 - p->o->val_fraction;
    return bytes > (double)p->o->sample_bytes ? (double)p->o->sample_bytes / bytes : 1;
}

static bool learn_part(const Prepare *p, BpeTrainer *trainer, const DocPart *part, Buf *decoded,
                       Error *err) {
    const char *text;
    if (!part_text(p, part, decoded, &text, err)) return false;
    if (part->is_jsonl)
        bpe_trainer_add(trainer, text, decoded->n, decoded->n);
    else
        bpe_trainer_add(trainer, text, part->n, part->end);
    return true;
}

static bool learn_all(Prepare *p, BpeTrainer *trainer, const Tokenizer *cutter, Error *err) {
    DocReader *reader = doc_reader_open(&p->docs, cutter);
    double rate = sample_rate(p);
    uint64_t key = rng_key(p->o->seed, "tokenizer sample"), number = 0;
    Buf decoded = {0};
    DocPart part;
    bool ok;
    while ((ok = doc_reader_next(reader, &part, err)) && part.text) {
        bool wanted = !part.is_val && rng_uniform(key, number++) < rate;
        ok = !wanted || learn_part(p, trainer, &part, &decoded, err);
        mem_free(part.text);
        if (!ok) break;
        tell(p, "learning", doc_reader_bytes(reader), false);
    }
    if (ok) tell(p, "learning", doc_reader_bytes(reader), true);
    buf_free(&decoded);
    doc_reader_close(reader);
    p->info.learned_from = (int64_t)bpe_trainer_bytes(trainer);
    p->info.learned_from_sample = rate < 1;
    return ok;
}

bool prepare_learn(Prepare *p, SplitKind split, int n_ids, Error *err) {
    p->started = now_seconds();
    Tokenizer *cutter = tokenizer_train(split, "", 0, 257, err);  // the bytes alone
    BpeTrainer *trainer = bpe_trainer_new(split);
    if (learn_all(p, trainer, cutter, err)) p->tok = bpe_trainer_learn(trainer, n_ids, err);
    bpe_trainer_free(trainer);
    tokenizer_free(cutter);
    return p->tok != NULL;
}

// --- Encoding

typedef struct Job {
    DocPart part;
    TokenIds ids;
    int64_t text_bytes;
    bool ok;
    Error err;
} Job;

typedef struct Batch {
    const Prepare *p;
    Job *jobs;  // (BATCH_PARTS)
    int n;
    atomic_int next;
} Batch;

static void encode_job(const Prepare *p, Job *job, Buf *decoded) {
    const char *text;
    const DocPart *part = &job->part;
    job->ids.n = 0;
    job->ok = part_text(p, part, decoded, &text, &job->err);
    if (!job->ok) return;
    if (part->is_jsonl)
        tokenizer_encode_to(p->tok, text, decoded->n, false, &job->ids);
    else
        tokenizer_encode_part(p->tok, text, part->n, part->end, &job->ids);
    job->text_bytes = (int64_t)(part->is_jsonl ? decoded->n : part->end);
}

static void *encode_some(void *arg) {
    Batch *batch = arg;
    Buf decoded = {0};
    for (int i; (i = atomic_fetch_add(&batch->next, 1)) < batch->n;) {
        encode_job(batch->p, &batch->jobs[i], &decoded);
    }
    buf_free(&decoded);
    return NULL;
}

static void encode_batch(Batch *batch, int n_threads) {
    pthread_t threads[MOST_THREADS];
    int started = 0;
    atomic_store(&batch->next, 0);
    // A thread that can't be had costs time only; this one works too.
    while (started < min_int(n_threads, batch->n) - 1 &&
           !pthread_create(&threads[started], NULL, encode_some, batch)) {
        started++;
    }
    encode_some(batch);
    for (int i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
}

static bool read_batch(Batch *batch, DocReader *reader, size_t most_bytes, Error *err) {
    size_t bytes = 0;
    for (batch->n = 0; batch->n < BATCH_PARTS && bytes < most_bytes; batch->n++) {
        DocPart *part = &batch->jobs[batch->n].part;
        if (!doc_reader_next(reader, part, err)) return false;
        if (!part->text) break;
        bytes += part->n;
    }
    return true;
}

// --- Writing

static bool output_add(Prepare *p, Output *out, const int *ids, size_t n, Error *err) {
    while (n > 0) {
        if (!out->is_open) {
            Buf path = {0};
            buf_printf(&path, "%s/%s_%06d.bin", p->tmp, out->name, out->count->shards);
            out->is_open = shard_writer_open(&out->writer, path.text, p->info.id_bytes, err);
            buf_free(&path);
            if (!out->is_open) return false;
            out->count->shards++;
        }
        size_t m = min_size(n, (size_t)(p->o->shard_tokens - out->writer.n_tokens));
        if (!shard_writer_add(&out->writer, ids, m, err)) return out->is_open = false;
        out->count->tokens += (int64_t)m;
        ids += m;
        n -= m;
        if (out->writer.n_tokens < p->o->shard_tokens) continue;
        out->is_open = false;
        if (!shard_writer_close(&out->writer, err)) return false;
    }
    return true;
}

static bool write_job(Prepare *p, const Job *job, Error *err) {
    if (!job->ok) {
        *err = job->err;
        return false;
    }
    if (!job->text_bytes) {
        p->info.empty_documents++;
        return true;
    }
    Output *out = job->part.is_val ? &p->val : &p->train;
    int eot = tokenizer_eot(p->tok);
    out->count->bytes += job->text_bytes;
    if (job->part.starts) {
        out->count->documents++;
        if (!output_add(p, out, &eot, 1, err)) return false;
    }
    return output_add(p, out, job->ids.ids, job->ids.n, err);
}

static bool write_batch(Prepare *p, Batch *batch, Error *err) {
    for (int i = 0; i < batch->n; i++) {
        if (!write_job(p, &batch->jobs[i], err)) return false;
    }
    return true;
}

static void drop_texts(Batch *batch) {
    for (int i = 0; i < batch->n; i++) {
        mem_free(batch->jobs[i].part.text);
        batch->jobs[i].part.text = NULL;
        // One large document must not make every slot of the array large for ever.
        if (batch->jobs[i].ids.cap > BATCH_BYTES_PER_THREAD) token_ids_free(&batch->jobs[i].ids);
    }
}

static bool encode_all(Prepare *p, Batch *batch, DocReader *reader, Error *err) {
    int n_threads = p->o->n_threads ? p->o->n_threads : (int)sysconf(_SC_NPROCESSORS_ONLN);
    n_threads = max_int(1, min_int(n_threads, MOST_THREADS));
    for (;;) {
        bool ok = read_batch(batch, reader, (size_t)n_threads * BATCH_BYTES_PER_THREAD, err);
        if (ok) encode_batch(batch, n_threads);
        ok = ok && write_batch(p, batch, err);
        drop_texts(batch);
        if (!ok || !batch->n) return ok;
        tell(p, "encoding", doc_reader_bytes(reader), false);
    }
}

bool prepare_encode(Prepare *p, Error *err) {
    p->started = now_seconds();
    Batch batch = {.p = p, .jobs = mem_alloc(BATCH_PARTS, sizeof *batch.jobs)};
    DocReader *reader = doc_reader_open(&p->docs, p->tok);
    bool ok = encode_all(p, &batch, reader, err);
    for (int i = 0; i < 2; i++) {
        Output *out = i ? &p->val : &p->train;
        if (!out->is_open) continue;
        if (ok)
            ok = shard_writer_close(&out->writer, err);
        else
            shard_writer_abort(&out->writer);
        out->is_open = false;
    }
    p->info.empty_documents += doc_reader_empty(reader);
    if (ok) tell(p, "encoding", doc_reader_bytes(reader), true);
    doc_reader_close(reader);
    for (int i = 0; i < BATCH_PARTS; i++)
        token_ids_free(&batch.jobs[i].ids);
    mem_free(batch.jobs);
    return ok;
}
