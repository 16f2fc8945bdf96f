// logger.h - what a run says while it works: metrics.jsonl for programs, a progress line for
// people. Every line of metrics.jsonl is one JSON object that begins {"step":N; lines without
// "event" are training steps. Numbers have 9 significant digits; a number that is not finite is
// null, and "KEY_is" then says "nan", "inf" or "-inf". Lines are appended whole; a full disk costs
// lines and one warning, not the run.
#pragma once

#include "gpt/util.h"

// One optimizer step.
typedef struct StepLog {
    int64_t step;  // 1 after the first
    double loss;   // nats for each target
    double grad_norm;
    double lr;       // of the matrices, or whichever rate the caller shows
    int64_t tokens;  // trained on since the start of the run
    double tokens_per_s;
    double flops_per_s;
    double mfu;        // share of the machine's peak, 0..1; < 0: the peak is unknown
    double elapsed_s;  // since this process began to train
    double eta_s;      // to the end of the run; < 0: unknown
    bool skipped;      // loss or gradient was not finite, nothing was updated
    int64_t skipped_steps;
} StepLog;

typedef enum LogType { LOG_REAL, LOG_COUNT, LOG_TEXT, LOG_BOOL } LogType;

typedef struct LogField {
    const char *key;
    LogType type;
    double real;
    int64_t count;  // LOG_BOOL: 0 or 1
    const char *text;
} LogField;

#define LOG_FIELD_REAL(k, v)                                                                       \
    { .key = (k), .type = LOG_REAL, .real = (v) }
#define LOG_FIELD_COUNT(k, v)                                                                      \
    { .key = (k), .type = LOG_COUNT, .count = (v) }
#define LOG_FIELD_TEXT(k, v)                                                                       \
    { .key = (k), .type = LOG_TEXT, .text = (v) }
#define LOG_FIELD_BOOL(k, v)                                                                       \
    { .key = (k), .type = LOG_BOOL, .count = (v) }

enum { LOGGER_DETECT = 0, LOGGER_PLAIN = -1 };

typedef struct LoggerArgs {
    const char *path;  // metrics.jsonl, or NULL: none
    FILE *out;         // for people, usually stderr
    int columns;       // of a terminal; LOGGER_DETECT asks out, LOGGER_PLAIN: not a terminal
    int64_t total_steps;
    int64_t every;  // steps between plain lines
} LoggerArgs;

typedef struct Logger {
    LoggerArgs args;
    char *path;    // the logger's copy
    int fd;        // -1: no file
    bool on_line;  // a progress line stands unfinished on the terminal
    int64_t lost;  // lines that could not be written
} Logger;

bool logger_open(Logger *l, const LoggerArgs *args, Error *err);
void logger_close(Logger *l);

// A line of metrics; on a terminal the progress line is redrawn, elsewhere a plain line appears at
// the first and last step, at multiples of `every` and when the step was skipped.
void logger_step(Logger *l, const StepLog *s);
// {"step":N,"event":"EVENT",...}; nothing for people.
void logger_event(Logger *l, int64_t step, const char *event, const LogField *field, int n);
// A line for people, above the progress line.
void logger_say(Logger *l, const char *fmt, ...) PRINTF_LIKE(2, 3);

// --- the texts, for tests and other uses
// The members of a JSON object, without braces.
void log_fields_json(Buf *b, const LogField *field, int n);
// "step 12/100 | loss 3.2145 | ...", at most `columns` characters (0: all), dropping the least
// important parts first.
void log_step_text(Buf *b, const StepLog *s, int64_t total_steps, int columns);
// "42s", "3m20s", "1h02m", "3d04h"; "?" when negative or not finite.
void log_duration_text(char out[24], double seconds);
