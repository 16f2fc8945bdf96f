// cmd_prepare.c - train_gpt prepare: the data library's own command behind the program's table.
#include "data/prepare.h"
#include "gpt/run.h"

#include <string.h>

int prepare_command(const Program *p, int argc, char **argv, bool help) {
    (void)p;
    static char name[] = "prepare", help_option[] = "--help";
    char **all = mem_alloc((size_t)argc + 3, sizeof(char *));
    all[0] = name;
    if (argc) memcpy(all + 1, argv, (size_t)argc * sizeof(char *));
    if (help) all[1] = help_option;
    int status = prepare_main(help ? 2 : argc + 1, all);
    mem_free(all);
    return status;
}
