// logger.c - see logger.h.
#define _DEFAULT_SOURCE
#include "gpt/logger.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

bool logger_open(Logger *l, const LoggerArgs *args, Error *err) {
    *l = (Logger){.args = *args, .fd = -1};
    if (!args->path) return true;
    l->path = str_copy(args->path);
    l->fd = open(l->path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (l->fd >= 0) return true;
    error_set(err, "%s: cannot open for appending (%s)", l->path, strerror(errno));
    logger_close(l);
    return false;
}

// Leaves the progress line standing and goes on below it.
static void finish_line(Logger *l) {
    if (!l->on_line) return;
    fputc('\n', l->args.out);
    fflush(l->args.out);
    l->on_line = false;
}

void logger_close(Logger *l) {
    finish_line(l);
    if (l->path && l->fd >= 0) close(l->fd);
    mem_free(l->path);
    l->path = NULL;
    l->fd = -1;
}

// Columns of the terminal behind out; 0 when there is none, or one that cannot move its cursor.
static int terminal_columns(const Logger *l) {
    if (l->args.columns > 0) return l->args.columns;
    const char *term = getenv("TERM");
    int fd = fileno(l->args.out);
    struct winsize w;
    if (l->args.columns == LOGGER_PLAIN || fd < 0 || !isatty(fd)) return 0;
    if (!term || strcmp(term, "dumb") == 0) return 0;
    return ioctl(fd, TIOCGWINSZ, &w) == 0 && w.ws_col > 0 ? w.ws_col : 80;
}

// One write for a whole line. What a full disk took only in part is cut off again, so that the file
// stays a file of whole lines.
static void append(Logger *l, const Buf *line) {
    if (l->fd < 0) return;
    struct stat before;
    bool known = fstat(l->fd, &before) == 0;
    ssize_t n = write(l->fd, line->text, line->n);
    if (n == (ssize_t)line->n) {
        if (l->lost)
            logger_say(l, "%s: writing works again; %lld lines are missing", l->path,
                       (long long)l->lost);
        l->lost = 0;
        return;
    }
    int why = n < 0 ? errno : ENOSPC;
    if (n > 0 && known && ftruncate(l->fd, before.st_size)) why = errno;
    if (!l->lost++)
        logger_say(l,
                   "warning: %s: a line could not be written (%s); training goes on "
                   "without it",
                   l->path, strerror(why));
}

void logger_event(Logger *l, int64_t step, const char *event, const LogField *field, int n) {
    Buf b = {0};
    buf_printf(&b, "{\"step\":%" PRId64, step);
    if (event) {
        const LogField name = LOG_FIELD_TEXT("event", event);
        buf_add(&b, ",", 1);
        log_fields_json(&b, &name, 1);
    }
    if (n) buf_add(&b, ",", 1);
    log_fields_json(&b, field, n);
    buf_add(&b, "}\n", 2);
    append(l, &b);
    buf_free(&b);
}

static void show_step(Logger *l, const StepLog *s) {
    const LoggerArgs *a = &l->args;
    int columns = terminal_columns(l);
    Buf b = {0};
    if (columns > 0) {
        // One column stays free: a full line would make some terminals scroll.
        buf_printf(&b, "\r");
        log_step_text(&b, s, a->total_steps, columns > 1 ? columns - 1 : 1);
        buf_printf(&b, "\x1b[K");
        l->on_line = true;
    } else if (s->skipped || s->step <= 1 || s->step == a->total_steps ||
               (a->every > 0 && s->step % a->every == 0)) {
        log_step_text(&b, s, a->total_steps, 0);
        buf_add(&b, "\n", 1);
    }
    if (b.n) {
        fwrite(b.text, 1, b.n, a->out);
        fflush(a->out);
    }
    buf_free(&b);
}

void logger_step(Logger *l, const StepLog *s) {
    const LogField field[] = {
        LOG_FIELD_REAL("loss", s->loss),
        LOG_FIELD_REAL("grad_norm", s->grad_norm),
        LOG_FIELD_REAL("lr", s->lr),
        LOG_FIELD_COUNT("tokens", s->tokens),
        LOG_FIELD_REAL("tokens_per_s", s->tokens_per_s),
        LOG_FIELD_REAL("flops_per_s", s->flops_per_s),
        LOG_FIELD_REAL("elapsed_s", s->elapsed_s),
        LOG_FIELD_BOOL("skipped", s->skipped),
        LOG_FIELD_COUNT("skipped_steps", s->skipped_steps),
        LOG_FIELD_REAL("mfu", s->mfu),  // last: left out when the peak is unknown
    };
    int n = (int)(sizeof field / sizeof field[0]);
    logger_event(l, s->step, NULL, field, s->mfu < 0 ? n - 1 : n);
    show_step(l, s);
}

void logger_say(Logger *l, const char *fmt, ...) {
    va_list args;
    if (l->on_line) fputs("\r\x1b[K", l->args.out);
    l->on_line = false;
    va_start(args, fmt);
    vfprintf(l->args.out, fmt, args);
    va_end(args);
    fputc('\n', l->args.out);
    fflush(l->args.out);
}
