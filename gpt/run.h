// run.h - the program behind both mains: subcommands, devices, help.
#pragma once

#include "kernels/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

// A device the binary was built with.
typedef struct Device {
    const char *name;  // "cpu", "cuda"
    // The op table, or NULL with a sentence (no driver, no such card). act: type of activations.
    const Ops *(*open)(ElemType act, Error *err);
} Device;

// What every subcommand gets.
typedef struct Program {
    const Device *devices;  // preferred first
    int n_devices;
} Program;

// argv[0] is the program. Returns the exit status: 0 success, 1 failure, 2 wrong usage.
int gpt_main(int argc, char **argv, const Program *p);

// The table for --device NAME; "auto" takes the first device that opens.
const Ops *program_ops(const Program *p, const char *device, ElemType act, Error *err);

// Whether every one of these is "section.field=value" of a setting that exists, with a value in its
// range; false with a sentence is wrong usage. What the values mean together comes later.
bool program_overrides(const char *const *overrides, int n, Error *err);

// Threads of all computing from now on; 0: as OpenMP chooses, one for each core or OMP_NUM_THREADS.
// Results do not depend on it.
void program_threads(int n);

// Subcommands: argv[0..argc) are the arguments behind the name. With help set they print their help
// to stdout and do nothing else.
typedef int CommandMain(const Program *p, int argc, char **argv, bool help);
CommandMain train_main, generate_main, eval_main, plan_main, bench_main, prepare_command;

// Prints the sentence and returns the status.
int command_failed(const Error *err, int status);

#ifdef __cplusplus
}
#endif
