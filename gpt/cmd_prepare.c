// cmd_prepare.c - train_gpt prepare: the data library's own command behind the program's table.
#include "data/prepare.h"
#include "gpt/run.h"

int prepare_command(const Program *p, int argc, char **argv, bool help) {
    (void)p;
    return prepare_main(argc, argv, help);
}
