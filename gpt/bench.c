// bench.c - which sections are measured, in which order and for how long, and against which peaks.
// Peaks are measured before the first section and after each; a section's shares use the larger of
// the two around it, since neighbours on the machine only ever lower them.
#include "gpt/bench.h"

#include "gpt/rng.h"

#include <limits.h>
#include <math.h>
#include <string.h>

const char *const bench_section_name[N_BENCH_SECTIONS] = {"peaks", "kernels", "gemm",  "step",
                                                          "muon",  "prefill", "decode"};

// --- What the options mean

// The next word of a list with commas: copied into word, *text moved behind it. False at the end.
static bool next_word(const char **text, char *word, size_t size) {
    if (!**text) return false;
    size_t n = strcspn(*text, ",");
    snprintf(word, size, "%.*s", (int)min_size(n, size - 1), *text);
    *text += n + ((*text)[n] == ',');
    return true;
}

bool bench_parse_sections(const char *text, unsigned *sections, Error *err) {
    char word[32];
    unsigned found = 0;
    while (next_word(&text, word, sizeof word)) {
        int i = 0;
        while (i < N_BENCH_SECTIONS && strcmp(word, bench_section_name[i]))
            i++;
        if (i == N_BENCH_SECTIONS) {
            return error_set(err,
                             "--only expects peaks, kernels, gemm, step, muon, prefill and decode "
                             "with commas between them, found '%s'",
                             word);
        }
        found |= 1u << i;
    }
    if (!found) return error_set(err, "--only names no section");
    *sections = found;
    return true;
}

bool bench_parse_counts(const char *text, int *out, int max, int *n, Error *err) {
    char word[32];
    int found = 0;
    while (next_word(&text, word, sizeof word)) {
        int64_t value;
        if (!parse_i64(word, &value) || value < 0 || value > INT_MAX)
            return error_set(err, "expected counts with commas between them, found '%s'", word);
        if (found == max) return error_set(err, "at most %d counts are taken", max);
        out[found++] = (int)value;
    }
    *n = found;
    return true;
}

bool bench_parse_compute(const char *text, ElemType out[2], int *n, Error *err) {
    char word[32];
    int found = 0;
    while (next_word(&text, word, sizeof word)) {
        bool f32 = strcmp(word, "fp32") == 0;
        if (!f32 && strcmp(word, "bf16"))
            return error_set(err, "--compute expects fp32, bf16 or both with a comma, found '%s'",
                             word);
        ElemType type = f32 ? TYPE_F32 : TYPE_BF16;
        if (found == 2 || (found == 1 && out[0] == type))
            return error_set(err, "--compute names a type twice");
        out[found++] = type;
    }
    if (!found) return error_set(err, "--compute names no type");
    *n = found;
    return true;
}

// --- What the sections share

double bench_item_seconds(Bench *b) {
    double left = b->item_end - now_seconds();
    double seconds = b->items > 0 ? left / b->items : left;
    b->items--;
    return seconds > 0 ? seconds : 0;
}

Config bench_step_config(const Bench *b, const Config *c, ElemType compute) {
    Config out = *c;
    out.model.seq_len = b->tokens ? b->tokens : min_int(1024, c->model.seq_len);
    out.batch.micro_batch = b->batch;
    out.batch.tokens = (int64_t)b->batch * out.model.seq_len;
    out.train.compute = (int)compute;
    return out;
}

void bench_progress(const Bench *b, const char *section, const char *config, const char *what) {
    if (!b->quiet) fprintf(stderr, "bench: %s %s %s\n", section, config, what);
}

// A short run of noise repeated: drawing 40 million numbers would take longer than measuring.
float *bench_noise(size_t n) {
    enum { PERIOD = 65521 };  // prime, so that no two rows of a matrix are the same
    float *x = mem_alloc(n, sizeof(float));
    uint64_t key = rng_key(1, "bench.noise");
    for (size_t i = 0; i < min_size(n, PERIOD); i++)
        x[i] = (float)(0.1 * (rng_uniform(key, i) - 0.5));
    for (size_t done = PERIOD; done < n;) {
        size_t k = min_size(done, n - done);
        memcpy(x + done, x, k * sizeof(float));
        done += k;
    }
    return x;
}

void bench_fill(Model *m) {
    size_t most = 0;
    for (int i = 0; i < m->params.n; i++) {
        size_t n = spec_stored(&m->params.tensor[i].spec);
        if (n > most) most = n;
    }
    float *noise = bench_noise(most);
    for (int i = 0; i < m->params.n; i++) {
        const Tensor *t = &m->params.tensor[i];
        size_t n = spec_stored(&t->spec);
        if (t->spec.type == TYPE_FX && n == spec_logical(&t->spec))
            m->ops->upload((floatX *)(m->param_arena + t->bytes_at), noise, n);
        else
            model_set_tensor(m, i, noise);  // padding stays zero
    }
    m->ops->sync();
    mem_free(noise);
    model_prepare(m);
}

int *bench_ids(size_t n, int V) {
    int *ids = mem_alloc(n, sizeof(int));
    uint64_t key = rng_key(1, "bench.ids");
    for (size_t i = 0; i < n; i++)
        ids[i] = (int)(rng_u64(key, i) % (uint64_t)V);
    return ids;
}

