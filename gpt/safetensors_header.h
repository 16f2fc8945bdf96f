// safetensors_header.h - the header of a safetensors file: JSON text to a checked table.
// Internal to the reader and its fuzzer. Touches no file.
#pragma once

#include "gpt/safetensors.h"

// Fills tensor, by_name and meta from the n bytes of header text; data_bytes is what the file holds
// behind the header. Sentences start with f->path. On failure f owns what was allocated so far.
bool safetensors_parse(Safetensors *f, const char *header, size_t n, uint64_t data_bytes,
                       Error *err);
