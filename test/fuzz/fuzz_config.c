// fuzz_config.c - libFuzzer target: any bytes as a config.
// Whatever is accepted must print, read back as the same settings and pass or fail the checks
// alike.
//     clang -fsanitize=fuzzer,address,undefined -I. test/fuzz/fuzz_config.c build/libgpt.a ...
#include "gpt/config_table.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char *text = mem_alloc(size + 1, 1);
    if (size) memcpy(text, data, size);
    Config c, again;
    Error err = {0}, err_again = {0};
    if (config_parse(&c, text, "fuzz", &err)) {
        char *json = config_print(&c);
        if (!config_parse(&again, json, "printed", &err)) abort();
        for (int i = 0; i < config_table_n; i++) {
            if (!setting_equal(&config_table[i], &c, &again)) abort();
        }
        mem_free(json);
        if (config_finish(&c, &err) != config_finish(&again, &err_again)) abort();
    } else if (!*err.text) {
        abort();  // refused without a sentence
    }
    // The same bytes as an override.
    config_default(&c);
    if (!config_override(&c, text, &err_again) && !*err_again.text) abort();
    mem_free(text);
    return 0;
}
