// bench_table.c - rows of figures, printed and as JSON; medians, shares and the rule for
// repetitions. Reads no clock, so that all of it can be tested.
#include "gpt/bench.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void bench_table_open(BenchTable *t, const char *name, const BenchColumn *column, int n_columns) {
    *t = (BenchTable){.name = name, .column = column, .n_columns = n_columns};
}

void bench_table_free(BenchTable *t) {
    for (int i = 0; i < t->n_rows * t->n_columns; i++)
        mem_free(t->cell[i].text);
    mem_free(t->cell);
    t->cell = NULL, t->n_rows = t->cap = 0;
}

static BenchCell *cell_at(const BenchTable *t, int row, int column) {
    return &t->cell[(size_t)row * (size_t)t->n_columns + (size_t)column];
}

int bench_row(BenchTable *t) {
    if (t->n_rows == t->cap) {
        int cap = t->cap ? 2 * t->cap : 16;
        t->cell = mem_grow(t->cell, (size_t)t->cap * (size_t)t->n_columns,
                           (size_t)cap * (size_t)t->n_columns, sizeof(BenchCell));
        t->cap = cap;
    }
    for (int i = 0; i < t->n_columns; i++)
        *cell_at(t, t->n_rows, i) = (BenchCell){.number = NAN};
    return t->n_rows++;
}

void bench_set(BenchTable *t, int row, int column, double number) {
    cell_at(t, row, column)->number = number;
}

void bench_set_text(BenchTable *t, int row, int column, const char *text) {
    BenchCell *c = cell_at(t, row, column);
    mem_free(c->text);
    c->text = str_copy(text);
}

double bench_get(const BenchTable *t, int row, int column) {
    return cell_at(t, row, column)->number;
}

const char *bench_get_text(const BenchTable *t, int row, int column) {
    const char *text = cell_at(t, row, column)->text;
    return text ? text : "";
}

enum { CELL_MAX = 64 };

static void cell_text(char out[CELL_MAX], const BenchTable *t, int row, int column) {
    const BenchColumn *c = &t->column[column];
    double x = bench_get(t, row, column);
    if (c->kind == BENCH_TEXT)
        snprintf(out, CELL_MAX, "%s", bench_get_text(t, row, column));
    else if (isfinite(x))
        snprintf(out, CELL_MAX, "%.*f", c->digits, x / (c->unit > 0 ? c->unit : 1));
    else
        snprintf(out, CELL_MAX, "-");
}

static int column_width(const BenchTable *t, int column) {
    size_t width = strlen(t->column[column].head);
    char text[CELL_MAX];
    for (int row = 0; row < t->n_rows; row++) {
        cell_text(text, t, row, column);
        if (strlen(text) > width) width = strlen(text);
    }
    return (int)width;
}

// One line; row -1 is the heads.
static void print_row(Buf *out, const BenchTable *t, int row, const int *width) {
    char text[CELL_MAX];
    int pending = 0;  // spaces that are written only when something follows
    for (int i = 0; i < t->n_columns; i++) {
        const BenchColumn *c = &t->column[i];
        if (!c->head) continue;
        if (row < 0)
            snprintf(text, sizeof text, "%s", c->head);
        else
            cell_text(text, t, row, i);
        int space = width[i] - (int)strlen(text);
        bool left = c->kind == BENCH_TEXT;
        buf_printf(out, "%*s%s", pending + (left ? 0 : space), "", text);
        pending = 2 + (left ? space : 0);
    }
    buf_printf(out, "\n");
}

void bench_table_print(Buf *out, const BenchTable *t) {
    if (!t->n_rows) return;
    int *width = mem_alloc((size_t)t->n_columns, sizeof(int));
    for (int i = 0; i < t->n_columns; i++)
        width[i] = t->column[i].head ? column_width(t, i) : 0;
    for (int row = -1; row < t->n_rows; row++)
        print_row(out, t, row, width);
    mem_free(width);
}

void bench_json_text(Buf *out, const char *text) {
    buf_add(out, "\"", 1);
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        if (c == '"' || c == '\\')
            buf_printf(out, "\\%c", c);
        else if (c < 0x20)
            buf_printf(out, "\\u%04x", c);
        else
            buf_add(out, text, 1);
    }
    buf_add(out, "\"", 1);
}

void bench_json_number(Buf *out, double x) {
    if (isfinite(x))
        buf_printf(out, "%.9g", x);
    else
        buf_printf(out, "null");
}

void bench_table_json(Buf *out, const BenchTable *t) {
    bench_json_text(out, t->name);
    buf_printf(out, ": [");
    for (int row = 0; row < t->n_rows; row++) {
        buf_printf(out, "%s\n  {", row ? "," : "");
        for (int i = 0; i < t->n_columns; i++) {
            buf_printf(out, "%s\"%s\": ", i ? ", " : "", t->column[i].key);
            if (t->column[i].kind == BENCH_TEXT)
                bench_json_text(out, bench_get_text(t, row, i));
            else
                bench_json_number(out, bench_get(t, row, i));
        }
        buf_printf(out, "}");
    }
    buf_printf(out, "]");
}

void bench_add(BenchTimes *t, double seconds) {
    if (t->n < BENCH_SAMPLES) t->sample[t->n++] = seconds;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_median(const BenchTimes *t) {
    if (t->n == 0) return NAN;
    BenchTimes s = *t;
    qsort(s.sample, (size_t)s.n, sizeof s.sample[0], by_value);
    return (s.sample[(s.n - 1) / 2] + s.sample[s.n / 2]) / 2;
}

double bench_total(const BenchTimes *t) {
    double sum = 0;
    for (int i = 0; i < t->n; i++)
        sum += t->sample[i];
    return sum;
}

double bench_share(double part, double whole) {
    return isfinite(part) && isfinite(whole) && whole > 0 ? part / whole : NAN;
}

bool bench_more(const BenchTimes *t, int repeat, double seconds) {
    if (t->n == 0) return true;
    if (t->n >= repeat || t->n >= BENCH_SAMPLES) return false;
    return bench_total(t) + bench_median(t) <= seconds;
}
