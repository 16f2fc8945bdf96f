// run.h - the program behind both mains: subcommands, devices, help.
#pragma once

#include "gpt/cli.h"
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

// Threads of all computing from now on; 0: as OpenMP chooses, one for each core or OMP_NUM_THREADS.
// Results do not depend on it.
void program_threads(int n);

// Subcommands: argv[0..argc) are the arguments behind the name. With help set they print their help
// to stdout and do nothing else.
typedef int CommandMain(const Program *p, int argc, char **argv, bool help);
CommandMain train_main, generate_main, eval_main, plan_main, bench_main, prepare_command;

enum { ARGUMENTS_MAX = 128 };

// The command line of a subcommand: what it takes, then what was given.
typedef struct CommandLine {
    const Option *options;
    int n_options;
    const char *expects;  // the sentence when no subject is given; NULL: none is needed
    const char *note;     // below the options in help, or NULL
    bool many;            // subjects are all arguments without '=', else the first one alone
    // Pointers into argv, filled by command_line.
    const char *subject[ARGUMENTS_MAX], *setting[ARGUMENTS_MAX];
    int n_subjects, n_settings;
} CommandLine;

// Reads argv into the options' values, subjects and settings, or prints the help. True to go on;
// false: the subcommand ends with *status, 0 after help and 2 after a sentence about wrong usage.
// Settings are "section.field=value" of a setting that exists, with a value in its range; what the
// values mean together comes later.
bool command_line(CommandLine *c, int argc, char **argv, bool help, int *status);

// Prints the sentence and returns the status.
int command_failed(const Error *err, int status);

#ifdef __cplusplus
}
#endif
