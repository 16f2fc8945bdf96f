// logger_text.c - the texts of logger.h: JSON members, the progress line, durations.
#include "gpt/logger.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

static void json_text(Buf *b, const char *s) {
    buf_add(b, "\"", 1);
    for (; *s; s++) {
        unsigned char c = (unsigned char)*s;
        if (c == '"' || c == '\\')
            buf_printf(b, "\\%c", c);
        else if (c == '\n')
            buf_add(b, "\\n", 2);
        else if (c < 0x20)
            buf_printf(b, "\\u%04x", c);
        else
            buf_add(b, s, 1);
    }
    buf_add(b, "\"", 1);
}

static void json_real(Buf *b, const char *key, double v) {
    if (isfinite(v))
        buf_printf(b, "\"%s\":%.9g", key, v);
    else
        buf_printf(b, "\"%s\":null,\"%s_is\":\"%s\"", key, key,
                   isnan(v) ? "nan"
                   : v > 0  ? "inf"
                            : "-inf");
}

void log_fields_json(Buf *b, const LogField *field, int n) {
    for (int i = 0; i < n; i++) {
        const LogField *f = &field[i];
        if (i) buf_add(b, ",", 1);
        if (f->type == LOG_REAL) {
            json_real(b, f->key, f->real);
            continue;
        }
        buf_printf(b, "\"%s\":", f->key);
        if (f->type == LOG_COUNT)
            buf_printf(b, "%" PRId64, f->count);
        else if (f->type == LOG_BOOL)
            buf_printf(b, f->count ? "true" : "false");
        else if (f->text)
            json_text(b, f->text);
        else
            buf_printf(b, "null");
    }
}

void log_duration_text(char out[24], double seconds) {
    if (!(seconds >= 0 && seconds < 1e12)) {
        snprintf(out, 24, "?");
        return;
    }
    int64_t s = (int64_t)(seconds + 0.5);
    long long d = s / 86400, h = s / 3600 % 24, m = s / 60 % 60;
    if (d)
        snprintf(out, 24, "%lldd%02lldh", d, h);
    else if (h)
        snprintf(out, 24, "%lldh%02lldm", h, m);
    else if (m)
        snprintf(out, 24, "%lldm%02llds", m, (long long)(s % 60));
    else
        snprintf(out, 24, "%llds", (long long)s);
}

// 950, 12.3k, 1.23M: three digits.
static void scaled_text(char out[24], double v, const char *const *unit, int n_units) {
    int u = 0;
    while (fabs(v) >= 999.5 && u + 1 < n_units) {
        v /= 1000;
        u++;
    }
    int digits = fabs(v) >= 99.95 || u == 0 ? 0 : fabs(v) >= 9.995 ? 1 : 2;
    snprintf(out, 24, "%.*f%s", digits, v, unit[u]);
}

enum { PARTS = 7, PART_MAX = 80 };

// The parts in the order of the line; `rank` is the order in which they survive a narrow terminal.
typedef struct Part {
    char text[PART_MAX];
    int rank;
} Part;

static void speed_text(char out[PART_MAX], const StepLog *s) {
    static const char *const unit[] = {" FLOP/s",  " kFLOP/s", " MFLOP/s",
                                       " GFLOP/s", " TFLOP/s", " PFLOP/s"};
    char text[24];
    if (s->mfu >= 0) {
        snprintf(out, PART_MAX, "%.1f%% MFU", 100 * s->mfu);
        return;
    }
    scaled_text(text, s->flops_per_s, unit, 6);
    snprintf(out, PART_MAX, "%s", text);
}

static void make_parts(Part p[PARTS], const StepLog *s, int64_t total_steps) {
    static const char *const unit[] = {"", "k", "M", "G"};
    static const int rank[PARTS] = {0, 1, 6, 5, 3, 4, 2};
    char text[24];
    for (int i = 0; i < PARTS; i++)
        p[i].rank = rank[i];
    snprintf(p[0].text, PART_MAX, "step %" PRId64 "/%" PRId64, s->step, total_steps);
    snprintf(p[1].text, PART_MAX, "loss %.4f%s", s->loss, s->skipped ? " SKIPPED" : "");
    snprintf(p[2].text, PART_MAX, "norm %.3g", s->grad_norm);
    snprintf(p[3].text, PART_MAX, "lr %.3g", s->lr);
    scaled_text(text, s->tokens_per_s, unit, 4);
    snprintf(p[4].text, PART_MAX, "%s tok/s", text);
    speed_text(p[5].text, s);
    log_duration_text(text, s->eta_s);
    snprintf(p[6].text, PART_MAX, "%s left", text);
}

// Length of the line made of the parts whose rank is below `ranks`.
static size_t line_length(const Part p[PARTS], int ranks) {
    size_t n = 0;
    for (int i = 0; i < PARTS; i++) {
        if (p[i].rank < ranks) n += strlen(p[i].text) + (n ? 3 : 0);
    }
    return n;
}

void log_step_text(Buf *b, const StepLog *s, int64_t total_steps, int columns) {
    Part p[PARTS];
    int ranks = PARTS;
    make_parts(p, s, total_steps);
    while (columns > 0 && ranks > 1 && line_length(p, ranks) > (size_t)columns)
        ranks--;
    size_t start = b->n;
    for (int i = 0; i < PARTS; i++) {
        if (p[i].rank < ranks) buf_printf(b, "%s%s", b->n > start ? " | " : "", p[i].text);
    }
    if (columns > 0 && b->n - start > (size_t)columns) {
        b->n = start + (size_t)columns;
        b->text[b->n] = 0;
    }
}