// --- Running

enum { PEAK_TRIES = 3 };

static Peaks larger(Peaks p, Peaks q) {
    p.fma_flops = fmax(p.fma_flops, q.fma_flops);
    p.bf16_flops = fmax(p.bf16_flops, q.bf16_flops);
    p.read_bytes = fmax(p.read_bytes, q.read_bytes);
    return p;
}

static void measure_peaks(Bench *b, const char *when) {
    BenchTable *t = &b->table[BENCH_PEAKS];
    Peaks *p = &b->peaks[b->n_peaks++];
    bench_progress(b, "peaks", when, "");
    // What a neighbour takes away is not the machine's: the best of a few.
    for (int i = 0; i < PEAK_TRIES; i++) {
        Peaks one;
        b->ops[0]->measure_peaks(&one);
        *p = i ? larger(*p, one) : one;
    }
    int row = bench_row(t);
    bench_set_text(t, row, PEAK_WHEN, when);
    bench_set(t, row, PEAK_F32, p->fma_flops);
    bench_set(t, row, PEAK_BF16, p->bf16_flops);
    bench_set(t, row, PEAK_READ, p->read_bytes);
}

static double peak_of(const Peaks *p, const BenchTable *t, int row, int compute_column) {
    if (compute_column < 0) return p->fma_flops;
    bool bf16 = strcmp(bench_get_text(t, row, compute_column), "bf16") == 0;
    return bf16 ? p->bf16_flops : p->fma_flops;
}

// compute_column -1: fp32, whatever the config computes in.
static void share_of_flops(BenchTable *t, const Peaks *p, int speed, int share,
                           int compute_column) {
    for (int i = 0; i < t->n_rows; i++)
        bench_set(t, i, share,
                  bench_share(bench_get(t, i, speed), peak_of(p, t, i, compute_column)));
}

static void share_of_bytes(BenchTable *t, const Peaks *p, int speed, int share) {
    for (int i = 0; i < t->n_rows; i++)
        bench_set(t, i, share, bench_share(bench_get(t, i, speed), p->read_bytes));
}

static void shares(Bench *b, BenchSection section) {
    Peaks p = larger(b->peaks[b->n_peaks - 1], b->peaks[b->n_peaks - 2]);
    BenchTable *t = &b->table[section];
    switch (section) {
    case BENCH_KERNELS:
        share_of_flops(t, &p, KERNEL_SPEED, KERNEL_SPEED_SHARE, KERNEL_COMPUTE);
        share_of_bytes(t, &p, KERNEL_BANDWIDTH, KERNEL_BANDWIDTH_SHARE);
        break;
    case BENCH_GEMM:
        for (int i = 0; i < 3; i++)
            share_of_flops(t, &p, GEMM_SPEED + i, GEMM_SHARE + i, GEMM_COMPUTE);
        break;
    case BENCH_STEP:
        share_of_flops(t, &p, STEP_SPEED, STEP_SHARE, STEP_COMPUTE);
        break;
    case BENCH_MUON:
        share_of_flops(t, &p, MUON_SPEED, MUON_SHARE, -1);
        break;
    default:
        share_of_flops(&b->table[BENCH_PREFILL], &p, PREFILL_SPEED, PREFILL_SHARE, PREFILL_COMPUTE);
        share_of_bytes(&b->table[BENCH_DECODE], &p, DECODE_SPEED, DECODE_SHARE);
    }
}

typedef struct Section {
    unsigned bits;  // chosen when one of these is
    BenchSection last;
    bool (*run)(Bench *b, Error *err);
    double weight;  // of the time
} Section;

static const Section section_list[] = {
    {1u << BENCH_KERNELS, BENCH_KERNELS, bench_kernels, 20},
    {1u << BENCH_GEMM, BENCH_GEMM, bench_gemm, 15},
    {1u << BENCH_STEP, BENCH_STEP, bench_step, 60},
    {1u << BENCH_MUON, BENCH_MUON, bench_muon, 10},
    {1u << BENCH_PREFILL | 1u << BENCH_DECODE, BENCH_DECODE, bench_infer, 15},
};
enum { N_SECTION_LIST = sizeof section_list / sizeof section_list[0] };

bool bench_run(Bench *b, Error *err) {
    double weights = 0;
    for (int i = 0; i < N_SECTION_LIST; i++)
        weights += b->sections & section_list[i].bits ? section_list[i].weight : 0;
    double seconds = b->seconds;
    measure_peaks(b, "start");
    for (int i = 0; i < N_SECTION_LIST; i++) {
        const Section *s = &section_list[i];
        if (!(b->sections & s->bits)) continue;
        double start = now_seconds();
        b->item_end = start + seconds * s->weight / weights;
        if (!s->run(b, err)) return false;
        char when[32];
        snprintf(when, sizeof when, "after %s", bench_section_name[s->last]);
        measure_peaks(b, when);
        shares(b, s->last);
        // What a section saved or overdrew is shared by the ones after it.
        seconds = fmax(seconds - (now_seconds() - start), 0);
        weights -= s->weight;
    }
    return true;
}

void bench_free(Bench *b) {
    for (int i = 0; i < N_BENCH_SECTIONS; i++)
        bench_table_free(&b->table[i]);
    mem_free(b->config);
    b->config = NULL;
}
